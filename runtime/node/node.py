"""The node: every process runs one. An inbox, the routes to other nodes, the table of open calls, and hosted actors.

    frame -> unpack -> handler by message type -> an actor's queue, or the future that waits

Whoever waits receives (see `reception`); sends go out from whoever sends. A node knows a sender by its Hello, and
drops what comes from anybody else, counting it.
"""

from __future__ import annotations

import contextvars
import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import Instance, current_origin, name_of
from meshbook.runtime.actor.ports import ResponsePort
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import (
    ActorError,
    ExitReport,
    MeshbookError,
    MessageTooLarge,
    PickleError,
    ProcessDied,
    RefusedMessage,
    SupervisionError,
)
from meshbook.runtime.geometry import Extent, Point
from meshbook.runtime.node.calls import Asker, CallTable
from meshbook.runtime.node.hosting import HostedActor, InlineActor
from meshbook.runtime.node.mailbox import Mailbox
from meshbook.runtime.node.reception import Reception
from meshbook.runtime.telemetry.capture import Capture
from meshbook.runtime.transport import PeerGone, Transport
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body, Buffer, pack, unpack
from meshbook.runtime.wire.messages import Address, Call, Down, Hello, Place, Reply, Spawn, Stop

logger = logging.getLogger(__name__)

CROWD = 16  # open calls of a process from which on answers are taken in by the bunch


@dataclass(frozen=True, slots=True)
class Target:
    """An actor on a node: where a call goes."""

    address: Address
    actor: str


Question = Spawn | Call | Stop


class Node:
    """The runtime core of one process. `close()` is idempotent; every call still open then fails."""

    def __init__(self, transport: Transport, run: str, settings: Settings) -> None:
        self.address = transport.address
        self.settings = settings
        self.run = run
        self.refused = 0  # frames dropped since the start; the first of each kind is logged
        self.when_down: list[Callable[[ExitReport], None]] = []
        self.run_on_main: Callable[[Callable[[], None]], None] | None = None  # workers lend their main thread
        self.controller = transport.address  # where output and failures go; a worker is told another one
        self.capture: Capture | None = None  # of a worker: where its output goes
        self.place: Any = None  # what `Instance.proc` of the actors here is
        self._transport = transport
        self._transport.greeting = pack(Hello(self.address, run), (), settings.max_message_bytes)
        self._calls = CallTable()
        self._actors: dict[str, HostedActor] = {}
        self._book: dict[str, Address] = {self.address.node: self.address}
        self._down: dict[str, ExitReport] = {}
        self._logged: set[str] = set()
        self._closed = False
        self._handlers: dict[type, Callable[[Any, Body], None]] = {
            Hello: self._on_hello,
            Spawn: self._on_spawn,
            Call: self._on_message,
            Stop: self._on_message,
            Reply: self._on_reply,
            Down: self._on_down,
        }
        self._reception = Reception(transport, self._accept, lambda: len(self._calls) > CROWD)
        self.lead_idle, self.poke = self._reception.lead_idle, self._reception.poke

    def start(self) -> None:
        """Begin to receive."""
        self._reception.start()

    def close(self) -> None:
        """Stop receiving; whoever still waits gets a SupervisionError."""
        if self._closed:
            return
        self._closed = True
        self._transport.close()
        self._reception.join()
        self._fail_all(None, lambda: SupervisionError("this process's runtime was shut down while the call was open"))

    def trust(self, peer: Address) -> None:
        """Know a peer before its Hello: one whose address came from the launcher."""
        self._book[peer.node] = peer

    # -- hosting -------------------------------------------------------------

    def host(
        self, name: str, make: Callable[[], Actor], *, rank: Point | None = None, class_name: str = ""
    ) -> HostedActor:
        """Host an actor that this process makes itself; the caller runs it (`start` or `run`)."""
        return self._host(HostedActor, name, make, rank, class_name)

    def host_inline(self, name: str, actor: Actor) -> None:
        """Host an actor of the runtime whose endpoints run on the receiving thread and never wait."""
        hosted = self._host(InlineActor, name, lambda: actor, None, type(actor).__qualname__)
        # In a context of its own: the caller is no part of that actor.
        contextvars.copy_context().run(hosted.construct, lambda error: None)

    def actors(self) -> list[str]:
        """The names of the actors that were hosted here so far."""
        return list(self._actors)

    def release_actors(self) -> None:
        """Let go of the actors' objects, once all have ended, so that their finalisers run."""
        for hosted in self._actors.values():
            hosted.release()

    def _host(
        self, kind: type[HostedActor], name: str, make: Callable[[], Actor], rank: Point | None, class_name: str
    ) -> HostedActor:
        instance = Instance(name, class_name or "actor", rank or Extent((), ()).point(0), self, self.place)
        hosted = self._actors[name] = kind(self, instance, make)
        return hosted

    # -- asking --------------------------------------------------------------

    def call(
        self,
        targets: Sequence[Target],
        endpoint: str,
        arguments: Any,
        extent: Extent,
        asker: Asker | None,
        *,
        first: int = 0,
    ) -> None:
        """Send one call to each target: the ranks of `extent` from `first` on. Without an asker no answer comes.

        Raises PickleError and MessageTooLarge at once, before anything is sent.
        """
        body = pickling.dumps(
            arguments, f"an argument of {name_of(targets[0].actor)}.{endpoint}" if targets else "arguments"
        )
        node, origin, labels, sizes = self.address.node, current_origin(), extent.labels, extent.sizes
        calls = self._open(targets, asker)
        messages = [
            Call(node, call, target.actor, endpoint, (rank, labels, sizes), origin)
            for rank, (target, call) in enumerate(zip(targets, calls, strict=True), first)
        ]
        self._ask(targets, messages, body)

    def spawn(
        self,
        targets: Sequence[Target],
        construct: tuple[type, Any, Any],
        extent: Extent,
        asker: Asker,
        *,
        on_main: bool = False,
    ) -> None:
        """Create an actor at each target, on a thread of its own or on the process's main thread.

        The asker is answered once each is constructed.
        """
        body = pickling.dumps(construct, f"an argument of {construct[0].__qualname__}")
        node, origin, labels, sizes = self.address.node, current_origin(), extent.labels, extent.sizes
        messages = [
            Spawn(node, call, target.actor, (rank, labels, sizes), origin, on_main)
            for rank, (target, call) in enumerate(zip(targets, self._open(targets, asker), strict=True))
        ]
        self._ask(targets, messages, body)

    def stop(self, targets: Sequence[Target], reason: str, asker: Asker) -> None:
        """End the actors after the messages they have been sent so far."""
        calls = self._open(targets, asker)
        messages = [
            Stop(self.address.node, call, target.actor, reason) for target, call in zip(targets, calls, strict=True)
        ]
        self._ask(targets, messages, ())

    def _open(self, targets: Sequence[Target], asker: Asker | None) -> Sequence[int]:
        if asker is None:
            return [0] * len(targets)
        asker.helped_by(self._reception)
        return self._calls.open(asker, [target.address.node for target in targets])

    def _ask(self, targets: Sequence[Target], messages: Sequence[Question], body: Body) -> None:
        limit = self.settings.max_message_bytes
        for target, message in zip(targets, messages, strict=True):
            try:
                frame = pack(message, body, limit)
            except MeshbookError:
                for opened in messages:
                    self._calls.take(opened.call)
                raise
            self._send_question(target.address, frame, message.call)

    def _send_question(self, to: Address, frame: Buffer, call: int) -> None:
        # The call is in the table already: a Down that comes from now on finds it there.
        try:
            if to.node in self._down:
                raise PeerGone
            self._send(to, frame)
        except PeerGone as gone:
            if (found := self._calls.take(call)) is not None:
                found[0].refuse(found[1], self._why_gone(to.node, str(gone)))

    def _send(self, to: Address, frame: Buffer) -> None:
        if to.node == self.address.node:
            self._accept(frame)
        else:
            self._transport.send(to, frame)

    def _why_gone(self, node: str, text: str) -> SupervisionError:
        report = self._down.get(node)
        if report is not None:
            return _loss(report)
        if self._closed:
            return SupervisionError("this process's runtime was shut down; restart it to call actors again")
        return SupervisionError(f"node {node} is gone: {text}")

    # -- answering (Host) ------------------------------------------------------

    def reply(self, to: str, call: int, value: Any, what: str) -> None:
        try:
            frame = pack(
                Reply(self.address.node, call, "ok"), pickling.dumps(value, what), self.settings.max_message_bytes
            )
        except MeshbookError as error:
            return self.reply_error(to, call, str(error), error)
        return self._answer(to, frame)

    def port_to(self, node: str, call: int, settled: Callable[[], object]) -> ResponsePort[Any]:
        return ResponsePort(self._book[node], call, settled)

    # -- ports -----------------------------------------------------------------

    def open_port(self, *, once: bool) -> tuple[int, Mailbox]:
        """A number that values can be sent to, and where they come in."""
        mailbox = Mailbox(once)
        mailbox.helped_by(self._reception)
        return self._calls.open_port(mailbox, once=once), mailbox

    def close_port(self, number: int) -> None:
        """From now on what is sent there is dropped."""
        self._calls.close_port(number)

    def send_to_port(self, to: Address, number: int, value: Any) -> None:
        """Send a value to a port of any node; number 0 is nobody's. Raises PickleError and MessageTooLarge."""
        if number:
            body = pickling.dumps(value, "a value sent to a port")
            self._send_to(to, pack(Reply(self.address.node, number, "ok"), body, self.settings.max_message_bytes))

    def fail_port(self, to: Address, number: int, error: BaseException) -> None:
        """Let whoever receives there raise an ActorError."""
        if number:
            text = f"{type(error).__name__}: {error}"
            reply = Reply(self.address.node, number, "error")
            self._send_to(to, self._pack_error(reply, text, _pickle_exception(error)))

    def _send_to(self, to: Address, frame: Buffer) -> None:
        self._book.setdefault(to.node, to)  # a port may come from a node that this one has never heard of
        self._answer(to.node, frame)

    def reply_error(self, to: str, call: int, text: str, error: BaseException) -> None:
        self._answer(to, self._pack_error(Reply(self.address.node, call, "error"), text, _pickle_exception(error)))

    def reply_lost(self, to: str, call: int, error: SupervisionError) -> None:
        self._answer(to, self._pack_error(Reply(self.address.node, call, "lost"), str(error), None))

    def _pack_error(self, reply: Reply, text: str, exception: bytes | None) -> Buffer:
        limit = self.settings.max_message_bytes
        try:
            return pack(reply, pickling.dumps((text, exception), "an error"), limit)
        except MessageTooLarge:
            # Who asked must hear that it failed, if not all of it. A character has four bytes at most.
            beginning = f"{text[: limit // 8]}… [cut: the error is over MESHBOOK_MAX_MESSAGE_BYTES]"
            return pack(reply, pickling.dumps((beginning, None), "an error"), limit)

    def actor_lost(self, name: str, error: SupervisionError) -> None:
        logger.error("%s", error)

    def _answer(self, to: str, frame: Buffer) -> None:
        try:
            self._send(self._book[to], frame)
        except PeerGone:
            return  # who asked is gone, and with it the question

    # -- watching ----------------------------------------------------------------

    def announce_down(self, report: ExitReport, to: Sequence[Address]) -> None:
        """Tell these nodes, and this one, that a node has ended."""
        frame = pack(Down(self.address.node, report), (), self.settings.max_message_bytes)
        self._on_down(Down(self.address.node, report), ())
        for peer in to:
            try:
                self._send(peer, frame)
            except PeerGone:
                continue

    def report_of(self, node: str) -> ExitReport | None:
        """How a node ended, where it has."""
        return self._down.get(node)

    # -- receiving -----------------------------------------------------------------

    def _accept(self, frame: Buffer) -> None:
        try:
            message, body = unpack(frame)
            if not isinstance(message, Hello) and message.sender not in self._book:
                raise RefusedMessage(f"a {type(message).__name__} from {message.sender!r}, who has not said Hello")
            self._handlers[type(message)](message, body)
        except RefusedMessage as error:
            self._refuse(error)

    def _refuse(self, error: RefusedMessage) -> None:
        self.refused += 1
        kind = str(error)[:40]
        if kind not in self._logged and len(self._logged) < 100:
            self._logged.add(kind)
            logger.warning("node %s refused a message: %s", self.address.node, error)

    def _on_hello(self, hello: Hello, body: Body) -> None:
        if hello.run != self.run:
            raise RefusedMessage(f"a Hello of another run from {hello.sender.node!r}")
        self._book[hello.sender.node] = hello.sender

    def _on_spawn(self, spawn: Spawn, body: Body) -> None:
        def make() -> Actor:
            cls, args, kwargs = pickling.loads(body, f"the class or an argument of actor {spawn.actor}")
            hosted.instance.class_name = f"{cls.__module__}.{cls.__qualname__}"
            return cls(*args, **kwargs)  # type: ignore[no-any-return]

        def constructed(error: SupervisionError | None) -> None:
            if error is None:
                self.reply(spawn.sender, spawn.call, None, "a spawn")
            else:
                self.reply_lost(spawn.sender, spawn.call, error)

        hosted = self.host(spawn.actor, make, rank=_point(spawn.place))
        if spawn.on_main and self.run_on_main is not None:
            self.run_on_main(lambda: hosted.run(constructed))
        else:
            hosted.start(constructed)

    def _on_message(self, message: Call | Stop, body: Body) -> None:
        hosted = self._actors.get(message.actor)
        if hosted is not None:
            hosted.post(message, body)
        elif message.call:
            text = f"no actor {message.actor!r} on node {self.address.node}: it was stopped, or never spawned"
            self.reply_lost(message.sender, message.call, SupervisionError(text))

    def _on_reply(self, reply: Reply, body: Body) -> None:
        found = self._calls.take(reply.call)
        if found is None:
            return  # answered before: the node was declared down, and this reply had still been under way
        asker, index = found
        if reply.status == "ok":
            asker.answer(index, lambda: pickling.loads(body, "the result of an endpoint"))
        else:
            asker.refuse(index, _rebuild_error(reply.status, body))

    def _on_down(self, down: Down, body: Body) -> None:
        report = down.report
        if report.node in self._down:
            return
        self._down[report.node] = report
        self._transport.forget(report.node)
        self._fail_all(report.node, lambda: _loss(report))
        for listener in list(self.when_down):
            listener(report)

    def _fail_all(self, node: str | None, error: Callable[[], BaseException]) -> None:
        for asker, index in self._calls.take_all(node):
            asker.refuse(index, error())


def _loss(report: ExitReport) -> SupervisionError:
    """What an ended node means to who asked it: a fault, or that it had been stopped on purpose."""
    return SupervisionError(str(report)) if report.stopped else ProcessDied(str(report), report)


def _point(place: Place) -> Point:
    rank, labels, sizes = place
    return Extent(labels, sizes).point(rank)


def _pickle_exception(error: BaseException) -> bytes | None:
    """The exception as bytes, where it survives the round trip; many with a constructor of their own do not."""
    try:
        body = pickling.dumps(error, "an exception")
        data = b"".join(map(bytes, body)) if len(body) == 1 else None
        if data is not None:
            pickle.loads(data)
        return data
    except Exception:
        return None


def _rebuild_error(status: str, body: Body) -> BaseException:
    try:
        text, data = pickling.loads(body, "an error")
    except PickleError as error:
        return ActorError(str(error))
    if status == "lost":
        return SupervisionError(text)
    try:
        return ActorError(text, pickle.loads(data) if data is not None else None)
    except Exception:
        return ActorError(text)  # its class does not exist in this process
