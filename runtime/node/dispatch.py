"""Dispatch of received frames to the handlers of their messages. Runs on the I/O thread.

A sender is known once its Hello has arrived; messages of unknown senders are dropped and counted.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from meshbook.runtime.errors import RefusedMessage
from meshbook.runtime.node.bulk import Bulk
from meshbook.runtime.node.call_table import CallTable
from meshbook.runtime.node.casts import CastReceiver
from meshbook.runtime.node.outbound import Outbound
from meshbook.runtime.node.replies import rebuild_error
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.telemetry.spans import Recorder, now
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body, BodyElsewhere, Buffer, unpack
from meshbook.runtime.wire.messages import Call, Fence, GatheredReply, Hello, Message, RelayedOutput, Reply

logger = logging.getLogger(__name__)

Handler = Callable[[Any, Body], None]
MOST_KINDS = 100  # kinds of refused messages to log, each once


class _Result(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Returns the value in the body of a reply. The garbage collector skips it: thousands may be unread."""

    load: Callable[[Body, str], Any]
    body: Body

    def __call__(self) -> Any:
        return self.load(self.body, "the result of an endpoint")


class _SmallResult(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The same for a body in one part: no object of it is tracked."""

    load: Callable[[Body, str], Any]
    stream: bytes

    def __call__(self) -> Any:
        return self.load((self.stream,), "the result of an endpoint")


class Dispatch:
    """The handlers of a node, by the type of message."""

    def __init__(
        self,
        routes: Routes,
        table: CallTable,
        calls: Outbound,
        bulk: Bulk,
        recorder: Recorder,
        casts: CastReceiver,
        handlers: dict[type, Handler],
    ) -> None:
        self.messages = self.bytes = 0  # received
        self.refused = 0  # dropped frames; the first of each kind is logged
        self._routes = routes
        self._knows = routes.knows
        self._table = table
        self._calls = calls
        self._bulk = bulk
        self._recorder = recorder
        self._handlers: dict[type, Handler] = {Reply: self._on_reply, **handlers}
        self._casts = casts
        self._held = casts.held
        self._logged: set[str] = set()
        self.load = pickling.loads  # makes values of the bodies of replies

    def accept(self, frame: Buffer) -> None:
        """Handle one frame."""
        self.messages += 1
        self.bytes += len(frame)
        try:
            message, packed = unpack(frame)
            if not (isinstance(message, Hello) or self._knows(message.sender)):
                raise RefusedMessage(f"a {type(message).__name__} from {message.sender!r}, which has not sent a Hello")
            body: Body
            if isinstance(packed, BodyElsewhere):
                self.bytes += packed.size
                body = self._bulk.open(packed)
            else:
                body = packed
            if self._held and message.sender in self._held and not _is_urgent(message):
                self._casts.hold(message.sender, functools.partial(self.handle, message, body))
            else:
                self._handlers[type(message)](message, body)
        except RefusedMessage as error:
            self._refuse(error)

    def handle(self, message: Message, body: Body) -> None:
        """Handle a message of another node that has had to wait, or that agents have relayed."""
        try:
            self._handlers[type(message)](message, body)
        except RefusedMessage as error:
            self._refuse(error)

    def _refuse(self, error: RefusedMessage) -> None:
        self.refused += 1
        kind = str(error)[:40]
        if kind not in self._logged and len(self._logged) < MOST_KINDS:
            self._logged.add(kind)
            logger.warning("node %s refused a message: %s", self._routes.own.node, error)

    def _on_reply(self, reply: Reply, body: Body) -> None:
        found = self._table.take(reply.call, reply.rank)
        if found is None:
            # The port is closed, or the call has failed: its node was declared down while the reply was in flight.
            return self._calls.return_message(reply, f"port {reply.call}", "the port is closed")
        if self._recorder.on:
            self._recorder.mark((now(), "", reply.call))
        reply_handler, index = found
        if reply.status == "ok":
            reply_handler.answer(index, _Result(self.load, body))
        else:
            reply_handler.refuse(index, rebuild_error(reply.status, body))
        return None

    def handle_gathered(self, replies: Sequence[GatheredReply]) -> None:
        """Handle replies to casts. One is dropped if its call has failed: its node was declared down meanwhile."""
        take, load, recorder = self._table.take, self.load, self._recorder
        for reply in replies:
            if reply.output is not None and not self._is_news(reply, reply.output):
                continue
            if (found := take(reply.call, reply.rank)) is None:
                continue
            if recorder.on:
                recorder.mark((now(), "", reply.call))
            reply_handler, index = found
            try:
                if reply.status == "ok":
                    reply_handler.answer(index, _SmallResult(load, reply.body))
                else:
                    reply_handler.refuse(index, rebuild_error(reply.status, (reply.body,)))
            except Exception:  # one failed message must not stop the others
                logger.exception("a message could not be handled")

    def _is_news(self, reply: GatheredReply, output: RelayedOutput) -> bool:
        """Handle the output that has come with a reply; return whether this is its first copy."""
        frames = self._casts.take_output(reply, output)
        for frame in frames or ():
            try:
                call, body = unpack(frame)
                if not isinstance(call, Call) or call.sender != reply.node or isinstance(body, BodyElsewhere):
                    raise RefusedMessage(f"output of {reply.node!r} that is not a call")
                self._handlers[Call](call, body)
            except RefusedMessage as error:
                self._refuse(error)
            except Exception:  # one failed message must not stop the others
                logger.exception("a message could not be handled")
        return frames is not None


def _is_urgent(message: Any) -> bool:
    """Whether a message does not wait for casts."""
    return isinstance(message, Hello) or (isinstance(message, Fence) and message.is_lost)
