"""Selection of the transfer backend for a buffer: the first in order of speed that does not refuse, with reasons.

A backend that proves `Unsuitable` is not tried again for that owner; after a failure that may pass, it is tried again
later. `explain` formats the text of `RDMABuffer.explain()`. This module decides only; it moves nothing.
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
from meshbook.runtime.formats import format_bytes
from meshbook.runtime.memory.process_identity import ProcessMark
from meshbook.runtime.rdma.backends import BufferHandle, Transfer, TransferBackend, Unsuitable

logger = logging.getLogger(__name__)

RETRY_SECONDS = 10.0  # seconds until a backend is tried again after a failure that may pass
MOST_FAILURES = 4096  # failures that are kept; those of ended owners stay too, so the oldest are evicted
EXCLUDED = "excluded by MESHBOOK_RDMA_BACKENDS"
SLOWER = "would also work, but is slower"


@dataclass(frozen=True)
class BackendVerdict:
    """What `explain` reports about one backend: chosen, a slower alternative, or the reason why it is not used."""

    name: str
    is_chosen: bool
    reason: str  # empty for the chosen one


Forbid = Callable[
    [TransferBackend, BufferHandle], str
]  # returns why the user's settings forbid a backend that would work; empty if they do not


class BackendSelector:
    """The backends of one process of this run, and their failures. `allowed` holds backend names; empty: all."""

    def __init__(
        self,
        backends: Sequence[TransferBackend],
        allowed: Sequence[str] = (),
        forbid: Forbid = lambda backend, to: "",
        run: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if unknown := set(allowed) - {backend.name for backend in backends}:
            names = ", ".join(backend.name for backend in backends)
            raise ValueError(f"MESHBOOK_RDMA_BACKENDS has unknown names: {', '.join(sorted(unknown))}; valid: {names}")
        self._backends = backends
        self._allowed = allowed
        self._forbid = forbid
        self._run = run
        self._clock = clock
        self._lock = threading.Lock()  # guards the next two
        # The reason, and until when.
        self._failed: OrderedDict[tuple[ProcessMark, str, str], tuple[str, float]] = OrderedDict()
        self._logged: set[tuple[str, str]] = set()

    def choose(self, handle: BufferHandle, local: str | None) -> TransferBackend:
        """Return the first backend that reaches the buffer. Raises TransferError with all reasons if none does."""
        if handle.run != self._run:
            raise TransferError(
                f"the buffer of {handle.actor} on {handle.owner.node} belongs to another run ({handle.run}; this is "
                f"{self._run}); make a new buffer in this run"
            )
        for backend in self._backends:
            if not self._refusal(backend, handle, local):
                return backend
        reasons = "\n".join(
            f"    {backend.name}: {self._refusal(backend, handle, local)}" for backend in self._backends
        )
        raise TransferError(f"no backend reaches the buffer of {handle.actor} on {handle.owner.node}:\n{reasons}")

    def note(self, backend: Transfer, handle: BufferHandle, error: Unsuitable) -> None:
        """Record that this backend does not reach such memory of this owner. Each reason is logged once."""
        why, until = str(error), math.inf
        if error.may_pass:
            why, until = f"{why} (tried again after {RETRY_SECONDS:g} s)", self._clock() + RETRY_SECONDS
        with self._lock:
            self._failed[handle.process, handle.device, backend.name] = why, until
            if len(self._failed) > MOST_FAILURES:
                self._failed.popitem(last=False)
            is_new = (backend.name, why) not in self._logged and len(self._logged) < MOST_FAILURES
            self._logged.add((backend.name, why))
        if is_new:
            owner = f"{handle.actor} on {handle.owner.node}"
            logger.warning("data from or to %s does not use %s: %s", owner, backend.name, why)

    def explain(self, handle: BufferHandle, local: str | None) -> list[BackendVerdict]:
        """Return the verdict on each backend, in the order in which they are tried."""
        if handle.run != self._run:
            return []
        verdicts: list[BackendVerdict] = []
        is_found = False
        for backend in self._backends:
            refusal = self._refusal(backend, handle, local)
            is_chosen = not is_found and not refusal
            verdicts.append(BackendVerdict(backend.name, is_chosen, refusal or ("" if is_chosen else SLOWER)))
            is_found = is_found or is_chosen
        return verdicts

    def _refusal(self, backend: TransferBackend, handle: BufferHandle, local: str | None) -> str:
        if self._allowed and backend.name not in self._allowed:
            return EXCLUDED
        if self._failed and (failed := self._failed.get((handle.process, handle.device, backend.name))) is not None:
            why, until = failed
            if self._clock() < until:
                return why
        return backend.refusal(handle, local) or self._forbid(backend, handle)


CHOSEN = {
    "same process": "a copy within this process",
    "process memory": "the kernel copies from process to process (Cross Memory Attach); the owner takes no part",
    "cuda ipc": "the GPU copies (CUDA IPC); the owner takes no part",
    "nixl": "the network card copies (NIXL); the owner takes no part",
    "host agent": "its host agent reaches the memory, and the bytes go over TCP; the owner takes no part",
    "message": "the owner's process sends and receives the bytes, but not while C code holds its GIL or it is stopped",
}


def explain(handle: BufferHandle, where: str, verdicts: Sequence[BackendVerdict]) -> str:
    """Return a line about the buffer and one for each backend; an arrow marks the chosen one."""
    memory = f"memory of GPU {handle.device.removeprefix('cuda:')}" if handle.is_on_gpu else "memory of the CPU"
    access = "" if handle.is_writable else ", read-only"
    of = f"{handle.actor} on {handle.owner.node}, {where}"
    width = max((len(each.name) for each in verdicts), default=0)
    lines = [f"{format_bytes(handle.size)} of {of}: {memory}{access}"]
    for verdict in verdicts:
        text = CHOSEN.get(verdict.name, "chosen") if verdict.is_chosen else verdict.reason
        lines.append(f"{'->' if verdict.is_chosen else '  '} {verdict.name:<{width}}  {text}")
    return "\n".join(lines)
