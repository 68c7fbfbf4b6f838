"""A bounded buffer for a text that arrives in chunks: it keeps start and end, and counts and hashes the whole."""

from __future__ import annotations

import hashlib
from collections import deque
from itertools import chain

from meshbook.magics.output.grouping import Block, split_lines

_LIVE_LINE = 400  # characters of a line in the live area: aligning very long lines would take seconds
_PIECE = 4096  # characters; smaller chunks are joined up to this size


class TextBuffer:
    """The start and end of a text that arrives in chunks, in bounded memory; the whole is counted and hashed."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head: deque[str] = deque()
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._length = 0
        self._newlines = 0
        self._ends_open = False
        self.live = ""  # rows after the text that may still change
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def line_count(self) -> int:
        """The number of lines received; a last line without a newline counts."""
        ends_open = self.live[-1] != "\n" if self.live else self._ends_open
        return self._newlines + self.live.count("\n") + ends_open

    def add(self, text: str) -> None:
        """Add the next chunk. The cost is about that of hashing it, regardless of earlier chunks."""
        if not text:
            return
        self._newlines += text.count("\n")
        self._ends_open = not text.endswith("\n")
        self._digest.update(text.encode("utf-8", "surrogatepass"))
        room = max(self._half - self._length, 0)
        self._length += len(text)
        _append(self._head, text[:room])
        end = text[room:][-self._half - 1 :]  # with the character before, which may end a line
        _append(self._tail, end)
        self._tail_size += len(end)
        while self._tail and self._tail_size - len(self._tail[0]) > self._half:
            self._tail_size -= len(self._tail.popleft())

    def block(self) -> Block:
        """Return the kept text as lines, with a cut if lines are missing between start and end.

        A line that is longer than the start or the end is shown in part, and counts as shown.
        The result depends on the text alone, not on its chunks: equal floods from two ranks make equal blocks.
        """
        head, tail = "".join(self._head), "".join(self._tail)
        if self._length <= 2 * self._half:
            return Block(split_lines(head + tail + self.live))
        before, end = (head + tail)[-self._half - 1], tail[-self._half :] + self.live
        is_first_cut, is_last_cut = "\n" not in head, before != "\n" and "\n" not in end.removesuffix("\n")
        first = split_lines(head if is_first_cut else head[: head.rfind("\n") + 1])
        # Without the rest of a line that is cut, unless that is all.
        last = split_lines(end if is_last_cut or before == "\n" else end[end.find("\n") + 1 :])
        whole = self._digest.copy()
        whole.update(self.live.encode("utf-8", "surrogatepass"))
        missing = f"(+{self._length - len(head) - self._half:,} characters)"
        if self.line_count == 1:
            return Block((f"{first[0]} … {missing} … {last[0]}",), identity=whole.digest())
        hidden = max(self.line_count - len(first) - len(last), 0)
        if is_first_cut:
            first = (f"{first[0]} …" if hidden else f"{first[0]} … {missing}",)
        if is_last_cut:
            last = (f"… {last[0]}",)
        return Block(first + last, hidden, len(first), whole.digest())

    def last_lines(self, count: int) -> tuple[str, ...]:
        """Return the last lines, read from the last pieces only, because callers need them several times a second."""
        pieces = [self.live]
        newlines = self.live.count("\n")
        for piece in chain(reversed(self._tail), reversed(self._head)):
            pieces.append(piece)
            newlines += piece.count("\n")
            if newlines > count:
                break
        return split_lines("".join(reversed(pieces))[-count * _LIVE_LINE :])[-count:]


def _append(pieces: deque[str], text: str) -> None:
    # Without joining, a rank that prints single characters would leave one piece, with its overhead, for each.
    if pieces and len(pieces[-1]) + len(text) <= _PIECE:
        pieces[-1] += text
    elif text:
        pieces.append(text)
