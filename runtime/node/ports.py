"""Ports: numbers that values are sent to from any node. Opened and closed here; what comes is kept in a `Mailbox`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from meshbook.runtime.node.asking import own_key
from meshbook.runtime.node.bulk import Bulk
from meshbook.runtime.node.calls import CallTable
from meshbook.runtime.node.credits import size_of
from meshbook.runtime.node.failures import pack_error, pickle_exception
from meshbook.runtime.node.mailbox import Mailbox
from meshbook.runtime.node.reception import Reception
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.transport import PeerGone
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Buffer, pack
from meshbook.runtime.wire.messages import Address, Reply


class Ports:
    """The ports of a node, and the sending to those of others. `returned` hears of what nobody could take."""

    def __init__(
        self,
        routes: Routes,
        calls: CallTable,
        reception: Reception,
        bulk: Bulk,
        *,
        limit: int,
        returned: Callable[[str, str, str], None],
    ) -> None:
        self._routes = routes
        self._calls = calls
        self._reception = reception
        self._bulk = bulk
        self._limit = limit
        self._returned = returned

    def open_port(self, *, once: bool) -> tuple[int, Mailbox]:
        """A number that values can be sent to, and where they come in."""
        mailbox = Mailbox(once)
        mailbox.helped_by(self._reception)
        return self._calls.open_port(mailbox, once=once), mailbox

    def close_port(self, number: int) -> None:
        """From now on what is sent there is dropped."""
        self._calls.close_port(number)

    def send_to_port(self, to: Address, number: int, rank: int, value: Any, *, returns: bool) -> None:
        """Send a value to a port of any node, as this rank; number 0 is nobody's. PickleError, MessageTooLarge.

        Where it `returns`, an actor that sends it hears that nobody receives there.
        """
        if number:
            reply = Reply(self._routes.own.node, number, "ok", rank, own_key() if returns else "")
            body = pickling.dumps(value, "a value sent to a port")
            size = size_of(body)
            is_small = size < self._bulk.least
            frame = pack(reply, body, self._limit) if is_small else self._bulk.pack(reply, body, size, to)
            self._send(to, reply, frame)

    def fail_port(self, to: Address, number: int, error: BaseException, *, returns: bool) -> None:
        """Let whoever receives there raise this error, or an ActorError of its text where it cannot travel."""
        if number:
            text = f"{type(error).__name__}: {error}"
            # One that is no Exception would end whoever it is raised in.
            status: Literal["sent", "error"] = "sent" if isinstance(error, Exception) else "error"
            reply = Reply(self._routes.own.node, number, status, 0, own_key() if returns else "")
            self._send(to, reply, pack_error(reply, text, pickle_exception(error), self._limit))

    def _send(self, to: Address, reply: Reply, frame: Buffer) -> None:
        self._routes.learn(to)  # a port may come from a node that this one has never heard of
        try:
            self._routes.send(to, frame)
        except PeerGone as gone:
            why = str(self._routes.why_gone(to, gone))
            self._returned(reply.by, f"{to.node}/port {reply.call}", why)
