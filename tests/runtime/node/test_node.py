"""A node: which messages it accepts, how an actor ends, and that every waiting caller gets an answer."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ActorError, CallCancelled, CallTimeout, ExitReport, ProcessDied, SupervisionError
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.node.call_table import PerRank, Target
from meshbook.runtime.node.control import CONTROL
from meshbook.runtime.node.node import Node
from meshbook.runtime.transport import Transport
from meshbook.runtime.wire.frames import Buffer, pack, unpack
from meshbook.runtime.wire.messages import Address, Call, Hello, Message, Reply, Spawn, Stop
from tests.runtime.conftest import AsyncProbe, Gate, Received
from tests.support import PATIENCE, Probe


def fails(future: Any, said: str, kind: type[BaseException] = SupervisionError) -> BaseException:
    """The error of a call: of this very kind, and it says this."""
    with pytest.raises(kind, match=f"(?s){said}") as caught:
        future.get(PATIENCE)
    assert type(caught.value) is kind
    return caught.value


class Lenient(Probe):
    """Has any attribute, as a proxy or a recorder has."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: name


def answers(mesh: Any) -> bool:
    return bool(mesh.run.call_one(len, "abc").get(PATIENCE) == 3)


def raises(error: BaseException) -> None:
    raise error


def ends_with(count: int) -> None:
    raise SystemExit("x" * count)


# -- whom it listens to ------------------------------------------------------------


class Stranger:
    """A peer that sends what the test wants, to the very inbox of a node."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._received = Received(transport)

    def send(self, node: Node, *frames: Buffer) -> None:
        self._transport.greeting, *rest = frames  # a true peer says Hello first
        for each in rest:
            self._transport.send(node.address, each)

    def hello(self, run: str = "run") -> Buffer:
        return frame_of(Hello(self._transport.address, run))

    def wait_for_answer(self) -> Reply:
        """The answer to a call: by then, what was sent before it has been received."""
        while True:
            [frame] = self._received.take(1)
            message, _ = unpack(frame)
            if isinstance(message, Reply):
                return message

    def close(self) -> None:
        self._transport.close()


@pytest.fixture
def stranger(connect: Any) -> Iterator[Stranger]:
    made = Stranger(connect("stranger", Settings()))
    yield made
    made.close()


def frame_of(message: Message) -> Buffer:
    return pack(message, (), 1000)


CALL = frame_of(Call("stranger", 7, "nobody", "run", (0, (), ()), ""))
NEWER = bytes(CALL[:2]) + b"\x63" + bytes(CALL[3:])


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n", "not a meshbook message"),
        (b"mb", "2 bytes is not a message"),
        (NEWER, "uses wire version 99"),
        (bytes(CALL[:-3]), "a damaged message"),
        (CALL, "a Call from 'stranger', which has not sent a Hello"),
        (frame_of(Reply("stranger", 1, "ok")), "a Reply from 'stranger', which has not sent a Hello"),
        (frame_of(Stop("stranger", 1, "nobody", "")), "a Stop from 'stranger', which has not sent a Hello"),
        (frame_of(Hello(Address("stranger", "memory://stranger"), "old")), "a Hello of another run from 'stranger'"),
    ],
    ids=["garbage", "short", "version", "damaged", "call", "reply", "stop", "run"],
)
def test_what_no_peer_of_this_run_wrote_is_refused(
    session: Any, stranger: Stranger, any_probe: Any, caplog: Any, refused: Buffer, said: str
) -> None:
    [node] = session.workers(1)
    mesh = session.spawn(any_probe, on=[node])
    stranger.send(node, refused, refused, refused, stranger.hello(), CALL)
    assert stranger.wait_for_answer() == Reply(node.address.node, 7, "lost")
    assert node.dispatch.refused == 3
    [warning] = caplog.messages
    assert said in warning
    assert answers(mesh)


def test_each_kind_of_refusal_is_logged_once(session: Any, stranger: Stranger, caplog: Any) -> None:
    [node] = session.workers(1)
    stranger.send(node, b"one", NEWER, b"one", NEWER, CALL, stranger.hello("old"), stranger.hello(), CALL)
    stranger.wait_for_answer()
    assert node.dispatch.refused == 6
    assert len(caplog.messages) == 4


def test_a_node_keeps_receiving_after_a_message_that_it_cannot_handle(
    session: Any, stranger: Stranger, caplog: Any
) -> None:
    [node] = session.workers(1)
    mesh = session.spawn_probe(node)
    nowhere = frame_of(Spawn("stranger", 1, "a", (5, ("gpus",), (2,)), ""))
    stranger.send(node, stranger.hello(), nowhere, CALL)
    stranger.wait_for_answer()
    assert len(caplog.records) == 1
    assert "rank 5 is out of range" in caplog.text
    assert answers(mesh)


# -- the end of a node ---------------------------------------------------------------


def test_a_down_fails_what_waits_and_what_comes(session: Any, gate: Any, any_probe: Any) -> None:
    dead, other = session.workers(2)
    mesh = session.spawn(any_probe, on=[dead, other])
    held = mesh.run.call_each(gate.pass_through)
    gathered = mesh.run.call(len, "abc")
    gate.wait_entered()
    gate.wait_entered()
    report = ExitReport(dead.address.node, 4711, -9, ("last", "words"))
    other.peers.announce_down(report, [session.controller.address])
    assert fails(held[0], "SIGKILL, worker-0, pid 4711.*    last\n    words", ProcessDied).report == report
    fails(gathered, r"Endpoint call \w+\.run\(\) failed, the process .* Killed\(sig=9\)", ProcessDied)
    assert not held[1].done()
    late = mesh.run.call_each(len, "abc")
    assert late[0].done()
    fails(late[0], "SIGKILL", ProcessDied)
    gate.open(2)
    assert held[1].get(PATIENCE) is None
    assert late[1].get(PATIENCE) == 3
    assert session.controller.peers.report_of(dead.address.node) == report


@pytest.mark.parametrize("stopped", ["", "enough"])
def test_a_node_that_was_stopped_is_no_fault(session: Any, stopped: str) -> None:
    [node] = session.workers(1)
    mesh = session.spawn_probe(node)
    session.controller.peers.announce_down(ExitReport(node.address.node, 1, 0, stopped=stopped), ())
    if stopped:
        fails(mesh.run.call_one(len, ""), "stopped due to proc mesh shutdown: enough")
    else:
        fails(mesh.run.call_one(len, ""), r"exit code 0", ProcessDied)


def test_the_first_report_of_a_node_counts_and_is_passed_on_once(session: Any) -> None:
    [node] = session.workers(1)
    told: list[ExitReport] = []
    session.controller.peers.when_down.append(told.append)
    reports = [ExitReport(node.address.node, 1, code) for code in (-9, 0)]
    for report in reports:
        session.controller.peers.announce_down(report, ())
    assert told == reports[:1]


def test_an_answer_after_a_down_is_dropped(session: Any, gate: Any, caplog: Any) -> None:
    [node] = session.workers(1)
    mesh = session.spawn_probe(node)
    here = session.spawn_probe(session.controller)
    held = mesh.run.call_one(gate.pass_through)
    mesh.run.broadcast(lambda: here.run.broadcast(gate.tell, "after the answer"))
    gate.wait_entered()
    session.declare_down(node)
    error = fails(held, "SIGKILL", ProcessDied)
    gate.open()
    assert gate.wait_entered() == "after the answer"
    assert held.exception(PATIENCE) is error
    assert session.controller.dispatch.refused == 0
    assert not caplog.messages


def test_close_answers_all_waiting_callers(session: Any, gate: Any, any_probe: Any) -> None:
    mesh = session.spawn(any_probe, on=session.workers(2))
    each = mesh.run.call_each(gate.pass_through)
    waiting = [*each, mesh.run.call(len, ""), mesh.stop()]
    gate.wait_entered()
    for _ in range(2):
        session.controller.close()
    for future in waiting:
        fails(future, "shut down while the call was pending")
    for future in (mesh.run.call(len, ""), mesh.stop(), session.spawn(any_probe, on=session.workers(1)).initialized):
        assert future.done()
        fails(future, "was shut down; restart it")
    gate.open(2)


def test_a_node_that_never_started_is_closed(connect: Any) -> None:
    transport = connect("idle", Settings())
    node = Node(transport, "run", Settings())
    node.close()
    node.close()


# -- the end of an actor -------------------------------------------------------------


def test_an_actor_that_was_never_spawned(session: Any, any_probe: Any) -> None:
    [node] = session.workers(1)
    mesh = session.refer(any_probe, "nobody", node)
    fails(mesh.run.call_one(len, ""), "no actor 'nobody' on node worker-0: it was stopped, or never spawned")
    fails(mesh.stop(), "no actor 'nobody'")
    mesh.run.broadcast(len, "")
    assert answers(session.spawn_probe(node))


def test_an_actor_whose_owner_ended_before_it_was_here(session: Any, any_probe: Any) -> None:
    """Its reference came faster than itself: what is kept for it is answered, and so is what comes later."""
    [node] = session.workers(1)
    mesh = session.refer(any_probe, "child-3@owner", node)
    early, stop = mesh.run.call_one(len, ""), mesh.stop()
    answers(session.spawn_probe(node))
    assert not early.done()
    node.peers.announce_down(ExitReport("owner", 4711, -9), ())
    for future in (early, stop, mesh.run.call_one(len, "")):
        fails(future, "timed out reaching controller owner for mesh child")


def test_a_stop_comes_after_what_was_sent_before(session: Any, gate: Any, any_probe: Any) -> None:
    mesh = session.spawn(any_probe)
    mesh.run.broadcast(gate.pass_through)
    before = [mesh.note.call_one(1), mesh.note.call_one(2), mesh.noted.call_one()]
    stops = [mesh.stop("enough"), mesh.stop("again")]
    after = mesh.noted.call_one()
    gate.open()
    assert [future.get(PATIENCE) for future in before] == [None, None, [1, 2]]
    assert [future.get(PATIENCE) for future in stops] == [None, None]
    for late in (after, mesh.noted.call_one()):
        fails(late, r"Endpoint call \w+\.noted\(\) failed, .*worker-0 is stopped: enough")
    assert mesh.stop("once more").get(PATIENCE) is None


class Fails(Actor):
    """Its constructor does."""

    def __init__(self, error: BaseException) -> None:
        raise error

    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> None: ...


class FailsAsync(Actor):
    def __init__(self, error: BaseException) -> None:
        raise error

    @endpoint
    async def run(self, function: Callable[..., Any], *arguments: Any) -> None: ...


@pytest.mark.parametrize("cls", [Fails, FailsAsync])
@pytest.mark.parametrize("error", [LookupError("no such model"), SystemExit(3)], ids=repr)
def test_a_constructor_that_raises(session: Any, cls: type[Actor], error: BaseException) -> None:
    mesh = session.spawn(cls, error)
    early = mesh.run.call_one(len, "")
    fails(mesh.initialized, f"the constructor of Fails.* raised {type(error).__name__}: {error}")
    fails(early, "the constructor of Fails")
    fails(mesh.run.call_one(len, ""), "the constructor of Fails")
    assert mesh.stop().get(PATIENCE) is None


def test_an_actor_mesh_that_is_awaited_is_itself_once_it_is_there(session: Any, any_probe: type[Actor]) -> None:
    async def wait(mesh: Any) -> Any:
        return await mesh

    mesh = session.spawn(any_probe)
    assert asyncio.run(wait(mesh)) is mesh
    assert asyncio.run(wait(mesh)) is mesh
    with pytest.raises(SupervisionError, match="the constructor of Fails"):
        asyncio.run(wait(session.spawn(Fails, LookupError("no such model"))))


def test_a_class_that_does_not_arrive(session: Any) -> None:
    mesh = session.spawn(Fails, DoesNotArrive())
    fails(mesh.initialized, "argument of actor Fails-.* cannot be unpickled: RuntimeError: broken on arrival")
    fails(mesh.run.call_one(len, ""), "broken on arrival")


def test_an_exception_in_a_broadcast_loses_the_actor(session: Any, any_probe: Any, caplog: Any) -> None:
    nodes = session.workers(1)
    mesh, neighbour = session.spawn(any_probe, on=nodes), session.spawn(any_probe, on=nodes)
    mesh.run.broadcast(raises, KeyError("k"))
    for future in (mesh.run.call_one(len, ""), mesh.run.call_one(len, "")):
        fails(future, "raised KeyError: 'k'.*and all its descendants have failed: it raised in a broadcast")
    deadline = time.monotonic() + PATIENCE
    while "raised in a broadcast" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)  # the controller logs it on its I/O thread
    assert "raised in a broadcast" in caplog.text
    assert answers(neighbour)


class Fatal(BaseException):
    pass


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Fatal("end")], ids=repr)
@pytest.mark.parametrize("asked", [True, False], ids=["call", "broadcast"])
def test_what_is_no_exception_ends_the_actor_and_answers(
    session: Any, any_probe: Any, error: BaseException, asked: bool
) -> None:
    nodes = session.workers(1)
    mesh, neighbour = session.spawn(any_probe, on=nodes), session.spawn(any_probe, on=nodes)
    kind = type(error).__name__
    ended = rf"run\(\) on rank .* raised {kind}.*: {kind} always ends an actor"
    if asked:
        fails(mesh.run.call_one(raises, error), ended)
    else:
        mesh.run.broadcast(raises, error)
    fails(mesh.run.call_one(len, ""), ended)
    assert mesh.stop().get(PATIENCE) is None
    assert answers(neighbour)


# -- answers that do not travel ------------------------------------------------------


class DoesNotArrive:
    def __reduce__(self) -> Any:
        return raises, (RuntimeError("broken on arrival"),)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Older(Actor):
    @endpoint
    def known(self) -> int:
        return 1


class Newer(Older):
    @endpoint
    def unknown(self) -> int:
        return 2


LIMIT = 20_000


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        (threading.Lock, ActorError, r"result of \w+-\d\.run cannot be pickled: TypeError.*lock"),
        (lambda: b"x" * LIMIT, SupervisionError, f"is over the limit of {LIMIT:,}.*MESHBOOK_MAX_MESSAGE_BYTES"),
        (DoesNotArrive, None, "result of an endpoint cannot be unpickled: RuntimeError: broken on arrival"),
        (lambda: raises(ValueError("x" * LIMIT)), ActorError, "ValueError: xxx"),
        (lambda: raises(Unspeakable()), ActorError, "Unspeakable"),
        (lambda: raises(ValueError(threading.Lock())), ActorError, "ValueError: <unlocked"),
    ],
    ids=["unpicklable", "too large", "not unpicklable", "error too large", "error without words", "error with a lock"],
)
def test_an_answer_that_cannot_travel_is_an_error(
    make_session: Any, any_probe: Any, function: Any, kind: Any, said: str
) -> None:
    mesh = make_session(max_message_bytes=LIMIT).spawn(any_probe)
    with pytest.raises(kind or Exception, match=f"(?s){said}"):
        mesh.run.call_one(function).get(PATIENCE)
    assert answers(mesh)


def test_an_error_too_large_of_an_actor_that_is_lost(make_session: Any, any_probe: Any) -> None:
    mesh = make_session(max_message_bytes=LIMIT).spawn(any_probe)
    for future in (mesh.run.call_one(ends_with, LIMIT), mesh.run.call_one(len, "")):
        fails(future, "SystemExit: xxx.*truncated: the error exceeds")


def test_an_endpoint_that_the_actor_does_not_have(session: Any) -> None:
    [node] = session.workers(1)
    older = session.spawn(Older, on=[node])
    newer = session.refer(Newer, older._targets[0].actor, node)
    fails(newer.unknown.call_one(), "Older has no endpoint 'unknown'; it has: known", ActorError)
    assert newer.known.call_one().get(PATIENCE) == 1


# -- inline actors -------------------------------------------------------------------


class Inline(Actor):
    """An actor of the runtime."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def note(self, what: Any) -> None:
        self.seen.append(what)

    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


def test_an_inline_actor_takes_what_comes_before_the_answer_that_follows(session: Any) -> None:
    inline = Inline()
    session.controller.actors.host_inline("inline", inline)
    reference = session.refer(Inline, "inline", session.controller)
    mesh = session.spawn_probe()

    def note(number: int) -> None:
        reference.note.broadcast(number)

    for number in range(200):
        mesh.run.call_one(note, number).get(None if number % 2 else PATIENCE)
        assert inline.seen == list(range(number + 1))


def test_an_inline_actor_survives_its_errors(session: Any) -> None:
    session.controller.actors.host_inline("inline", Inline())
    reference = session.refer(Inline, "inline", session.controller)
    fails(reference.run.call_one(raises, ValueError("no")), "ValueError: no", ActorError)
    reference.run.broadcast(raises, ValueError("no"))
    assert answers(reference)


# -- what an actor cannot do ----------------------------------------------------------


def test_a_result_that_cannot_be_sent_is_an_error_and_the_actor_continues(session: Any, any_probe: Any) -> None:
    """There may be no memory for its frame."""
    [node] = session.workers(1)
    mesh = session.spawn(any_probe, on=[node])
    mesh.initialized.get(PATIENCE)
    reply = node.replies.reply
    node.replies.reply = lambda *answer: raises(MemoryError())
    fails(mesh.run.call_one(len, "abc"), r"the sending of the result of \S+\.run\(\).* raised MemoryError", ActorError)
    node.replies.reply = reply
    assert answers(mesh)


def test_an_error_that_cannot_be_sent_is_reported(
    session: Any, any_probe: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    mesh = session.spawn(any_probe, on=session.workers(1))
    mesh.initialized.get(PATIENCE)
    with monkeypatch.context() as full:
        full.setattr("meshbook.runtime.node.replies.pack_error", lambda *parts: raises(MemoryError()))
        fails(mesh.run.call_one(raises, ValueError("no")), "its error could not be sent", ActorError)
    assert answers(mesh)


def test_an_actor_that_cannot_be_served_any_longer_has_failed(session: Any, any_probe: Any, caplog: Any) -> None:
    [node] = session.workers(1)
    mesh = session.spawn(any_probe, on=[node])
    mesh.initialized.get(PATIENCE)
    node.replies.reply_error = lambda *answer: raises(RuntimeError("a fault of ours"))
    mesh.run.broadcast(len, "")
    unanswered = mesh.run.call_one(raises, ValueError("no"))
    fails(unanswered, "the serving of .* raised RuntimeError: a fault of ours")
    fails(mesh.run.call_one(len, ""), "the serving of .* raised RuntimeError: a fault of ours")


def test_an_actor_for_which_there_is_no_thread(
    session: Any, any_probe: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    [node] = session.workers(1)
    start = threading.Thread.start

    def try_to_start(thread: threading.Thread) -> None:
        if thread.name.startswith("meshbook actor"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", try_to_start)
    mesh = session.spawn(any_probe, on=[node])
    fails(mesh.initialized, "the start of .* raised RuntimeError: can't start new thread")
    fails(mesh.run.call_one(len, ""), "can't start new thread")
    mesh.stop().get(PATIENCE)
    monkeypatch.undo()
    assert answers(session.spawn(any_probe, on=[node]))


def test_a_time_limit_where_one_rank_has_failed_already(session: Any, gate: Gate) -> None:
    """Its future is settled before the limit is set; the limit holds for the others."""
    gone, mute = session.workers(2)
    session.declare_down(gone)
    targets = [Target(node.address, CONTROL) for node in (gone, mute)]
    futures = PerRank(2)
    mute.loop.call_soon(gate.pass_through)
    gate.wait_entered()
    session.controller.calls.send(targets, "where", (("absent", "x", 1), {}), SCALAR, futures)
    session.controller.calls.limit(futures.futures, 0.0, name="process.where", count=2, first=0)
    assert isinstance(futures.futures[0].exception(PATIENCE), ProcessDied)
    assert isinstance(futures.futures[1].exception(PATIENCE), CallTimeout)
    gate.open()


def test_an_answered_call_leaves_no_timer_and_an_answer_that_was_dropped_no_memory(session: Any) -> None:
    """Its time limit is long; the loop may keep some cancelled timers, but not what they refer to."""
    probe, loop = session.spawn_probe(), session.controller.loop
    answers: list[weakref.ref[Future[int]]] = []
    for number in range(2000):
        future = probe.run.within(1000).call_one(abs, -number)
        assert future.get(PATIENCE) == number
        answers.append(weakref.ref(future))
    del future
    loop.run(lambda: None)
    assert not [answer for answer in answers if answer() is not None]
    assert len(loop._timers) + len(loop._new_timers) < 500


def test_a_reply_has_left_before_the_next_message_begins(session: Any, gate: Gate) -> None:
    """Also while many messages wait, and without the I/O thread: the next message may end the process."""
    [node] = session.workers(1)
    probe, holding = session.spawn_probe(node), Gate()
    futures = [probe.run.call_one(gate.pass_through)]
    gate.wait_entered()
    futures += [probe.run.call_one(len, "four") for _ in range(30)]
    last = probe.run.call_one(gate.pass_through)
    hosted, end = node.actors.find(cast(Any, probe)._targets[0].actor), time.monotonic() + PATIENCE
    while hosted.queue.size() < 31:
        assert time.monotonic() < end
    node.loop.call_soon(holding.pass_through)
    holding.wait_entered()
    gate.open()
    gate.wait_entered()
    assert [future.get(PATIENCE) for future in futures] == [None, *[4] * 30]
    holding.open()
    gate.open()
    assert last.get(PATIENCE) is None


@pytest.mark.parametrize("cls", [Probe, AsyncProbe])
def test_an_endpoint_that_runs_can_be_interrupted_on_its_rank(session: Any, cls: type[Actor]) -> None:
    """The caller gets an error, and the actor goes on with its next message."""
    [node] = session.workers(1)
    actor = session.spawn_counted_as("probe", cls, node)
    begun = Gate()
    running, queued = actor.run.call_one(stay_at if cls is Probe else stay, begun), actor.run.call_one(len, "abc")
    begun.wait_entered()
    ((seen, _),) = node.actors.running()
    assert str(seen) == "probe.run()"
    assert node.actors.interrupt() == ["probe.run()"]
    assert isinstance(fails(running, "was interrupted", ActorError).exception, CallCancelled)
    assert queued.get(PATIENCE) == 3
    assert (list(node.actors.running()), node.actors.interrupt()) == ([], [])


def stay_at(begun: Gate) -> None:
    begun.tell()
    while True:
        os.sched_yield()


async def stay(begun: Gate) -> None:
    begun.tell()
    await asyncio.Event().wait()


def test_an_actor_with_any_attribute_is_served_and_located(session: Any) -> None:
    [node] = session.workers(1)
    mesh = session.spawn(Lenient, on=[node])
    assert answers(mesh)
    gate = Gate()
    running = mesh.run.call_one(Gate.pass_through, gate)
    gate.wait_entered()
    [(target, _, call)] = running.owing()
    assert "run()" in str(node.actors.where_is(target.actor, session.controller.address.node, call))
    gate.open()
    running.get(PATIENCE)
