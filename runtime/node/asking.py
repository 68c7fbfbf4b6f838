"""Questions to actors anywhere: calls, spawns and stops, noted in the call table and sent from the calling thread.

A question is in the table before it is sent: the end of a process that is told from then on finds it there. What wants
no answer is sent the same way, under number 0, and bears the actor that hears of it where nobody takes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from meshbook.runtime.actor.context import CURRENT, context, current_origin, name_of, spawner_of
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import CallTimeout
from meshbook.runtime.geometry import Extent
from meshbook.runtime.node.answering import Answers
from meshbook.runtime.node.bulk import Bulk
from meshbook.runtime.node.calls import Asker, CallTable, Desk, Each, Explain, Inquiry, Relay, Taker, Target, Unanswered
from meshbook.runtime.node.clock import Later
from meshbook.runtime.node.credits import is_counted, size_of
from meshbook.runtime.node.identity import NOWHERE, creator_of
from meshbook.runtime.node.keeper import KEEPER
from meshbook.runtime.node.limits import TimeLimit
from meshbook.runtime.node.pressure import Pressure
from meshbook.runtime.node.reception import Reception
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.telemetry.spans import Recorder, now
from meshbook.runtime.transport import PeerGone
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body, Buffer, pack
from meshbook.runtime.wire.messages import Address, Call, Creator, Handover, Reply, Spawn, Stop

Question = Spawn | Call | Stop | Handover


@dataclass(frozen=True)
class Creation:
    """How the actors of a mesh are created. Kept by their owner, so that those that are lost can be created again."""

    targets: tuple[Target, ...]  # by rank
    extent: Extent
    body: Body  # a copy: what the caller changes afterwards does not show
    origin: str
    creator: Creator | None
    on_main: bool


def plan(targets: Sequence[Target], construct: tuple[type, Any, Any], extent: Extent, *, on_main: bool) -> Creation:
    """What creates an actor at each target, any number of times: the arguments are those of now."""
    body = pickling.dumps(construct, f"an argument of {construct[0].__qualname__}")
    creator = creator_of(context().actor_instance)
    kept = [part if isinstance(part, bytes) else bytes(part) for part in body]
    return Creation(tuple(targets), extent, kept, current_origin(), creator, on_main)


class Questions:
    """What a node asks others. `returned` hears of messages of actors here that nobody could take."""

    def __init__(
        self,
        routes: Routes,
        calls: CallTable,
        reception: Reception,
        answers: Answers,
        pressure: Pressure,
        bulk: Bulk,
        recorder: Recorder,
        *,
        limit: int,
        later: Later,
        returned: Callable[[str, str, str], None],
    ) -> None:
        self._recorder = recorder
        self._node = routes.own.node
        self._routes = routes
        self._calls = calls
        self._answers = answers
        self._pressure = pressure
        self._spend = pressure.spend
        self._bulk = bulk
        self._limit = limit
        self.later = later
        self._returned = returned
        self._desk = Desk(calls, reception, self._tell_cancelled)

    # -- what is asked ------------------------------------------------------------

    def call(
        self,
        targets: Sequence[Target],
        endpoint: str,
        arguments: Any,
        extent: Extent,
        asker: Asker | None,
        *,
        first: int = 0,
        port: tuple[Address, int] | None = None,
        within: float | None = None,
    ) -> None:
        """Send one call to each target: the ranks of `extent` from `first` on. Without an asker no answer comes here.

        With a port each target answers there by itself, and nobody tells the port of a process that dies meanwhile.
        Where the queue of a target is full this waits for room in it, for so many seconds `within`.
        Raises PickleError and MessageTooLarge at once, before anything is sent; QueueFull, DeadlockError.
        """
        started = now()
        body = pickling.dumps(arguments, lambda: f"an argument of {name_of(targets[0].actor)}.{endpoint}")
        node, origin, labels, sizes = self._node, current_origin(), extent.labels, extent.sizes
        reply_to, number = port if port is not None else (None, 0)
        calls = self._open(targets, asker, endpoint) if asker is not None else [number] * len(targets)
        by = _sender(targets) if asker is None and port is None else ""
        messages = [
            Call(node, call, target.actor, endpoint, (rank, labels, sizes), origin, target.manner, reply_to, by)
            for rank, (target, call) in enumerate(zip(targets, calls, strict=True), first)
        ]
        self._ask(targets, messages, body, None if within is None else time.monotonic() + within)
        recorder = self._recorder
        if recorder.on and (actor := targets[0].actor) not in recorder.quiet and is_counted(actor):
            numbers = (calls[0], calls[-1]) if asker is not None else (0, 0)
            recorder.add(("call", started, now(), get_ident(), endpoint, origin, (*numbers, actor)))

    def call_for_port(
        self,
        targets: Sequence[Target],
        endpoint: str,
        arguments: Any,
        extent: Extent,
        port: tuple[Address, int],
        *,
        first: int = 0,
        explain: Explain,
    ) -> None:
        """Call each target once, like `call`; the answers go to a port of any node.

        A port of this node is told of every target that cannot answer, too.
        """
        if port[0].node == self._node:
            relay = Relay(self._calls, port[1], first, explain)
            self.call(targets, endpoint, arguments, extent, relay, first=first)
        else:
            self.call(targets, endpoint, arguments, extent, None, first=first, port=port)

    def create(self, creation: Creation, ranks: Sequence[int], asker: Asker, *, again: bool = False) -> None:
        """Create the actors of these ranks; `again`: they have been there before.

        The asker is answered once each is constructed. Raises MessageTooLarge before anything is sent.
        """
        targets = [creation.targets[rank] for rank in ranks]
        labels, sizes, origin = creation.extent.labels, creation.extent.sizes, current_origin() or creation.origin
        calls = self._open(targets, asker, "__init__")
        messages = [
            Spawn(
                *(self._node, call, target.actor, (rank, labels, sizes), origin),
                creator=creation.creator,
                on_main=creation.on_main,
                again=again,
            )
            for rank, target, call in zip(ranks, targets, calls, strict=True)
        ]
        self._ask(targets, messages, creation.body)

    def stop(self, targets: Sequence[Target], reason: str, asker: Asker) -> None:
        """End the actors after the messages they have been sent so far."""
        calls = self._open(targets, asker, "stop")
        messages = [Stop(self._node, call, target.actor, reason) for target, call in zip(targets, calls, strict=True)]
        self._ask(targets, messages, ())

    def ask_to_hold(self, peers: Sequence[Address], asker: Asker, life: int) -> None:
        """Ask these nodes to send nothing here after their answer, until another process is this node."""
        targets = [Target(peer, KEEPER) for peer in peers]
        calls = self._open(targets, asker, "hold")
        self._ask(targets, [Handover(self._node, call, life) for call in calls], ())

    def adopt(self, targets: Sequence[Target], calls: Sequence[int], endpoint: str, asker: Asker) -> None:
        """Wait for the answers to calls that were sent by the process that was this node before."""
        self._calls.adopt(asker, [(call, target.address.node) for target, call in zip(targets, calls, strict=True)])
        asker.asked(Inquiry(self._desk, targets, calls, endpoint))

    def limit(self, future: Future[Any], seconds: float, *, name: str, count: int, first: int) -> None:
        """Let a call fail where it is not answered in time."""
        inquiry = future.inquiry
        assert isinstance(inquiry, Inquiry)
        TimeLimit(self, inquiry, seconds, name=name, count=count, first=first)

    def ask_where(self, silent: Sequence[Unanswered], asker: Each) -> None:
        """Ask the keepers of these calls where those are."""
        keepers = [Target(target.address, KEEPER) for _, target, _ in silent]
        calls = self._open(keepers, asker, "where")
        for (_, target, number), keeper, call in zip(silent, keepers, calls, strict=True):
            message = Call(self._node, call, KEEPER, "where", (0, (), ()), "")
            body = pickling.dumps(((target.actor, self._node, number), {}), "a question")
            self._ask([keeper], [message], body)

    # -- what is told: nobody answers --------------------------------------------------

    def tell(self, to: Address, endpoint: str, *arguments: Any) -> None:
        """Tell the keeper of another node, or our own."""
        self.call([Target(to, KEEPER)], endpoint, (arguments, {}), NOWHERE, None)

    def return_message(self, message: Call | Reply, to_whom: str, why: str) -> None:
        """Tell the actor that sent a message that it could not be delivered, where it wants to know."""
        if message.by:
            dest = f"{self._node}/{to_whom}"
            self.tell(self._routes.address_of(message.sender), "undelivered", message.by, dest, why)

    def _tell_cancelled(self, target: Target, call: int) -> None:
        self.tell(target.address, "cancel", target.actor, self._node, call)

    # -- how it is asked -----------------------------------------------------------------

    def _open(self, targets: Sequence[Target], asker: Asker, endpoint: str) -> Sequence[int]:
        calls = self._calls.open(asker, [target.address.node for target in targets])
        asker.asked(Inquiry(self._desk, targets, calls, endpoint))
        return calls

    def _ask(
        self, targets: Sequence[Target], messages: Sequence[Question], body: Body, deadline: float | None = None
    ) -> None:
        size = size_of(body)
        # All are of one kind. The first look is here, and not further down, since nearly always there is room.
        is_counted_here = bool(messages) and isinstance(messages[0], Call) and is_counted(targets[0].actor)
        spend = self._spend if is_counted_here else None
        try:
            if size >= self._bulk.least and self._bulk.takes(size):
                return self._ask_in_bulk(targets, messages, body, size, is_counted_here, deadline)
            for target, message in zip(targets, messages, strict=True):
                frame = pack(message, body, self._limit)
                if (
                    spend is None
                    or spend((target.address.node, target.actor), size)
                    or self._finds_room(target, message, size, deadline)
                ):
                    self._send(target, frame, message, size)
        except BaseException:  # it cannot travel, or the wait for room was broken off
            for opened in messages:
                self._take_back(opened)
            raise
        return None

    def _ask_in_bulk(
        self,
        targets: Sequence[Target],
        messages: Sequence[Question],
        body: Body,
        size: int,
        is_counted_here: bool,
        deadline: float | None,
    ) -> None:
        """The same with a body that maybe goes through shared memory: once there is room, so that nothing is lent
        there for a message that is not sent.
        """
        with self._bulk.shipment(body, size, [target.address for target in targets]) as frame_for:
            for target, message in zip(targets, messages, strict=True):
                if (
                    not is_counted_here
                    or self._spend((target.address.node, target.actor), size)
                    or self._finds_room(target, message, size, deadline)
                ):
                    self._send(target, frame_for(message, target.address), message, size)

    def _finds_room(self, target: Target, question: Question, size: int, deadline: float | None) -> bool:
        """Wait until the target's queue has room; False where the question has failed by then."""
        assert isinstance(question, Call)
        try:
            self._pressure.find_room(target, question.endpoint, size, deadline)
        except CallTimeout as error:
            if (found := self._take_back(question)) is not None:
                found[0].refuse(found[1], error)
            return False
        if self._is_wanted(question):
            return True
        self._pressure.take_back(target, size)
        return False

    def _is_wanted(self, call: Call) -> bool:
        # Its process may have died during the wait, and be there again: whoever was told so may have asked once more.
        return not call.call or call.reply_to is not None or self._calls.is_open(call.call)

    def _send(self, target: Target, frame: Buffer, question: Question, size: int) -> None:
        # The call is in the table already: a Down that comes from now on finds it there.
        to = target.address
        try:
            self._routes.send(to, frame)
        except PeerGone as gone:
            error = self._routes.why_gone(to, gone)
            if isinstance(question, Call):
                self._pressure.take_back(target, size)
            if (found := self._take_back(question)) is not None:
                found[0].refuse(found[1], error)
            elif isinstance(question, Call) and question.reply_to is not None:
                self._routes.learn(question.reply_to)
                self._answers.reply_lost(question.reply_to.node, question.call, error)
            elif isinstance(question, Call):
                self._returned(question.by, f"{to.node}/{question.actor}", str(error))

    def _take_back(self, question: Question) -> tuple[Taker, int] | None:
        """Whoever waits here for this question. One for a port bears the port's number, maybe of another node."""
        is_for_port = isinstance(question, Call) and question.reply_to is not None
        return None if is_for_port else self._calls.take(question.call)


def own_key() -> str:
    """The user's actor that runs here, empty for a client and for actors of the runtime."""
    here = CURRENT.get()
    key = here.actor_instance.key if here is not None else ""
    return key if spawner_of(key) else ""


def _sender(targets: Sequence[Target]) -> str:
    """Who hears of a broadcast to these that comes back. Nobody of what the runtime says to its own."""
    return own_key() if targets and spawner_of(targets[0].actor) else ""
