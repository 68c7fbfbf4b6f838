"""Ports: numbers that any node can send values to, and the mailboxes that store the values.

A mailbox is unbounded: a program may send all of its work before it receives the first result. If the sender of a
result had to wait for room, both sides would wait forever.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Literal

from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.ports import PortReceiver
from meshbook.runtime.node.bulk import Bulk
from meshbook.runtime.node.call_table import NO_RANK, CallTable, Decode
from meshbook.runtime.node.flow_control import size_of
from meshbook.runtime.node.outbound import own_key
from meshbook.runtime.node.replies import pack_error, pickle_exception
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.transport import PeerGone
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Buffer, pack
from meshbook.runtime.wire.messages import Address, Reply


class Ports:
    """The ports of a node; sends to the ports of other nodes. `returned` gets messages that cannot be delivered."""

    def __init__(
        self,
        routes: Routes,
        table: CallTable,
        bulk: Bulk,
        *,
        limit: int,
        returned: Callable[[str, str, str], None],
    ) -> None:
        self._routes = routes
        self._table = table
        self._bulk = bulk
        self._limit = limit
        self._returned = returned

    def open(self, *, once: bool) -> tuple[int, PortMailbox]:
        """Open a port; return its number and its mailbox."""
        mailbox = PortMailbox(once)
        return self._table.open_port(mailbox, once=once), mailbox

    def close(self, number: int) -> None:
        """Close a port; later values for it are dropped."""
        self._table.close_port(number)

    def send(self, to: Address, number: int, rank: int, value: Any, *, returns: bool) -> None:
        """Send a value to a port of any node, as this rank; ignores number 0. Raises PickleError, MessageTooLarge.

        With `returns`, the message comes back to the sending actor if the port is closed.
        """
        if number:
            reply = Reply(self._routes.own.node, number, "ok", rank, own_key() if returns else "")
            body = pickling.dumps(value, "a value sent to a port")
            size = size_of(body)
            is_small = size < self._bulk.least
            frame = pack(reply, body, self._limit) if is_small else self._bulk.pack(reply, body, size, to)
            self._send(to, reply, frame)

    def fail(self, to: Address, number: int, error: BaseException, *, returns: bool) -> None:
        """Make the receiver of a port raise this error, or an ActorError with its text if it cannot be pickled."""
        if number:
            text = f"{type(error).__name__}: {error}"
            # Send the text of a BaseException only: raised in an actor, it would end that actor.
            status: Literal["sent", "error"] = "sent" if isinstance(error, Exception) else "error"
            reply = Reply(self._routes.own.node, number, status, 0, own_key() if returns else "")
            self._send(to, reply, pack_error(reply, text, pickle_exception(error), self._limit))

    def _send(self, to: Address, reply: Reply, frame: Buffer) -> None:
        self._routes.learn(to)  # the node of a port may be unknown here
        try:
            self._routes.send(to, frame)
        except PeerGone as gone:
            why = str(self._routes.why_gone(to, gone))
            self._returned(reply.by, f"{to.node}/port {reply.call}", why)


class PortMailbox:
    """The received values of a port, and the futures of later ones. A reply handler; its values are (rank, value).

    The I/O thread adds values, other threads add futures. Each appends first and then matches the two queues. Only one
    thread matches at a time (`_matching`), so no lock is needed.
    """

    def __init__(self, once: bool) -> None:
        self._arrived: collections.deque[Decode] = collections.deque()
        # Each future with its receiver, which must not be collected while a thread waits.
        self._waiting: collections.deque[tuple[Future[Any], PortReceiver[Any]]] = collections.deque()
        self._tickets: list[None] | None = [None] if once else None  # messages left to receive; None: any number
        self._matching = [None]  # a token: the thread that pops it matches
        self._lost: BaseException | None = None  # why no further value can arrive

    def answer(self, index: int, decode: Decode) -> None:
        """Add a value from this rank."""
        self._arrived.append(lambda: (index, decode()))
        self._match()

    def refuse(self, index: int, error: BaseException) -> None:
        """Add an error from this rank; with NO_RANK no further value can arrive."""
        if index == NO_RANK:
            self._lost = error
        else:
            self._arrived.append(lambda: _raise(error))
        self._match()

    def take(self, receiver: PortReceiver[Any]) -> Future[Any]:
        """Return the future of the next value. A second call raises RuntimeError if the port is for one message."""
        if self._tickets is not None:
            try:
                self._tickets.pop()
            except IndexError:
                raise RuntimeError(
                    "this port was opened for one message: call recv() once and keep its future"
                ) from None
        future: Future[Any] = Future.pending()
        self._waiting.append((future, receiver))
        self._match()
        return future

    def _match(self) -> None:
        while self._waiting and (self._arrived or self._lost is not None):
            try:
                self._matching.pop()
            except IndexError:
                return  # another thread matches, and checks again afterwards
            try:
                while self._waiting and self._arrived:
                    self._waiting.popleft()[0].resolve(self._arrived.popleft())
                while self._waiting and self._lost is not None and not self._arrived:
                    self._waiting.popleft()[0].fail(self._lost)
            finally:
                self._matching.append(None)


def _raise(error: BaseException) -> Any:
    raise error
