"""Finalizers of the user's, which Python may run in the middle of any function, on any thread, and what they may do.

Each test collects garbage at one point of the runtime. The finalizer of that garbage calls endpoints, or reads futures.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import importlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import QueueFull
from meshbook.runtime.node.execution import Execution
from meshbook.runtime.node.flow_control import QueueLimits, SentCredits
from meshbook.runtime.node.ledger import Ledger, OwnedMesh
from meshbook.runtime.node.ports import PortMailbox
from meshbook.runtime.threads import may_block
from tests.support import PATIENCE, Probe

pytestmark = pytest.mark.slow

CALLS = 20


class Garbage:
    """A cycle whose finalizer does something."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do
        self._me = self

    def __del__(self) -> None:
        self._do()


def collect_garbage(do: Callable[[], object]) -> None:
    """Let Python run a finalizer that does this, here and now."""
    Garbage(do)
    gc.collect(0)  # the youngest objects: all others would take seconds beside torch


class Point:
    """A function of the runtime before and after which a finalizer runs, but not in the middle of a finalizer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, do: Callable[[], object]) -> None:
        self.count = 0
        self._do = do
        self._inside = threading.local()
        original = getattr(owner, name)

        @functools.wraps(original)
        def function(*arguments: Any, **keywords: Any) -> Any:
            self._interrupt()
            result = original(*arguments, **keywords)
            self._interrupt()
            return result

        monkeypatch.setattr(owner, name, function)

    def _interrupt(self) -> None:
        # Not for ever: a finalizer that sends leads to more passes of this point on other threads.
        if not getattr(self._inside, "it", False) and self.count < 2 * CALLS:
            self._inside.it = True
            self.count += 1
            try:
                collect_garbage(self._do)
            finally:
                self._inside.it = False


def find(place: str) -> tuple[Any, str]:
    """Return the module or class, and the name in it, of `node.routes:Routes.send`."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(f"meshbook.runtime.{module}")
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    return owner, name


ANYWHERE = [
    *("node.outbound:pack", "node.outbound:size_of", "node.outbound:Outbound._transmit", "node.outbound:own_key"),
    *("node.call_table:CallTable.open_one", "node.call_table:CallTable.take", "node.call_table:SingleReply.answer"),
    *("node.routes:Routes.send", "node.routes:Routes.send_soon", "node.dispatch:unpack"),
    *("node.flow_control:SentMessages", "node.flow_control:_remove", "node.flow_control:_take_all"),
    *(
        "node.flow_control:SentCredits.give_back",
        "node.flow_control:OwedCredits.take",
        "node.flow_control:FlowControl.report",
        "node.flow_control:FlowControl.grant",
    ),
    *("node.flow_control:FlowControl._ask_for_room", "node.hosted_actor:HostedActor.post"),
    *("actor.future:Future.pending", "actor.future:Future.when_done", "actor.future:Future.resolve"),
    *("actor.future:Future._run_callbacks", "actor.future:Future._await_latch", "actor.future:Future._decoded"),
    *("threads:Latch.wait", "threads:Latch.release", "threads:Latch.__init__"),
    *("threads:HighWaterMark.wait", "threads:HighWaterMark.notify"),
    *("transport.io_loop:IoLoop.call_soon", "transport.io_loop:IoLoop._wake"),
    *("transport.io_loop:IoLoop._run_callbacks", "wire.pickling:dumps"),
]
SOCKETS = [
    *(
        "transport.unix:PeerConnection.send",
        "transport.unix:PeerConnection.flush",
        "transport.unix:PeerConnection._send_all",
    ),
    *(
        "transport.unix:PeerConnection._make_packet",
        "transport.unix:PeerConnection._make_part",
        "transport.unix:PeerConnection._connect",
    ),
    *("transport.unix:PeerConnection.__init__", "transport.unix:Reader._cut", "transport.unix:UnixTransport._open"),
    "transport.unix:StreamSocket.send",
]
QUEUES = [
    "transport.memory:FrameQueue.put",
    "transport.memory:FrameQueue._drain",
    "transport.memory:MemoryTransport._send",
]


class Last:
    """What a finalizer does: it sends words to an actor, or it calls one and waits for the answer."""

    def __init__(self, session: Any, waits: bool) -> None:
        self._context = contextvars.copy_context()
        self._session = session
        self._probe = session.spawn_counted()
        self._probe.initialized.get(PATIENCE)
        self._waits = waits
        self.sent: list[int] = []
        self.wrong: list[Any] = []

    def __call__(self) -> None:
        here = CURRENT.get()
        if here is None or here.actor_instance.node not in self._session._nodes:
            # On an I/O thread, or on a thread that an earlier test has left behind, whose node is closed.
            self._context.copy().run(self._act, "client")
        else:
            self._act(here.actor_instance.key)

    def _act(self, by: str) -> None:
        number = len(self.sent)
        self.sent.append(number)
        try:
            self._probe.note.broadcast(number)
        except QueueFull:  # on the thread of that very actor
            self.sent.remove(number)
        if self._waits and may_block() and by != self._probe._picked[0].actor:
            try:
                if (answer := self._probe.run.call_one(abs, -number).get(PATIENCE)) != number:
                    self.wrong.append(answer)
            except BaseException as error:
                self.wrong.append(error)

    def check(self) -> None:
        """Nothing that a finalizer has sent was lost. Those that run on other threads may not have sent it yet."""
        end = time.monotonic() + PATIENCE
        while sorted(self._probe.noted.call_one().get(PATIENCE)) != sorted(self.sent):
            assert time.monotonic() < end
        assert self.wrong == []


@pytest.fixture(params=[False, True], ids=["sends", "waits"])
def waits(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def check_point(session: Any, place: str, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call an actor while finalizers run at this point: all calls are answered, and all words arrive."""
    last = Last(session, waits)
    mesh = session.spawn_counted()
    mesh.initialized.get(PATIENCE)
    owner, name = find(place)
    with monkeypatch.context() as patch:
        if place.endswith("StreamSocket.send"):  # inherited from a class in C
            patch.setattr(owner, "send", lambda sock, data: socket.socket.send(sock, data), raising=False)
        point = Point(patch, owner, name, last)
        for number in range(CALLS):
            mesh.note.broadcast(number)
            assert mesh.run.call_one(abs, -number).get(PATIENCE) == number
        large = b"x" * 300_000
        assert mesh.run.call_one(bytes, large).get(PATIENCE) == large
        assert mesh.noted.call_one().get(PATIENCE) == list(range(CALLS))
        collect_garbage(lambda: None)
    # Some points are not on the way of these calls on every system; most are.
    assert point.count or place in RARE
    last.check()


RARE = {
    *("node.flow_control:_remove", "node.flow_control:_take_all", "node.flow_control:FlowControl._ask_for_room"),
    *("threads:HighWaterMark.wait", "transport.unix:PeerConnection._make_part"),
    *(
        "transport.unix:PeerConnection._connect",
        "transport.unix:PeerConnection.__init__",
        "transport.unix:UnixTransport._open",
    ),
    *(
        "transport.unix:PeerConnection._send_all",
        "transport.unix:PeerConnection._make_packet",
        "transport.unix:PeerConnection.flush",
    ),
    # On a busy machine each answer may be here before its caller waits for it.
    *("threads:Latch.wait", "threads:Latch.release", "threads:Latch.__init__", "actor.future:Future._await_latch"),
    *("actor.future:Future.when_done", "actor.future:Future._run_callbacks"),
}


@pytest.mark.parametrize("place", ANYWHERE)
def test_finalizers_in_the_middle_of_a_call(
    make_session: Any, place: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_point(make_session(queue_messages=8), place, waits, monkeypatch)


@pytest.mark.parametrize("connect", ["unix"], indirect=True)
@pytest.mark.parametrize("place", SOCKETS)
def test_finalizers_in_the_middle_of_a_send_to_a_socket(
    make_session: Any, place: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_point(make_session(queue_messages=8, shared_bytes=0), place, waits, monkeypatch)


@pytest.mark.parametrize("connect", ["memory"], indirect=True)
@pytest.mark.parametrize("place", QUEUES)
def test_finalizers_in_the_middle_of_a_send_to_a_queue(
    make_session: Any, place: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_point(make_session(queue_messages=8), place, waits, monkeypatch)


@pytest.mark.parametrize("place", ["begin_wait", "end_wait"])
@pytest.mark.parametrize("connect", ["memory"], indirect=True)
def test_finalizers_in_the_middle_of_the_wait_of_an_actor(
    session: Any, any_probe: Any, place: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint that waits has one wait at a time; the finalizer waits in the middle of that."""
    last = Last(session, waits)
    outer, inner = session.spawn_probe(), session.spawn_probe()
    inner.initialized.get(PATIENCE)

    def ask() -> list[int]:
        return [inner.run.call_one(abs, -number).get() for number in range(CALLS)]

    point = Point(monkeypatch, Execution, place, last)
    assert outer.run.call_one(ask).get(PATIENCE) == list(range(CALLS))
    monkeypatch.undo()
    assert point.count
    last.check()


def test_a_finalizer_that_spends_in_the_middle_of_a_spend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new queue is counted while another count of it begins: both count in the same place."""
    outstanding: SentCredits[Any] = SentCredits(QueueLimits(3, 1 << 20))
    queue = ("worker", "queue-1@controller")
    owner, name = find("node.flow_control:SentMessages")
    Point(monkeypatch, owner, name, lambda: outstanding.spend(queue, 10))
    assert outstanding.spend(queue, 1)  # once by the finalizer before `SentMessages`, once after it
    assert not outstanding.spend(queue, 1)
    assert outstanding.give_back(queue, 3, 21) == []
    assert len(outstanding) == 0


def test_a_finalizer_that_gives_back_between_a_check_and_a_wait_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    outstanding: SentCredits[str] = SentCredits(QueueLimits(1, 100))
    queue = ("worker", "queue-1@controller")
    assert outstanding.spend(queue, 1)

    class Waiting(list[Any]):
        def append(self, waiter: Any) -> None:
            collect_garbage(lambda: outstanding.give_back(queue, 1, 1))
            super().append(waiter)

    outstanding._sent[queue].waiting = Waiting()
    assert outstanding.spend(queue, 1, "waiter")


def test_a_finalizer_that_reads_a_future_that_is_being_decoded() -> None:
    future: Future[int] = Future.pending()
    seen: list[int] = []
    depth = 0

    def decode() -> int:
        nonlocal depth
        depth += 1
        if depth == 1:
            collect_garbage(lambda: seen.append(future.get()))
        return 7

    future.resolve(decode)
    check_ends(lambda: seen.append(future.get()))
    assert seen == [7, 7]


def test_a_finalizer_that_settles_a_future_that_is_being_settled() -> None:
    future: Future[int] = Future.pending()
    called: list[int] = []
    future.when_done(lambda: collect_garbage(lambda: future.resolve(lambda: 2)))
    future.when_done(lambda: called.append(1))
    future.resolve(lambda: 1)
    assert (future.get(), called) == (1, [1])


def test_a_finalizer_that_sends_to_the_port_that_is_being_read() -> None:
    mailbox = PortMailbox(once=False)
    receiver: Any = object()
    first = mailbox.take(receiver)
    # The finalizer runs while the first value is given to its future.
    first.when_done(lambda: collect_garbage(lambda: mailbox.answer(1, lambda: "second")))
    second = mailbox.take(receiver)
    mailbox.answer(0, lambda: "first")
    assert [first.get(PATIENCE), second.get(PATIENCE)] == [(0, "first"), (1, "second")]


def check_ends(do: Callable[[], object]) -> None:
    """Fail where this does not end: a thread that waits for a lock that it holds would wait for ever."""
    ended = threading.Event()

    def run() -> None:
        do()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(PATIENCE)


class Owner(str):
    """A name that, when it is compared, has a mesh stopped."""

    __slots__ = ("stop",)

    stop: Callable[[], object]

    def __eq__(self, other: object) -> bool:
        self.stop()
        return str(self) == other

    __hash__ = str.__hash__


def test_a_finalizer_that_stops_a_mesh_while_its_owner_looks_at_its_meshes() -> None:
    ledger, nothing = Ledger(), cast("Any", None)
    for key in ("first", "second", "third"):
        known = OwnedMesh(key, key, "", {"worker": 0}, nothing, nothing, contextvars.copy_context(), nothing)
        ledger.add(known)
    owner = Owner()
    owner.stop = lambda: ledger.end("second", ["worker"])
    found: list[OwnedMesh] = []
    check_ends(lambda: found.extend(ledger.of(owner)))
    assert [owned_mesh.key for owned_mesh in found] == ["third", "second", "first"]
    assert [owned_mesh.key for owned_mesh in ledger.of("")] == ["third", "first"]


def test_a_call_to_many_ranks_keeps_its_numbers(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finalizer opens calls of its own in the middle of that."""
    last = Last(session, waits=False)
    mesh = session.spawn(Probe, on=session.workers(3))
    mesh.initialized.get(PATIENCE)
    point = Point(monkeypatch, *find("node.routes:Routes.send"), last)
    assert [future.get(PATIENCE) for future in mesh.run.call_each(abs, -3)] == [3] * 3
    monkeypatch.undo()
    assert point.count
    last.check()
