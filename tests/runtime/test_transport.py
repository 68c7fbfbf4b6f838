"""Bytes from node to node: the same behaviour over every transport, and what only sockets can get wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.config import Settings
from meshbook.runtime.transport import PeerGone, Transport
from meshbook.runtime.transport.home import Home
from meshbook.runtime.transport.memory import Switchboard
from meshbook.runtime.transport.zeromq import ZmqTransport
from meshbook.runtime.wire.messages import Address

PATIENCE = 10.0
MARK = 10  # messages a peer may be behind, in the tests that fill queues
Open = Callable[[str], Transport]


@pytest.fixture
def transports() -> Iterator[list[Transport]]:
    """Those of the test, which are closed at its end and read to theirs."""
    made: list[Transport] = []
    yield made
    for transport in made:
        transport.close()
        while transport.receive() is not None:
            pass


@pytest.fixture
def opened(connect: Any, transports: list[Transport]) -> Open:
    """Opens a transport by name, with a low high-water mark."""

    def make(name: str) -> Transport:
        transport: Transport = connect(name, Settings(high_water_mark=MARK))
        transport.greeting = b"hello from " + name.encode()
        transports.append(transport)
        return transport

    return make


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def received(transport: Transport, count: int) -> list[bytes]:
    return [bytes(transport.receive() or b"") for _ in range(count)]


def test_the_greeting_comes_first_and_once(opened: Open) -> None:
    here, there = opened("here"), opened("there")
    for frame in (b"1", b"2"):
        here.send(there.address, frame)
    assert received(there, 3) == [b"hello from here", b"1", b"2"]


@pytest.mark.parametrize("frame", [b"x", b"x" * 100_000, bytearray(b"y" * 70_000)], ids=len)
def test_frames_arrive_whole(opened: Open, frame: bytes) -> None:
    here, there = opened("here"), opened("there")
    here.send(there.address, frame)
    assert received(there, 2)[1] == bytes(frame)


def test_frames_of_one_sender_keep_their_order_and_threads_do_not_mix_them(opened: Open) -> None:
    here, there = opened("here"), opened("there")
    here.send(there.address, b"")
    count = 200

    def send(who: int) -> None:
        for number in range(count):
            here.send(there.address, b"%d:%d" % (who, number))

    threads = [in_thread(lambda who=who: send(who)) for who in range(3)]  # type: ignore[misc]
    frames = [frame.split(b":") for frame in received(there, 2 + 3 * count)[2:]]
    for thread in threads:
        thread.join(PATIENCE)
    for who in range(3):
        assert [int(number) for sender, number in frames if int(sender) == who] == list(range(count))


def test_a_knock_wakes_the_receiver(opened: Open) -> None:
    here = opened("here")
    here.knock()
    frame = here.receive()
    assert frame is not None
    assert not len(frame)


def test_nothing_to_receive_is_an_empty_frame(opened: Open) -> None:
    frame = opened("here").receive_nowait()
    assert frame is not None
    assert not len(frame)


def test_close_ends_receive(opened: Open) -> None:
    here = opened("here")
    ended: list[object] = []
    thread = in_thread(lambda: ended.append(here.receive()))
    here.close()
    thread.join(PATIENCE)
    assert ended == [None]


def test_after_close_nothing_is_sent(opened: Open) -> None:
    here, there = opened("here"), opened("there")
    here.close()
    with pytest.raises(PeerGone):
        here.send(there.address, b"late")


def flood(sender: Transport, to: Address, count: int) -> tuple[threading.Thread, list[int], list[Exception]]:
    """Send numbered frames from a thread: (thread, what has been sent so far, the error that ended it)."""
    sent: list[int] = []
    errors: list[Exception] = []

    def send() -> None:
        try:
            for number in range(count):
                sender.send(to, b"%d" % number)
                sent.append(number)
        except PeerGone as error:
            errors.append(error)

    return in_thread(send), sent, errors


def test_a_receiver_that_is_behind_stops_its_sender_and_loses_nothing(opened: Open) -> None:
    here, there = opened("here"), opened("there")
    count = 5000
    thread, sent, _ = flood(here, there.address, count)
    thread.join(0.3)  # without back-pressure it would be through by then, or soon
    assert thread.is_alive()
    assert len(sent) < count
    frames = received(there, count + 1)[1:]
    thread.join(PATIENCE)
    assert frames == [b"%d" % number for number in range(count)]


def test_forgetting_a_peer_wakes_a_blocked_sender(opened: Open) -> None:
    here, there = opened("here"), opened("there")
    thread, _, errors = flood(here, there.address, 5000)  # nobody receives: it will be blocked, or is already
    thread.join(0.1)
    here.forget("there")
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len(errors) == 1
    with pytest.raises(PeerGone, match="there"):
        here.send(there.address, b"more")


def test_closing_wakes_a_blocked_sender(opened: Open) -> None:
    here, there = opened("here"), opened("there")
    thread, _, errors = flood(here, there.address, 5000)
    thread.join(0.1)
    closing = in_thread(here.close)
    closing.join(PATIENCE)
    thread.join(PATIENCE)
    assert not closing.is_alive()
    assert not thread.is_alive()
    assert len(errors) == 1


def test_a_forgotten_peer_that_comes_again_is_remembered(opened: Open) -> None:
    """It is greeted anew, since whoever is there now has not been."""
    here, there = opened("here"), opened("there")
    here.send(there.address, b"before")
    assert received(there, 2)[1:] == [b"before"]
    there.close()
    assert there.receive() is None
    if isinstance(there, ZmqTransport):
        there.terminate()  # it removes its socket's file: that must not be the next one's
    here.forget("there")
    again = opened("there")
    here.remember("there", 1)
    here.send(again.address, b"after")
    assert received(again, 2) == [here.greeting, b"after"]


def test_remembering_a_peer_that_was_not_forgotten_changes_nothing(opened: Open) -> None:
    here, there = opened("here"), opened("there")
    here.send(there.address, b"1")
    for node in ("there", "nobody"):
        here.remember(node, 1)
    here.send(there.address, b"2")
    assert received(there, 3)[1:] == [b"1", b"2"]


# -- sockets ---------------------------------------------------------------------


def test_a_taken_address_is_an_error_that_names_it(folder: Path) -> None:
    with pytest.raises(OSError, match="node here cannot listen on ipc:///nowhere"):
        ZmqTransport("here", Home.of_first_host(Path("/nowhere/at/all")), Settings())


def test_a_path_too_long_for_a_socket_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="MESHBOOK_RUNTIME_DIR"):
        Home.of_first_host(tmp_path / ("x" * 100)).socket("node")


def test_sending_to_no_node_of_this_process() -> None:
    with pytest.raises(PeerGone, match="nobody"):
        Switchboard().transport("here").send(Address("nobody", "memory://nobody"), b"x")
