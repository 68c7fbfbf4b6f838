"""Hosts beyond the controller's own: by SSH, Slurm, Ray, or a command for each.

    hosts = meshbook.hosts.ssh(["gpu1", "gpu2"])
    procs = hosts.spawn_procs(per_host={"gpus": 8})

Each function starts a host agent on some machines and returns their `HostMesh`, with a dimension `hosts`. From then on
they work as one host does: processes are spawned on the mesh, actors on these, and any process can send to any other.
Messages between hosts are encrypted (CURVE), with keys that only this run has; an agent receives them on its standard
input. meshbook must be importable on each host, as an installed package or at the path that it has here.

All functions take these arguments:

- `python`: the interpreter on the hosts, by default the path of this one; or a dict with some hosts' by name.
- `environment`: variables of the processes there: `{"HF_HOME": "/data", "gpu2": {"HF_HOME": "/scratch"}}`. A dict as a
  value holds the variables of the host of that name.
- `addresses`: the IP address of a host, by name, if it is not the one from which the host reaches the controller.
- `progress`: called with the number of hosts that are up and of all hosts, as they come up.

A host that is silent for `Settings.host_timeout` (MESHBOOK_HOST_TIMEOUT, 1.7 s) is lost, and its processes with it; a
shorter network outage loses nothing. All hosts end with the session.

Each function raises LaunchError, with the host's name and what its launcher printed, if a host does not come up within
`Settings.launch_timeout` (MESHBOOK_LAUNCH_TIMEOUT); ValueError for invalid arguments; RuntimeError in a worker: only
the client starts hosts.
"""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshbook.runtime.actor.context import context
from meshbook.runtime.hosts.launchers import CommandLauncher, Launcher, SshLauncher
from meshbook.runtime.hosts.ray_launcher import RayLauncher
from meshbook.runtime.hosts.remote_hosts import Progress
from meshbook.runtime.hosts.session import Session, current_session, running_session
from meshbook.runtime.hosts.slurm_launcher import SlurmLauncher, can_request_gpus
from meshbook.runtime.hosts.worker_loop import AttachLauncher
from meshbook.runtime.interrupts import hold_interrupts
from meshbook.runtime.mesh.hosts import HostMesh

__all__ = ["attach", "command", "load", "local", "ray", "slurm", "ssh", "start"]

AnyPath = str | os.PathLike[str]
Python = AnyPath | Mapping[str, AnyPath]
Environment = Mapping[str, str | Mapping[str, str]]
Launch = Callable[[Session], tuple[Launcher, Sequence[str]]]
EXAMPLES = "slurm:4, ssh:gpu1,gpu2, ray:4, local:2, cluster.toml or the name of a table in hosts.toml"


def command(
    commands: Mapping[str, Sequence[str]],
    *,
    python: Python = "",
    environment: Environment | None = None,
    addresses: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> HostMesh:
    """Start a host for each name by a command, wait until all are up, and return their mesh.

    A command is the prefix that runs the host agent there: `["ip", "netns", "exec", "h1"]`, or an empty one for another
    host on this machine. It must pass standard input and output on; the agent ends when its input is closed. While all
    hosts of the run are on this machine, they listen on the loopback interface only.
    """
    for name, words in commands.items():
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise ValueError(
                f"host {name}: the command must be a list of strings such as ['ssh', 'gpu1'], not {words!r}"
            )
    names = _checked_names(commands)
    return _start(lambda session: (CommandLauncher(commands), names), python, environment, addresses, progress)


def local(
    num_hosts: int = 2,
    *,
    python: Python = "",
    environment: Environment | None = None,
    addresses: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> HostMesh:
    """Start so many hosts on this machine, named local-0, local-1, ...: a stand-in for a cluster, to try programs.

    Names of running hosts are left out.
    """
    _check_count("num_hosts", num_hosts)
    session = running_session()
    known = {host.name for host in session.remote} if session is not None else set()
    free = (name for number in itertools.count() if (name := f"local-{number}") not in known)
    commands: dict[str, Sequence[str]] = {name: [] for name in itertools.islice(free, num_hosts)}
    return command(commands, python=python, environment=environment, addresses=addresses, progress=progress)


def ssh(
    hosts: Sequence[str],
    *,
    options: Sequence[str] = (),
    python: Python = "",
    environment: Environment | None = None,
    addresses: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> HostMesh:
    """Start a host on each of these machines by OpenSSH's client: `gpu1`, `user@gpu2`, or a name of `~/.ssh/config`.

    `ssh HOST true` must work without a password. `options` are further arguments of ssh, as ["-i", "key"].
    """
    if isinstance(hosts, str) or not all(isinstance(host, str) for host in hosts):
        raise ValueError(f"hosts must be a list of names such as ['gpu1', 'user@gpu2'], not {hosts!r}")
    destinations = {host.rpartition("@")[2]: host for host in hosts}
    if len(destinations) < len(hosts):
        raise ValueError(f"a host is named twice: {list(hosts)}")
    names = _checked_names(destinations)

    def launch(session: Session) -> tuple[Launcher, Sequence[str]]:
        return SshLauncher(destinations, options, session.settings.launch_timeout), names

    return _start(launch, python, environment, addresses, progress)


def slurm(
    nodes: int | None = None,
    *,
    gpus_per_node: int | None = None,
    time: str = "",
    partition: str = "",
    account: str = "",
    options: Sequence[str] = (),
    python: Python = "",
    environment: Environment | None = None,
    addresses: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> HostMesh:
    """Start a host on each node of a Slurm allocation.

    Inside an allocation these are its first `nodes` nodes, by default all. Outside, `salloc` requests an allocation
    with these arguments and further `options`, as ["--exclusive"]. The call waits until Slurm grants it, and an
    interrupt cancels the request. It is released when the hosts end. `time` is in Slurm's format: "2:00:00".
    """
    _check_count("nodes", nodes)
    _check_count("gpus_per_node", gpus_per_node)
    named = {"time": time, "partition": partition, "account": account}
    words = [*(f"--{name}={value}" for name, value in named.items() if value), *options]

    def launch(session: Session) -> tuple[Launcher, Sequence[str]]:
        log = session.folder.path / "salloc.log"
        launcher = SlurmLauncher(nodes, gpus_per_node=gpus_per_node, options=words, log=log)
        return launcher, launcher.hosts

    return _start(launch, python, environment, addresses, progress)


def ray(
    num_hosts: int = 1,
    *,
    resources: Mapping[str, float] | None = None,
    address: str = "auto",
    python: Python = "",
    environment: Environment | None = None,
    addresses: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> HostMesh:
    """Start a host on each of so many nodes of a Ray cluster, which has `resources` of that node: {"GPU": 8}.

    `address` is that of the cluster, as in `ray.init`; a program that is connected to Ray keeps its connection. The
    nodes are returned to Ray when the hosts end. Needs the extra `meshbook[ray]`.
    """
    return _start(_use_ray(num_hosts, resources or {}, address), python, environment, addresses, progress)


def _use_ray(num_hosts: int, resources: Mapping[str, float], address: str, gpus_if_any: int = 0) -> Launch:
    _check_count("num_hosts", num_hosts)

    def launch(session: Session) -> tuple[Launcher, Sequence[str]]:
        timeout = session.settings.launch_timeout
        launcher = RayLauncher(num_hosts, resources, address=address, timeout=timeout, gpus_if_any=gpus_if_any)
        return launcher, launcher.hosts

    return launch


def attach(
    workers: Sequence[str],
    *,
    name: str = "worker",
    environment: Environment | None = None,
    addresses: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> HostMesh:
    """Return the hosts of the worker loops at these addresses: `tcp://gpu1:22222`, or `ipc://name` on this machine.

    A machine runs such a loop by `meshbook worker tcp://gpu1:22222`. It must have the client's key,
    `worker.key` in `~/.config/meshbook`, which either side makes, or MESHBOOK_WORKER_KEY. The loop outlives its client,
    and serves the next one. `HostMesh.shutdown` ends it. The hosts are called NAME-0, NAME-1, ...
    """
    if isinstance(workers, str) or not all(isinstance(worker, str) for worker in workers):
        raise ValueError(f"workers must be a list of addresses such as ['tcp://gpu1:22222'], not {workers!r}")
    by_name = {f"{name}-{index}": address for index, address in enumerate(workers)}
    names = _checked_names(by_name)

    def launch(session: Session) -> tuple[Launcher, Sequence[str]]:
        return AttachLauncher(by_name, session.settings.launch_timeout), names

    return _start(launch, "", environment, addresses, progress)


def load(file: AnyPath, name: str = "", *, progress: Progress | None = None) -> HostMesh:
    """Start the hosts that a TOML file describes: a launcher's name, and its arguments.

        [lab]
        launcher = "ssh"
        hosts = ["gpu1", "gpu2"]
        environment = {HF_HOME = "/data"}

    `name` selects a table; it may be left out if the file has only one.
    """
    tables = _read_tables(file)
    if not name and len(tables) == 1:
        [name] = tables
    if name not in tables:
        raise ValueError(f"{os.fspath(file)} has no table {name!r}; it has: {', '.join(tables) or 'none'}")
    arguments: dict[str, Any] = dict(tables[name])
    launcher = arguments.pop("launcher", None)
    if launcher not in _LAUNCHERS:
        names = ", ".join(_LAUNCHERS)
        raise ValueError(f"{os.fspath(file)}: launcher of [{name}] must be one of {names}, not {launcher!r}")
    try:
        return _LAUNCHERS[launcher](**arguments, progress=progress)
    except TypeError as error:
        raise ValueError(f"{os.fspath(file)}: [{name}]: {error}") from error


_LAUNCHERS: dict[str, Callable[..., HostMesh]] = {
    "attach": attach,
    "command": command,
    "local": local,
    "ray": ray,
    "slurm": slurm,
    "ssh": ssh,
}


def start(text: str, *, gpus_per_host: int | None = None, progress: Progress | None = None) -> HostMesh:
    """Start the hosts that a short text describes, as in `%mesh up --hosts TEXT`.

    `slurm:4` and `slurm` (all nodes of this allocation), `ssh:gpu1,gpu2`, `ray:4`, `local:2`, `cluster.toml` or
    `cluster.toml:lab` (see `load`), or `lab`: the table of that name in `hosts.toml` of the current folder or of
    `~/.config/meshbook`. Slurm and Ray are asked for `gpus_per_host` GPUs of each host if the cluster has any.
    """
    launcher, colon, argument = text.partition(":")
    if launcher == "ssh" and colon:
        return ssh([host for host in argument.split(",") if host], progress=progress)
    if launcher == "slurm":
        nodes = _count_in(text, argument) if colon else None
        gpus = gpus_per_host if gpus_per_host and can_request_gpus() else None
        return slurm(nodes, gpus_per_node=gpus, progress=progress)
    if launcher == "ray":
        launch = _use_ray(_count_in(text, argument) if colon else 1, {}, "auto", gpus_if_any=gpus_per_host or 0)
        return _start(launch, "", None, None, progress)
    if launcher == "local" and colon:
        return local(_count_in(text, argument), progress=progress)
    if launcher.endswith(".toml"):
        return load(Path(launcher).expanduser(), argument, progress=progress)
    for file in setup_files():
        if file.is_file() and text in _read_tables(file):
            return load(file, text, progress=progress)
    raise ValueError(f"no hosts are known as {text!r}; examples: {EXAMPLES}")


def setup_files() -> list[Path]:
    """Return the files in which named set-ups are looked up, in order; they need not exist."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return [Path("hosts.toml"), Path(home, "meshbook", "hosts.toml")]


def setup_names() -> list[str]:
    """Return the names of the set-ups in the `hosts.toml` files. Unreadable files are left out."""
    names: dict[str, None] = {}
    for file in setup_files():
        try:
            names |= dict.fromkeys(_read_tables(file))
        except (OSError, ValueError):
            continue
    return list(names)


def _read_tables(file: AnyPath) -> dict[str, Any]:
    with open(file, "rb") as source:
        try:
            tables = tomllib.load(source)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{os.fspath(file)}: {error}") from error
    return {key: value for key, value in tables.items() if isinstance(value, dict)}


def _count_in(text: str, argument: str) -> int:
    if not (argument.isdecimal() and 0 < int(argument) < 1_000_000):
        raise ValueError(f"{text!r} needs a number of hosts after the colon, as in slurm:4")
    return int(argument)


def _start(
    launch: Launch,
    python: Python,
    environment: Environment | None,
    addresses: Mapping[str, str] | None,
    progress: Progress | None,
) -> HostMesh:
    """Start the hosts that a launcher offers by their names."""
    if context().actor_instance.node.place is not None:
        raise RuntimeError("only the client can start hosts; pass their HostMesh to this actor instead")
    session = current_session()
    hosts: HostMesh | None = None
    try:
        with hold_interrupts("the hosts are ended again"):
            launcher, names = launch(session)
            try:
                given = python if isinstance(python, Mapping) else dict.fromkeys(names, python)
                pythons = _by_host("python", given, names)
                variables = _variables_by_host(environment or {}, names)
                _by_host("addresses", addresses or {}, names)
                paths = {name: os.fspath(path) for name, path in pythons.items()}
            except (TypeError, ValueError):
                launcher.close()
                raise
            hosts = session.remote.start(
                launcher,
                names,
                addresses=addresses or {},
                python=paths,
                environment=variables,
                progress=progress,
            )
        return hosts  # noqa: RET504 - the handler below uses it
    except KeyboardInterrupt:
        if hosts is not None:  # the caller gets no handle to end them
            hosts.shutdown()
        raise


def _by_host(argument: str, values: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    if unknown := [name for name in values if name not in names]:
        raise ValueError(f"{argument}: no host is named {unknown[0]!r}; the hosts are {', '.join(names)}")
    return values


def _variables_by_host(environment: Environment, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the variables of each host."""
    common = {name: value for name, value in environment.items() if not isinstance(value, Mapping)}
    special = {name: value for name, value in environment.items() if isinstance(value, Mapping)}
    _by_host("environment", special, names)
    found = {name: {**common, **special.get(name, {})} for name in names}
    for variables in found.values():
        if wrong := [name for name, value in variables.items() if not isinstance(value, str)]:
            raise ValueError(f"environment: the value of {wrong[0]} must be a string, not {variables[wrong[0]]!r}")
    return found


def _checked_names(hosts: Iterable[str]) -> list[str]:
    names = list(hosts)
    if not names:
        raise ValueError("no host is named; name at least one, such as gpu1")
    for name in names:
        if not (isinstance(name, str) and 0 < len(name) <= 40 and name.replace("-", "").replace(".", "").isalnum()):
            raise ValueError(f"invalid host name {name!r}; use at most 40 letters, digits, dots and dashes")
    return names


def _check_count(name: str, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
