"""Bytes from node to node: the same behaviour over every transport, and what only sockets can get wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from meshbook.runtime.config import Settings
from meshbook.runtime.transport import PeerGone, Transport
from meshbook.runtime.transport.memory import Switchboard
from meshbook.runtime.transport.zeromq import KeyPair, ZmqTransport, ipc_url
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
    here.remember("there")
    here.send(again.address, b"after")
    assert received(again, 2) == [here.greeting, b"after"]


def test_remembering_a_peer_that_was_not_forgotten_changes_nothing(opened: Open) -> None:
    here, there = opened("here"), opened("there")
    here.send(there.address, b"1")
    for node in ("there", "nobody"):
        here.remember(node)
    here.send(there.address, b"2")
    assert received(there, 3)[1:] == [b"1", b"2"]


# -- sockets ---------------------------------------------------------------------


@pytest.fixture
def secure(transports: list[Transport]) -> Callable[..., ZmqTransport]:
    """TCP transports with CURVE keys: `secure(name, keys, trusted)`."""

    def make(name: str, keys: KeyPair, trusted: list[KeyPair]) -> ZmqTransport:
        known = [pair.public for pair in trusted]
        transport = ZmqTransport(name, "tcp://127.0.0.1:*", Settings(), keys=keys, trusted=known)
        transport.greeting = b"hello from " + name.encode()
        transports.append(transport)
        return transport

    return make


def test_tcp_with_a_trusted_key(secure: Callable[..., ZmqTransport]) -> None:
    one, two = KeyPair.generate(), KeyPair.generate()
    here, there = secure("here", one, [two]), secure("there", two, [one])
    here.send(there.address, b"there")
    there.send(here.address, b"back")
    assert received(there, 2) == [b"hello from here", b"there"]
    assert received(here, 2) == [b"hello from there", b"back"]


def test_tcp_with_an_unknown_key_is_refused(secure: Callable[..., ZmqTransport]) -> None:
    trusted, stranger, own = KeyPair.generate(), KeyPair.generate(), KeyPair.generate()
    there = secure("there", own, [trusted])
    refused = secure("stranger", stranger, [])
    refused.send(there.address, b"let me in")
    # That a handshake failed is visible only at the stranger; what the other one hears next is from a friend.
    assert wait_for_event(refused, there.address) == "refused"
    secure("friend", trusted, []).send(there.address, b"it is me")
    assert received(there, 2) == [b"hello from friend", b"it is me"]


def wait_for_event(transport: ZmqTransport, to: Address) -> str:
    """Whether a connection to `to` with this transport's keys is accepted or refused."""
    from zmq.utils.monitor import recv_monitor_message

    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    assert transport._keys is not None
    socket.curve_publickey, socket.curve_secretkey = transport._keys.public, transport._keys.secret
    socket.curve_serverkey = to.key
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    monitor.rcvtimeo = int(PATIENCE * 1000)
    socket.connect(to.url)
    event = recv_monitor_message(monitor)["event"]
    socket.disable_monitor()
    context.destroy(0)
    return "accepted" if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else "refused"


def test_tcp_without_a_key_is_refused(secure: Callable[..., ZmqTransport]) -> None:
    own, trusted = KeyPair.generate(), KeyPair.generate()
    there = secure("there", own, [trusted])
    context = zmq.Context()
    plain = context.socket(zmq.PUSH)
    failed = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
    monitor = plain.get_monitor_socket(failed)
    monitor.rcvtimeo = int(PATIENCE * 1000)
    plain.connect(there.address.url)
    plain.send(b"let me in")
    monitor.recv_multipart()  # raises zmq.Again where the connection stands
    plain.disable_monitor()
    context.destroy(0)
    secure("friend", trusted, []).send(there.address, b"it is me")
    assert received(there, 2) == [b"hello from friend", b"it is me"]


def test_tcp_needs_keys() -> None:
    with pytest.raises(ValueError, match="CURVE"):
        ZmqTransport("here", "tcp://127.0.0.1:*", Settings())


def test_a_peer_with_a_key_needs_ours(folder: Path) -> None:
    here = ZmqTransport("here", ipc_url(folder, "here"), Settings())
    with pytest.raises(PeerGone, match="CURVE"):
        here.send(Address("there", "tcp://127.0.0.1:1", KeyPair.generate().public), b"x")
    here.close()
    assert here.receive() is None


def test_a_taken_address_is_an_error_that_names_it(folder: Path) -> None:
    with pytest.raises(OSError, match="node here cannot listen on ipc:///nowhere"):
        ZmqTransport("here", "ipc:///nowhere/at/all", Settings())


def test_a_path_too_long_for_a_socket_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="MESHBOOK_RUNTIME_DIR"):
        ipc_url(tmp_path / ("x" * 100), "node")


def test_sending_to_no_node_of_this_process() -> None:
    with pytest.raises(PeerGone, match="nobody"):
        Switchboard().transport("here").send(Address("nobody", "memory://nobody"), b"x")
