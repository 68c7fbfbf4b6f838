"""When a dashboard sends: its ticks, the views that still listen, and its rate limit. Pure: time is passed in."""

from __future__ import annotations

import math
from collections import deque

from meshbook.widgets.protocol import ACTIVE_HERTZ, IDLE_HERTZ, MOST_UNACKNOWLEDGED, QUIET_AFTER

MOST_MESSAGES = 20  # a second, replies included: the Jupyter server drops messages far above its rate limit
MOST_BYTES = 200_000
SECOND = 1.0
HURRY = 0.1  # minimum seconds between two ticks


class UpdateScheduler:
    """The schedule of one dashboard. It drops views that acknowledge nothing; without views there are no ticks."""

    def __init__(self, now: float) -> None:
        self._acknowledged: dict[str, int] = {}  # view -> the last state that it has shown
        self._last_event_at = now  # time of the last event on the mesh
        self._ticked_at = -math.inf
        self._is_hurried = False

    @property
    def has_views(self) -> bool:
        """Whether any view is open."""
        return bool(self._acknowledged)

    def opened(self, view: str, seq: int, now: float) -> None:
        """Add a view; it receives the state of this number."""
        self._acknowledged[view] = seq
        self._last_event_at = now

    def closed(self, view: str) -> None:
        """Remove a view."""
        self._acknowledged.pop(view, None)

    def acknowledged(self, view: str, seq: int, newest: int) -> bool:
        """Note that a view has shown a state, at most the `newest`; returns False if the view is not registered."""
        if view not in self._acknowledged:
            return False
        self._acknowledged[view] = max(self._acknowledged[view], min(seq, newest))
        return True

    def happened(self, now: float) -> None:
        """Note that the mesh runs something or has changed."""
        self._last_event_at = now

    def is_quiet(self, now: float) -> bool:
        """Return whether the last event is so long ago that nothing is published."""
        return now - self._last_event_at >= QUIET_AFTER

    def next_tick(self, *, is_active: bool) -> float:
        """Return when the next tick is due; infinite without views."""
        if not self.has_views:
            return math.inf
        return self._ticked_at + (HURRY if self._is_hurried else 1 / (ACTIVE_HERTZ if is_active else IDLE_HERTZ))

    def hurry(self) -> None:
        """Bring the next tick forward after an event."""
        self._is_hurried = True

    def ticked(self, now: float) -> None:
        """Note that a tick has been done."""
        self._ticked_at, self._is_hurried = now, False

    def published(self, seq: int) -> None:
        """Note that this state was sent, and drop the views that have acknowledged none of the last ones."""
        listening = {view: last for view, last in self._acknowledged.items() if seq - last < MOST_UNACKNOWLEDGED}
        self._acknowledged = listening


class SendBudget:
    """The rate limit for sending: messages and bytes in any second. A message above the byte limit is sent alone."""

    def __init__(self, messages: int = MOST_MESSAGES, size: int = MOST_BYTES) -> None:
        self._messages = messages
        self._size = size
        self._sent: deque[tuple[float, int]] = deque()

    def room_at(self, size: int, now: float) -> float:
        """Return when a message of this size may be sent: now, or later."""
        while self._sent and self._sent[0][0] + SECOND <= now:
            self._sent.popleft()
        count, total = len(self._sent) + 1, size + sum(each for _, each in self._sent)
        for at, each in self._sent:
            if count <= self._messages and total <= self._size:
                return now
            count, total, now = count - 1, total - each, at + SECOND
        return now

    def spend(self, size: int, now: float) -> None:
        """Note that a message of this size is sent."""
        self._sent.append((now, size))
