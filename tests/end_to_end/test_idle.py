"""An idle mesh sleeps: how often its processes wake, by the system's own counts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.actor import CellActor
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.telemetry.vitals import IDLE_BATCH_SECONDS, SECONDS
from tests.support import PATIENCE

RANKS = 8
WINDOW_SECONDS = 10
MOST_WAKES = WINDOW_SECONDS  # of a process: one a second
pytestmark = [
    pytest.mark.process,
    pytest.mark.without_torch,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system counts no switches of threads"),
]


def count_wakes(pid: int) -> int:
    """How often the threads of a process have woken since they began: their voluntary context switches."""
    return sum(map(wakes_of, Path(f"/proc/{pid}/task").iterdir()))


def wakes_of(thread: Path) -> int:
    status = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
    return int(status["voluntary_ctxt_switches"])


def wait_as_a_script(seconds: float) -> None:
    """Let the main thread wait for an answer that does not come."""
    with pytest.raises(TimeoutError):
        Future.pending().get(timeout=seconds)


class Batches:
    """The times at which the controller got measurements, to be waited for."""

    def __init__(self, session: Session) -> None:
        self._came: list[float] = []
        self._changed = threading.Condition()
        self._listeners = session.history.when_sampled
        self._listeners.append(self._note)

    def _note(self) -> None:
        with self._changed:
            self._came.append(time.monotonic())
            self._changed.notify_all()

    def wait_until(self, is_so: Callable[[list[float]], bool]) -> None:
        """Wait until this holds for the seconds between batches that come from now on."""
        with self._changed:
            self._came.clear()
            assert self._changed.wait_for(lambda: is_so(self._gaps()), PATIENCE), self._gaps()

    def _gaps(self) -> list[float]:
        return [after - before for before, after in zip(self._came, self._came[1:], strict=False)]

    def close(self) -> None:
        self._listeners.remove(self._note)


@pytest.fixture
def batches(session: Session) -> Iterator[Batches]:
    batches = Batches(session)
    yield batches
    batches.close()


@pytest.fixture
def idle_mesh(spawn_procs: Callable[..., ProcMesh], batches: Batches) -> ProcMesh:
    mesh = spawn_procs(RANKS)
    # One of them keeps an event loop for the tasks of its cells.
    cells: Any = mesh.slice(gpus=0).spawn_on_main("cells", CellActor)
    assert cells.run.call_one("import asyncio\nawait asyncio.sleep(0)", 1).get(PATIENCE).error is None
    batches.wait_until(lambda gaps: any(gap > SECONDS + 0.5 for gap in gaps))  # the agent has seen that all are idle
    return mesh


def test_an_idle_mesh_wakes_at_most_once_a_second_per_process(session: Session, idle_mesh: ProcMesh) -> None:
    agent = psutil.Process(session._agent.pid)
    children = {process.pid for process in agent.children(recursive=True)}
    assert len(children) == 1 + RANKS  # the fork server and the workers
    pids = [os.getpid(), agent.pid, *children]
    counts = []
    for _ in range(10):
        before = {pid: count_wakes(pid) for pid in pids}
        wait_as_a_script(WINDOW_SECONDS)
        counts.append({pid: count_wakes(pid) - before[pid] for pid in pids})
        # Where another program delays a heartbeat, the agent measures at the faster pace for a while: then once more.
        if max(counts[-1].values()) <= MOST_WAKES:
            return
    raise AssertionError(counts)


def test_an_open_dashboard_raises_the_pace_of_an_idle_host(
    session: Session, idle_mesh: ProcMesh, batches: Batches
) -> None:
    session.watch(True)
    batches.wait_until(lambda gaps: len(gaps) >= 4 and max(gaps[-4:]) < SECONDS)
    session.watch(False)
    batches.wait_until(lambda gaps: any(gap > IDLE_BATCH_SECONDS - 0.5 for gap in gaps))
