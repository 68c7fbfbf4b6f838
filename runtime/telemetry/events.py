"""Events of meshes. The controller of a run keeps the last of them, whichever process reported them."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from meshbook.runtime.formats import name_ranks

MOST = 1000  # events that are kept
# "respawned" and "given up" are decisions of a policy (`spawn_procs(on_failure=...)`). "healed": the ranks run again.
# "ended": a user had a process killed, for example by %mesh restart.
Kind = Literal["failed", "ended", "respawned", "given up", "healed", "resized", "spare used", "spare lost", "host lost"]


class RunEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event of a mesh, or of some of its ranks.

    `time` is in seconds since 1970, by the clock of the process that noticed it. `mesh` is the name that the user gave,
    `procs` the unique name of the processes concerned (`ProcMesh.name`), `ranks` are those of `mesh`.
    """

    time: float
    kind: Kind
    mesh: str
    procs: str
    ranks: tuple[int, ...]
    text: str

    def __str__(self) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(self.time))
        of = f" {name_ranks(self.ranks)}" if self.ranks else ""
        return f"{clock} {self.mesh}{of} {self.kind}: {self.text.partition(chr(10))[0]}"


class EventLog:
    """The last events, the oldest first."""

    def __init__(self, most: int = MOST) -> None:
        self._lock = threading.Lock()  # guards _events and _count
        self._events: collections.deque[RunEvent] = collections.deque(maxlen=most)
        self._count = 0
        self.when_added: list[Callable[[RunEvent], None]] = []  # called on the receiving thread: store only

    def __iter__(self) -> Iterator[RunEvent]:
        return iter(self.since(0))

    def __len__(self) -> int:
        return len(self._events)

    @property
    def count(self) -> int:
        """The number of events so far, including discarded ones."""
        return self._count

    def add(self, event: RunEvent) -> None:
        """Append an event, and call the listeners."""
        with self._lock:
            self._events.append(event)
            self._count += 1
        for listener in list(self.when_added):
            listener(event)

    def since(self, count: int) -> list[RunEvent]:
        """Return the events after the first `count`, as far as they are kept."""
        with self._lock:
            new = min(self._count - count, len(self._events))
            return list(self._events)[len(self._events) - new :] if new > 0 else []
