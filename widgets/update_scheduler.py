"""When a dashboard speaks: how often it ticks, who still listens, and how much may go out. Pure: time is passed in."""

from __future__ import annotations

import math
from collections import deque

from meshbook.widgets.protocol import ACTIVE_HERTZ, IDLE_HERTZ, MOST_UNACKNOWLEDGED, QUIET_AFTER

MOST_MESSAGES = 20  # in a second, replies included: the Jupyter server drops what is far more
MOST_BYTES = 200_000
SECOND = 1.0
HURRY = 0.1  # seconds between two ticks at the least


class UpdateScheduler:
    """Of one dashboard. Views that acknowledge nothing are gone; without views it has no ticks."""

    def __init__(self, now: float) -> None:
        self._acknowledged: dict[str, int] = {}  # view -> the state that it has shown
        self._happened_at = now  # the last time that something happened to the mesh
        self._ticked_at = -math.inf
        self._hurries = False

    @property
    def has_views(self) -> bool:
        """Whether anybody looks."""
        return bool(self._acknowledged)

    def opened(self, view: str, seq: int, now: float) -> None:
        """A view is shown, and will have the state of this number."""
        self._acknowledged[view] = seq
        self._happened_at = now

    def closed(self, view: str) -> None:
        """A view is not shown any more."""
        self._acknowledged.pop(view, None)

    def acknowledged(self, view: str, seq: int, newest: int) -> bool:
        """A view has shown this state, and the `newest` is that; False for a view that is not known (any more)."""
        if view not in self._acknowledged:
            return False
        self._acknowledged[view] = max(self._acknowledged[view], min(seq, newest))
        return True

    def happened(self, now: float) -> None:
        """Something runs on the mesh, or has changed there."""
        self._happened_at = now

    def is_quiet(self, now: float) -> bool:
        """Whether nothing has happened for so long that nothing is to be published."""
        return now - self._happened_at >= QUIET_AFTER

    def next_tick(self, *, is_active: bool) -> float:
        """When the next tick is due; infinite where nobody looks."""
        if not self.has_views:
            return math.inf
        return self._ticked_at + (HURRY if self._hurries else 1 / (ACTIVE_HERTZ if is_active else IDLE_HERTZ))

    def hurry(self) -> None:
        """Something is known to have happened: the next tick need not wait for its time."""
        self._hurries = True

    def ticked(self, now: float) -> None:
        """A tick is over."""
        self._ticked_at, self._hurries = now, False

    def published(self, seq: int) -> None:
        """This state has gone out: forget who has acknowledged none of the last ones."""
        listening = {view: last for view, last in self._acknowledged.items() if seq - last < MOST_UNACKNOWLEDGED}
        self._acknowledged = listening


class SendBudget:
    """What may go out: so many messages and bytes in any second. What is larger than all of it goes alone."""

    def __init__(self, messages: int = MOST_MESSAGES, size: int = MOST_BYTES) -> None:
        self._messages = messages
        self._size = size
        self._sent: deque[tuple[float, int]] = deque()

    def room_at(self, size: int, now: float) -> float:
        """When a message of so many bytes may go out: now, or later."""
        self._forget(now)
        count, total = len(self._sent) + 1, size + sum(each for _, each in self._sent)
        for at, each in self._sent:
            if count <= self._messages and total <= self._size:
                return now
            count, total, now = count - 1, total - each, at + SECOND
        return now

    def spend(self, size: int, now: float) -> None:
        """A message of so many bytes goes out."""
        self._sent.append((now, size))

    def _forget(self, now: float) -> None:
        while self._sent and self._sent[0][0] + SECOND <= now:
            self._sent.popleft()
