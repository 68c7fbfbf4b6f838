"""Answers to other nodes: a value, an error, or that no answer can come. Sent from the thread that has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshbook.runtime.actor.ports import ResponsePort
from meshbook.runtime.errors import MeshbookError, MessageTooLarge, SupervisionError
from meshbook.runtime.node.bulk import Bulk
from meshbook.runtime.node.credits import size_of
from meshbook.runtime.node.failures import pack_error, pickle_exception
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.transport import PeerGone
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Buffer, pack
from meshbook.runtime.wire.messages import Reply


class Answers:
    """What a node says to those who asked it. `limit` is the most bytes of a message."""

    def __init__(self, routes: Routes, bulk: Bulk, limit: int) -> None:
        self._routes = routes
        self._bulk = bulk
        self._node = routes.own.node
        self._limit = limit

    def reply(self, to: str, call: int, value: Any, what: str, rank: int = 0) -> None:
        """Answer with a value; `what` it is, for the error where it cannot travel."""
        try:
            reply = Reply(self._node, call, "ok", rank)
            body = pickling.dumps(value, what)
            size = size_of(body)
            if size < self._bulk.least:
                frame = pack(reply, body, self._limit)
            else:
                frame = self._bulk.pack(reply, body, size, self._routes.address_of(to))
        except MessageTooLarge as error:
            return self.reply_lost(to, call, SupervisionError(f"{what}: {error}"))
        except MeshbookError as error:
            return self.reply_error(to, call, str(error), error)
        return self._answer(to, frame)

    def reply_error(self, to: str, call: int, text: str, error: BaseException) -> None:
        """Answer that the endpoint raised."""
        reply = Reply(self._node, call, "error")
        self._answer(to, pack_error(reply, text, pickle_exception(error), self._limit))

    def reply_lost(self, to: str, call: int, error: SupervisionError) -> None:
        """Answer that no answer can come."""
        self._answer(to, pack_error(Reply(self._node, call, "lost"), str(error), None, self._limit))

    def port_to(self, node: str, call: int, rank: int, settled: Callable[[], object]) -> ResponsePort[Any]:
        """The port by which an endpoint answers this call itself."""
        return ResponsePort(self._routes.address_of(node), call, rank, settled)

    def _answer(self, to: str, frame: Buffer) -> None:
        try:
            self._routes.send(self._routes.address_of(to), frame)
        except PeerGone:
            return  # who asked is gone, and with it the question
