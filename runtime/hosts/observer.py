"""What a host sees of its workers from outside: for ranks that do not answer, because they are stopped or stuck in C.

Nothing of it runs in the worker. Not for what a rank tells of itself (`meshbook.runtime.cells.thread_stacks`).
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
    """A frame as py-spy tells it."""

    name: str
    filename: str
    line: int


class SampledThread(msgspec.Struct, frozen=True):
    """A thread as py-spy tells it, the innermost frame first."""

    thread_name: str | None
    owns_gil: bool
    frames: tuple[SampledFrame, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """A process as its host sees it. `state` is that of its main thread, as /proc has it; empty: there is no such."""

    pid: int
    state: str
    waits_in: str = ""  # the function of the operating system's kernel, where it is known
    threads: tuple[SampledThread, ...] | None = None  # None: py-spy is not installed, or was not allowed to look

    @property
    def trouble(self) -> str:
        """Why such a process does not answer, as far as that can be seen: `stopped (SIGSTOP)`."""
        if self.state in _STATES:
            return _STATES[self.state]
        if self.state == "D":
            return f"waits in the operating system{self._waits_in} and cannot be interrupted"
        if self.threads is not None and not any(thread.owns_gil for thread in self.threads):
            return "its threads do not come to answer"
        doing = "computes" if self.state == "R" else f"waits{self._waits_in}"
        return f"holds the GIL in C ({doing})"

    @property
    def _waits_in(self) -> str:
        return f" in {self.waits_in}" if self.waits_in not in ("", "0") else ""


class Observer(Actor):
    """Looks at the workers of its host. `pid_of` knows them by their nodes; 0 for one that is not there."""

    def __init__(self, pid_of: Callable[[str], int]) -> None:
        self._pid_of = pid_of

    @endpoint
    def look(self, nodes: list[str]) -> dict[str, Observation]:
        """At these of them that run here."""
        pids = {node: self._pid_of(node) for node in nodes}
        return {node: observe(pid) for node, pid in pids.items() if pid}


def observe(pid: int, folder: Path = Path("/proc")) -> Observation:
    """Look at a process, and into it where py-spy is installed."""
    status, waits_in = (_read(folder / str(pid) / name) for name in ("stat", "wchan"))
    state = status.rpartition(") ")[2][:1]  # a process's name may have blanks and parentheses in it
    return Observation(pid, state, waits_in, spy(pid) if state not in ("", "Z", "X") else None)


def spy(pid: int) -> tuple[SampledThread, ...] | None:
    """The stacks of a process, which is not stopped for that; None without py-spy or the permission."""
    if (program := find_spy()) is None:
        return None
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    with contextlib.suppress(OSError, subprocess.SubprocessError, msgspec.DecodeError):
        done = subprocess.run(command, capture_output=True, timeout=SPY_PATIENCE, check=True)
        return msgspec.json.decode(done.stdout, type=tuple[SampledThread, ...])
    return None


def find_spy() -> str | None:
    """Where py-spy is: beside this interpreter, or else wherever programs are."""
    return shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")


def ask_observers(procs: ProcMesh) -> list[Future[dict[str, Observation]]]:
    """Let the hosts of these processes look at them: a future for each host, of what it sees by node."""
    agents = procs.host_mesh._picked()
    everywhere = Extent(("hosts",), (len(agents),)).region
    observers = ActorMesh("observers", Observer, [Target(agent, OBSERVER) for agent in agents], everywhere)
    return list(observers.look.call_each([address.node for address in procs.nodes]))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended, or the system has no such file
        return ""
