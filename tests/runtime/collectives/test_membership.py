"""What a process says of itself when it leaves its groups."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from meshbook.runtime.collectives.abort import abort_groups, stuck_threads, wait_freed
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


def test_a_group_that_another_thread_has_replaced_is_not_aborted() -> None:
    """An operation that fails late aborts its own group, not the one that is being made meanwhile."""
    dist = pytest.importorskip("torch.distributed")

    def join() -> weakref.ref[Any]:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return weakref.ref(dist.group.WORLD)

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
