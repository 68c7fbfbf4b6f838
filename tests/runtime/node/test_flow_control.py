"""Flow control: how much may be sent, which threads wait, and that a sender always learns of room."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.runtime.node.flow_control import OwedCredits, QueueLimits, SentCredits, is_counted, size_of

QUEUE = ("worker", "sink-1@controller")
OTHER = ("worker", "sink-2@controller")


def outstanding(messages: int = 4, size: int = 100) -> SentCredits[str]:
    return SentCredits(QueueLimits(messages, size))


@pytest.mark.parametrize(
    ("sizes", "admitted"),
    [
        ([1, 1, 1, 1], 4),
        ([1, 1, 1, 1, 1], 4),
        ([60, 60, 1], 2),  # less than the window was there when the second went
        ([1000, 1], 1),  # larger than all of the window, but nothing was there
        ([99, 1000, 1], 2),
        ([0, 0, 0, 0, 0], 4),
    ],
)
def test_a_message_goes_while_there_is_room(sizes: list[int], admitted: int) -> None:
    sending = outstanding()
    assert [sending.spend(QUEUE, size) for size in sizes] == [True] * admitted + [False] * (len(sizes) - admitted)


@pytest.mark.parametrize("window", [QueueLimits(0, 0), QueueLimits(1, 1)])
def test_one_message_always_goes(window: QueueLimits) -> None:
    sending: SentCredits[str] = SentCredits(window)
    assert [sending.spend(QUEUE, 10), sending.spend(QUEUE, 10)] == [True, False]
    assert OwedCredits(window).take("controller", 10) == (1, 10)


def test_each_queue_has_its_own_window() -> None:
    sending = outstanding(messages=1)
    assert sending.spend(QUEUE, 1)
    assert sending.spend(OTHER, 1)
    assert not sending.spend(QUEUE, 1)


def test_waiters_are_returned_once_there_is_room() -> None:
    sending = outstanding(messages=2)
    assert all(sending.spend(QUEUE, 1) for _ in range(2))
    assert not sending.spend(QUEUE, 1, "first")
    assert not sending.spend(QUEUE, 1, "second")
    assert sending.give_back(OTHER, 1, 1) == []
    assert sending.give_back(QUEUE, 1, 1) == ["first", "second"]
    assert sending.spend(QUEUE, 1)
    assert not sending.spend(QUEUE, 1, "second again")
    assert sending.give_back(QUEUE, 1, 1) == ["second again"]


def test_a_waiter_that_gave_up_is_not_returned() -> None:
    sending = outstanding(messages=1)
    sending.spend(QUEUE, 1)
    sending.spend(QUEUE, 1, "first")
    sending.leave(QUEUE, "first")
    sending.leave(QUEUE, "nobody")
    sending.leave(OTHER, "nobody")
    assert sending.give_back(QUEUE, 1, 1) == []


def test_messages_of_threads_that_must_not_wait_are_counted_too() -> None:
    sending = outstanding(messages=1)
    for _ in range(3):
        sending.overspend(QUEUE, 1)
    assert not sending.spend(QUEUE, 1, "next")
    assert sending.give_back(QUEUE, 2, 2) == []
    assert sending.give_back(QUEUE, 1, 1) == ["next"]


def test_nothing_is_kept_of_a_queue_that_is_empty() -> None:
    sending = outstanding()
    sending.spend(QUEUE, 1)
    assert len(sending) == 1
    sending.give_back(QUEUE, 1, 1)
    assert len(sending) == 0


def test_credit_for_messages_to_an_earlier_incarnation_is_ignored() -> None:
    sending = outstanding(messages=2)
    sending.spend(QUEUE, 1)
    sending.give_back(QUEUE, 7, 700)
    assert [sending.spend(QUEUE, 1) for _ in range(3)] == [True, True, False]


def test_a_node_that_ends_wakes_its_waiters() -> None:
    sending = outstanding(messages=1)
    for queue in (QUEUE, OTHER, ("elsewhere", "sink-1@controller")):
        sending.spend(queue, 1)
        sending.spend(queue, 1, f"{queue[0]} {queue[1][:6]}")
    assert sending.forget({"worker"}) == ["worker sink-1", "worker sink-2"]
    assert sending.spend(QUEUE, 1)
    assert sending.close() == ["elsewhere sink-1"]
    assert all(sending.spend(QUEUE, 1) for _ in range(10))


def test_what_is_owed_is_said_in_batches_of_half_a_window() -> None:
    owed = OwedCredits(QueueLimits(6, 100))
    assert [owed.take("a", 1) for _ in range(6)] == [None, None, (3, 3)] * 2
    assert [owed.take("a", 20), owed.take("b", 49), owed.take("a", 30)] == [None, None, (2, 50)]
    assert owed.close() == {"b": (1, 49)}
    assert owed.take("b", 5) == (1, 5)
    assert owed.close() == {}


@given(
    st.integers(1, 9),
    st.integers(1, 40),
    st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=60),
)
def test_a_sender_that_waits_always_comes_to_know_of_room(most: int, size: int, steps: list[tuple[bool, int]]) -> None:
    """Whatever is sent and taken, in whatever order: with an empty queue there is room, and all is accounted for."""
    window = QueueLimits(most, size)
    sending, owed, queue = SentCredits[Any](window), OwedCredits(window), list[int]()
    waiting = False

    def take() -> None:
        nonlocal waiting
        taken = queue.pop(0)
        if (due := owed.take("a", taken)) is not None and sending.give_back(QUEUE, *due):
            waiting = False

    for sends, number in steps:
        if sends and not waiting:
            if sending.spend(QUEUE, number, "waiter"):
                queue.append(number)
                assert len(queue) <= most
                assert sum(queue[:-1]) < size
            else:
                waiting = True
        elif queue:
            take()
    while queue:
        take()
    assert not waiting
    for messages, total in owed.close().values():
        sending.give_back(QUEUE, messages, total)
    assert len(sending) == 0


@pytest.mark.parametrize(
    ("actor", "counted"), [("trainer-3@controller", True), ("a-0@procs-04d1.3", True), ("control", False)]
)
def test_the_actors_of_the_runtime_are_not_counted(actor: str, counted: bool) -> None:
    assert is_counted(actor) is counted


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ((), 0),
        ((b"12345",), 5),
        ((memoryview(b"12345"),), 5),
        ((b"123", memoryview(bytearray(16)).cast("d"), b"4"), 20),
    ],
)
def test_the_size_of_a_body_is_that_of_all_its_parts(body: Any, size: int) -> None:
    assert size_of(body) == size
