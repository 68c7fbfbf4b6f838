"""The GPUs of a process: each thread's own GPU and stream, from the first use on, and the order of work."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from meshbook.runtime import devices
from meshbook.runtime.devices import OwnGpu
from tests.fake_gpus import FakeCuda


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    made = FakeCuda(count=4)
    monkeypatch.setattr(devices, "cuda", lambda: made)
    return made


def on_thread(name: str, work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


def test_no_gpu_is_initialized_before_the_users_code_uses_one(gpus: FakeCuda) -> None:
    own = OwnGpu()
    own.adopt(6)
    own.select()
    assert devices.record_event() is None
    assert not devices.is_in_use()
    assert (devices.count(), devices.number_of(6)) == (4, 2)
    assert gpus.calls == []


def test_each_thread_begins_with_the_gpu_of_its_rank_once(gpus: FakeCuda) -> None:
    own = OwnGpu()
    own.adopt(6)
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


def test_the_thread_that_uses_cuda_first_need_not_be_known(gpus: FakeCuda) -> None:
    OwnGpu().adopt(3)
    assert gpus.use() == 3


@pytest.mark.parametrize("is_in_use", [False, True])
def test_a_thread_with_a_stream_of_its_own_works_on_it(gpus: FakeCuda, is_in_use: bool) -> None:
    own = OwnGpu()
    own.adopt(1)
    if is_in_use:
        on_thread("before", gpus.use)
    used: list[tuple[int, str]] = []

    def work() -> None:
        own.use_own_stream()
        used.append((gpus.use(), gpus.current_stream().name))

    on_thread("stream", work)
    assert used == [(1, "of stream")]


def test_a_wait_is_for_the_current_stream_and_not_while_it_is_captured(gpus: FakeCuda) -> None:
    gpus.use()
    gpus.calls.clear()
    devices.wait_for_stream()
    assert [(name, *rest) for name, _, *rest in gpus.calls] == [("record", "default"), ("wait", "default")]
    gpus.calls.clear()
    gpus.capturing.add(threading.get_ident())
    devices.wait_for_stream()
    assert gpus.calls == []


def test_torch_has_what_the_fake_has() -> None:
    torch = pytest.importorskip("torch")
    names = {name for name in dir(FakeCuda) if not name.startswith("__")}
    own = {"use", "named", "_note"}
    assert {name for name in names - own if not hasattr(torch.cuda, name)} == set()
