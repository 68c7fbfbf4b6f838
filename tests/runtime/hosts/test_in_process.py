"""A run whose agent and workers are threads: what it must have in common with one of processes, and that it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshbook import SupervisionError, context, this_host, this_proc
from meshbook.runtime.hosts import session as sessions
from meshbook.runtime.hosts import workers as agent_workers
from meshbook.runtime.hosts.in_process import InProcessSession
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.wire.messages import Down
from tests.support import PATIENCE, Probe, died


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessSession]:
    session = InProcessSession()
    monkeypatch.setattr(sessions._Current, "session", session)
    yield session
    session.close()


def spawn(count: int = 2, **options: Any) -> ProcMesh:
    return this_host().spawn_procs(per_host={"gpus": count}, **options)


def test_ranks_are_nodes_of_this_process(run: InProcessSession) -> None:
    def look() -> tuple[int, str]:
        return os.getpid(), context().actor_instance.node.address.node

    mesh = spawn(2)
    assert mesh.initialized.get(PATIENCE)
    found = list(mesh.spawn("probe", Probe).run.call(look).get(PATIENCE).values())
    assert found == [(os.getpid(), address.node) for address in mesh.nodes]


def test_a_mesh_that_is_stopped_ends_in_one_message(run: InProcessSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_workers, "REPORT_SECONDS", 1e6)
    mesh = spawn(16)
    assert mesh.initialized.get(PATIENCE)
    downs: list[Down] = []
    handlers = run.node.dispatch._handlers
    monkeypatch.setitem(handlers, Down, lambda down, body: (downs.append(down), run.node.peers.on_down(down, body)))
    mesh.stop().get(PATIENCE)
    assert [len(down.reports) for down in downs] == [16]


def test_a_bootstrap_runs_as_its_worker(run: InProcessSession, gate: Any) -> None:
    spawn(1, bootstrap=lambda: gate.tell(context().actor_instance.node.address.node)).initialized.get(PATIENCE)
    assert gate.wait_entered().startswith("procs-")


def test_a_bootstrap_that_raises_ends_its_worker(run: InProcessSession) -> None:
    def fail() -> None:
        raise ValueError("no such device")

    error = died(spawn(1, bootstrap=fail).initialized)
    assert error.report.returncode == 1
    assert "ValueError: no such device" in str(error)


def test_an_actor_spawns_workers_which_end_with_it(run: InProcessSession, gate: Any) -> None:
    def have_child() -> Any:
        return spawn(1).spawn("child", Probe)

    mesh = spawn(1)
    child = mesh.spawn("probe", Probe).run.call_one(have_child).get(PATIENCE)
    waiting = child.run.call(gate.pass_through)
    gate.wait_entered()
    run.kill_late(0.01)
    mesh.kill()
    with pytest.raises(SupervisionError, match="its owner has ended"):
        waiting.get(PATIENCE)
    gate.open()


def test_a_killed_worker_sends_no_more_messages(run: InProcessSession, gate: Any) -> None:
    mesh = spawn(2)
    probe = mesh.spawn("probe", Probe)
    waiting = probe.run.call_each(gate.pass_through)
    gate.wait_entered()
    gate.wait_entered()
    mesh.slice(gpus=1).kill(15)
    error = died(waiting[1])
    assert "Terminated(sig=15) (SIGTERM" in str(error)
    gate.open(2)
    waiting[0].get(PATIENCE)
    assert died(probe.slice(gpus=1).run.call_one(os.getpid)).report == error.report
    mesh.stop().get(PATIENCE)


def test_a_worker_that_does_not_leave_is_killed(run: InProcessSession, gate: Any) -> None:
    run.kill_late(0.01)
    mesh = spawn(1)
    waiting = mesh.spawn("probe", Probe).run.call_one(gate.pass_through)
    gate.wait_entered()
    mesh.stop("enough").get(PATIENCE)
    with pytest.raises(SupervisionError, match=r"stopped.*enough"):
        waiting.get(PATIENCE)
    gate.open()


def test_a_heal_whose_request_cannot_be_sent_can_be_repeated(
    run: InProcessSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the rank counts as dead: calls to it fail, and do not wait for a process that was never requested."""
    mesh = spawn(2)
    probe = mesh.spawn("probe", Probe)
    mesh.slice(gpus=1).kill()
    died(probe.slice(gpus=1).run.call_one(os.getpid))
    specs = mesh._ownership.specs

    def fail(*arguments: Any) -> Any:
        raise OSError("no memory for the request")

    with monkeypatch.context() as patch:
        patch.setattr(specs, "_ask", fail)
        with pytest.raises(OSError, match="no memory for the request"):
            mesh.heal()
    assert "no memory for the request" in str(died(probe.slice(gpus=1).run.call_one(os.getpid)))
    assert mesh.heal().get(PATIENCE) == [1]
    assert len(probe.run.call(os.getpid).get(PATIENCE)) == 2


def test_it_leaves_no_thread_and_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, descriptors = set(threading.enumerate()), descriptors_in_use()
    session = InProcessSession()
    monkeypatch.setattr(sessions._Current, "session", session)
    mesh = spawn(2)
    mesh.spawn("probe", Probe).run.call(os.getpid).get(PATIENCE)
    mesh.slice(gpus=0).kill().get(PATIENCE)
    session.close()
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert descriptors_in_use() <= descriptors  # what tests before this one left is closed in its own time


def descriptors_in_use() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_the_client_has_its_own_node(run: InProcessSession) -> None:
    assert context().actor_instance.node is run.node
    assert this_proc().spawn("probe", Probe).run.call_one(threading.active_count).get(PATIENCE)
