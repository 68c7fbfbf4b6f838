"""Outbound calls: calls, spawns, stops and notifications, registered in the call table and sent.

A call is in the table before it is sent, so that a Down that arrives from then on fails it. A message without a reply
has number 0. It names the actor that sent it, so that it can be returned if it cannot be delivered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import msgspec

from meshbook.runtime.actor.context import CURRENT, context, current_origin, name_of, spawner_of
from meshbook.runtime.actor.future import Future
from meshbook.runtime.clock import monotonic
from meshbook.runtime.errors import CallTimeout
from meshbook.runtime.formats import whole
from meshbook.runtime.geometry import SCALAR, Extent
from meshbook.runtime.node.bulk import Bulk, Shipment
from meshbook.runtime.node.call_table import (
    CallContext,
    CallHandler,
    CallTable,
    PendingCall,
    PerRank,
    ReplyHandler,
    SingleReply,
    Target,
    TimeLimit,
    Unanswered,
    is_alike,
)
from meshbook.runtime.node.casts import CastPlan, CastSender
from meshbook.runtime.node.control import CONTROL
from meshbook.runtime.node.execution import CallPlace
from meshbook.runtime.node.flow_control import FlowControl, SentMessages, is_counted, size_of
from meshbook.runtime.node.identity import creator_of
from meshbook.runtime.node.replies import Replies
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.telemetry.spans import Recorder, now
from meshbook.runtime.transport import PeerGone
from meshbook.runtime.transport.io_loop import CallLater
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body, Buffer, CallFrames, pack
from meshbook.runtime.wire.messages import Address, Call, Creator, HoldRequest, Reply, Spawn, Stop

Request = Spawn | Call | Stop | HoldRequest
SMALL_BYTES = 1 << 15
ROOM_BYTES = 1 << 16  # for the rest of a frame with a small body
MANY_PENDING = 6  # above this number of pending calls, the I/O thread sends


@dataclass(frozen=True)
class Creation:
    """The recipe for the actors of a mesh. The owner keeps it, so that lost actors can be created again."""

    targets: tuple[Target, ...]  # by rank
    extent: Extent
    body: Body  # a copy: later changes by the caller have no effect
    origin: str
    creator: Creator | None
    on_main: bool


def plan(targets: Sequence[Target], construct: tuple[type, Any, Any], extent: Extent, *, on_main: bool) -> Creation:
    """Return a recipe that creates an actor at each target, any number of times, with the present arguments."""
    body = pickling.dumps(construct, f"an argument of {construct[0].__qualname__}")
    creator = creator_of(context().actor_instance)
    kept = [part if isinstance(part, bytes) else bytes(part) for part in body]
    return Creation(tuple(targets), extent, kept, current_origin(), creator, on_main)


class Outbound:
    """Sends the calls of a node. `returned` gets messages of actors here that could not be delivered."""

    def __init__(
        self,
        routes: Routes,
        table: CallTable,
        replies: Replies,
        flow: FlowControl,
        bulk: Bulk,
        recorder: Recorder,
        casts: CastSender,
        *,
        limit: int,
        call_later: CallLater,
        returned: Callable[[str, str, str], None],
    ) -> None:
        self._recorder = recorder
        self._node = routes.own.node
        self._routes = routes
        self._table = table
        self._replies = replies
        self._flow = flow
        self._bulk = bulk
        self._casts = casts
        self._limit = limit
        self.call_later = call_later
        self._returned = returned
        self._call_context = CallContext(
            table, lambda target, call: self.notify_control(target.address, "cancel", target.actor, self._node, call)
        )

    # -- with a reply ------------------------------------------------------------

    def send(
        self,
        targets: Sequence[Target],
        endpoint: str,
        arguments: Any,
        extent: Extent,
        reply_handler: CallHandler | None,
        *,
        first: int = 0,
        port: tuple[Address, int] | None = None,
        within: float | None = None,
    ) -> None:
        """Call each target: the ranks of `extent` from `first` on. Without `reply_handler`, no reply comes here.

        With a port, each target replies there; the port gets no error if a process dies meanwhile. If the queue of a
        target is full, the thread waits for room, for `within` seconds at most. Raises PickleError and MessageTooLarge
        before anything is sent; QueueFull, DeadlockError; without a reply, also CallTimeout.
        """
        started = now()
        body = pickling.dumps(arguments, functools.partial(_format_argument, targets[0].actor, endpoint))
        target, origin = targets[0], current_origin()
        reply_to, number = port if port is not None else (None, 0)
        try:
            calls = (
                self._open(targets, reply_handler, endpoint) if reply_handler is not None else [number] * len(targets)
            )
            # The actor that gets an undeliverable broadcast back; none for messages within the runtime.
            by = own_key() if reply_handler is None and port is None and spawner_of(target.actor) else ""
            place = first, *extent.dims
            call = Call(self._node, calls[0], target.actor, endpoint, place, origin, target.manner, reply_to, by)
            if len(targets) != 1 or not self._transmit_at_once(target, call, body):
                deadline = None if within is None else monotonic() + within
                self._transmit(targets, calls, functools.partial(_call_to, call, targets, calls), body, deadline, call)
        except BaseException:
            if reply_handler is not None:
                self._table.withdraw(reply_handler)
            raise
        numbers = (calls[0], calls[-1]) if reply_handler is not None else (0, 0)
        self._record(started, target.actor, endpoint, origin, *numbers)

    def send_one(
        self,
        target: Target,
        endpoint: str,
        arguments: Any,
        extent: Extent,
        reply_handler: SingleReply,
        rank: int = 0,
        within: float | None = None,
    ) -> None:
        """Call one target that replies here: `send` for the most frequent case."""
        started = now()
        body = pickling.dumps(arguments, functools.partial(_format_argument, target.actor, endpoint))
        origin, actor = current_origin(), target.actor
        try:
            number = self._table.open_one(reply_handler, target.address.node)
            reply_handler.sent(self._call_context, target, number, endpoint)
            call = Call(self._node, number, actor, endpoint, (rank, *extent.dims), origin, target.manner)
            if not self._transmit_at_once(target, call, body):
                deadline = None if within is None else monotonic() + within
                self._transmit((target,), (number,), lambda index: call, body, deadline)
        except BaseException:  # it cannot be packed, the wait for room has failed, or a Ctrl-C
            self._table.withdraw(reply_handler)
            raise
        self._record(started, actor, endpoint, origin, number, number)

    def _record(self, started: int, actor: str, endpoint: str, origin: str, first: int, last: int) -> None:
        recorder = self._recorder
        if recorder.on and actor not in recorder.quiet and is_counted(actor):
            recorder.add(("call", started, now(), get_ident(), endpoint, origin, first, last, actor))

    def create(
        self, creation: Creation, ranks: Sequence[int], reply_handler: CallHandler, *, is_restored: bool = False
    ) -> None:
        """Create the actors of these ranks; `is_restored` means that they replace lost ones.

        `reply_handler` gets the reply of each actor once it is constructed. Raises MessageTooLarge before anything is
        sent.
        """
        targets = [creation.targets[rank] for rank in ranks]
        (labels, sizes), origin = creation.extent.dims, current_origin() or creation.origin

        def make(call: int, index: int) -> Spawn:
            return Spawn(
                *(self._node, call, targets[index].actor, (ranks[index], labels, sizes), origin),
                creator=creation.creator,
                on_main=creation.on_main,
                is_restored=is_restored,
            )

        self._request(targets, "__init__", make, creation.body, reply_handler)

    def stop(self, targets: Sequence[Target], reason: str, reply_handler: CallHandler) -> None:
        """Stop the actors after the messages sent to them so far."""
        reason = whole(reason)  # the text of an error, for example, which may quote anything

        def make(call: int, index: int) -> Stop:
            return Stop(self._node, call, targets[index].actor, reason)

        self._request(targets, "stop", make, (), reply_handler)

    def ask_to_hold(self, peers: Sequence[Address], incarnation: int) -> list[Future[Any]]:
        """Request that these nodes hold their messages after their reply, until another process is this node."""
        targets, reply_handler = [Target(peer, CONTROL) for peer in peers], PerRank(len(peers))
        self._request(targets, "hold", lambda call, _: HoldRequest(self._node, call, incarnation), (), reply_handler)
        return reply_handler.futures

    def adopt(self, targets: Sequence[Target], calls: Sequence[int], endpoint: str) -> list[Future[Any]]:
        """Return the futures of calls that were sent by the process that was this node before."""
        reply_handler = PerRank(len(targets))
        self._table.adopt(
            reply_handler, [(call, target.address.node) for target, call in zip(targets, calls, strict=True)]
        )
        reply_handler.set_pending_call(PendingCall(self._call_context, targets, calls, endpoint))
        return reply_handler.futures

    def limit(self, futures: Sequence[Future[Any]], seconds: float, *, name: str, count: int, first: int) -> None:
        """Set a time limit for a call, of which these are the futures; the pending ones then fail with CallTimeout."""
        for future in futures:
            if isinstance(pending_call := future.pending_call, PendingCall):  # else this reply is here already
                TimeLimit(self, pending_call, futures, seconds, name=name, count=count, first=first)
                return

    def ask(self, to: Address, actor: str, endpoint: str, *arguments: Any) -> Future[Any]:
        """Call an actor of the runtime, and return the future of its reply."""
        reply_handler = SingleReply()
        self.send_one(Target(to, actor), endpoint, (arguments, {}), SCALAR, reply_handler)
        return reply_handler.future

    def ask_where(self, silent: Sequence[Unanswered]) -> list[Future[CallPlace]]:
        """Request the location of each call from the control actor of its target."""
        return [
            self.ask(target.address, CONTROL, "where", target.actor, self._node, number) for _, target, number in silent
        ]

    # -- without a reply ------------------------------------------------------------------

    def notify(self, to: Address, actor: str, endpoint: str, *arguments: Any) -> None:
        """Send a message to an actor of the runtime, which does not reply."""
        self.send([Target(to, actor)], endpoint, (arguments, {}), SCALAR, None)

    def notify_control(self, to: Address, endpoint: str, *arguments: Any) -> None:
        """Send a message to the control actor of another node, or of this one."""
        self.notify(to, CONTROL, endpoint, *arguments)

    def pack_small(self, to: Address, actor: str, endpoint: str, *arguments: Any) -> Buffer | None:
        """Return the frame of a message like that of `notify`. It counts as sent: another message will carry it.

        None if it is large, or the queue of the actor has no room.
        """
        body = pickling.dumps((arguments, {}), functools.partial(_format_argument, actor, endpoint))
        size = size_of(body)
        if len(body) > 1 or size >= SMALL_BYTES:
            return None
        frame = pack(Call(self._node, 0, actor, endpoint, (0, *SCALAR.dims), current_origin()), body, self._limit)
        if (sent := self._flow.spend((to.node, actor), size)) is None:
            return None
        sent.leave(size)
        return frame

    def return_message(self, message: Call | Reply, recipient: str, why: str) -> None:
        """Notify the actor that sent a message, if it is named, that the message could not be delivered."""
        if message.by:
            dest = f"{self._node}/{recipient}"
            self.notify_control(self._routes.address_of(message.sender), "undelivered", message.by, dest, why)

    # -- sending ---------------------------------------------------------------------------

    def _open(self, targets: Sequence[Target], reply_handler: CallHandler, endpoint: str) -> Sequence[int]:
        calls = self._table.open(reply_handler, targets)
        reply_handler.set_pending_call(PendingCall(self._call_context, targets, calls, endpoint))
        return calls

    def _request(
        self,
        targets: Sequence[Target],
        name: str,
        make: Callable[[int, int], Request],
        body: Body,
        reply_handler: CallHandler,
    ) -> None:
        """Send a request to each target; `make` returns it by call number and index."""
        try:
            calls = self._open(targets, reply_handler, name)
            self._transmit(targets, calls, lambda index: make(calls[index], index), body)
        except BaseException:
            self._table.withdraw(reply_handler)
            raise

    def _transmit_at_once(self, target: Target, call: Call, body: Body) -> bool:
        """Send a small call to one target with room in its queue, the most frequent case; else return False."""
        size = len(body[0])
        if len(body) > 1 or size >= self._bulk.least or size >= SMALL_BYTES or size + ROOM_BYTES > self._limit:
            return False
        frame = pack(call, body, self._limit)
        sent = None
        if is_counted(target.actor) and (sent := self._flow.spend((target.address.node, target.actor), size)) is None:
            return False
        try:
            if not call.call or len(self._table) > MANY_PENDING:
                self._routes.send_soon(target.address, frame)
            else:
                self._routes.send(target.address, frame)
        except PeerGone as gone:
            self._fail(target, call, size, gone)
        if sent is not None:  # `leave`, inlined: this runs for each message
            sent.reserved -= 1
            sent.reserved_size -= size
        return True

    def _transmit(
        self,
        targets: Sequence[Target],
        calls: Sequence[int],
        make: Callable[[int], Request],
        body: Body,
        deadline: float | None = None,
        first: Request | None = None,
    ) -> None:
        """Send a message to each target. `make` returns it by index; messages differ only in target and rank.

        `first` is what `make` returns for index 0. If this raises, the caller withdraws the calls.
        """
        if not targets:
            return
        size, first = size_of(body), first or make(0)
        is_call = isinstance(first, Call)
        is_limited = is_call and is_counted(targets[0].actor)
        # The I/O thread sends messages in batches: those without a reply, and those sent while many replies are
        # pending, which would interrupt this thread at each send.
        has_many_pending = len(self._table) > MANY_PENDING
        send = self._routes.send_soon if has_many_pending or (is_call and not calls[0]) else self._routes.send
        if size >= self._bulk.least and self._bulk.takes(size):
            self._transmit_in_bulk(targets, make, body, size, deadline, is_limited=is_limited)
            return
        frames = None
        cast: Collection[int] = ()
        if len(targets) > 1 and isinstance(first, Call):
            is_cast = self._casts.takes(len(targets), size) and first.reply_to is None
            plan = self._casts.plan(targets) if is_cast else None
            if plan.is_alike if plan is not None else is_alike(targets):
                frames, rank = CallFrames(first, body, self._limit), first.place[0]
                if plan is not None:
                    cast = self._cast(frames, targets, calls, rank, make, size, plan, is_limited=is_limited)
        for index, target in enumerate(targets if len(cast) < len(targets) else ()):
            if index in cast:
                continue
            frame: Buffer
            if frames is not None:
                frame = frames.make(calls[index], rank + index)
            else:
                frame = pack(make(index) if index else first, body, self._limit)
            sent = None
            if is_limited and (sent := self._find_room(target, make, index, size, deadline)) is None:
                continue
            try:
                send(target.address, frame)
            except PeerGone as gone:
                self._fail(target, make(index), size, gone)
            if sent is not None:
                sent.leave(size)

    def _cast(
        self,
        frames: CallFrames,
        targets: Sequence[Target],
        calls: Sequence[int],
        rank: int,
        make: Callable[[int], Request],
        size: int,
        plan: CastPlan,
        *,
        is_limited: bool,
    ) -> Collection[int]:
        """Send a call through the agents of hosts; return the indices of these targets, those with room."""
        # The caller waits for room at the others. A wait here would delay those that have room.
        places, queues = self._flow.find_each(plan.queues) if is_limited else ((), ())
        if is_limited and len(places) < len(plan.indices):
            plan = plan.only(places)
        self._casts.send(
            *(frames, targets, calls, rank, plan),
            fail=lambda index, gone: self._fail(targets[index], make(index), size, gone),
        )
        for sent in queues:  # only now, so that a Ctrl-C before does not leave them counted
            sent.messages += 1
            sent.size += size
        return range(len(targets)) if len(plan.indices) == len(targets) else frozenset(plan.indices)

    def _transmit_in_bulk(
        self,
        targets: Sequence[Target],
        make: Callable[[int], Request],
        body: Body,
        size: int,
        deadline: float | None,
        *,
        is_limited: bool,
    ) -> None:
        """Send like `_transmit`, through shared memory, which is lent only once there is room for the message."""
        with self._bulk.shipment(body, size, [target.address for target in targets]) as shipment:
            try:
                for index, target in enumerate(targets):
                    message, sent = make(index), None
                    # Before there is room: a copy of the body takes long.
                    frame = None if shipment.lends_to(target.address) else shipment.pack(message, target.address)
                    if is_limited and (sent := self._find_room(target, make, index, size, deadline)) is None:
                        continue
                    try:
                        self._routes.send(target.address, frame or shipment.pack(message, target.address))
                    except PeerGone as gone:
                        self._fail(target, message, size, gone)
                    if sent is not None:
                        sent.leave(size)
            except BaseException:
                self._withdraw_unsent(shipment, targets)
                raise

    def _withdraw_unsent(self, shipment: Shipment, targets: Sequence[Target]) -> None:
        """Take back what was lent for messages that an interrupt has kept from being sent.

        Nodes open a body when its message arrives. So what a node has not opened when it answers a later message was
        never sent.
        """
        for target in targets:
            if lent := shipment.lent_to(target.address):
                later = self.ask(target.address, CONTROL, "clock")
                later.when_done(functools.partial(shipment.withdraw, lent))

    def _find_room(
        self, target: Target, make: Callable[[int], Request], index: int, size: int, deadline: float | None
    ) -> SentMessages[Future[None]] | None:
        """Reserve room in the target's queue, after a wait if need be; return None if the call has failed by then."""
        if (sent := self._flow.spend((target.address.node, target.actor), size)) is not None:
            return sent
        request = make(index)
        assert isinstance(request, Call)
        try:
            sent = self._flow.find_room(target, request.endpoint, size, deadline)
        except CallTimeout as error:
            if not request.call:
                raise
            if (found := self._withdraw(request)) is not None:
                found[0].refuse(found[1], error)
            return None
        if not request.call or request.reply_to is not None or self._table.is_open(request.call):
            return sent
        # Its process has died and restarted during the wait: the call has failed, and the caller may repeat it.
        self._flow.take_back(target, size)
        sent.leave(size)
        return None

    def _fail(self, target: Target, request: Request, size: int, gone: PeerGone) -> None:
        """Handle a message that could not be sent: fail its call, or return it to the actor that sent it."""
        to = target.address
        error = self._routes.why_gone(to, gone)
        if isinstance(request, Call):
            self._flow.take_back(target, size)
        if (found := self._withdraw(request)) is not None:
            found[0].refuse(found[1], error)
        elif isinstance(request, Call) and request.reply_to is not None:
            self._routes.learn(request.reply_to)
            self._replies.reply_lost(request.reply_to.node, request.call, error)
        elif isinstance(request, Call):
            self._returned(request.by, f"{to.node}/{request.actor}", str(error))

    def _withdraw(self, request: Request) -> tuple[ReplyHandler, int] | None:
        """Take a call out of the table; ignore a call for a port, whose number belongs to the node of the port."""
        is_for_port = isinstance(request, Call) and request.reply_to is not None
        return None if is_for_port else self._table.take(request.call)


def _call_to(first: Call, targets: Sequence[Target], calls: Sequence[int], index: int) -> Call:
    """Return the call to this target; `first` is that to the first one."""
    rank, labels, sizes = first.place
    to, place = targets[index], (rank + index, labels, sizes)
    return msgspec.structs.replace(first, call=calls[index], actor=to.actor, place=place, manner=to.manner)


def _format_argument(actor: str, endpoint: str) -> str:
    return f"an argument of {name_of(actor)}.{endpoint}"


def own_key() -> str:
    """Return the key of the user's actor that runs this code, or "" for a client and for actors of the runtime."""
    here = CURRENT.get()
    key = here.actor_instance.key if here is not None else ""
    return key if spawner_of(key) else ""
