"""How much may wait in the queue of an actor, and how its senders know. Pure accounting; threads share it.

Each node may have so many messages, and so many bytes, waiting in the queue of one actor. The sending node counts what
it has sent there (`Outstanding`), the receiving one what it has taken from the queue since (`Owed`), and says so in
batches of half a window. So a sender knows too much by less than half, and always comes to know that there is room.
"""

from __future__ import annotations

import math
import threading
from typing import Generic, TypeVar

from meshbook.runtime.telemetry.output import TELEMETRY
from meshbook.runtime.wire.frames import Body

W = TypeVar("W")
Queue = tuple[str, str]  # the node of an actor, and its key


class Window:
    """What one node may have waiting in one queue: at least one message. Another goes while it is not filled."""

    __slots__ = ("half_messages", "half_size", "messages", "size")

    def __init__(self, messages: int, size: int) -> None:
        self.messages = max(1, messages)
        self.size = max(1, size)  # bytes of bodies
        self.half_messages = self.messages / 2
        self.half_size = self.size / 2


class _Sent(Generic[W]):
    """What one queue has been sent and has not given back, and who waits for room in it."""

    __slots__ = ("messages", "size", "waiting")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        self.waiting: list[W] = []


class Outstanding(Generic[W]):
    """The sending side of a node: for each queue what waits there, and who waits here. O(queues) where a node ends."""

    def __init__(self, window: Window) -> None:
        self._most: float = window.messages
        self._largest: float = window.size
        self._lock = threading.RLock()  # guards all of these; under it, a finalizer of the user's may send
        self._sent: dict[Queue, _Sent[W]] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def spend(self, queue: Queue, size: int, waiter: W | None = None) -> bool:
        """Count a message in, if there is room. Else the waiter is noted: `give_back` returns it when there is."""
        with self._lock:
            if (sent := self._sent.get(queue)) is None:
                sent = self._sent[queue] = _Sent()
            if sent.messages >= self._most or sent.size >= self._largest:
                if waiter is not None:
                    sent.waiting.append(waiter)
                return False
            sent.messages += 1
            sent.size += size
            return True

    def overspend(self, queue: Queue, size: int) -> None:
        """Count in a message of somebody who must not wait."""
        with self._lock:
            sent = self._sent.setdefault(queue, _Sent())
            sent.messages += 1
            sent.size += size

    def give_back(self, queue: Queue, messages: int, size: int) -> list[W]:
        """So much is out of the queue again; who waited for that. What is said of a life before counts for nothing."""
        with self._lock:
            if (sent := self._sent.get(queue)) is None:
                return []
            sent.messages = max(0, sent.messages - messages)
            sent.size = max(0, sent.size - size) if sent.messages else 0
            woken: list[W] = []
            if sent.messages < self._most and sent.size < self._largest:
                woken, sent.waiting = sent.waiting, []
            if not sent.messages:
                del self._sent[queue]
            return woken

    def forget(self, node: str) -> list[W]:
        """A node has ended, and its queues with it; who waited for room in them."""
        with self._lock:
            gone = [self._sent.pop(queue, None) for queue in list(self._sent) if queue[0] == node]
            return [waiter for sent in gone if sent is not None for waiter in sent.waiting]

    def close(self) -> list[W]:
        """From now on there is always room, since nothing is sent any more; who waited."""
        with self._lock:
            self._most = self._largest = math.inf
            return [waiter for sent in list(self._sent.values()) for waiter in sent.waiting]

    def leave(self, queue: Queue, waiter: W) -> None:
        """Somebody does not wait any more."""
        with self._lock:
            if (sent := self._sent.get(queue)) is not None and waiter in sent.waiting:
                sent.waiting.remove(waiter)


class Owed:
    """The receiving side of one queue: what was taken from it, by the node that sent it, and was not said yet."""

    def __init__(self, window: Window) -> None:
        self._half_messages, self._half_size = window.half_messages, window.half_size
        self._lock = threading.Lock()  # guards all of these
        self._owed: dict[str, list[int]] = {}  # messages and bytes

    def take(self, sender: str, size: int) -> list[int] | None:
        """A message was taken; how many, and how many bytes, the sender is to be told of now, if it is."""
        with self._lock:
            if (owed := self._owed.get(sender)) is None:
                owed = self._owed[sender] = [0, 0]
            owed[0] += 1
            owed[1] += size
            if owed[0] < self._half_messages and owed[1] < self._half_size:
                return None
            del self._owed[sender]
            return owed

    def close(self) -> dict[str, list[int]]:
        """The queue has ended: what is owed to whom. From now on each message is told of at once."""
        with self._lock:
            self._half_messages = self._half_size = 0
            owed, self._owed = self._owed, {}
            return owed


def is_counted(actor: str) -> bool:
    """Whether the queue of an actor may fill: it was spawned, or is where output goes, which is large.

    The runtime's others never lag behind, and what is told to them must not wait.
    """
    return "@" in actor or actor == TELEMETRY


def size_of(body: Body) -> int:
    """The bytes of a body, the same on both sides."""
    if len(body) == 1:
        return len(body[0])  # a pickle stream
    return sum(memoryview(part).nbytes for part in body)
