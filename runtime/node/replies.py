"""Replies to other nodes: a value, an error, or the loss of the callee. The thread that has a reply sends it.

An error is sent as its text and, if it survives pickling, the exception itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from meshbook.runtime.actor.ports import ResponsePort
from meshbook.runtime.errors import ActorError, MeshbookError, MessageTooLarge, PickleError, SupervisionError
from meshbook.runtime.node.bulk import Bulk
from meshbook.runtime.node.casts import CastReceiver
from meshbook.runtime.node.flow_control import size_of
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.telemetry.capture import Capture
from meshbook.runtime.traces import name_cells
from meshbook.runtime.transport import PeerGone
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body, BodyElsewhere, Buffer, pack, unpack
from meshbook.runtime.wire.messages import Reply

logger = logging.getLogger(__name__)
_UNSENDABLE = pickling.dumps(("the call failed, and its error could not be sent; see the log", None), "an error")


class Replies:
    """Sends the replies of a node. `limit` is the maximum size of a message in bytes."""

    capture: Capture | None = None  # of a worker: its output

    def __init__(self, routes: Routes, bulk: Bulk, casts: CastReceiver, limit: int) -> None:
        self._routes = routes
        self._casts = casts
        self._bulk = bulk
        self._node = routes.own.node
        self._limit = limit

    def reply(self, to: str, call: int, value: Any, what: pickling.What, rank: int = 0) -> None:
        """Reply with a value; `what` describes it in the error if it cannot be pickled."""
        try:
            reply = Reply(self._node, call, "ok", rank)
            body = pickling.dumps(value, what)
            if self._relay(to, reply, body):
                return None
            if len(body) == 1 and len(body[0]) < self._bulk.least:
                frame = pack(reply, body, self._limit)
            else:
                frame = self._bulk.pack(reply, body, size_of(body), self._routes.address_of(to))
        except MessageTooLarge as error:
            text = what if isinstance(what, str) else what()
            return self.reply_lost(to, call, SupervisionError(f"{text}: {error}"))
        except MeshbookError as error:
            return self.reply_error(to, call, str(error), error)
        return self._send(to, frame)

    def reply_error(self, to: str, call: int, text: str, error: BaseException) -> None:
        """Reply that the endpoint raised."""
        self._send_error(to, Reply(self._node, call, "error"), text, pickle_exception(error))

    def reply_lost(self, to: str, call: int, error: SupervisionError) -> None:
        """Reply that the callee is lost."""
        self._send_error(to, Reply(self._node, call, "lost"), str(error), None)

    def port_to(self, node: str, call: int, rank: int, settled: Callable[[], object]) -> ResponsePort[Any]:
        """Return the port through which an endpoint replies to this call itself."""
        self._casts.drop(node, call)
        return ResponsePort(self._routes.address_of(node), call, rank, settled)

    def drop(self, to: str, call: int) -> None:
        """Forget a cancelled call: it gets no reply."""
        self._casts.drop(to, call)
        if self.capture is not None and self._keeps_output(to, call):
            self.capture.flush()

    def _send_error(self, to: str, reply: Reply, text: str, exception: bytes | None) -> None:
        try:
            frame = pack_error(reply, text, exception, self._limit)
        except Exception:  # no memory, for example: the caller must not wait forever
            logger.exception("an error could not be sent to its caller")
            frame = pack(reply, _UNSENDABLE, self._limit)
        if self._casts.owes(to, reply.call) or self._keeps_output(to, reply.call):
            _, body = unpack(frame)
            if not isinstance(body, BodyElsewhere) and self._relay(to, reply, body):
                return
        self._send(to, frame)

    def _keeps_output(self, to: str, call: int) -> bool:
        return self.capture is not None and self.capture.keeps_for((to, call))

    def _relay(self, to: str, reply: Reply, body: Body) -> bool:
        """Send a reply through agents, with the output that was kept for it; return False if it must go directly."""
        if self.capture is None or not self._keeps_output(to, reply.call):
            return self._casts.owes(to, reply.call) and self._casts.reply(to, reply, body)
        with self.capture.kept_output() as output:
            return self._casts.reply(to, reply, body, output)

    def _send(self, to: str, frame: Buffer) -> None:
        try:
            self._routes.send(self._routes.address_of(to), frame)
        except PeerGone:
            return  # the caller is gone


def pack_error(reply: Reply, text: str, exception: bytes | None, limit: int) -> Buffer:
    """Return the frame of an error reply. If it exceeds the limit, only the beginning of the text is sent."""
    try:
        return pack(reply, pickling.dumps((text, exception), "an error"), limit)
    except MessageTooLarge:
        # The caller must at least get the failure. A character has four bytes at most.
        beginning = f"{text[: limit // 8]}… [truncated: the error exceeds MESHBOOK_MAX_MESSAGE_BYTES]"
        return pack(reply, pickling.dumps((beginning, None), "an error"), limit)


def pickle_exception(error: BaseException) -> bytes | None:
    """Return the pickled exception, or None: many exceptions with their own constructor do not survive pickling."""
    try:
        body = pickling.dumps(error, "an exception")
        data = b"".join(map(bytes, body)) if len(body) == 1 else None
        if data is not None:
            pickling.unpickle(data)
        return data
    except (Exception, SystemExit):
        return None


def rebuild_error(status: str, body: Body) -> BaseException:
    """Return the exception for the caller of an error reply with this status.

    The I/O thread calls this. It unpickles a user's exception only if an actor has sent it to a port.
    """
    try:
        text, data = pickling.loads(body, "an error")
    except PickleError as error:
        return ActorError(str(error))
    text = name_cells(text)
    if status == "lost":
        return SupervisionError(text)
    raised = ActorError(text, data)
    return raised.exception if status == "sent" and raised.exception is not None else raised
