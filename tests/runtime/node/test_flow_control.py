"""Flow control: how much may be sent, which threads wait, and that a sender always learns of room."""

from __future__ import annotations

from typing import Any, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.runtime.node.flow_control import OwedCredits, QueueLimits, SentCredits, is_counted, size_of

QUEUE = ("worker", "sink-1@controller")
OTHER = ("worker", "sink-2@controller")


def send(sending: SentCredits[str], queue: tuple[str, str], size: int, waiter: str | None = None) -> bool:
    """Send a message if there is room; return whether there was."""
    if (sent := sending.spend(queue, size, waiter)) is not None:
        sent.leave(size)
    return sent is not None


def report(owed: OwedCredits, sender: str) -> tuple[int, int] | None:
    """Return what is reported to the sender."""
    if (due := owed.due(sender)) is not None:
        owed.reported(sender, *due)
    return due


def take(owed: OwedCredits, sender: str, size: int) -> tuple[int, int] | None:
    """Take a message; return what is reported to the sender."""
    return report(owed, sender) if owed.take(sender, size) else None


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
    assert [send(sending, QUEUE, size) for size in sizes] == [True] * admitted + [False] * (len(sizes) - admitted)


@pytest.mark.parametrize("window", [QueueLimits(0, 0), QueueLimits(1, 1)])
def test_one_message_always_goes(window: QueueLimits) -> None:
    sending: SentCredits[str] = SentCredits(window)
    assert [send(sending, QUEUE, 10), send(sending, QUEUE, 10)] == [True, False]
    assert take(OwedCredits(window), "controller", 10) == (1, 10)


def test_each_queue_has_its_own_window() -> None:
    sending = outstanding(messages=1)
    assert send(sending, QUEUE, 1)
    assert send(sending, OTHER, 1)
    assert not send(sending, QUEUE, 1)


def test_waiters_are_returned_once_there_is_room() -> None:
    sending = outstanding(messages=2)
    assert all(send(sending, QUEUE, 1) for _ in range(2))
    assert not send(sending, QUEUE, 1, "first")
    assert not send(sending, QUEUE, 1, "second")
    assert sending.give_back(OTHER, 1, 1) == []
    assert sending.give_back(QUEUE, 1, 1) == ["first", "second"]
    assert send(sending, QUEUE, 1)
    assert not send(sending, QUEUE, 1, "second again")
    assert sending.give_back(QUEUE, 1, 1) == ["second again"]


def test_a_waiter_that_gave_up_is_not_returned() -> None:
    sending = outstanding(messages=1)
    send(sending, QUEUE, 1)
    send(sending, QUEUE, 1, "first")
    sending.leave(QUEUE, "first")
    sending.leave(QUEUE, "nobody")
    sending.leave(OTHER, "nobody")
    assert sending.give_back(QUEUE, 1, 1) == []


def test_messages_of_threads_that_must_not_wait_are_counted_too() -> None:
    sending = outstanding(messages=1)
    for _ in range(3):
        sending.overspend(QUEUE, 1).leave(1)
    assert not send(sending, QUEUE, 1, "next")
    assert sending.give_back(QUEUE, 2, 2) == []
    assert sending.give_back(QUEUE, 1, 1) == ["next"]


def test_nothing_is_kept_of_a_queue_that_is_empty() -> None:
    sending = outstanding()
    send(sending, QUEUE, 1)
    assert len(sending) == 1
    sending.give_back(QUEUE, 1, 1)
    assert len(sending) == 0


def test_credit_for_messages_to_an_earlier_incarnation_is_ignored() -> None:
    sending = outstanding(messages=2)
    send(sending, QUEUE, 1)
    sending.give_back(QUEUE, 7, 700)
    assert [send(sending, QUEUE, 1) for _ in range(3)] == [True, True, False]


def test_a_node_that_ends_wakes_its_waiters() -> None:
    sending = outstanding(messages=1)
    for queue in (QUEUE, OTHER, ("elsewhere", "sink-1@controller")):
        send(sending, queue, 1)
        send(sending, queue, 1, f"{queue[0]} {queue[1][:6]}")
    assert sending.forget({"worker"}) == ["worker sink-1", "worker sink-2"]
    assert send(sending, QUEUE, 1)
    assert sending.close() == ["elsewhere sink-1"]
    assert all(send(sending, QUEUE, 1) for _ in range(10))


def test_what_is_owed_is_said_in_batches_of_half_a_window() -> None:
    owed = OwedCredits(QueueLimits(6, 100))
    assert [take(owed, "a", 1) for _ in range(6)] == [None, None, (3, 3)] * 2
    assert [take(owed, "a", 20), take(owed, "b", 49), take(owed, "a", 30)] == [None, None, (2, 50)]
    assert [(sender, report(owed, sender)) for sender in owed.close()] == [("a", None), ("b", (1, 49))]
    assert take(owed, "b", 5) == (1, 5)


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

    def take_next() -> None:
        nonlocal waiting
        taken = queue.pop(0)
        if (due := take(owed, "a", taken)) is not None and sending.give_back(QUEUE, *due):
            waiting = False

    for sends, number in steps:
        if sends and not waiting:
            if send(sending, QUEUE, number, "waiter"):
                queue.append(number)
                assert len(queue) <= most
                assert sum(queue[:-1]) < size
            else:
                waiting = True
        elif queue:
            take_next()
    while queue:
        take_next()
    assert not waiting
    for sender in owed.close():
        sending.give_back(QUEUE, *(report(owed, sender) or (0, 0)))
    assert len(sending) == 0


def test_room_that_an_interrupted_thread_has_reserved_is_given_back() -> None:
    sending = outstanding(messages=3)
    interrupted, late = sending.spend(QUEUE, 1), sending.spend(QUEUE, 1)
    assert send(sending, QUEUE, 1)
    assert not send(sending, QUEUE, 1, "waiter")
    assert interrupted is not None
    assert late is not None
    assert sending.is_reserved(QUEUE)
    sending.write_off(QUEUE)
    late.leave(1)  # it was only slow, and counts
    assert send(sending, QUEUE, 1)
    assert send(sending, QUEUE, 1)  # one more than the limit, for the slow one
    assert not send(sending, QUEUE, 1)
    assert not sending.is_reserved(QUEUE)


def test_a_waiter_is_returned_if_all_that_lacks_is_reserved() -> None:
    sending = outstanding(messages=2)
    assert sending.spend(QUEUE, 1)
    assert send(sending, QUEUE, 1)
    assert send(sending, OTHER, 1)
    assert not send(sending, QUEUE, 1, "waiter")
    sending.overspend(QUEUE, 1).leave(1)
    assert sending.give_back(QUEUE, 1, 1) == ["waiter"]


Step = Literal["send", "interrupted before", "interrupted after", "take", "interrupted report"]


@given(st.integers(1, 5), st.integers(1, 40), st.lists(st.tuples(st.sampled_from(get_args(Step)), st.integers(0, 60))))
def test_no_interrupt_loses_room(most: int, size: int, steps: list[tuple[Step, int]]) -> None:
    """Once the receiver has taken and reported all, there is room, wherever sends and reports were interrupted."""
    window = QueueLimits(most, size)
    sending, owed, queue = SentCredits[Any](window), OwedCredits(window), list[int]()
    for step, number in steps:
        if step == "take" or step == "interrupted report":
            if queue and owed.take("a", queue.pop(0)):
                due = owed.due("a")
                assert due is not None
                sending.give_back(QUEUE, *due)
                if step == "take":
                    owed.reported("a", *due)
        elif (sent := sending.spend(QUEUE, number)) is not None and step != "interrupted before":
            queue.append(number)
            if step == "send":
                sent.leave(number)
    for taken in queue:
        if owed.take("a", taken):
            sending.give_back(QUEUE, *(report(owed, "a") or (0, 0)))
    if not sending.spend(QUEUE, 1):
        if not sending.is_reserved(QUEUE):
            sending.give_back(QUEUE, *(report(owed, "a") or (0, 0)))  # what a waiting sender asks for
        sending.write_off(QUEUE)
        assert sending.spend(QUEUE, 1)


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
