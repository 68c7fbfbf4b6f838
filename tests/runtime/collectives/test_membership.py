"""What a process says of itself when it leaves its groups."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from meshbook.runtime.collectives import abort
from meshbook.runtime.collectives.abort import abort_after_death, abort_groups, stuck_threads, wait_freed
from meshbook.runtime.collectives.membership import GroupMembership

# As a collective of torch's looks from outside: by the file that its code is of.
SOURCE = """
def all_reduce(entered, released):
    entered.set()
    released.wait()
"""


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """A thread is in a collective until this is set."""
    named: dict[str, object] = {}
    exec(compile(SOURCE, "/env/torch/distributed/distributed_c10d.py", "exec"), named)
    entered, released = threading.Event(), threading.Event()
    thread = threading.Thread(target=named["all_reduce"], args=(entered, released))
    thread.start()
    assert entered.wait(10)
    yield released
    released.set()
    thread.join()


def test_it_says_where_a_thread_is_still_stuck(released: threading.Event) -> None:
    threads = stuck_threads()
    assert [frame.f_code.co_name for frame in threads.values()] == ["all_reduce"]
    assert wait_freed(threads, patience=0.0) == "all_reduce"
    released.set()
    assert wait_freed(threads, patience=10.0) == ""


def test_a_rank_outside_a_collective_is_free() -> None:
    assert sys.modules.get("torch.distributed") is None or not stuck_threads()
    standing = GroupMembership().leave()
    assert (standing.aborted, standing.stuck) == ((), "")
    assert 0 < standing.free_port < 65536


def join() -> weakref.ref[Any]:
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return weakref.ref(dist.group.WORLD)


def test_a_group_that_another_thread_has_replaced_is_not_aborted() -> None:
    """An operation that fails late aborts its own group, not the one that is being made meanwhile."""
    dist = pytest.importorskip("torch.distributed")
    former = join()
    GroupMembership().leave()
    present = join()
    try:
        assert abort_groups(former) == []
        assert dist.is_initialized()
    finally:
        aborted = abort_groups(present)
    assert len(aborted) == 1
    assert not dist.is_initialized()


def test_an_abort_that_does_not_end_is_named_and_blocks_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    c10d = pytest.importorskip("torch.distributed.distributed_c10d")
    destroy, released, ended = c10d._abort_process_group, threading.Event(), threading.Event()

    def wait_forever() -> None:
        released.wait()
        destroy()
        ended.set()

    monkeypatch.setattr(c10d, "_abort_process_group", wait_forever)
    monkeypatch.setattr(abort, "DESTROYING_S", 0.01)
    join()
    assert [GroupMembership().leave().stuck for _ in range(2)] == ["_abort_process_group"] * 2
    monkeypatch.setattr(c10d, "_abort_process_group", destroy)
    released.set()
    assert ended.wait(10)
    assert GroupMembership().leave().stuck == ""


@pytest.mark.parametrize(
    ("config", "size", "is_aborted"), [("cpu:gloo", 1, False), ("cpu:gloo,cuda:nccl", 1, True), ("cuda:nccl", 2, False)]
)
def test_a_death_aborts_the_nccl_group_of_all_ranks(config: str, size: int, is_aborted: bool) -> None:
    c10d = pytest.importorskip("torch.distributed.distributed_c10d")
    group = join()
    c10d._world.pg_backend_config[group()] = config
    if (thread := abort_after_death(size)) is not None:
        thread.join()
    assert c10d.is_initialized() is not is_aborted
    abort_groups()
