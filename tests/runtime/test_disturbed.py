"""Links that are slow or cut for a time: everything comes, in order, and nothing waits longer than it has to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshbook.runtime.config import Settings
from meshbook.runtime.transport import PeerGone, Transport
from meshbook.runtime.transport.disturbed import DisturbedTransport

PATIENCE = 10.0
LONG = 1000.0  # seconds of a disturbance that no test waits for: it mends the link instead


@pytest.fixture
def make(connect: Any) -> Iterator[Callable[..., Any]]:
    """Makes a transport, or one that can be disturbed; closed at the end."""
    made: list[Transport] = []

    def make(name: str, *, disturbed: bool = False, limit: int = 100) -> Any:
        inside = connect(name, Settings())
        inside.greeting = b"hello"
        made.append(DisturbedTransport(inside, limit) if disturbed else inside)
        return made[-1]

    yield make
    for transport in made:
        transport.close()
        while transport.receive() is not None:
            pass


@pytest.fixture
def here(make: Callable[..., Any]) -> DisturbedTransport:
    """The one whose link is disturbed."""
    return make("here", disturbed=True)  # type: ignore[no-any-return]


@pytest.fixture
def there(make: Callable[..., Any], here: DisturbedTransport) -> Transport:
    """Another one, each of which has heard from the other."""
    there: Transport = make("there")
    here.send(there.address, b"first")
    there.send(here.address, b"first")
    assert take(there, 2) == take(here, 2) == [b"hello", b"first"]  # type: ignore[arg-type]
    return there


def take(transport: Transport, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        if frame := transport.receive():
            found.append(bytes(frame))
    return found


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def disturb(here: DisturbedTransport, how: str) -> None:
    here.cut(LONG) if how == "cut" else here.slow(LONG, LONG)


def test_it_costs_nothing_while_nothing_is_disturbed(here: DisturbedTransport) -> None:
    inside = here._inside
    ways = ["send", "receive", "receive_nowait", "knock"]
    assert [getattr(here, way) for way in ways] == [getattr(inside, way) for way in ways]
    here.cut(LONG)
    assert here.send != inside.send
    here.mend()
    assert [getattr(here, way) for way in ways] == [getattr(inside, way) for way in ways]


@pytest.mark.parametrize("how", ["cut", "slow"])
def test_what_is_sent_is_held_and_comes_in_order(here: DisturbedTransport, there: Transport, how: str) -> None:
    disturb(here, how)
    for frame in numbered(20):
        here.send(there.address, frame)
    assert there.receive_nowait() == b""
    here.mend()
    here.send(there.address, b"later")
    assert take(there, 21) == [*numbered(20), b"later"]


@pytest.mark.parametrize("how", ["cut", "slow"])
def test_it_ends_by_itself(here: DisturbedTransport, there: Transport, how: str) -> None:
    begun = time.monotonic()
    here.cut(0.05) if how == "cut" else here.slow(0.05, 0.05)
    here.send(there.address, b"late")
    assert take(there, 1) == [b"late"]
    assert time.monotonic() - begun >= 0.05


def test_nothing_comes_in_while_it_is_cut(here: DisturbedTransport, there: Transport) -> None:
    here.cut(LONG)
    for frame in numbered(5):
        there.send(here.address, frame)
    assert here.receive_nowait() == b""
    here.knock()
    assert here.receive() == b""
    here.mend()
    assert take(here, 5) == numbered(5)  # type: ignore[arg-type]


def test_what_comes_in_over_a_slow_link_is_not_late(here: DisturbedTransport, there: Transport) -> None:
    here.slow(LONG, LONG)
    there.send(here.address, b"soon")
    assert take(here, 1) == [b"soon"]  # type: ignore[arg-type]


def test_who_receives_already_does_not_get_what_comes_later(here: DisturbedTransport, there: Transport) -> None:
    found: list[bytes] = []
    receiving = in_thread(lambda: found.extend(take(here, 1)))  # type: ignore[arg-type]
    here.cut(LONG)
    there.send(here.address, b"1")
    here.mend()
    receiving.join(PATIENCE)
    assert found == [b"1"]


def test_a_sender_waits_where_too_much_is_held(make: Callable[..., Any], there: Transport) -> None:
    narrow = make("narrow", disturbed=True, limit=3)
    narrow.cut(LONG)
    sent: list[bytes] = []

    def send() -> None:
        for frame in numbered(10):
            narrow.send(there.address, frame)
            sent.append(frame)

    sending = in_thread(send)
    sending.join(0.1)
    assert len(sent) == 3
    narrow.mend()
    sending.join(PATIENCE)
    assert take(there, 11) == [b"hello", *numbered(10)]


def test_a_peer_that_is_given_up_gets_nothing_of_what_was_held(here: DisturbedTransport, there: Transport) -> None:
    here.cut(LONG)
    here.send(there.address, b"for one that has ended")
    here.forget("there")
    here.remember("there", 1)
    here.send(there.address, b"for the next")
    here.mend()
    assert take(there, 1) in ([b"hello"], [b"for the next"])


def test_what_is_held_leaves_before_the_end(here: DisturbedTransport, there: Transport) -> None:
    here.cut(LONG)
    here.send(there.address, b"goodbye")
    here.close()
    assert take(there, 1) == [b"goodbye"]
    with pytest.raises(PeerGone):
        here.send(there.address, b"late")


def test_many_threads_over_many_disturbances_keep_their_order(here: DisturbedTransport, there: Transport) -> None:
    def send(who: int) -> None:
        for number in range(300):
            here.send(there.address, b"%d:%d" % (who, number))

    threads = [in_thread(lambda who=who: send(who)) for who in range(3)]  # type: ignore[misc]
    for number in range(30):
        here.cut(0.002) if number % 2 else here.slow(0.002, 0.001)
        here.mend()
    frames = [frame.split(b":") for frame in take(there, 900)]
    for thread in threads:
        thread.join(PATIENCE)
    for who in range(3):
        assert [int(number) for sender, number in frames if int(sender) == who] == list(range(300))
