"""The inner end of a port: what has come and is not taken yet, and who waits for what is to come.

Not bounded: what comes here was asked for, and a program may send all of its work before it takes the first result. To
let the sender wait for that would be to let both wait for ever.
"""

from __future__ import annotations

import collections
import threading
from typing import Any

from meshbook.runtime.actor.future import Future, Helper
from meshbook.runtime.actor.ports import PortReceiver
from meshbook.runtime.node.calls import NO_RANK, Decode


class Mailbox:
    """Takes answers like whoever calls (an `Asker`), any number of them; its values are (rank, value)."""

    def __init__(self, once: bool) -> None:
        self._lock = threading.Lock()  # guards all of these: a value and a waiter that cross must meet
        self._arrived: collections.deque[Decode] = collections.deque()
        # With its receiver: while somebody waits, it must not be dropped.
        self._waiting: collections.deque[tuple[Future[Any], PortReceiver[Any]]] = collections.deque()
        self._left = 1.0 if once else float("inf")  # messages that may be taken yet
        self._helper: Helper | None = None
        self._lost: BaseException | None = None  # why nothing can come any more

    def helped_by(self, helper: Helper) -> None:
        self._helper = helper

    def answer(self, index: int, decode: Decode) -> None:
        self._put(lambda: (index, decode()))

    def refuse(self, index: int, error: BaseException) -> None:
        if index == NO_RANK:
            return self._end(error)

        def fail() -> Any:
            raise error

        return self._put(fail)

    def _put(self, decode: Decode) -> None:
        with self._lock:
            if not self._waiting:
                self._arrived.append(decode)
                return
            future, _ = self._waiting.popleft()
        future.resolve(decode)

    def _end(self, error: BaseException) -> None:
        with self._lock:
            self._lost = error
            waiting, self._waiting = self._waiting, collections.deque()
        for future, _ in waiting:
            future.fail(error)

    def take(self, receiver: PortReceiver[Any]) -> Future[Any]:
        future: Future[Any] = Future.pending()
        if self._helper is not None:
            future.helped_by(self._helper)
        with self._lock:
            if not self._left:
                raise RuntimeError("this port was opened for one message: recv() is called once, and its future kept")
            self._left -= 1
            if self._arrived:
                future.resolve(self._arrived.popleft())
            elif self._lost is not None:
                future.fail(self._lost)
            else:
                self._waiting.append((future, receiver))
        return future
