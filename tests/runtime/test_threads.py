"""Queues that are waited at for a limited time; and tables that change while they are read."""

from __future__ import annotations

import contextlib
import gc
import queue
import threading
from typing import Any

import pytest

from meshbook.runtime.errors import ActorError, SupervisionError
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts import worker_exit
from meshbook.runtime.node.call_table import AllReplies, CallTable, Target
from meshbook.runtime.threads import get_within, items_of
from meshbook.runtime.wire.messages import Address
from tests.support import PATIENCE


def test_what_is_there_or_comes_is_taken() -> None:
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    items.put(1)
    assert get_within(items, 0.0) == 1
    threading.Timer(0.01, items.put, [2]).start()
    assert get_within(items, PATIENCE) == 2


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.001])
def test_where_nothing_comes_it_ends(seconds: float) -> None:
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    with pytest.raises(queue.Empty):
        get_within(items, seconds)


def test_a_limit_holds_however_soon_it_is_over() -> None:
    """Python's own `get` hangs after some thousand rounds of this."""
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    done = threading.Event()

    def take() -> None:
        for number in range(8_000):
            items.put(number)
            items.get()
            with contextlib.suppress(queue.Empty):
                get_within(items, 1e-6)
        done.set()

    threading.Thread(target=take, daemon=True).start()
    assert done.wait(PATIENCE)


class Finalized:
    """Garbage that changes a table when it is collected, as another thread might that has its turn then."""

    def __init__(self, change: Any) -> None:
        self.change, self.itself = change, self

    def __del__(self) -> None:
        self.change()


def test_a_collection_may_change_the_table_meanwhile() -> None:
    table = {number: str(number) for number in range(10_000)}
    gc.collect()
    Finalized(lambda: table.update({-1: "new"}))
    assert all(str(number) == text for number, text in items_of(table) if number >= 0)


class Taker:
    def settle(self, *answer: Any) -> None: ...


def test_waiters_for_a_process_are_notified_though_others_ask_meanwhile() -> None:
    calls, taker = CallTable(), Taker()
    dead, alive = (Target(Address(node, node), "actor") for node in ("dead", "alive"))
    calls.open(taker, [dead, alive] * 5_000)  # type: ignore[arg-type]  # it is only handed back
    gc.collect()
    Finalized(lambda: calls.open(taker, [alive]))
    found = calls.take_all({"dead"})
    assert [index for _, index, _ in found] == list(range(0, 10_000, 2))


def test_the_errors_of_other_ranks_are_reported_though_one_more_comes_meanwhile() -> None:
    reply_handler = AllReplies(Extent.of(ranks=20_000).region)
    for rank in range(1, 10_000):
        reply_handler.refuse(rank, ActorError(f"rank {rank}"))
    gc.collect()
    Finalized(lambda: reply_handler.refuse(15_000, ActorError("meanwhile")))
    reply_handler.refuse(0, SupervisionError("lost"))
    error = reply_handler.future.exception(0)
    assert isinstance(error, SupervisionError)
    assert len(error.failures) == 10_000


class Odd:
    """A value that makes a name when it is looked at, as a thread might that has its turn then."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace

    @property
    def __class__(self) -> Any:
        self.namespace["late"] = 1
        return Odd


def test_the_names_of_an_ending_process_are_released_though_a_thread_makes_one_more() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "number": 1}
    namespace["odd"] = Odd(namespace)
    worker_exit._drop_objects(namespace)
    assert namespace == {"__name__": "__main__", "late": 1}
