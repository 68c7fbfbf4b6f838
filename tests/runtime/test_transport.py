"""Bytes from node to node: the same behaviour over every transport, and what only sockets can get wrong."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.config import Settings
from meshbook.runtime.transport import PeerGone, RunEnded, Transport
from meshbook.runtime.transport.home import Home
from meshbook.runtime.transport.io_loop import IoLoop
from meshbook.runtime.transport.memory import Switchboard
from meshbook.runtime.transport.unix import PACKET_BYTES, PeerConnection, StreamSocket, UnixTransport
from meshbook.runtime.wire.messages import Address
from tests.runtime.conftest import Gate, Received
from tests.support import PATIENCE

MARK = 10  # messages a peer may be behind, in the tests that fill queues
Open = Callable[[str], Transport]


@pytest.fixture
def transports() -> Iterator[list[Transport]]:
    """The transports of the test, closed at its end."""
    made: list[Transport] = []
    yield made
    for transport in made:
        transport.close()


@pytest.fixture
def opened(connect: Any, transports: list[Transport]) -> Open:
    """Opens a transport by name, with a low high-water mark. It is not started."""

    def make(name: str) -> Transport:
        transport: Transport = connect(name, Settings(high_water_mark=MARK))
        transport.greeting = b"hello from " + name.encode()
        transports.append(transport)
        return transport

    return make


@pytest.fixture
def here(opened: Open) -> Transport:
    """A started transport, which sends."""
    made = opened("here")
    made.start()
    return made


@pytest.fixture
def there(opened: Open) -> Transport:
    """A transport that is not started, so that it is a slow receiver until `Received` starts it."""
    return opened("there")


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def on_io_thread(transport: Transport, work: Callable[[], None]) -> None:
    """Run this on the I/O thread of a started transport, and wait for it."""
    transport.loop.run(work)


WAYS = ["send", "send_soon"]


@pytest.mark.parametrize("way", WAYS)
def test_the_greeting_comes_first_and_once(here: Transport, there: Transport, way: str) -> None:
    for frame in (b"1", b"2"):
        getattr(here, way)(there.address, frame)
    assert Received(there).take(3) == [b"hello from here", b"1", b"2"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "frame",
    [b"x", b"x" * (PACKET_BYTES - 4), b"x" * (PACKET_BYTES - 3), b"x" * 100_000, bytearray(b"y" * 7_000_000)],
    ids=len,
)
def test_frames_arrive_whole(here: Transport, there: Transport, way: str, frame: bytes) -> None:
    received = Received(there)
    for each in (b"before", frame, b"after"):
        getattr(here, way)(there.address, each)
    assert received.take(4)[1:] == [b"before", bytes(frame), b"after"]


def test_frames_of_one_sender_keep_their_order_and_threads_do_not_mix_them(here: Transport, there: Transport) -> None:
    received = Received(there)
    count = 200
    here.send(there.address, b"first")  # and the greeting, which several threads may send at once

    def send(sender: int) -> None:
        for number in range(count):
            # Both ways, and some of them large: a frame never passes an earlier one of its thread.
            send_one = here.send_soon if number % 3 == 1 else here.send
            send_one(there.address, b"%d:%d:" % (sender, number) + bytes(100_000 * (number % 50 == 7)))

    threads = [in_thread(lambda sender=sender: send(sender)) for sender in range(3)]  # type: ignore[misc]
    frames = [frame.split(b":") for frame in received.take(2 + 3 * count)[2:]]
    for thread in threads:
        thread.join(PATIENCE)
    for sender in range(3):
        assert [int(number) for by, number, _ in frames if int(by) == sender] == list(range(count))


def test_the_io_thread_may_send(here: Transport, there: Transport) -> None:
    """It never waits there, however far the receiver is behind."""
    frames = [b"%d" % number for number in range(50 * MARK)]
    on_io_thread(here, lambda: [here.send(there.address, frame) for frame in frames] and None)
    assert Received(there).take(1 + len(frames))[1:] == frames


def test_frames_are_accepted_on_the_io_thread_only(here: Transport, there: Transport, gate: Gate) -> None:
    there.accept = lambda frame: gate.tell(there.loop.is_current)
    there.start()
    for _ in range(3):
        here.send(there.address, b"x")
    assert [gate.wait_entered() for _ in range(4)] == [True] * 4


@pytest.mark.parametrize("kind", [ValueError, KeyError])
@pytest.mark.parametrize("bad", [b"bad", b"bad" * 100_000], ids=len)
def test_a_frame_that_cannot_be_handled_does_not_stop_the_others(
    here: Transport, there: Transport, gate: Gate, caplog: pytest.LogCaptureFixture, kind: type[Exception], bad: bytes
) -> None:
    def accept(frame: Any) -> None:
        if bytes(frame) == bad:
            raise kind("on purpose")
        gate.tell(bytes(frame))

    there.accept = accept
    frames = [b"1", bad, b"2", bad, b"3"]
    for frame in frames:  # all before the receiver starts, so that it reads several at once
        here.send_soon(there.address, frame)
    there.start()
    assert [gate.wait_entered() for _ in range(4)] == [here.greeting, b"1", b"2", b"3"]
    assert len(caplog.records) == 2


def test_a_transport_that_is_not_started_can_be_closed(there: Transport) -> None:
    there.close()
    there.close()


def test_closing_sends_what_is_queued(here: Transport, there: Transport) -> None:
    received = Received(there)
    frames = [b"%d" % number for number in range(MARK)]
    for frame in frames:
        here.send_soon(there.address, frame)
    here.close()
    assert received.take(1 + MARK)[1:] == frames


def test_after_close_nothing_is_sent(here: Transport, there: Transport) -> None:
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


def test_a_receiver_that_is_behind_stops_its_sender_and_loses_nothing(here: Transport, there: Transport) -> None:
    count = 5000
    thread, sent, _ = flood(here, there.address, count)
    thread.join(0.3)  # without back-pressure it would be through by then, or soon
    assert thread.is_alive()
    assert len(sent) < count
    frames = Received(there).take(count + 1)[1:]
    thread.join(PATIENCE)
    assert frames == [b"%d" % number for number in range(count)]


def test_a_receiver_that_is_behind_holds_up_no_others(here: Transport, there: Transport, opened: Open) -> None:
    thread, _, _ = flood(here, there.address, 5000)
    thread.join(0.1)
    other = opened("other")
    received = Received(other)
    for number in range(100):
        here.send(other.address, b"%d" % number)
    assert received.take(101)[1:] == [b"%d" % number for number in range(100)]
    assert thread.is_alive()


@pytest.mark.parametrize("place", ["call_soon", "_wake"])
def test_a_send_that_ctrl_c_interrupts_holds_up_no_later_one(
    here: Transport, there: Transport, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Python raises KeyboardInterrupt where a function begins, also in the middle of a send."""
    received = Received(there)
    here.send_soon(there.address, b"1")
    assert received.take(2)[1:] == [b"1"]

    original = getattr(IoLoop, place)

    def interrupt(*arguments: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(IoLoop, place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            here.send_soon(there.address, b"interrupted")
    here.send_soon(there.address, b"2")
    [frame] = received.take(1)
    assert (received.take(1) if frame == b"interrupted" else [frame]) == [b"2"]


def test_forgetting_a_peer_wakes_a_blocked_sender(here: Transport, there: Transport) -> None:
    thread, _, errors = flood(here, there.address, 5000)
    thread.join(0.1)
    here.forget("there")
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len(errors) == 1
    for way in WAYS:
        with pytest.raises(PeerGone, match="there"):
            getattr(here, way)(there.address, b"more")


def test_nothing_is_sent_to_a_peer_that_was_forgotten_before_the_first_message(
    here: Transport, there: Transport, opened: Open
) -> None:
    """A thread may check that a peer lives, then learn nothing of its end, and only then send."""
    here.forget("there")
    for way in WAYS:
        with pytest.raises(PeerGone, match="there"):
            getattr(here, way)(there.address, b"late")
    there.close()
    again = opened("there")
    here.remember("there", 1)
    here.send(again.address, b"after")
    assert Received(again).take(2) == [here.greeting, b"after"]


def test_closing_wakes_a_blocked_sender(here: Transport, there: Transport) -> None:
    thread, _, errors = flood(here, there.address, 5000)
    thread.join(0.1)
    closing = in_thread(here.close)
    closing.join(PATIENCE)
    thread.join(PATIENCE)
    assert not closing.is_alive()
    assert not thread.is_alive()
    assert len(errors) == 1


def test_a_forgotten_peer_that_comes_again_is_remembered(here: Transport, there: Transport, opened: Open) -> None:
    """It is greeted anew, since the process that is there now has not been."""
    here.send(there.address, b"before")
    assert Received(there).take(2)[1:] == [b"before"]
    there.close()
    here.forget("there")
    again = opened("there")
    here.remember("there", 1)
    here.send(again.address, b"after")
    assert Received(again).take(2) == [here.greeting, b"after"]


@pytest.mark.parametrize("incarnation", [0, 3])
def test_remembering_a_peer_that_was_not_forgotten_changes_nothing(
    here: Transport, there: Transport, incarnation: int
) -> None:
    """Also where this node learns only now how often it was restarted: what is queued is for that process."""
    here.remember("never seen", 1)
    frames = [b"%d" % number for number in range(MARK // 2)]
    for frame in frames:
        here.send_soon(there.address, frame)
        here.remember("there", incarnation)
    assert Received(there).take(1 + len(frames))[1:] == frames


def test_frames_for_a_held_peer_wait_for_the_next_process(here: Transport, there: Transport, opened: Open) -> None:
    received = Received(there)
    here.send(there.address, b"1")
    here.hold(there.address, b"last", lambda frame: frame)
    for frame in (b"2", b"3"):
        here.send(there.address, frame)
    assert received.take(3) == [here.greeting, b"1", b"last"]
    there.close()
    again = opened("there")
    here.release(again.address, anew=True)
    here.send(again.address, b"4")
    received_again = Received(again)
    first, *others = received_again.take(4)
    others += received_again.take(others.count(here.greeting))  # a second greeting does no harm
    assert first == here.greeting
    assert [frame for frame in others if frame != here.greeting] == [b"2", b"3", b"4"]
    assert received.is_empty()


def test_frames_for_a_held_peer_that_stays_arrive(here: Transport, there: Transport) -> None:
    received = Received(there)
    here.send(there.address, b"1")
    here.hold(there.address, b"last", lambda frame: frame)
    here.send(there.address, b"2")
    assert received.take(3) == [here.greeting, b"1", b"last"]
    here.release(there.address, anew=False)
    here.send(there.address, b"3")
    greetings = int(isinstance(here, UnixTransport))  # a hold ends the connection
    assert received.take(greetings + 2) == [here.greeting] * greetings + [b"2", b"3"]


def test_a_thread_that_waits_for_room_does_not_wait_for_a_held_peer(here: Transport, there: Transport) -> None:
    thread, sent, errors = flood(here, there.address, 5000)
    thread.join(0.1)
    on_io_thread(here, lambda: here.hold(there.address, b"last", lambda frame: frame))
    Received(there)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert (len(sent), errors) == (5000, [])


# -- sockets ---------------------------------------------------------------------


@pytest.fixture
def unix(folder: Path, transports: list[Transport]) -> Callable[[str], UnixTransport]:
    """Opens transports over sockets alone."""

    def make(name: str) -> UnixTransport:
        made = UnixTransport(name, Home.of_first_host(folder), Settings(high_water_mark=MARK))
        made.greeting = b"hello"
        transports.append(made)
        return made

    return make


def test_frames_to_a_node_that_does_not_listen_yet_arrive(folder: Path, unix: Callable[[str], UnixTransport]) -> None:
    here = unix("here")
    here.start()
    here.send(Home.of_first_host(folder).address("there"), b"early")
    assert Received(unix("there")).take(2)[1:] == [b"early"]


class CountingLoop(IoLoop):
    """Counts the callbacks that other threads request."""

    requests = 0

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.requests += 1
        super().call_soon(callback)


def test_queued_frames_are_sent_by_one_request(tmp_path: Path) -> None:
    """The I/O thread does not run one callback for each frame, and a frame that comes later is sent as well."""
    loop, path = CountingLoop(), tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        peer = PeerConnection(loop, "there", str(path), limit=1000, first=[b"hello"])
        for _ in range(100):
            peer.send(b"early", soon=True)
        assert loop.requests == 1
        loop.start()
        connected, _ = listener.accept()
        with connected:
            connected.settimeout(PATIENCE)
            assert connected.recv(101 * 9, socket.MSG_WAITALL).count(b"early") == 100
            peer.send(b"late", soon=True)
            assert connected.recv(8, socket.MSG_WAITALL).endswith(b"late")
        assert loop.requests == 2
        loop.run(peer.abandon)
    loop.close()


def test_a_connection_that_brings_garbage_is_closed_and_others_go_on(
    unix: Callable[[str], UnixTransport], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = unix("here"), unix("there")
    here.start()
    received = Received(there)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.settimeout(PATIENCE)
        stranger.connect(str(folder / "there"))
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(1) == b""
    assert "invalid message" in caplog.text
    here.send(there.address, b"1")
    assert received.take(2)[1:] == [b"1"]


def test_a_frame_over_the_limit_closes_its_connection(folder: Path, transports: list[Transport]) -> None:
    home = Home.of_first_host(folder)
    here, there = (
        UnixTransport("here", home, Settings()),
        UnixTransport("there", home, Settings(max_message_bytes=10**6)),
    )
    here.greeting = b"hello"
    transports += [here, there]
    here.start()
    received = Received(there)
    here.send(there.address, b"fits")
    here.send(there.address, bytes(2 * 10**6))
    assert received.take(2)[1:] == [b"fits"]
    assert received.is_empty()


@pytest.mark.process
def test_a_forked_child_keeps_no_connection_open(unix: Callable[[str], UnixTransport]) -> None:
    """Else its peers would not see the end of this process, nor the child's writes stay out of the stream."""
    here, there = unix("here"), unix("there")
    here.start()
    received = Received(there)
    here.send(there.address, b"1")
    assert received.take(2)[1:] == [b"1"]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            here.send(there.address, b"from the child")
        except PeerGone:
            os.write(writing, b"gone")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert os.read(reading, 4) == b"gone"
    os.close(reading)
    here.send(there.address, b"2")
    assert received.take(1) == [b"2"]


def test_a_taken_address_is_an_error_that_names_it() -> None:
    with pytest.raises(OSError, match="node here cannot listen on /nowhere"):
        UnixTransport("here", Home.of_first_host(Path("/nowhere/at/all")), Settings())


def test_a_path_too_long_for_a_socket_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="MESHBOOK_RUNTIME_DIR"):
        Home.of_first_host(tmp_path / ("x" * 100)).path("node")


def test_the_address_of_another_run_is_an_error_at_the_send(
    unix: Callable[[str], UnixTransport], tmp_path: Path
) -> None:
    here = unix("here")
    for folder in (tmp_path, tmp_path / "that is gone"):
        with pytest.raises(RunEnded):
            here.send(Address("there", f"unix://{folder}/there"), b"x")


def test_sending_to_no_node_of_this_process() -> None:
    with pytest.raises(PeerGone, match="missing"):
        Switchboard().transport("here").send(Address("missing", "memory://missing"), b"x")


def test_a_socket_for_which_there_is_no_descriptor_leaves_no_other_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(OSError, match="family"):
        StreamSocket(-2)  # fails in the same place
    assert ignored == []
