"""Observation of a host's workers from outside: for ranks that do not answer, because they are stopped or stuck in C.

No code of this module runs in the worker. For a rank's own report see `meshbook.runtime.cells.thread_stacks`.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.node.call_table import Target

OBSERVER = "observer"  # the actor of every host agent
SPY_PATIENCE = 2.0  # seconds for py-spy, which takes some 20 ms
_STATES = {"T": "stopped (SIGSTOP)", "t": "stopped by a debugger", "Z": "ended", "X": "ended", "": "ended"}


class SampledFrame(msgspec.Struct, frozen=True):
    """A frame as reported by py-spy."""

    name: str
    filename: str
    line: int


class SampledThread(msgspec.Struct, frozen=True):
    """A thread as reported by py-spy, the innermost frame first."""

    thread_name: str | None
    owns_gil: bool
    frames: tuple[SampledFrame, ...]


_decode_threads = msgspec.json.Decoder(tuple[SampledThread, ...]).decode


@dataclass(frozen=True, slots=True)
class Observation:
    """A process as seen by its host. `state` is its main thread's state in /proc; empty: there is no such process."""

    pid: int
    state: str
    waits_in: str = ""  # the kernel function that it waits in, where known
    threads: tuple[SampledThread, ...] | None = None  # None: py-spy is not installed, or lacks the permission

    @property
    def trouble(self) -> str:
        """The visible reason why such a process does not answer, such as `stopped (SIGSTOP)`."""
        if self.state in _STATES:
            return _STATES[self.state]
        if self.state == "D":
            return f"waits in the operating system{self._waits_in} and cannot be interrupted"
        if self.threads is not None and not any(thread.owns_gil for thread in self.threads):
            return "its threads do not respond"
        doing = "computes" if self.state == "R" else f"waits{self._waits_in}"
        return f"holds the GIL in C ({doing})"

    @property
    def _waits_in(self) -> str:
        return f" in {self.waits_in}" if self.waits_in not in ("", "0") else ""


class Observer(Actor):
    """Observes the workers of its host. `pid_of` returns the process id of a node, 0 if it has none."""

    def __init__(self, pid_of: Callable[[str], int]) -> None:
        self._pid_of = pid_of

    @endpoint
    def look(self, nodes: list[str]) -> dict[str, Observation]:
        """Observe those of these nodes that run here."""
        pids = {node: self._pid_of(node) for node in nodes}
        return {node: observe(pid) for node, pid in pids.items() if pid}


def observe(pid: int, folder: Path = Path("/proc")) -> Observation:
    """Observe a process, and its stacks if py-spy is installed."""
    status, waits_in = (_read(folder / str(pid) / name) for name in ("stat", "wchan"))
    state = status.rpartition(") ")[2][:1]  # a process's name may contain blanks and parentheses
    return Observation(pid, state, waits_in, spy(pid) if state not in ("", "Z", "X") else None)


def spy(pid: int) -> tuple[SampledThread, ...] | None:
    """Return the stacks of a process, without stopping it; None without py-spy or the permission."""
    if (program := find_spy()) is None:
        return None
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    with contextlib.suppress(OSError, subprocess.SubprocessError, msgspec.DecodeError):
        done = subprocess.run(command, capture_output=True, timeout=SPY_PATIENCE, check=True)
        return _decode_threads(done.stdout)
    return None


def find_spy() -> str | None:
    """Return the path of py-spy: next to this interpreter, otherwise on PATH."""
    return shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")


def ask_observers(procs: ProcMesh) -> list[Future[dict[str, Observation]]]:
    """Make the hosts of these processes observe them; return a future for each host, of its observations by node."""
    agents = procs.host_mesh._picked()
    everywhere = Extent(("hosts",), (len(agents),)).region
    observers = ActorMesh("observers", Observer, [Target(agent, OBSERVER) for agent in agents], everywhere)
    return list(observers.look.call_each([address.node for address in procs.nodes]))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended, or the system has no such file
        return ""
