"""The queue of one actor. Whoever takes a message from it makes room for its sender, who is told so by and by."""

from __future__ import annotations

import queue
from typing import Protocol

from meshbook.runtime.node.credits import Owed, Window, is_counted, size_of
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Call, Stop

Item = tuple[Call | Stop, Body]


class Creditor(Protocol):
    """Who tells senders that there is room again (`pressure`)."""

    @property
    def window(self) -> Window: ...
    def grant(self, sender: str, actor: str, messages: int, size: int) -> None: ...


class Backlog:
    """Messages in the order of arrival; between them None, which says: look at something else.

    Of an actor that is counted (`is_counted`) so are the calls in it; a stop waits for nothing.
    """

    def __init__(self, key: str, creditor: Creditor) -> None:
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._key = key
        self._creditor = creditor
        self._owed = Owed(creditor.window) if is_counted(key) else None
        self.empty, self.size = self._items.empty, self._items.qsize

    def put(self, message: Call | Stop, body: Body) -> None:
        """Queue a message; never waits, since its sender did."""
        self._items.put((message, body))

    def ring(self) -> None:
        """Let whoever takes the next message look at something else first."""
        self._items.put(None)

    def get(self) -> Item | None:
        """The next message, waited for; None for a ring."""
        return self.count_out(self._items.get())

    def get_nowait(self) -> Item | None:
        """The same without waiting; queue.Empty where there is nothing."""
        return self.count_out(self._items.get_nowait())

    def close(self) -> None:
        """The actor has ended: tell every sender of what was taken. What still comes is told of at once."""
        if self._owed is not None:
            for sender, (messages, size) in self._owed.close().items():
                self._creditor.grant(sender, self._key, messages, size)

    def count_out(self, item: Item | None) -> Item | None:
        """A message is out of the queue, or has never been in it."""
        if item is not None and self._owed is not None:
            message, body = item
            if isinstance(message, Call):
                sender = message.via or message.sender
                # What `size_of` says; most bodies have one part, and this is done for each message.
                size = len(body[0]) if len(body) == 1 else size_of(body)
                if (due := self._owed.take(sender, size)) is not None:
                    self._creditor.grant(sender, self._key, *due)
        return item


def sender_of(call: Call) -> str:
    """The node that sent a call; who wants the answer may be another."""
    return call.via or call.sender
