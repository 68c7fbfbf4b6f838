"""Which way leads to a buffer, and why: the first that does not refuse, of those in the order of speed.

What a way turned out not to do (`Unsuitable`) is kept for that owner, so it is tried once; what may pass is kept for a
while. Decides, and moves nothing.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshbook.runtime.errors import TransferError
from meshbook.runtime.memory.identity import ProcessMark
from meshbook.runtime.rdma.backends import Transfer, TransferBackend, Unsuitable
from meshbook.runtime.rdma.handle import BufferHandle

logger = logging.getLogger(__name__)

AGAIN = 10.0  # seconds after which a way is tried again, where what was in its way may pass
REMEMBERED = 4096  # failures that are kept; of owners that have ended, too, so the oldest go
LEFT_OUT = "left out by MESHBOOK_RDMA_WAYS"
SPARE = "leads there as well, and is slower"


@dataclass(frozen=True)
class BackendVerdict:
    """What is to be said of one way: it is the chosen one, or would do as well, or why it does not lead there."""

    name: str
    is_chosen: bool
    reason: str  # of the chosen one none


Forbid = Callable[
    [TransferBackend, BufferHandle], str
]  # why the user has forbidden a way that would lead there; empty: he has not


class BackendSelector:
    """The ways of one process of this run. `allowed` are names, empty: all."""

    def __init__(
        self,
        ways: Sequence[TransferBackend],
        allowed: Sequence[str] = (),
        forbid: Forbid = lambda way, to: "",
        run: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if unknown := set(allowed) - {way.name for way in ways}:
            names = ", ".join(way.name for way in ways)
            raise ValueError(f"MESHBOOK_RDMA_WAYS names {', '.join(sorted(unknown))}: the ways are {names}")
        self._ways = ways
        self._allowed = allowed
        self._forbid = forbid
        self._run = run
        self._clock = clock
        self._lock = threading.Lock()  # guards the next two
        self._failed: OrderedDict[tuple[ProcessMark, str, str], tuple[str, float]] = OrderedDict()  # until when
        self._told: set[tuple[str, str]] = set()

    def choose(self, handle: BufferHandle, local: str | None) -> TransferBackend:
        """TransferError where no way leads there, with the reason of each."""
        if handle.run != self._run:
            raise TransferError(
                f"the buffer of {handle.actor} on {handle.owner.node} is of another run ({handle.run}; this is "
                f"{self._run}): handles lead to memory of their own run alone; make a new one in this run"
            )
        for way in self._ways:
            if not self._refusal(way, handle, local):
                return way
        reasons = "\n".join(f"    {way.name}: {self._refusal(way, handle, local)}" for way in self._ways)
        raise TransferError(f"no way leads to the buffer of {handle.actor} on {handle.owner.node}:\n{reasons}")

    def note(self, way: Transfer, handle: BufferHandle, error: Unsuitable) -> None:
        """This way does not lead to memory like this of this owner. Each reason is logged once."""
        why, until = str(error), math.inf
        if error.may_pass:
            why, until = f"{why} (tried again after {AGAIN:g} s)", self._clock() + AGAIN
        with self._lock:
            self._failed[handle.process, handle.device, way.name] = why, until
            if len(self._failed) > REMEMBERED:
                self._failed.popitem(last=False)
            is_new = (way.name, why) not in self._told and len(self._told) < REMEMBERED
            self._told.add((way.name, why))
        if is_new:
            owner = f"{handle.actor} on {handle.owner.node}"
            logger.warning("data from or to %s goes another way than by %s, since %s", owner, way.name, why)

    def explain(self, handle: BufferHandle, local: str | None) -> list[BackendVerdict]:
        """What is to be said of each way, in the order in which they are asked."""
        if handle.run != self._run:
            return []
        verdicts: list[BackendVerdict] = []
        is_found = False
        for way in self._ways:
            refusal = self._refusal(way, handle, local)
            is_chosen = not is_found and not refusal
            verdicts.append(BackendVerdict(way.name, is_chosen, refusal or ("" if is_chosen else SPARE)))
            is_found = is_found or is_chosen
        return verdicts

    def _refusal(self, way: TransferBackend, handle: BufferHandle, local: str | None) -> str:
        if self._allowed and way.name not in self._allowed:
            return LEFT_OUT
        if self._failed and (failed := self._failed.get((handle.process, handle.device, way.name))) is not None:
            why, until = failed
            if self._clock() < until:
                return why
        return way.refusal(handle, local) or self._forbid(way, handle)
