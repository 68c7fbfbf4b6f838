"""What a process says of itself when it leaves its groups."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from meshbook.runtime.collectives.abort import stuck_threads, wait_freed
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
