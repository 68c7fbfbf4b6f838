"""The assignment of a map's items to ranks. Pure: no I/O, the time is passed in.

    waiting -> a request to a rank -> answered
       ^             │
       └── withdrawn from a slow rank, or handed out again because the rank died

A rank has at most two open requests, and the second only while items are quick: it then hides the round trip. Items
that wait behind a slow one are withdrawn from their rank as soon as another rank is idle.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

TARGET = 0.05  # seconds of work in a request of automatic size
QUICK = 0.2  # seconds of work in a request, below which a second request follows at once
PATIENCE = 0.1  # seconds without a reply, after which a rank must give back items that have not begun
MOST_DEATHS = 3  # of ranks that had an item; the item is then abandoned
GROWTH = 4  # a request is at most this many times as large as the largest one that was answered
MOST_ITEMS = 10_000  # of a request


@dataclass(eq=False)
class ItemRequest:
    """Items that were sent to a rank together, without those that were withdrawn since."""

    number: int
    rank: int
    items: list[int]
    is_looked_at: bool = False  # its rank was asked for the outcomes so far
    is_asked_back: bool = False  # its rank was also asked for the items that have not begun


@dataclass(frozen=True)
class LostItems:
    """The result of a rank's death: the items that are handed out again, and those that are abandoned."""

    again: Sequence[int]
    abandoned: Sequence[int]


class Balancer:
    """Hands out items by their numbers. `chunksize` is the number of items in a request; None: by their duration.

    O(ranks) for each request: fine for some hundred ranks; a heap would do for more.
    """

    def __init__(self, ranks: Iterable[int], chunksize: int | None = None) -> None:
        self._chunksize = chunksize
        self._waiting: deque[int] = deque()
        self._open: dict[int, list[ItemRequest]] = {rank: [] for rank in ranks}  # of the live ranks, in their order
        self._since: dict[int, float] = {}  # when a rank began its first open request
        self._numbers = itertools.count(1)
        self._seconds: float | None = None  # per item, as far as it is known
        self._largest = 1  # size of a request that was answered
        self._died: dict[int, list[int]] = {}  # item -> ranks that died while they had it
        self._alone: set[int] = set()  # items that share neither a request nor a rank with other items

    @property
    def ranks(self) -> Collection[int]:
        """The live ranks."""
        return self._open.keys()

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no item waits and no request is open."""
        return not self._waiting and not any(self._open.values())

    def died_with(self, item: int) -> Sequence[int]:
        """Return the ranks that died while they had this item, in that order."""
        return self._died.get(item, ())

    def add(self, items: Iterable[int]) -> None:
        """Add items to be handed out, in their order."""
        self._waiting.extend(items)

    def requests(self, now: float) -> Iterator[ItemRequest]:
        """Create the requests to send now."""
        while self._waiting:
            free = [rank for rank, requests in self._open.items() if self._has_room(rank, requests, now)]
            if not free:
                return
            rank = min(free, key=lambda rank: sum(len(request.items) for request in self._open[rank]))
            request = ItemRequest(next(self._numbers), rank, self._take())
            if not self._open[rank]:
                self._since[rank] = now
            self._open[rank].append(request)
            yield request

    def _has_room(self, rank: int, requests: Sequence[ItemRequest], now: float) -> bool:
        if not requests:
            return True
        if len(requests) > 1 or self._seconds is None or self._waiting[0] in self._alone:
            return False
        is_suspect = any(item in self._alone for item in requests[0].items)  # a second request would be lost with it
        return not is_suspect and self._seconds * self._size() < QUICK and now - self._since[rank] < PATIENCE

    def _take(self) -> list[int]:
        """Take the items of the next request."""
        count = self._size()
        taken = [self._waiting.popleft()]
        while taken[0] not in self._alone and len(taken) < count and self._waiting:
            if self._waiting[0] in self._alone:
                break
            taken.append(self._waiting.popleft())
        return taken

    def _size(self) -> int:
        if self._chunksize is not None:
            return self._chunksize
        if self._seconds is None:
            return 1
        # All ranks then end at about the same time.
        fair = math.ceil(len(self._waiting) / (2 * len(self._open)))
        fitting = int(TARGET / max(self._seconds, TARGET / MOST_ITEMS))
        return max(1, min(fitting, fair, GROWTH * self._largest))

    def answered(self, rank: int, number: int, done: Collection[int], seconds: float, now: float) -> None:
        """Record a rank's answer to a request, in which it ran the items `done` in this many seconds."""
        request = self._find(rank, number)
        if request is None:
            return
        self._open[rank].remove(request)
        self._since[rank] = now
        self._put_back(item for item in request.items if item not in done)
        if done:
            each = seconds / len(done)
            self._seconds = each if self._seconds is None else 0.7 * self._seconds + 0.3 * each
            self._largest = max(self._largest, len(done))

    def late_requests(self, now: float) -> list[ItemRequest]:
        """Return the requests whose ranks must be asked now, each once, for the items that are done.

        If another rank is idle, `is_asked_back` is set: the ranks are also asked for the items that have not begun.
        """
        found = [request for due, request in self._late() if due <= now]
        for request in found:
            request.is_looked_at = True
            request.is_asked_back = self._has_idle
        return found

    def next_look(self) -> float:
        """Return when to check for late requests again; infinite if there is nothing to check."""
        return min((due for due, _ in self._late()), default=math.inf)

    @property
    def _has_idle(self) -> bool:
        return not self._waiting and not all(self._open.values())

    def _late(self) -> Iterator[tuple[float, ItemRequest]]:
        """Return the requests to ask for, and when each becomes late. Their ranks know which items have begun."""
        for rank, requests in self._open.items():
            for index, request in enumerate(requests):
                has_done = index == 0 and len(request.items) > 1  # possibly: a later item may be slow
                is_wanted = self._has_idle and request.items and not request.is_asked_back
                if is_wanted or (has_done and not request.is_looked_at):
                    yield self._since[rank] + PATIENCE, request

    def done_early(self, rank: int, number: int, items: Collection[int]) -> None:
        """Record that these items of a request are done, before its answer has arrived."""
        request = self._find(rank, number)
        if request is not None:
            request.items = [item for item in request.items if item not in items]

    def given_back(self, rank: int, number: int, items: Collection[int]) -> None:
        """Record that a rank has not begun these items of a request, and never will."""
        request = self._find(rank, number)
        if request is not None:
            taken = [item for item in request.items if item in items]
            request.items = [item for item in request.items if item not in items]
            self._put_back(taken)

    def lose(self, rank: int) -> LostItems:
        """Record the death of a rank. Only items of its oldest request can have begun, so only these count the death.

        They are handed out again one by one, so the next death shows which item causes it.
        """
        requests = self._open.pop(rank, [])
        self._since.pop(rank, None)
        for item in requests[0].items if requests else ():
            self._died.setdefault(item, []).append(rank)
            self._alone.add(item)
        items = [item for request in requests for item in request.items]
        abandoned = [item for item in items if len(self.died_with(item)) >= MOST_DEATHS]
        again = [item for item in items if item not in abandoned]
        self._put_back(again)
        return LostItems(again, abandoned)

    def refused(self, rank: int, number: int) -> list[int]:
        """Record that a request could not be sent. Its items go one by one; return an item that was already alone."""
        request = self._find(rank, number)
        if request is None:
            return []
        self._open[rank].remove(request)
        if len(request.items) == 1:
            return request.items
        self._alone.update(request.items)
        self._put_back(request.items)
        return []

    def join(self, rank: int) -> None:
        """Add a rank that is new or was restarted."""
        self._open.setdefault(rank, [])

    def drop(self, items: Collection[int]) -> list[int]:
        """Remove and return those of these items that wait. O(waiting)."""
        dropped = [item for item in self._waiting if item in items]
        if dropped:
            self._waiting = deque(item for item in self._waiting if item not in items)
        return dropped

    def drop_all(self) -> list[int]:
        """Remove and return all waiting items."""
        dropped = list(self._waiting)
        self._waiting.clear()
        return dropped

    def is_open(self, request: ItemRequest) -> bool:
        """Return whether this request has not been answered yet, as far as is known."""
        return request in self._open.get(request.rank, ())

    def open_requests(self) -> list[ItemRequest]:
        """Return the requests that have not been answered."""
        return [request for requests in self._open.values() for request in requests]

    def _find(self, rank: int, number: int) -> ItemRequest | None:
        return next((each for each in self._open.get(rank, ()) if each.number == number), None)

    def _put_back(self, items: Iterable[int]) -> None:
        self._waiting.extendleft(reversed(list(items)))
