"""Which way leads to a buffer, and why: the first that does not refuse, of those in the order of speed.

What a way turned out not to do (`Unsuitable`) is kept for that owner. Decides alone: moves nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from meshbook.runtime.errors import TransferError
from meshbook.runtime.memory.identity import ProcessMark
from meshbook.runtime.rdma.handle import Handle
from meshbook.runtime.rdma.ways import Way


@dataclass(frozen=True)
class Verdict:
    """What was decided of one way: chosen, refused for a reason, or not needed since an earlier one leads there."""

    name: str
    is_chosen: bool
    reason: str


class Chooser:
    """The ways of one process. `allowed` are names, empty: all."""

    def __init__(self, ways: Sequence[Way], allowed: Sequence[str] = ()) -> None:
        if unknown := set(allowed) - {way.name for way in ways}:
            names = ", ".join(way.name for way in ways)
            raise ValueError(f"MESHBOOK_RDMA_WAYS names {', '.join(sorted(unknown))}: the ways are {names}")
        self._ways = ways
        self._allowed = allowed
        self._lock = threading.Lock()  # guards the next
        self._failed: dict[tuple[ProcessMark, str, str], str] = {}

    def choose(self, handle: Handle, local: str | None) -> Way:
        """TransferError where no way leads there, with the reason of each."""
        for way in self._ways:
            if not self._refusal(way, handle, local):
                return way
        reasons = "\n".join(f"    {way.name}: {self._refusal(way, handle, local)}" for way in self._ways)
        raise TransferError(f"no way leads to the buffer of {handle.actor} on {handle.owner.node}:\n{reasons}")

    def note(self, way: Way, handle: Handle, why: str) -> None:
        """This way does not lead to memory like this of this owner."""
        with self._lock:
            self._failed[handle.process, handle.device, way.name] = why

    def explain(self, handle: Handle, local: str | None) -> list[Verdict]:
        """What is to be said of each way, in the order in which they are asked."""
        verdicts: list[Verdict] = []
        is_found = False
        for way in self._ways:
            reason = "" if is_found else self._refusal(way, handle, local)
            verdicts.append(Verdict(way.name, not is_found and not reason, reason))
            is_found = is_found or not reason
        return verdicts

    def _refusal(self, way: Way, handle: Handle, local: str | None) -> str:
        if self._allowed and way.name not in self._allowed:
            return "left out by MESHBOOK_RDMA_WAYS"
        return self._failed.get((handle.process, handle.device, way.name)) or way.refusal(handle, local)
