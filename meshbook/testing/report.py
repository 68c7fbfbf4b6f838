"""The faults injected into a mesh: to be printed beside a failure, and kept as JSON."""

from __future__ import annotations

import collections

import msgspec

from meshbook.testing.plan import Event


class Injected(msgspec.Struct, frozen=True):
    """A fault that was due, and its outcome: "done", or why not."""

    event: Event
    at: float  # seconds after the start
    outcome: str

    @property
    def is_done(self) -> bool:
        return self.outcome == "done"

    def __str__(self) -> str:
        event = self.event
        length = f" for {event.seconds:.2f} s" if event.seconds else ""
        suffix = "" if self.is_done else f": {self.outcome}"
        return f"{self.at:8.2f} s  {event.kind} rank {event.rank}{length}{suffix}"


class Report(msgspec.Struct):
    """The faults so far, in the order of time; `seed` reproduces them."""

    seed: int
    events: list[Injected] = []

    def counts(self) -> dict[str, int]:
        """Return how many faults of each kind were done."""
        return dict(collections.Counter(each.event.kind for each in self.events if each.is_done))

    def to_json(self) -> str:
        """Return the whole report."""
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts().items())) or "nothing done"
        return "\n".join([f"chaos(seed={self.seed}): {counts}", *map(str, self.events)])
