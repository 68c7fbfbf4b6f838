"""Keeps the order of messages between two nodes that have two paths: direct, and through the agents of hosts (casts).

Each path keeps its own order. Two small messages, both sent directly, tie the paths together:

    Mark(n)    A later cast names the mark. The receiver handles that cast once the mark has arrived, and with it the
               direct messages before it.
    Fence(n)   The receiver handles the direct messages after it once n casts of the sender have arrived.

Both are sent only where a sender changes from one path to the other. Gathered replies name a mark as well, so a reply
arrives after the output before it. They need no fence: a reply is found by its number, not by its place.

Output that travels with a gathered reply needs no fence either. The sender keeps a copy of that message until it knows
that the message has arrived, by a number in a later cast. Until then, it sends the copy before the next direct message.
The receiver drops what arrives twice. So nothing waits for output that an agent may have lost.

A cast is waited for only after it was sent, and waits only for earlier direct messages, so the two never wait for each
other. Uses no socket, no clock and no thread.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable

from meshbook.runtime.wire.frames import Buffer

logger = logging.getLogger(__name__)
Item = Callable[[], object]  # handles a message


class SendOrder:
    """The sending side for one peer. The I/O thread sends casts, and the direct messages behind them.

    Its counters have no lock: there is no call between a check and the change after it (see `flow_control`).
    """

    __slots__ = ("casts", "copy", "direct", "done", "fenced", "mark", "marked", "numbers", "outputs", "queued", "seen")

    def __init__(self) -> None:
        self.direct = 1  # direct messages sent; those before this stream began count as one
        self.marked = 0  # how many of them were sent before the mark
        self.mark = 0  # the number of the last mark
        self.numbers = itertools.count(1)
        self.casts = 0  # casts sent
        self.fenced = 0  # how many of them were sent before the last fence
        self.queued = 0  # casts and direct messages passed to the I/O thread
        self.done = 0  # those that it has sent
        self.outputs = 0  # outputs sent with replies
        self.copy: Buffer | None = None  # the message with the last of them, unless it is known to have arrived
        self.seen = 0  # the last such output that has arrived from the peer

    @property
    def is_behind(self) -> bool:
        """Whether a direct message must wait for a cast, or needs a fence."""
        return self.queued != self.done or self.fenced != self.casts

    def acknowledge(self, number: int) -> None:
        """Drop the copy: the output with this number has arrived. A later one keeps its copy."""
        if number == self.outputs:
            self.copy = None

    def set_mark(self, number: int, direct: int) -> None:
        """Note that this mark follows so many direct messages."""
        # The mark first: another thread that finds its messages marked names this mark, or a later one.
        if number > self.mark:
            self.mark = number
        if direct > self.marked:
            self.marked = direct


class Inbound:
    """The receiving side for one peer: casts and direct messages, each handled in its turn."""

    def __init__(self) -> None:
        self.marks = 0  # the number of the last mark
        self._casts = 0  # handled ones
        self._fence = 0
        self._waiting_casts: dict[int, tuple[int, Item]] = {}  # by number, each with its mark
        self._waiting: deque[Item] = deque()  # direct messages behind the fence
        self._replies: list[tuple[int, Item]] = []
        self._is_advancing = False

    @property
    def holds(self) -> bool:
        """Whether a direct message that arrives now has to wait."""
        return bool(self._waiting) or self._casts < self._fence

    def add_direct(self, item: Item) -> None:
        self._waiting.append(item)
        self._advance()

    def add_cast(self, number: int, mark: int, item: Item) -> None:
        """Add the cast with this number; one that is known, or was given up, is dropped."""
        if number > self._casts:
            self._waiting_casts.setdefault(number, (mark, item))
            self._advance()

    def add_reply(self, mark: int, item: Item) -> None:
        if mark > self.marks:
            self._replies.append((mark, item))
        else:
            _run(item)

    def set_mark(self, number: int) -> None:
        self.marks = max(self.marks, number)
        waiting, self._replies = self._replies, []
        for mark, item in waiting:
            self.add_reply(mark, item)
        self._advance()

    def set_fence(self, number: int) -> None:
        self._fence = max(self._fence, number)

    def give_up(self, number: int) -> None:
        """Wait no longer for casts up to this number: those that have not arrived are lost."""
        for each in sorted(self._waiting_casts):
            if each <= number:
                _run(self._waiting_casts.pop(each)[1])
        self._casts = max(self._casts, number)
        self._advance()

    def release_replies(self) -> None:
        """Handle the replies that wait for a mark: their node has ended, so no mark will arrive."""
        self.set_mark(max((mark for mark, _ in self._replies), default=0))

    def _advance(self) -> None:
        if self._is_advancing:  # a message that is handled now has called this
            return
        self._is_advancing = True
        while True:
            cast = self._waiting_casts.get(self._casts + 1)
            if cast is not None and cast[0] <= self.marks:
                self._casts += 1
                del self._waiting_casts[self._casts]
                _run(cast[1])
            elif self._waiting and self._casts >= self._fence:
                _run(self._waiting.popleft())
            else:
                break
        self._is_advancing = False


def _run(item: Item) -> None:
    try:
        item()
    except Exception:  # one failed message must not stop the others
        logger.exception("a message could not be handled")
