"""Ctrl-C at every statement of the operations that change a run: afterwards it works or is gone, and can be repeated.

The run is one of threads. `tests/end_to_end/test_detaching.py` does the same to detach and attach.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from meshbook import this_host
from meshbook.runtime.hosts import session as sessions
from meshbook.runtime.hosts.in_process import InProcessSession
from meshbook.runtime.mesh.host_ownership import when_ended
from meshbook.runtime.mesh.procs import ProcMesh
from tests.support import PATIENCE, Probe, StatementInterrupts, few, raise_interrupt


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessSession]:
    session = InProcessSession()
    monkeypatch.setattr(sessions._Current, "session", session)
    yield session
    session.close()


@pytest.fixture(params=few([20, 1]))
def interrupts(request: pytest.FixtureRequest) -> StatementInterrupts:
    return StatementInterrupts(request.param)


def spawn(count: int = 2) -> ProcMesh:
    return this_host().spawn_procs(per_host={"gpus": count})


def ranks_that_answer(mesh: ProcMesh) -> int:
    probes = mesh._ownership.current.all_of(mesh.actors["probe"])
    return len(probes.run.call(os.getpid).get(PATIENCE))


def test_spawned_processes_are_handed_over_or_end(run: InProcessSession, interrupts: StatementInterrupts) -> None:
    made: list[ProcMesh] = []
    while interrupts.are_left:
        interrupt = interrupts.run(lambda: made.append(spawn(1)))
        assert (interrupt is None) == (len(made) == 1), interrupts.where
        for mesh in made:
            mesh.initialized.get(PATIENCE)
            mesh.stop().get(PATIENCE)
        made.clear()
        run.host.count_gpus().get(PATIENCE)  # the agent has handled the requests before this one
        when_ended(run.node, run.agent.workers.names()).get(PATIENCE)
        assert not len(run.node.ledger), interrupts.where


@pytest.mark.parametrize("moment", range(10))
def test_a_signal_from_outside_at_any_moment(run: InProcessSession, moment: int) -> None:
    """The real one, at a moment that no test chooses."""
    made: list[ProcMesh] = []
    sent = threading.Event()

    def send() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        sent.set()

    timer = threading.Timer(moment * 0.0003, send)
    with contextlib.suppress(KeyboardInterrupt):
        timer.start()
        made.append(spawn(1))
        made[0].spawn("probe", Probe)
        sent.wait(PATIENCE)
    timer.join()
    for mesh in made:
        assert mesh.heal().get(PATIENCE) == []
        assert mesh.spawn("probe", Probe).run.call_one(os.getpid).get(PATIENCE) == os.getpid()
        mesh.stop().get(PATIENCE)
    run.host.count_gpus().get(PATIENCE)
    when_ended(run.node, run.agent.workers.names()).get(PATIENCE)


def test_a_heal_goes_on_or_can_be_repeated(run: InProcessSession, interrupts: StatementInterrupts) -> None:
    mesh = spawn()
    mesh.spawn("probe", Probe)
    while interrupts.are_left:
        assert ranks_that_answer(mesh) == 2
        ended = when_ended(run.node, [mesh.nodes[1].node])
        mesh.slice(gpus=1).kill()
        ended.get(PATIENCE)
        interrupts.run(mesh.heal)
        mesh.heal().get(PATIENCE)


def test_a_resize_goes_on_or_can_be_repeated(run: InProcessSession, interrupts: StatementInterrupts) -> None:
    mesh, size = spawn(1), 1
    mesh.spawn("probe", Probe)
    while interrupts.are_left:
        size = 3 - size
        interrupts.run(functools.partial(mesh.resize, gpus=size))
        mesh.resize(gpus=size).initialized.get(PATIENCE)
        assert ranks_that_answer(mesh) == size, interrupts.where


def test_a_stop_goes_on_or_can_be_repeated(run: InProcessSession, interrupts: StatementInterrupts) -> None:
    while interrupts.are_left:
        mesh = spawn(1)
        mesh.spawn("probe", Probe)
        interrupts.run(mesh.stop)
        mesh.stop().get(PATIENCE)
        assert not len(run.node.ledger), interrupts.where


def test_a_session_is_closed_or_can_be(monkeypatch: pytest.MonkeyPatch, interrupts: StatementInterrupts) -> None:
    while interrupts.are_left:
        session = InProcessSession()
        monkeypatch.setattr(sessions._Current, "session", session)
        spawn(1).initialized.get(PATIENCE)
        interrupts.run(sessions.close_session)
        sessions.close_session()
        assert sessions.running_session() is None
        assert session.agent.poll() == 0, interrupts.where
        assert not session.folder.path.exists(), interrupts.where


def test_a_session_whose_close_is_interrupted_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    session = InProcessSession()
    monkeypatch.setattr(sessions._Current, "session", session)
    spawn(1).initialized.get(PATIENCE)
    monkeypatch.setattr(session.curves, "discard", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        sessions.close_session()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread
