"""Frames between hosts: two gateways on this machine, each with a folder of its own, over real TCP with CURVE."""

from __future__ import annotations

import contextlib
import logging
import queue
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import zmq

from meshbook.runtime.config import Settings
from meshbook.runtime.transport import PeerGone, RunEnded
from meshbook.runtime.transport.curve import Handshakes, KeyPair, authenticate
from meshbook.runtime.transport.gateway import Gateway
from meshbook.runtime.transport.gateway_connections import BATCH, UNREAD_EVENTS, GatewayListener, RejectedPeers
from meshbook.runtime.transport.gateway_connections import Received as GatewayMessage
from meshbook.runtime.transport.home import Home, LaneRequest
from meshbook.runtime.transport.host_link import HostLink
from meshbook.runtime.transport.link import LinkAttach, Ping, StreamPart, pack
from meshbook.runtime.transport.unix import UnixTransport
from meshbook.runtime.wire.messages import Address
from tests.runtime.conftest import Received
from tests.support import PATIENCE

pytestmark = pytest.mark.slow

SETTINGS = Settings(high_water_mark=100, host_timeout=PATIENCE, launch_timeout=PATIENCE)
SOON_SILENT = msgspec.structs.replace(SETTINGS, host_timeout=1.5)  # no less: a busy machine must not seem silent
KEYS = KeyPair.generate()


class Notes:
    """What a gateway tells."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

    def attached(self, host: str) -> None:
        self.told.put(("attached", host))

    def silent(self, host: str, seconds: float) -> None:
        self.told.put(("silent", host))

    def dismissed(self, host: str, why: str) -> None:
        self.told.put(("dismissed", host, why))

    def left(self, host: str, why: str) -> None:
        self.told.put(("left", host, why))

    def stranded(self, request: LaneRequest) -> None:
        self.told.put(("stranded", request))

    def next(self) -> tuple[Any, ...]:
        return self.told.get(timeout=PATIENCE)


class Node(UnixTransport):
    """A transport of a host, and what it has received."""

    def __init__(self, name: str, home: Home) -> None:
        super().__init__(name, home, SETTINGS)
        self.greeting = b"hello from " + name.encode()
        self._received: Received | None = None

    def take(self, count: int) -> list[bytes]:
        """Wait for this many frames and return them. Starts the transport if it is not yet started."""
        self._received = self._received or Received(self)
        return self._received.take(count)


class Host:
    """A gateway and the transports of its host."""

    def __init__(self, folder: Path, first: Host | None = None, settings: Settings = SETTINGS) -> None:
        folder.mkdir()
        self.notes = Notes()
        self.gateway = Gateway(KEYS, settings, listen_at="127.0.0.1" if first else "")
        self.home = Home(folder, self.gateway.prefix, first.home.first) if first else Home.of_first_host(folder)
        self.gateway.start(self.home, self.notes)
        self._nodes: list[Node] = []

    def node(self, name: str, *, is_slow: bool = False) -> Node:
        """Make a transport; a slow one is not started before the test takes its frames."""
        made = Node(name, self.home)
        self._nodes.append(made)
        if not is_slow:
            made.take(0)
        return made

    def close(self) -> None:
        for node in self._nodes:
            node.close()
        self.gateway.close("the test is over")


@pytest.fixture
def hosts(folder: Path) -> Iterator[Callable[[int], list[Host]]]:
    """So many hosts, each linked to each; the first is the only one that accepts no connections."""
    made: list[Host] = []

    def make(count: int) -> list[Host]:
        made.append(Host(folder / "0"))
        made.extend(Host(folder / str(number), made[0]) for number in range(1, count))
        for number, dialling in enumerate(made):
            for listening in made[number + 1 :]:
                join(dialling, listening)
        return made

    yield make
    for host in made:
        host.close()


def join(dialling: Host, listening: Host) -> None:
    listening.gateway.link(dialling.home.prefix, dial=False)
    dialling.gateway.link(listening.home.prefix, dial=True)
    assert dialling.notes.next() == ("attached", listening.home.prefix)
    assert listening.notes.next() == ("attached", dialling.home.prefix)


def received(node: Node, count: int) -> list[bytes]:
    return node.take(count)


def test_frames_go_between_all_hosts(hosts: Callable[[int], list[Host]]) -> None:
    nodes = [host.node(f"node-{number}") for number, host in enumerate(hosts(3))]
    for sender in nodes:
        for receiver in nodes:
            if receiver is not sender:
                sender.send(receiver.address, b"to " + receiver.address.node.encode())
    for number, receiver in enumerate(nodes):
        others = {f"hello from node-{other}".encode() for other in range(3) if other != number}
        assert set(received(receiver, 4)) == others | {f"to node-{number}".encode()}


@pytest.mark.parametrize("size", [1, 300_000, 20_000_000])
def test_frames_of_any_size_arrive_whole(hosts: Callable[[int], list[Host]], size: int) -> None:
    here, there = (host.node("node") for host in hosts(2))
    frame = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    here.send(there.address, frame)
    assert received(there, 2) == [b"hello from node", frame]


def test_a_node_may_be_addressed_before_it_is_there(hosts: Callable[[int], list[Host]]) -> None:
    first, second = hosts(2)
    first.node("here").send(second.home.address("there"), b"x")
    assert received(second.node("there"), 2)[1] == b"x"


def test_a_slow_receiver_slows_its_own_sender_only(hosts: Callable[[int], list[Host]]) -> None:
    first, second = hosts(2)
    here, slow, quick = first.node("here"), second.node("slow", is_slow=True), second.node("quick")
    count = 20_000
    sent: list[int] = []

    def flood() -> None:
        for number in range(count):
            here.send(slow.address, b"%d" % number)
            sent.append(number)

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    for number in range(100):
        here.send(quick.address, b"%d" % number)
    assert received(quick, 101)[1:] == [b"%d" % number for number in range(100)]
    thread.join(0.5)
    assert len(sent) < count  # else nothing holds it up
    assert received(slow, count + 1)[1:] == [b"%d" % number for number in range(count)]
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_what_is_for_a_process_that_ended_does_not_come_to_the_next(
    hosts: Callable[[int], list[Host]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was there already, or comes only now: from a sender that does not know of the end yet."""
    first, second = hosts(2)
    one, two = first.node("one"), first.node("two")
    there = second.home.address("there")
    take_part, taken = second.gateway._take_part, queue.SimpleQueue[str]()

    def note_part(host_link: HostLink, part: GatewayMessage, stream: str) -> None:
        take_part(host_link, part, stream)
        taken.put(stream)

    def wait_for_parts(stream: str) -> None:
        assert [taken.get(timeout=PATIENCE) for _ in ("the greeting", "the frame")] == [stream] * 2

    monkeypatch.setattr(second.gateway, "_take_part", note_part)
    one.send(there, b"for the one before")
    wait_for_parts("there#0")
    second.gateway.forget("there", 0)
    second.gateway._loop.run(lambda: None)  # the gateway has forgotten it
    two.send(there, b"the same, but late")
    wait_for_parts("there#0")
    one.forget("there")
    one.remember("there", 1)
    one.send(there, b"for the next one")
    two.forget("there")
    two.remember("there", 1)
    two.send(there, b"for the next one, too")
    frames = received(second.node("there"), 4)
    assert sorted(frames) == [b"for the next one", b"for the next one, too", b"hello from one", b"hello from two"]


def test_what_comes_before_the_end_of_the_one_before_waits(hosts: Callable[[int], list[Host]]) -> None:
    first, second = hosts(2)
    here = first.node("here")
    here.remember("there", 1)
    here.send(second.home.address("there"), b"for the next one")
    second.gateway.forget("there", 0)
    assert received(second.node("there"), 2) == [b"hello from here", b"for the next one"]


def test_a_stream_that_is_over_leaves_nothing_and_does_no_harm(hosts: Callable[[int], list[Host]]) -> None:
    first, second = hosts(2)
    here, other = first.node("here"), second.node("other")
    there = second.node("there")
    here.send(there.address, b"1")
    assert received(there, 2)[1] == b"1"
    lanes = first.gateway._lanes._lanes
    assert (second.home.prefix, "there#0") in lanes
    second.gateway.forget("there", 0)
    here.send(there.address, b"2")  # it has not heard of the end yet
    here.send(other.address, b"3")
    assert received(other, 2)[1] == b"3"
    first.gateway.close_stream("there", 0)
    here.send(other.address, b"4")
    assert received(other, 1) == [b"4"]
    while (second.home.prefix, "there#0") in lanes:  # a gateway takes commands and frames in any order
        pass
    late = first.node("late")
    late.send(there.address, b"5")
    assert first.notes.next() == ("stranded", LaneRequest(there.address, 0, late.address))


# -- connections that break --------------------------------------------------------------------


class Relay:
    """A TCP relay that can be cut: nothing passes any more, and no side gets a notice."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return None
            self._asked.put(None)
            self._open.wait()
            try:
                other = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the test is over
                return one.close()
            self._pairs.append((one, other))
            for pair in ((one, other), (other, one)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._open.wait()
                target.sendall(data)
        except OSError:
            return

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    def wait_for_another_connection(self) -> None:
        """Wait for the next connection."""
        while not self._asked.empty():
            self._asked.get()
        self._asked.get(timeout=PATIENCE)

    def reset(self) -> None:
        """Break every connection in the middle of whatever it carries."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)  # a thread that reads it keeps it open
                end.close()
        self._pairs.clear()

    def close(self) -> None:
        self._listener.close()
        self.heal()
        self.reset()


@pytest.fixture
def relayed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Host, Host, Relay]]:
    """Two hosts with a relay between them."""
    from meshbook.runtime.transport import gateway

    first = Host(folder / "0", settings=SOON_SILENT)
    second = Host(folder / "1", first, SOON_SILENT)
    relay = Relay(int(second.home.prefix.rstrip("/").rpartition(":")[2]))
    dialled = gateway.DialledConnection

    def dial(context: Any, prefix: str, *rest: Any) -> Any:
        return dialled(context, f"tcp://127.0.0.1:{relay.port}/", *rest)

    monkeypatch.setattr(gateway, "DialledConnection", dial)
    join(first, second)
    yield first, second, relay
    first.close()
    second.close()
    relay.close()


def test_connections_that_break_lose_nothing(relayed: tuple[Host, Host, Relay]) -> None:
    first, second, relay = relayed
    here, there = first.node("here"), second.node("there")
    count = 3000

    def send(sender: Node, to: Address) -> None:
        for number in range(count):
            sender.send(to, b"%d" % number * (1 + number % 7 * 100))

    threads = [
        threading.Thread(target=send, args=pair, daemon=True) for pair in ((here, there.address), (there, here.address))
    ]
    for thread in threads:
        thread.start()
    wanted = [b"%d" % number * (1 + number % 7 * 100) for number in range(count)]
    frames: dict[str, list[bytes]] = {"here": [], "there": []}
    for step in range(6):
        frames["there"] += received(there, 400)
        frames["here"] += received(here, 400)
        if step % 2:
            relay.reset()
    for node in (here, there):
        frames[node.address.node] += received(node, count + 1 - 2400)
    assert frames["there"][1:] == wanted
    assert frames["here"][1:] == wanted
    for thread in threads:
        thread.join(PATIENCE)


def test_a_cut_below_the_grace_time_loses_nothing(relayed: tuple[Host, Host, Relay]) -> None:
    first, second, relay = relayed
    here, there = first.node("here"), second.node("there")
    here.send(there.address, b"before")
    assert received(there, 2)[1] == b"before"
    relay.cut()
    here.send(there.address, b"during")
    relay.wait_for_another_connection()
    relay.heal()
    assert received(there, 1) == [b"during"]
    there.send(here.address, b"back")
    assert received(here, 2)[1] == b"back"
    assert first.notes.told.empty()
    assert second.notes.told.empty()


def test_after_the_grace_time_each_gives_the_other_up(relayed: tuple[Host, Host, Relay]) -> None:
    first, second, relay = relayed
    here = first.node("here")
    relay.cut()
    assert first.notes.next() == ("silent", second.home.prefix)
    assert second.notes.next() == ("silent", first.home.prefix)
    request = LaneRequest(second.home.address("there"), 0, here.address)
    here.send(request.to, b"to nobody")
    assert first.notes.next() == ("stranded", request)


# -- leaving ---------------------------------------------------------------------------------------


def test_a_leaving_host_says_so(hosts: Callable[[int], list[Host]]) -> None:
    first, second = hosts(2)
    second.gateway.close("its work is done")
    assert first.notes.next() == ("left", second.home.prefix, "its work is done")


def test_a_busy_host_is_notified_all_the_same(hosts: Callable[[int], list[Host]]) -> None:
    """The last data of a connection is lost if ZeroMQ sees its end before it was read."""
    first, second = hosts(2)
    entered, goes_on = threading.Event(), threading.Event()

    def stranded(request: LaneRequest) -> None:
        entered.set()
        goes_on.wait(PATIENCE)

    first.notes.stranded = stranded  # type: ignore[method-assign]
    first.node("here").send(Address("nobody", "tcp://127.0.0.1:1/nobody"), b"x")
    assert entered.wait(PATIENCE)
    closing = threading.Thread(target=second.gateway.close, args=("its work is done",))
    closing.start()
    closing.join(0.2)  # if it does not wait, it has ended by then
    goes_on.set()
    assert first.notes.next() == ("left", second.home.prefix, "its work is done")
    closing.join()


def test_all_may_leave_at_once(hosts: Callable[[int], list[Host]]) -> None:
    made = hosts(3)
    leaving = [threading.Thread(target=host.gateway.close, args=("it is over",)) for host in made]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_an_abandoned_host_is_notified_and_refused_from_then_on(hosts: Callable[[int], list[Host]]) -> None:
    first, second, third = hosts(3)
    third.gateway.remove_host(second.home.prefix, "it was lost")
    assert second.notes.next() == ("dismissed", third.home.prefix, "it was lost")
    second.gateway.remove_host(third.home.prefix, "it said so")
    late = Host(second.home.folder.with_name("late"), first)
    late.gateway.remove_host(second.home.prefix, "it is lost")
    with dialled(late.home.prefix, KEYS) as stranger:
        stranger.send(pack(LinkAttach(second.home.prefix, 1, {})))
        assert b"it is lost" in stranger.recv()
    late.close()


def test_without_a_gateway_an_address_of_another_host_is_of_a_run_that_has_ended(folder: Path) -> None:
    here = UnixTransport("here", Home.of_first_host(folder), SETTINGS)
    with pytest.raises(RunEnded):
        here.send(Address("there", "tcp://127.0.0.1:1/there"), b"x")
    here.close()
    with pytest.raises(PeerGone):
        here.send(Address("there", "tcp://127.0.0.1:1/there"), b"x")


# -- strangers ---------------------------------------------------------------------------------------


class dialled:
    """A socket that is connected to the entrance of a gateway, with these keys."""

    def __init__(self, prefix: str, keys: KeyPair) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.rcvtimeo = int(PATIENCE * 1000)
        authenticate(self._socket, keys)
        self._socket.connect(prefix.rstrip("/"))

    def __enter__(self) -> zmq.Socket[bytes]:
        return self._socket

    def __exit__(self, *error: object) -> None:
        self._context.destroy(0)


def wait_for_strangers(host: Host, count: int) -> None:
    deadline = threading.Event()
    for _ in range(1000):
        if host.gateway.rejected_peers.count >= count:
            return
        deadline.wait(0.01)
    raise AssertionError(host.gateway.rejected_peers.count)


def knock_with_garbage(prefix: str) -> None:
    ip, _, port = prefix.removeprefix("tcp://").rstrip("/").rpartition(":")
    with socket.create_connection((ip, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass  # until it is hung up on


def knock_without_a_key(prefix: str) -> None:
    knock(prefix, None)


def knock_with_another_key(prefix: str) -> None:
    knock(prefix, KeyPair.generate())


def knock_with_another_client_key(prefix: str) -> None:
    knock(prefix, KeyPair(KEYS.public, KeyPair.generate().secret))


def knock(prefix: str, keys: KeyPair | None) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    if keys is not None:
        authenticate(stranger, keys)
    failed = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    monitor = stranger.get_monitor_socket(failed | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED)
    monitor.rcvtimeo = int(PATIENCE * 1000)
    stranger.connect(prefix.rstrip("/"))
    stranger.send(pack(Ping()))
    monitor.recv_multipart()  # raises zmq.Again where the connection stands
    stranger.disable_monitor()
    context.destroy(0)


class Monitored:
    """Stands for a socket and its monitor."""

    def __init__(self) -> None:
        self.events: deque[tuple[int, int]] = deque()

    def get_monitor_socket(self, events: int) -> Monitored:
        return self

    def recv_multipart(self, flags: int) -> list[bytes]:
        if not self.events:
            raise zmq.Again
        return [struct.pack("=HI", *self.events.popleft())]


def test_a_handshake_that_is_noted_after_its_message_hides_no_refused_peer() -> None:
    monitored = Monitored()
    handshakes = Handshakes(cast("Any", monitored))
    monitored.events.append((zmq.EVENT_ACCEPTED, 7))
    assert handshakes.note(10) == (1, [])
    assert handshakes.admit(7)
    monitored.events += [(zmq.EVENT_HANDSHAKE_SUCCEEDED, 7), (zmq.EVENT_ACCEPTED, 8), (zmq.EVENT_DISCONNECTED, 8)]
    assert handshakes.note(10) == (3, ["it sent no handshake"])


@pytest.mark.parametrize(
    "stranger", [knock_with_garbage, knock_without_a_key, knock_with_another_key, knock_with_another_client_key]
)
def test_unauthenticated_connections_are_refused_counted_and_logged_once(
    hosts: Callable[[int], list[Host]], caplog: pytest.LogCaptureFixture, stranger: Callable[[str], None]
) -> None:
    first, second = hosts(2)
    with caplog.at_level(logging.WARNING):
        for count in (1, 2):
            stranger(second.home.prefix)
            wait_for_strangers(second, count)
    assert len({record.getMessage() for record in caplog.records}) == len(caplog.records) >= 1
    here, there = first.node("here"), second.node("there")
    here.send(there.address, b"it is me")
    assert received(there, 2)[1] == b"it is me"


def connect_to(prefix: str, patience: float = PATIENCE) -> socket.socket:
    ip, _, port = prefix.removeprefix("tcp://").rstrip("/").rpartition(":")
    return socket.create_connection((ip, int(port)), patience)


def test_a_stranger_that_says_nothing_is_disconnected(
    hosts: Callable[[int], list[Host]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshbook.runtime.transport.gateway_connections.HANDSHAKE_MS", 200)
    _, second = hosts(2)
    with connect_to(second.home.prefix) as stranger, contextlib.suppress(ConnectionResetError):
        while stranger.recv(4096):
            pass  # the greeting of the entrance
    wait_for_strangers(second, 1)


def is_open(connection: socket.socket) -> bool:
    waiting = select.poll()
    waiting.register(connection, select.POLLRDHUP)
    return not waiting.poll(0)


def test_silent_connections_are_limited_and_hosts_connect(
    hosts: Callable[[int], list[Host]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshbook.runtime.transport.gateway_connections.HANDSHAKE_MS", 3_600_000)
    monkeypatch.setattr("meshbook.runtime.transport.gateway_connections.MOST_UNKNOWN", most := 2 * BATCH)
    first, second = hosts(2)
    here, there = first.node("here"), second.node("there")
    here.send(there.address, b"before")
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(connect_to(second.home.prefix)) for _ in range(2 * most)]
        here.send(there.address, b"meanwhile")
        late = Host(folder / "late", first)
        stack.callback(late.close)
        join(late, second)
        late.node("late").send(there.address, b"from another host")
        strangers += [stack.enter_context(connect_to(second.home.prefix)) for _ in range(most)]
        wait_for_strangers(second, 2 * most)
        while sum(map(is_open, strangers)) > most:  # ZeroMQ closes them on its own thread
            pass
        assert sum(map(is_open, strangers)) == most
        late.node("later").send(there.address, b"its link is the same")
        frames = received(there, 7)
    assert frames[:3] == [b"hello from here", b"before", b"meanwhile"]
    assert set(frames[3:]) == {b"hello from late", b"from another host", b"hello from later", b"its link is the same"}
    assert late.notes.told.empty()  # the link stood all the time
    assert first.notes.told.empty()


def test_a_connection_whose_descriptor_is_another_file_by_now_is_left_alone() -> None:
    """ZeroMQ closes descriptors on its own thread, and the system gives the number to the next file."""
    context: Any = zmq.Context()
    entrance = GatewayListener(context, "127.0.0.1", KEYS, RejectedPeers())
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, contextlib.ExitStack() as stack:
        ours = [stack.enter_context(each) for each in socket.socketpair()]
        ours.append(stack.enter_context(socket.create_connection(elsewhere.getsockname())))
        stack.enter_context(elsewhere.accept()[0])
        for each in ours:
            entrance._handshakes._unknown[each.fileno()] = None
        assert len(entrance._handshakes.close_beyond(0)) == len(ours)
        assert all(map(is_open, ours))
    entrance.close()
    context.destroy(0)


def test_an_entrance_closes_while_events_are_unread() -> None:
    context: Any = zmq.Context()
    entrance = GatewayListener(context, "127.0.0.1", KEYS, RejectedPeers())
    with contextlib.suppress(TimeoutError):  # ZeroMQ waits for room, and the queue of the listener is full
        for _ in range(UNREAD_EVENTS):
            connect_to(entrance.prefix, 0.3).close()
    entrance.close()
    context.destroy(0)


def test_many_unauthenticated_connections_are_logged_a_few_at_a_time() -> None:
    """Whatever they do, the thread that notes them has time for other hosts."""
    context: Any = zmq.Context()
    entrance = GatewayListener(context, "127.0.0.1", KEYS, RejectedPeers())
    noted = threading.Event()
    strangers = [connect_to(entrance.prefix) for _ in range(3 * BATCH)]
    for stranger in strangers:
        stranger.close()
    rounds = 0
    while entrance._rejected_peers.count < 3 * BATCH:
        assert rounds < 1000, entrance._rejected_peers.count
        before = entrance._rejected_peers.count
        has_more = entrance.note_rejected_peers()
        assert entrance._rejected_peers.count - before <= BATCH
        if not has_more:
            noted.wait(0.01)
        rounds += 1
    entrance.close()
    context.destroy(0)


@pytest.mark.parametrize(
    "parts",
    [
        [b"garbage"],
        [b"one", b"two"],
        [pack(LinkAttach("tcp://10.0.0.1:1/", 1, {}))],
        [pack(StreamPart("../there#0", 1, True))],
    ],
    ids=["no message", "two parts", "another host", "no link"],
)
def test_garbage_with_the_right_key_is_refused(
    hosts: Callable[[int], list[Host]], caplog: pytest.LogCaptureFixture, parts: list[bytes]
) -> None:
    first, second = hosts(2)
    with caplog.at_level(logging.WARNING), dialled(second.home.prefix, KEYS) as peer:
        for count in (1, 2):
            peer.send_multipart(parts)
            wait_for_strangers(second, count)
    assert len(caplog.records) == 1
    here, there = first.node("here"), second.node("there")
    here.send(there.address, b"it is me")
    assert received(there, 2)[1] == b"it is me"


def test_what_is_asked_after_something_that_fails_is_done_as_well(
    hosts: Callable[[int], list[Host]], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("on purpose")

    (host,) = hosts(1)
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    host.gateway._do(fail)
    host.gateway._do(lambda: done.put("done"))
    assert done.get(timeout=PATIENCE) == "done"
    assert caplog.messages == ["a callback of the I/O thread raised"]
