"""Starts host agents on the nodes of a Ray cluster: a placement group with one bundle per host, and in each an actor.

The actor runs the agent as its child and passes standard input and output on. When the controller or the actor dies,
the agent's input ends, and the agent with it. Ray takes 15 s and more to report a dead node; heartbeats do so earlier.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshbook.runtime.config import open_private
from meshbook.runtime.errors import LaunchError
from meshbook.runtime.hosts.launchers import AgentProcess, agent_environment
from meshbook.runtime.interrupts import allow_interrupts

KILLED = -9
LOOK_SECONDS = 0.1  # polling interval for a kill
TAIL_BYTES = 65536  # of an agent's stderr that is kept
ACTOR_SECONDS = 10.0  # for an actor to start an agent, or to pass input on
# Set for the first process of this program that connects to Ray.
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayConnection:
    """The connection to Ray that launchers have made. The last one disconnects."""

    users = 0


class RayLauncher:
    """So many nodes of a Ray cluster, each with these resources: {"GPU": 8}.

    It connects to the cluster at `address`, unless the program is connected to one. LaunchError if Ray is missing, or
    does not have the nodes within `timeout` seconds. `gpus_if_any` GPUs of each are added if the cluster has GPUs.
    """

    outlives_controller = False  # Ray ends the actors of a program with it
    lifelines: Sequence[Path] = ()

    def __init__(
        self, num_hosts: int, resources: Mapping[str, float], *, address: str, timeout: float, gpus_if_any: int = 0
    ) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            import ray  # an extra, and a large one
            from ray.util.placement_group import placement_group
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
        except ImportError as error:
            raise LaunchError(f"Ray is not installed here ({error}): pip install 'meshbook[ray]'") from error
        self._ray: Any = ray
        self._group: Any = None
        if is_first := not ray.is_initialized():
            RayConnection.users = 0
            try:
                ray.init(address=address, log_to_driver=False, namespace="meshbook")
            except ConnectionError as error:
                raise LaunchError(f"no Ray cluster can be reached at {address!r}: {error}") from error
        self._shares_connection = is_first or RayConnection.users > 0
        RayConnection.users += self._shares_connection
        try:
            bundle = {"CPU": 1, **resources}
            if gpus_if_any and ray.cluster_resources().get("GPU"):
                bundle["GPU"] = gpus_if_any
            self._group = placement_group([bundle] * num_hosts, strategy="STRICT_SPREAD")
            with allow_interrupts():
                is_granted = self._group.wait(timeout)
            if not is_granted:
                raise LaunchError(
                    f"Ray has no {num_hosts} nodes with {bundle} each within {timeout:g} s; free in the cluster: "
                    f"{ray.available_resources()}"
                )
            options: dict[str, Any] = {
                "num_cpus": bundle["CPU"],
                "num_gpus": bundle.get("GPU", 0),
                "resources": {name: value for name, value in bundle.items() if name not in ("CPU", "GPU")},
                "max_concurrency": 4,
                "runtime_env": {"env_vars": {"PYTHONPATH": agent_environment()["PYTHONPATH"]}},
            }
            runner = ray.remote(AgentRunner)
            actors = [
                runner.options(
                    **options, scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, index)
                ).remote()
                for index in range(num_hosts)
            ]
            with allow_interrupts():
                names = ray.get([actor.host.remote() for actor in actors], timeout=timeout)
        except ray.exceptions.GetTimeoutError as error:
            self.close()
            limit = f"{timeout:g} s (MESHBOOK_LAUNCH_TIMEOUT)"
            raise LaunchError(f"Ray has not started actors for the hosts within {limit}") from error
        except ray.exceptions.RayError as error:
            self.close()
            raise LaunchError(f"Ray cannot start actors for the hosts: {error}") from error
        except BaseException:
            self.close()
            raise
        unique = [name if names.count(name) == 1 else f"{name}-{index}" for index, name in enumerate(names)]
        self._actors = dict(zip(unique, actors, strict=True))

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts: those of their machines, numbered where several nodes have the same."""
        return list(self._actors)

    def is_local(self, host: str) -> bool:
        return False

    def start(self, host: str, agent: Sequence[str], log: Path) -> AgentProcess:
        try:
            return RayProcess(self._ray, self._actors[host], agent, log)
        except self._ray.exceptions.RayError as error:
            raise OSError(str(error)) from error

    def give_back(self, host: str) -> None:
        """End the actor of this host. Ray frees a bundle of a placement group only with the whole group, in `close`."""
        if (actor := self._actors.pop(host, None)) is not None and self._ray.is_initialized():
            self._ray.kill(actor)

    def close(self) -> None:
        """Return the nodes to Ray; disconnect if launchers have connected, and this is the last one."""
        group, self._group = self._group, None
        if group is not None and self._ray.is_initialized():
            self._ray.util.remove_placement_group(group)
        if self._shares_connection:
            self._shares_connection = False
            RayConnection.users -= 1
            if not RayConnection.users and self._ray.is_initialized():
                self._ray.shutdown()


class RayProcess:
    """The agent that a Ray actor runs, with the methods of a `Popen`."""

    def __init__(self, ray: Any, actor: Any, agent: Sequence[str], log: Path) -> None:
        self._ray, self._actor, self._log = ray, actor, log
        os.close(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600))
        self._is_killed = threading.Event()
        self._owner = os.getpid()
        self.pid: int = ray.get(actor.start.remote(list(agent)), timeout=ACTOR_SECONDS)
        self._end = actor.wait.remote()
        self.stdin: Any = _Input(self._tell)
        self.stdout: Any = _Output(self._read_line)

    def _tell(self, method: str, *arguments: Any) -> None:
        if os.getpid() != self._owner or self._is_over():
            raise BrokenPipeError("this process is a fork, or the actor or the connection to Ray has ended")
        try:
            self._ray.get(getattr(self._actor, method).remote(*arguments), timeout=ACTOR_SECONDS)
        except Exception as error:  # the actor has died or does not answer, or Ray was shut down
            raise BrokenPipeError(str(error)) from error

    def _read_line(self, limit: int = -1) -> bytes:
        del limit  # a line is read as a whole
        line: bytes = self._get(self._actor.read_line.remote(), b"")
        if not line:
            self._store_log()
        return line

    def _is_over(self) -> bool:
        """Whether the actor cannot be reached: `ray.get` would then connect to a cluster of its own."""
        return self._is_killed.is_set() or not self._ray.is_initialized()

    def poll(self) -> int | None:
        if self._is_over():
            return KILLED
        try:
            ended, _ = self._ray.wait([self._end], timeout=0)
        except Exception:  # Ray was shut down
            return KILLED
        return self._get(self._end, KILLED) if ended else None

    def wait(self, timeout: float | None = None) -> int:
        waited = 0.0
        while (code := self.poll()) is None:
            if timeout is not None and waited >= timeout:
                raise subprocess.TimeoutExpired("ray actor", timeout)
            self._is_killed.wait(LOOK_SECONDS)
            waited += LOOK_SECONDS
        if not self._is_killed.is_set():
            self._store_log()
        return code

    def kill(self) -> None:
        """Kill the actor. Its agent then reads the end of its input, and ends."""
        if not self._is_killed.is_set():
            self._is_killed.set()
            if self._ray.is_initialized():
                self._ray.kill(self._actor)

    def _store_log(self) -> None:
        tail = b""
        with contextlib.suppress(Exception):  # Ray was shut down
            tail = self._get(self._actor.tail.remote(), b"")
        with open(self._log, "wb", opener=open_private) as log:
            log.write(tail)

    def _get(self, reference: Any, default: Any) -> Any:
        """Return the answer of the actor, or the default if the actor has died."""
        while not self._is_over():
            try:
                return self._ray.get(reference, timeout=LOOK_SECONDS)
            except self._ray.exceptions.GetTimeoutError:
                continue
            except Exception:  # the actor has died, or Ray was shut down
                break
        return default


class _Input:
    """Standard input of a remote agent."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self.closed = False

    def write(self, data: bytes) -> int:
        self._tell("write", data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: each write is sent at once."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._tell("close_input")


class _Output:
    """Standard output of a remote agent."""

    def __init__(self, read_line: Any) -> None:
        self.readline = read_line

    def close(self) -> None:
        """Do nothing: the pipe is the actor's."""


class AgentRunner:
    """The Ray actor of one host: it runs an agent as its child."""

    def host(self) -> str:
        """Return the name of the machine as a host's name."""
        return "".join(mark if mark.isalnum() or mark in "-." else "-" for mark in os.uname().nodename)[:36]

    def start(self, agent: list[str]) -> int:
        """Start the agent, without the settings that Ray makes for its own workers; return its process id."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        kept.pop("OMP_NUM_THREADS", None)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the actor
        self._process = subprocess.Popen(
            agent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=kept,
            start_new_session=True,
        )
        return self._process.pid

    def write(self, data: bytes) -> None:
        """Write to the agent's standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def close_input(self) -> None:
        """Close the agent's standard input, which makes it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def read_line(self) -> bytes:
        """Return the next line of the agent's standard output; empty at its end."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def wait(self) -> int:
        """Wait for the end of the agent; return its exit status."""
        return self._process.wait()

    def tail(self) -> bytes:
        """Return the end of the agent's stderr."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
