"""The vitals of real processes: what they do, how much of it, and whether they give signs of life."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from meshbook.runtime.cells.actor import CellActor
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.telemetry.prompt_questions import PromptAnswer
from meshbook.runtime.telemetry.vitals import Activity, ActorLoad, Vitals
from tests.fake_gpus import install_fake_in_rank, list_contexts, use_gpu
from tests.support import PATIENCE, Probe

pytestmark = pytest.mark.process


class Watch:
    """What the controller knows of a mesh, to be waited for."""

    def __init__(self, session: Session, mesh: ProcMesh) -> None:
        self._history = session.history
        self._nodes = [address.node for address in mesh.nodes]
        self._sampled = threading.Condition()
        self._history.when_sampled.append(self._wake)

    def _wake(self) -> None:
        with self._sampled:
            self._sampled.notify_all()

    def until(self, is_so: Callable[[Vitals], Any]) -> Vitals:
        with self._sampled:
            assert self._sampled.wait_for(lambda: is_so(self.now), PATIENCE), self.now
        return self.now

    @property
    def now(self) -> Vitals:
        return self._history.vitals(self._nodes)

    def detail(self, rank: int) -> Any:
        return self._history.detail(self._nodes[rank])

    def close(self) -> None:
        self._history.when_sampled.remove(self._wake)


@pytest.fixture
def mesh(spawn_procs: Any) -> ProcMesh:
    return spawn_procs(2)


@pytest.fixture
def watch(session: Session, mesh: ProcMesh) -> Iterator[Watch]:
    session.watch(True)
    watch = Watch(session, mesh)
    yield watch
    watch.close()
    session.watch(False)


def hold_the_interpreter(pipe: str) -> None:
    file = os.open(pipe, os.O_RDONLY)
    ctypes.PyDLL(None).read(file, ctypes.create_string_buffer(1), 1)  # by which ctypes does not release the GIL
    os.close(file)


def wait_for_pipe(path: str) -> None:
    with open(path, "rb") as pipe:
        pipe.read(1)


@pytest.fixture
def pipe() -> Iterator[tuple[str, int]]:
    """What another process opens to read from, and where the test writes."""
    read, write = os.pipe()
    yield f"/proc/{os.getpid()}/fd/{read}", write
    for end in (read, write):
        os.close(end)


def test_a_rank_that_holds_the_gil_and_a_stopped_one_send_no_heartbeat(
    mesh: ProcMesh, watch: Watch, pipe: tuple[str, int]
) -> None:
    probe = mesh.spawn("probe", Probe)
    pids = list(probe.run.call(os.getpid).get(PATIENCE).values())
    watch.until(lambda vitals: (vitals.age < 1.5).all())
    held = probe.slice(gpus=0).run.call_one(hold_the_interpreter, pipe[0])
    os.kill(pids[1], signal.SIGSTOP)
    vitals = watch.until(lambda vitals: (vitals.age > 1.6).all())
    for rank, pid in enumerate(pids):
        assert vitals.metrics["memory"][rank] == pytest.approx(psutil.Process(pid).memory_full_info().pss, rel=0.4)
    os.kill(pids[1], signal.SIGCONT)
    os.write(pipe[1], b"!")
    held.get(PATIENCE)
    watch.until(lambda vitals: (vitals.age < 1.5).all())


def test_activity_and_queue_of_an_actor_are_written(mesh: ProcMesh, watch: Watch, pipe: tuple[str, int]) -> None:
    probe = mesh.spawn("probe", Probe)
    busy = probe.slice(gpus=0).run.call_one(wait_for_pipe, pipe[0])
    waiting = [probe.slice(gpus=0).run.call_one(os.getpid) for _ in range(3)]
    vitals = watch.until(lambda vitals: vitals.metrics["queued"][0] == 3)
    assert vitals.activity[0] == Activity.RUNNING
    watch.until(lambda vitals: watch.detail(0).actors == (ActorLoad("probe", 3, "run"),))
    os.write(pipe[1], b"!")
    busy.get(PATIENCE)
    assert watch.detail(0).pid == waiting[0].get(PATIENCE)
    watch.until(lambda vitals: vitals.metrics["sent"][0] > 0 and vitals.metrics["bytes_received"][0] > 0)
    watch.until(lambda vitals: vitals.activity[0] == Activity.IDLE)


def test_a_collective_is_seen_and_steps_are_timed(mesh: ProcMesh, watch: Watch) -> None:
    mesh.init_process_group("gloo").get(PATIENCE)
    probe = mesh.spawn("probe", Probe)
    first = probe.slice(gpus=0).run.call_one(reduce_after_steps)  # stands there, since the other one has not come
    # The last report of the other one may be from within the start of the process group.
    watch.until(lambda vitals: vitals.activity.tolist() == [Activity.IN_COLLECTIVE, Activity.IDLE])
    watch.until(lambda vitals: watch.detail(0).collective == "all_reduce")
    assert 0 < watch.now.metrics["step"][0] < PATIENCE
    second = probe.slice(gpus=1).run.call_one(reduce_after_steps)
    first.get(PATIENCE), second.get(PATIENCE)
    watch.until(lambda vitals: (vitals.activity == Activity.IDLE).all())


def test_ranks_that_use_no_gpu_create_no_context_and_each_uses_its_own(spawn_procs: Any, session: Session) -> None:
    mesh = spawn_procs(2, bootstrap=install_fake_in_rank)
    cells, probe = mesh.spawn_on_main("cells", CellActor), mesh.spawn("probe", Probe)
    assert [each.error for each in cells.run.call("device", 1).get(PATIENCE).values()] == [None, None]
    mesh.init_process_group("gloo").get(PATIENCE)
    assert list(probe.run.call(list_contexts).get(PATIENCE).values()) == [[], []]
    session.watch(True)
    watch = Watch(session, mesh)
    cells.run.call("from tests.fake_gpus import use_gpu; use_gpu(5_000_000)", 2).get(PATIENCE)
    watch.until(lambda vitals: vitals.metrics["gpu_allocated"].tolist() == [5e6, 5e6])
    assert list(probe.run.call(use_gpu).get(PATIENCE).values()) == [0, 1]
    assert list(probe.run.call(list_contexts).get(PATIENCE).values()) == [[0], [1]]
    watch.close()
    session.watch(False)


def reduce_after_steps() -> None:
    import torch
    import torch.distributed as dist

    class Bare(torch.optim.Optimizer):
        """What torch makes of any optimizer's step; its constructor would import torch's compiler, for seconds."""

        def __init__(self) -> None:
            self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
            self._patch_step_function()

        def step(self) -> None:  # type: ignore[override]
            """Step nowhere."""

    optimizer = Bare()
    for _ in range(2):
        optimizer.step()
    dist.all_reduce(torch.ones(1))


def test_a_cell_that_runs_and_one_that_asks_are_seen(
    session: Session, mesh: ProcMesh, watch: Watch, pipe: tuple[str, int]
) -> None:
    replies: list[Any] = []
    asked = threading.Event()

    class Patient:
        """Answers on request."""

        def take(self, question: Any, reply: Any) -> None:
            replies.append(reply)
            asked.set()

        def withdraw(self, rank: int, number: int) -> None:
            """Never answer."""

    cells = mesh.slice(gpus=0).spawn_on_main("cells", CellActor)
    cells.prepare.call_one().get(PATIENCE)
    session.questions.open("", Patient())
    try:
        cell = cells.run.call_one("name = input()\nopen(name).read(1)", 1)
        assert asked.wait(PATIENCE)
        vitals = watch.until(lambda vitals: vitals.activity[0] == Activity.PAUSED)
        assert vitals.age[0] < PATIENCE
        watch.until(lambda vitals: watch.detail(0).pause == "in input()")
        replies[0](PromptAnswer("text", pipe[0]))
        watch.until(lambda vitals: vitals.activity[0] == Activity.RUNNING)
        os.write(pipe[1], b"!")
        assert cell.get(PATIENCE).error is None
    finally:
        session.questions.close("")
    watch.until(lambda vitals: vitals.activity[0] == Activity.IDLE)
