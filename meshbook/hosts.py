"""Hosts beyond the controller's own: by SSH, Slurm, Ray, or a command for each.

    hosts = meshbook.hosts.ssh(["gpu1", "gpu2"])
    procs = hosts.spawn_procs(per_host={"gpus": 8})

Each function starts a host agent on some machines and returns their `HostMesh`, with a dimension `hosts`. From then on
they work as one host does: processes are spawned on the mesh, actors on these, and any process can send to any other.
Messages between hosts are encrypted (CURVE), with keys that only this run has; an agent receives them on its standard
input. meshbook must be importable on each host, as an installed package or at the path that it has here.

A host is reached at the address from which it reaches the controller, unless `addresses` names another. A host that is
silent for `Settings.host_timeout` (MESHBOOK_HOST_TIMEOUT, 1.7 s) is lost, and its processes with it; a shorter network
outage loses nothing. All hosts end with the session.

Each function raises LaunchError, with the host's name and what its launcher printed, if a host does not come up within
`Settings.launch_timeout` (MESHBOOK_LAUNCH_TIMEOUT); ValueError for invalid arguments; RuntimeError in a worker: only
the client starts hosts.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from meshbook.runtime.actor.context import context
from meshbook.runtime.hosts.launchers import CommandLauncher, Launcher, SshLauncher
from meshbook.runtime.hosts.ray_launcher import RayLauncher
from meshbook.runtime.hosts.session import Session, current_session
from meshbook.runtime.hosts.slurm_launcher import SlurmLauncher
from meshbook.runtime.mesh.hosts import HostMesh

__all__ = ["command", "load", "ray", "slurm", "ssh"]

Path = str | os.PathLike[str]


def command(
    commands: Mapping[str, Sequence[str]], *, addresses: Mapping[str, str] | None = None, python: Path = ""
) -> HostMesh:
    """Start a host for each name by a command, wait until all are up, and return their mesh.

    A command is the prefix that runs the host agent there: `["ip", "netns", "exec", "h1"]`, or an empty one for another
    host on this machine. It must pass standard input and output on; the agent ends when its input is closed. `python`
    is the interpreter there, by default this one. While all hosts of the run are on this machine, they listen on the
    loopback interface only.
    """
    for name, words in commands.items():
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise ValueError(
                f"host {name}: the command must be a list of strings such as ['ssh', 'gpu1'], not {words!r}"
            )
    names = _checked_names(commands)
    return _start(lambda session: (CommandLauncher(commands), names), addresses, python)


def ssh(
    hosts: Sequence[str],
    *,
    python: Path = "",
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> HostMesh:
    """Start a host on each of these machines by OpenSSH's client: `gpu1`, `user@gpu2`, or a name of `~/.ssh/config`.

    `ssh HOST true` must work without a password. `options` are further arguments of ssh, as ["-i", "key"]; `python` is
    the interpreter there, by default the same path as here; `environment` is added to the processes' environment.
    """
    if isinstance(hosts, str) or not all(isinstance(host, str) for host in hosts):
        raise ValueError(f"hosts must be a list of names such as ['gpu1', 'user@gpu2'], not {hosts!r}")
    destinations = {host.rpartition("@")[2]: host for host in hosts}
    if len(destinations) < len(hosts):
        raise ValueError(f"a host is named twice: {list(hosts)}")
    names = _checked_names(destinations)

    def launch(session: Session) -> tuple[Launcher, Sequence[str]]:
        timeout = session.settings.launch_timeout
        return SshLauncher(destinations, options, environment or {}, timeout), names

    return _start(launch, addresses, python)


def slurm(
    nodes: int | None = None,
    *,
    gpus_per_node: int | None = None,
    time: str = "",
    partition: str = "",
    account: str = "",
    options: Sequence[str] = (),
    python: Path = "",
    addresses: Mapping[str, str] | None = None,
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

    return _start(launch, addresses, python)


def ray(
    num_hosts: int = 1,
    *,
    resources: Mapping[str, float] | None = None,
    address: str = "auto",
    python: Path = "",
    addresses: Mapping[str, str] | None = None,
) -> HostMesh:
    """Start a host on each of so many nodes of a Ray cluster, which has `resources` of that node: {"GPU": 8}.

    `address` is that of the cluster, as in `ray.init`; a program that is connected to Ray keeps its connection. The
    nodes are returned to Ray when the hosts end. Needs the extra `meshbook[ray]`.
    """
    _check_count("num_hosts", num_hosts)

    def launch(session: Session) -> tuple[Launcher, Sequence[str]]:
        timeout = session.settings.launch_timeout
        launcher = RayLauncher(num_hosts, resources or {}, address=address, timeout=timeout)
        return launcher, launcher.hosts

    return _start(launch, addresses, python)


def load(file: Path, name: str = "") -> HostMesh:
    """Start the hosts that a TOML file describes: a launcher's name, and its arguments.

        [lab]
        launcher = "ssh"
        hosts = ["gpu1", "gpu2"]

    `name` selects a table; it may be left out if the file has only one.
    """
    with open(file, "rb") as source:
        try:
            tables = tomllib.load(source)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{os.fspath(file)}: {error}") from error
    known = [key for key, value in tables.items() if isinstance(value, dict)]
    if not name and len(known) == 1:
        [name] = known
    if name not in known:
        raise ValueError(f"{os.fspath(file)} has no table {name!r}; it has: {', '.join(known) or 'none'}")
    arguments: dict[str, Any] = dict(tables[name])
    launchers: dict[str, Callable[..., HostMesh]] = {"command": command, "ray": ray, "slurm": slurm, "ssh": ssh}
    launcher = arguments.pop("launcher", None)
    if launcher not in launchers:
        names = ", ".join(launchers)
        raise ValueError(f"{os.fspath(file)}: launcher of [{name}] must be one of {names}, not {launcher!r}")
    try:
        return launchers[launcher](**arguments)
    except TypeError as error:
        raise ValueError(f"{os.fspath(file)}: [{name}]: {error}") from error


def _start(
    launch: Callable[[Session], tuple[Launcher, Sequence[str]]], addresses: Mapping[str, str] | None, python: Path
) -> HostMesh:
    """Start the hosts that a launcher offers by their names."""
    if context().actor_instance.node.place is not None:
        raise RuntimeError("only the client can start hosts; pass their HostMesh to this actor instead")
    session = current_session()
    launcher, names = launch(session)
    return session.remote.start(launcher, names, addresses=addresses or {}, python=os.fspath(python))


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
