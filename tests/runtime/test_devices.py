"""The GPUs of a process: each thread's own GPU and stream, from the first use on, and the order of work."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from meshbook.runtime import devices
from meshbook.runtime.cells.actor import CellActor, CellMeter
from meshbook.runtime.devices import OwnGpu
from meshbook.runtime.mesh.tasks import MapActor
from meshbook.runtime.node import hosted_actor
from meshbook.runtime.node.hosted_actor import RUNNERS
from meshbook.runtime.spmd.spmd_actor import SPMDActor
from meshbook.runtime.tensor.worker import TensorWorker
from tests.fake_gpus import FakeCuda, install_fake, use_gpu
from tests.runtime.conftest import Session
from tests.support import PATIENCE, Probe


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return install_fake(monkeypatch)


def own_gpu(local_rank: int) -> OwnGpu:
    devices.OWN_GPU.local_rank = local_rank
    return devices.OWN_GPU


def on_thread(name: str, work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


def test_no_gpu_is_initialized_before_the_users_code_uses_one(gpus: FakeCuda) -> None:
    own = own_gpu(6)
    own.select()
    assert devices.record_event() is None
    assert not devices.is_in_use()
    assert (devices.count(), devices.number_of(6)) == (4, 2)
    assert gpus.calls == []


def test_each_thread_begins_with_the_gpu_of_its_rank_once(gpus: FakeCuda) -> None:
    own = own_gpu(6)
    used: list[int] = []

    def call() -> None:
        own.select()
        used.append(gpus.use())

    def choose_another() -> None:
        own.select()
        gpus.set_device(0)
        call()

    on_thread("first", call)
    on_thread("second", call)
    on_thread("third", choose_another)
    assert used == [2, 2, 0]  # the user's own choice stays
    assert gpus.calls == [
        ("initialize", "first"),
        ("set_device", "first", 2),
        ("set_device", "second", 2),
        ("set_device", "third", 2),
        ("set_device", "third", 0),
    ]


def test_a_process_that_becomes_another_rank_selects_its_gpu_at_the_next_call(gpus: FakeCuda) -> None:
    own = own_gpu(1)
    assert gpus.use() == 1
    own.local_rank = 2
    own.select()
    assert gpus.use() == 2


def test_the_thread_that_uses_cuda_first_need_not_be_known(gpus: FakeCuda) -> None:
    own_gpu(3)
    assert gpus.use() == 3


@pytest.mark.parametrize("is_in_use", [False, True])
def test_a_thread_with_a_stream_of_its_own_works_on_it(gpus: FakeCuda, is_in_use: bool) -> None:
    own = own_gpu(1)
    if is_in_use:
        on_thread("before", gpus.use)
    used: list[tuple[int, str]] = []

    def work() -> None:
        own.use_own_stream()
        used.append((gpus.use(), gpus.current_stream().name))

    on_thread("stream", work)
    assert used == [(1, "of stream")]


def test_actors_of_the_runtime_that_run_the_users_code_are_known() -> None:
    classes = CellActor, MapActor, SPMDActor, TensorWorker
    assert {f"{each.__module__}.{each.__qualname__}" for each in classes} == RUNNERS


def test_actors_that_free_a_rank_do_not_wait_for_its_gpu(
    gpus: FakeCuda, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_actor, "RUNTIME", "tests.")
    gpus.use()
    gpus.calls.clear()
    [worker] = session.workers(1)
    worker.actors.host("hosted", Probe).start(lambda error: None)
    for control in (session.spawn(Probe, on=[worker]), session.refer(Probe, "hosted", worker)):
        assert control.run.call_one(abs, -1).get(PATIENCE) == 1
    assert gpus.calls == []
    assert worker.status.gpu == ""


@pytest.mark.parametrize("is_in_use", [False, True])
def test_an_actor_of_the_user_has_the_gpu_of_its_rank(
    gpus: FakeCuda, session: Session, any_probe: type[Probe], is_in_use: bool
) -> None:
    devices.OWN_GPU.local_rank = 3
    [worker] = session.workers(1)
    probe = session.spawn(any_probe, on=[worker])
    assert probe.run.call_one(abs, -1).get(PATIENCE) == 1
    assert gpus.calls == []  # no context for actors that use no GPU
    if is_in_use:
        on_thread("another", gpus.use)
    assert probe.run.call_one(use_gpu).get(PATIENCE) == 3
    selected = [thread for name, thread, *_ in gpus.named("set_device")]
    assert len(set(selected)) == len(selected) == 1 + is_in_use
    assert worker.status.gpu == "uuid-3"


def test_a_wait_is_for_the_current_stream_and_not_while_it_is_captured(gpus: FakeCuda) -> None:
    gpus.use()
    gpus.calls.clear()
    devices.wait_for_stream("cuda:2")
    assert gpus.contexts == {0, 2}
    assert [(name, *rest) for name, _, *rest in gpus.calls] == [("record", "default"), ("wait", "default")]
    gpus.calls.clear()
    gpus.capturing.add(threading.get_ident())
    devices.wait_for_stream()
    assert gpus.calls == []


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], 10),  # of the cell that does nothing
        ([50, -50], 60),  # a new peak
        ([5, -5], 15),  # below the peak before, which is 30
        ([20, -20, 5, -5], 30),
        ([-10], 10),
    ],
)
def test_the_peak_of_a_cell_is_known_without_a_reset_of_the_users_peak(
    gpus: FakeCuda, sizes: list[int], expected: int
) -> None:
    assert CellMeter().read().peak_gpu_memory is None  # no GPU is in use
    gpus.use()
    gpus.allocate(30)
    gpus.allocate(-20)
    meter = CellMeter()
    for size in sizes:
        gpus.allocate(size)
    assert meter.read().peak_gpu_memory == expected
    assert gpus.memory["allocated"]["peak"] == max(30, expected)


def test_a_cell_that_uses_a_gpu_first_has_a_peak(gpus: FakeCuda) -> None:
    meter = CellMeter()
    gpus.use()
    gpus.allocate(7)
    gpus.allocate(-7)
    assert meter.read().peak_gpu_memory == 7
    gpus.is_lost = True
    assert meter.read().peak_gpu_memory is None


def test_torch_has_what_the_fake_has() -> None:
    torch = pytest.importorskip("torch")
    names = {name for name in dir(FakeCuda) if not name.startswith("__")}
    own = {"use", "named", "allocate", "make_context", "_note"}
    assert {name for name in names - own if not hasattr(torch.cuda, name)} == set()
