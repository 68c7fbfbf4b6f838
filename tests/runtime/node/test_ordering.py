"""The order of casts and direct messages of one sender, as its receiver handles them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from meshbook.runtime.node.ordering import Inbound, SendOrder


class RecordingInbound:
    """An `Inbound` with the path of each message: a cast, a direct message, a mark or a fence."""

    def __init__(self) -> None:
        self.inbound = Inbound()
        self.handled: list[str] = []

    def cast(self, name: str, number: int, mark: int = 0) -> None:
        self.inbound.add_cast(number, mark, lambda: self.handled.append(name))

    def direct(self, name: str) -> None:
        self._in_turn(lambda: self.handled.append(name))

    def mark(self, number: int) -> None:
        self._in_turn(lambda: self.inbound.set_mark(number))

    def fence(self, number: int) -> None:
        self._in_turn(lambda: self.inbound.set_fence(number))

    def reply(self, name: str, mark: int) -> None:
        self.inbound.add_reply(mark, lambda: self.handled.append(name))

    def _in_turn(self, item: Callable[[], object]) -> None:
        if self.inbound.holds:
            self.inbound.add_direct(item)
        else:
            item()


def test_casts_are_handled_in_the_order_of_their_numbers() -> None:
    receiver = RecordingInbound()
    receiver.cast("b", 2)
    receiver.cast("c", 3)
    assert receiver.handled == []
    receiver.cast("a", 1)
    receiver.cast("a", 1)  # a second copy is dropped
    assert receiver.handled == ["a", "b", "c"]


def test_a_direct_message_waits_for_the_casts_before_its_fence() -> None:
    receiver = RecordingInbound()
    receiver.fence(2)
    receiver.direct("after")
    receiver.cast("a", 1)
    assert receiver.handled == ["a"]
    receiver.cast("b", 2)
    receiver.direct("later")
    assert receiver.handled == ["a", "b", "after", "later"]


def test_a_cast_waits_for_the_direct_messages_before_its_mark() -> None:
    receiver = RecordingInbound()
    receiver.cast("cast", 1, mark=1)
    receiver.direct("before")
    assert receiver.handled == ["before"]
    receiver.mark(1)
    assert receiver.handled == ["before", "cast"]


def test_a_reply_waits_for_its_own_mark_only() -> None:
    receiver = RecordingInbound()
    receiver.reply("second", 2)
    receiver.reply("first", 1)
    receiver.mark(1)
    assert receiver.handled == ["first"]
    receiver.inbound.release_replies()
    assert receiver.handled == ["first", "second"]


def test_lost_casts_are_waited_for_no_longer() -> None:
    receiver = RecordingInbound()
    receiver.fence(3)
    receiver.direct("direct")
    receiver.cast("c", 3)
    receiver.inbound.give_up(3)
    assert receiver.handled == ["c", "direct"]
    receiver.cast("b", 2)  # too late: its caller has received an error
    receiver.cast("d", 4)
    assert receiver.handled == ["c", "direct", "d"]


def test_a_failing_message_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    receiver = RecordingInbound()
    receiver.inbound.add_cast(1, 0, lambda: 1 / 0)
    receiver.cast("next", 2)
    assert receiver.handled == ["next"]
    assert "could not be handled" in caplog.text


@pytest.mark.parametrize("seed", range(40))
def test_any_interleaving_of_the_two_paths_keeps_the_order_of_sending(seed: int) -> None:
    dice = random.Random(seed)
    stream, direct, casts, sent = SendOrder(), [], [], []
    receiver = RecordingInbound()
    for name in map(str, range(30)):
        sent.append(name)
        if dice.random() < 0.5:
            if stream.direct > stream.marked:
                number = next(stream.numbers)
                direct.append((receiver.mark, number))
                stream.set_mark(number, stream.direct)
            stream.casts += 1
            casts.append((receiver.cast, name, stream.casts, stream.mark))
        else:
            if stream.fenced != stream.casts:
                direct.append((receiver.fence, stream.casts))
                stream.fenced = stream.casts
            direct.append((receiver.direct, name))
            stream.direct += 1
    while direct or casts:
        path = casts if not direct or (casts and dice.random() < 0.5) else direct
        for act, *arguments in [path.pop(0) for _ in itertools.islice(path.copy(), dice.randrange(1, 6))]:
            act(*arguments)
    assert receiver.handled == sent
