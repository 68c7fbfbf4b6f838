"""When the agent reports the ends of its workers: together, and soon. With a fork server that is a list."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbook.runtime.config import Settings
from meshbook.runtime.hosts import workers as agent_workers
from meshbook.runtime.hosts.forkserver import Answer, Exited, Started
from meshbook.runtime.hosts.workers import EndedWorker, Workers
from meshbook.runtime.mesh.worker_specs import MeshSpec, WorkerSpec
from meshbook.runtime.wire.messages import Address
from tests.support import PATIENCE

COUNT = 8
NAMES = [f"mesh.{rank}" for rank in range(COUNT)]
LONG = 1e6  # seconds


class ListServer:
    """A fork server without processes: the test writes its answers."""

    events = 1  # selectors.EVENT_READ
    pid = 0

    def __init__(self) -> None:
        self.channel, self._writer = socket.socketpair()
        self.channel.setblocking(False)
        self._answers: queue.SimpleQueue[Sequence[Answer]] = queue.SimpleQueue()
        self._pids = itertools.count(1)
        self.pids: dict[str, int] = {}
        self.when_asked: Callable[[str], object] = lambda node: None

    def ask(self, specs: Iterable[WorkerSpec]) -> None:
        for spec in specs:
            self.when_asked(spec.address.node)
            pid = self.pids[spec.address.node] = next(self._pids)
            self.answer(Started(spec.address.node, pid))

    def answer(self, *answers: Answer) -> None:
        self._answers.put(answers)
        self._writer.send(b"!")

    def send(self) -> None:
        """Do nothing: `ask` leaves nothing unsent."""

    def receive(self) -> list[Answer] | None:
        with contextlib.suppress(BlockingIOError):
            self.channel.recv(4096)
        return [answer for _ in range(self._answers.qsize()) for answer in self._answers.get()]

    def end(self) -> None:
        self.channel.close()
        self._writer.close()

    def why_ended(self) -> str:
        return "it is a list"


class Pipe:
    """A lifeline, until it is closed."""

    def __init__(self) -> None:
        self.descriptor, self._writer = os.pipe()

    def is_over(self) -> bool:
        return True  # only asked once it is readable

    def forget(self, descriptor: int) -> None:
        os.close(descriptor)

    def close(self) -> None:
        os.close(self._writer)


class ListedWorkers(Workers):
    """Workers of a `ListServer`, served on a thread. `reports` has the arguments of each call of `on_exit`."""

    def __init__(self, folder: Path) -> None:
        self.server, self.line = ListServer(), Pipe()
        self.reports: queue.SimpleQueue[tuple[list[str], list[str]]] = queue.SimpleQueue()
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.folder = folder
        super().__init__(
            *(folder, Settings(), lambda to, reason, fence: None, self._note, lambda *event: None),
            servers={True: self.server},
        )
        self._thread = threading.Thread(target=self.serve, args=(self.line,))
        self._thread.start()

    def _note(self, ended: Sequence[EndedWorker], living: list[Address]) -> None:
        self.reports.put(([each.report.node for each in ended], [address.node for address in living]))

    def _started(self, node: str, pid: int) -> None:
        super()._started(node, pid)
        self.begun.put(node)

    def _send_signal(self, pid: int, number: int) -> None:
        """Do nothing: there is no process."""

    def _end_orphans(self) -> None:
        """Do nothing: there is no process."""

    def leave(self, *names: str, code: int = 0) -> None:
        """Let these processes end, all at once."""
        self.server.answer(*[Exited(self.server.pids[name], code) for name in names])

    def close(self) -> None:
        self.line.close()
        self._thread.join(PATIENCE)
        self._memory.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ListedWorkers]]:
    """Starts a mesh of workers; `owners` has the owners of workers that another one has spawned."""
    made: list[ListedWorkers] = []

    def start(seconds: float = LONG, **owners: str) -> ListedWorkers:
        monkeypatch.setattr(agent_workers, "REPORT_SECONDS", seconds)
        workers = ListedWorkers(tmp_path)
        made.append(workers)
        specs = [make_spec(rank, owners.get(f"rank{rank}", "controller")) for rank in range(COUNT)]
        for spec in specs:
            workers.start([spec])
        for _ in NAMES:
            workers.begun.get(timeout=PATIENCE)
        return workers

    yield start
    for workers in made:
        workers.close()


def make_spec(rank: int, owner: str) -> WorkerSpec:
    address = Address("controller", "unix:///run/controller")
    world: dict[str, Any] = {
        "run": "run",
        "mesh": "mesh",
        "controller": address,
        "agent": address,
        "agents": (address,),
    }
    world |= {"labels": ("gpus",), "sizes": (COUNT,), "environment": {}, "directory": "/", "search_path": ()}
    return WorkerSpec(
        address=Address(NAMES[rank], f"unix:///run/{NAMES[rank]}"),
        rank=rank,
        local_rank=rank,
        local_size=COUNT,
        world=MeshSpec(owner=owner, settings=Settings(stop_timeout=PATIENCE), **world),
    )


def test_the_ends_of_a_mesh_that_is_stopped_are_reported_together(run: Callable[..., ListedWorkers]) -> None:
    workers = run()
    workers.stop(NAMES, "the test stops it")
    for name in NAMES:
        workers.leave(name)
    assert workers.reports.get(timeout=PATIENCE) == (NAMES, [])
    assert workers.reports.empty()


def test_an_unexpected_end_is_reported_at_once_with_those_that_wait(run: Callable[..., ListedWorkers]) -> None:
    workers = run()
    workers.stop(NAMES[1:], "the test stops it")
    workers.leave(NAMES[1])
    workers.leave(NAMES[0], code=-9)
    ended, living = workers.reports.get(timeout=PATIENCE)
    assert (sorted(ended), living) == (NAMES[:2], [])


def test_ends_that_are_known_together_are_reported_together(run: Callable[..., ListedWorkers]) -> None:
    workers = run()
    workers.leave(*NAMES[:4], code=-9)
    assert workers.reports.get(timeout=PATIENCE) == (NAMES[:4], NAMES[4:])
    workers.leave(NAMES[4], code=1)
    assert workers.reports.get(timeout=PATIENCE) == (NAMES[4:5], NAMES[5:])


def test_the_end_of_a_stopped_worker_does_not_wait_long_for_others(run: Callable[..., ListedWorkers]) -> None:
    workers = run(0.0)
    workers.stop(NAMES, "the test stops it")
    workers.leave(NAMES[3])
    assert workers.reports.get(timeout=PATIENCE) == ([NAMES[3]], [])


def test_an_owner_that_stops_is_sent_the_ends_of_its_workers_at_once(run: Callable[..., ListedWorkers]) -> None:
    workers = run(rank5=NAMES[0])
    stopped = workers.stop([NAMES[0], NAMES[1]], "the test stops it")
    assert sorted(worker.address.node for worker in stopped) == [NAMES[0], NAMES[1], NAMES[5]]
    workers.leave(NAMES[5])
    ended, living = workers.reports.get(timeout=PATIENCE)
    assert ended == [NAMES[5]]
    assert NAMES[0] in living
    assert NAMES[1] not in living


def test_the_ends_so_far_are_reported_when_the_agent_finishes(run: Callable[..., ListedWorkers]) -> None:
    workers = run()
    [stopped, *_] = workers.stop(NAMES, "the test stops it")
    workers.leave(stopped.address.node)
    workers.finish()
    assert workers.reports.get(timeout=PATIENCE)[0] == [stopped.address.node]
    assert stopped.ended.wait(PATIENCE)


def test_the_files_of_an_ended_worker_are_removed_after_the_report(
    run: Callable[..., ListedWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, removed = run(), queue.SimpleQueue[tuple[str, bool]]()
    monkeypatch.setattr(
        agent_workers, "remove_files", lambda folder, node: removed.put((node, workers.reports.empty()))
    )
    workers.leave(*NAMES[:2], code=1)
    assert {removed.get(timeout=PATIENCE) for _ in range(2)} == {(name, False) for name in NAMES[:2]}


def test_the_files_of_an_ended_worker_are_removed_before_its_restart(run: Callable[..., ListedWorkers]) -> None:
    workers, found = run(), queue.SimpleQueue[bool]()
    output = workers.folder / f"{NAMES[0]}.out"
    output.write_text("of the first process")
    workers.server.when_asked = lambda node: found.put(output.exists())
    workers.leave(NAMES[0], code=1)
    workers.reports.get(timeout=PATIENCE)
    workers.start([msgspec.structs.replace(make_spec(0, "controller"), incarnation=1)])
    assert found.get(timeout=PATIENCE) is False


SIGNAL_PARENT = """
import os, signal
from pathlib import Path
from meshbook.runtime.config import Settings
from meshbook.runtime.hosts.workers import Workers
nothing = lambda *given: None
Workers(Path("."), Settings(), nothing, nothing, nothing)._send_signal(os.getppid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_a_signal_reaches_no_process_that_is_not_of_this_agent(tmp_path: Path) -> None:
    """The pid of a worker may belong to another process before the agent learns of the worker's end."""
    command = ["sh", "-c", '"$@"; echo alive', "sh", sys.executable, "-c", SIGNAL_PARENT]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, start_new_session=True)
    assert (done.stdout, done.stderr) == ("alive\n", "")
