"""Links that are slow or cut for a time: everything arrives, in order, and nothing waits longer than it has to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshbook.runtime.config import Settings
from meshbook.runtime.transport import PeerGone, Transport
from meshbook.runtime.transport.disturbed import DisturbedTransport
from tests.runtime.conftest import Received
from tests.support import PATIENCE

LONG = 1000.0  # seconds of a disturbance that no test waits for: it mends the link instead


class End:
    """A started transport and what it has received."""

    def __init__(self, transport: Transport) -> None:
        self.transport: Any = transport
        self.address = transport.address
        self.received = Received(transport)
        self.send = lambda to, frame: transport.send(to.address, frame)


@pytest.fixture
def make(connect: Any) -> Iterator[Callable[..., End]]:
    """Makes a transport, or one that can be disturbed; closed at the end."""
    made: list[Transport] = []

    def make(name: str, *, disturbed: bool = False, limit: int = 100) -> End:
        inside = connect(name, Settings())
        inside.greeting = b"hello"
        made.append(DisturbedTransport(inside, limit) if disturbed else inside)
        return End(made[-1])

    yield make
    for transport in made:
        transport.close()


@pytest.fixture
def here(make: Callable[..., End]) -> End:
    """The one whose link is disturbed."""
    return make("here", disturbed=True)


@pytest.fixture
def there(make: Callable[..., End], here: End) -> End:
    """Another one. Each has received a frame of the other."""
    there = make("there")
    here.send(there, b"first")
    there.send(here, b"first")
    assert there.received.take(2) == here.received.take(2) == [b"hello", b"first"]
    return there


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def disturb(here: End, how: str) -> None:
    here.transport.cut(LONG) if how == "cut" else here.transport.slow(LONG, LONG)


def test_it_costs_nothing_while_nothing_is_disturbed(here: End) -> None:
    transport = here.transport
    inside = transport._inside
    ways = ["send", "send_soon", "accept"]
    assert [getattr(transport, way) for way in ways] == [getattr(inside, way) for way in ways]
    transport.cut(LONG)
    assert all(getattr(transport, way) != getattr(inside, way) for way in ways)
    transport.mend()
    assert [getattr(transport, way) for way in ways] == [getattr(inside, way) for way in ways]


@pytest.mark.parametrize("way", ["send", "send_soon"])
@pytest.mark.parametrize("how", ["cut", "slow"])
def test_frames_that_are_sent_are_held_and_arrive_in_order(here: End, there: End, how: str, way: str) -> None:
    disturb(here, how)
    for frame in numbered(20):
        getattr(here.transport, way)(there.address, frame)
    here.transport.loop.run(lambda: None)
    there.transport.loop.run(lambda: None)
    assert there.received.is_empty()
    here.transport.mend()
    getattr(here.transport, way)(there.address, b"later")
    assert there.received.take(21) == [*numbered(20), b"later"]


@pytest.mark.parametrize("how", ["cut", "slow"])
def test_it_ends_by_itself(here: End, there: End, how: str) -> None:
    begun = time.monotonic()
    here.transport.cut(0.05) if how == "cut" else here.transport.slow(0.05, 0.05)
    here.send(there, b"late")
    assert there.received.take(1) == [b"late"]
    assert time.monotonic() - begun >= 0.05


def test_nothing_comes_in_while_it_is_cut(here: End, there: End) -> None:
    transport = here.transport
    transport.cut(LONG)
    for frame in numbered(5):
        there.send(here, frame)
    while len(transport._arrived) < 5:
        transport.loop.run(lambda: None)
    assert here.received.is_empty()
    transport.mend()
    assert here.received.take(5) == numbered(5)


def test_frames_that_come_in_over_a_slow_link_are_not_late(here: End, there: End) -> None:
    here.transport.slow(LONG, LONG)
    there.send(here, b"soon")
    assert here.received.take(1) == [b"soon"]


def test_frames_that_come_in_keep_their_order_when_a_cut_ends(here: End, there: End) -> None:
    sending = in_thread(lambda: [there.send(here, frame) for frame in numbered(2000)])
    for _ in range(20):
        here.transport.cut(LONG)
        here.transport.mend()
    sending.join(PATIENCE)
    assert here.received.take(2000) == numbered(2000)


def test_a_sender_waits_where_too_much_is_held(make: Callable[..., End], there: End) -> None:
    narrow = make("narrow", disturbed=True, limit=3)
    narrow.transport.cut(LONG)
    sent: list[bytes] = []

    def send() -> None:
        for frame in numbered(10):
            narrow.send(there, frame)
            sent.append(frame)

    sending = in_thread(send)
    sending.join(0.1)
    assert len(sent) == 3
    narrow.transport.mend()
    sending.join(PATIENCE)
    assert there.received.take(11) == [b"hello", *numbered(10)]


def test_an_abandoned_peer_gets_none_of_the_held_messages(here: End, there: End) -> None:
    here.transport.cut(LONG)
    here.send(there, b"for one that has ended")
    here.transport.forget("there")
    here.transport.remember("there", 1)
    here.send(there, b"for the next")
    here.transport.mend()
    assert there.received.take(2) == [b"hello", b"for the next"]


def test_frames_that_are_held_leave_before_the_end(here: End, there: End) -> None:
    here.transport.cut(LONG)
    here.send(there, b"goodbye")
    here.transport.close()
    assert there.received.take(1) == [b"goodbye"]
    with pytest.raises(PeerGone):
        here.send(there, b"late")


def test_many_threads_over_many_disturbances_keep_their_order(here: End, there: End) -> None:
    def send(sender: int) -> None:
        for number in range(300):
            here.send(there, b"%d:%d" % (sender, number))

    threads = [in_thread(lambda sender=sender: send(sender)) for sender in range(3)]  # type: ignore[misc]
    for number in range(30):
        here.transport.cut(0.002) if number % 2 else here.transport.slow(0.002, 0.001)
        here.transport.mend()
    frames = [frame.split(b":") for frame in there.received.take(900)]
    for thread in threads:
        thread.join(PATIENCE)
    for sender in range(3):
        assert [int(number) for by, number in frames if int(by) == sender] == list(range(300))
