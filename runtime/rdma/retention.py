"""Dropped memory, kept until no transfer uses it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from meshbook.runtime.actor.future import Future
from meshbook.runtime.rdma.leases import LentMemory

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.5  # seconds between two checks; each pause is twice the one before
Later = Callable[[float, Callable[[], object]], None]


@dataclass(slots=True)
class _Kept:
    lent: LentMemory
    released: Future[None] = field(default_factory=Future.pending)


class Retention:
    """Keeps memory whose lease has ended. `in_use` returns the leases that other processes use; `release` frees one."""

    def __init__(self, in_use: Callable[[], Set[int]], release: Callable[[LentMemory], object], later: Later) -> None:
        self._in_use = in_use
        self._release = release
        self._later = later
        self._lock = threading.RLock()  # guards all of these; reentrant: a garbage collection may drop a buffer
        self._kept: dict[int, _Kept] = {}
        self._is_due = False  # a check is scheduled
        self._pause = FIRST_PAUSE

    def keep(self, dropped: Sequence[LentMemory]) -> list[Future[None]]:
        """Keep this memory while transfers use it. Returns one future per lease, done when the memory is released.

        The words of these leases are already cleared, so no new transfer touches the memory.
        """
        kept = [_Kept(lent) for lent in dropped]
        with self._lock:
            self._kept.update((each.lent.lease.number, each) for each in kept)
            self._pause = FIRST_PAUSE
        self._check()
        return [each.released for each in kept]

    def released(self, number: int) -> Future[None] | None:
        """Return the future of the memory kept under this number."""
        kept = self._kept.get(number)
        return None if kept is None else kept.released

    def _check(self) -> None:
        try:
            self._release_unused()
        except OSError as error:  # out of file descriptors: keep the memory and check again later
            logger.debug("cannot check now whether dropped memory is in use: %s", error)
        finally:
            self._check_later()

    def _release_unused(self) -> None:
        for each in self._take_unused():
            try:
                self._release(each.lent)
            except Exception:  # the callers that dropped this and the other memory wait for their futures
                logger.exception("failed to release dropped memory")
            each.released.resolve(lambda: None)

    def _take_unused(self) -> list[_Kept]:
        with self._lock:
            before = list(self._kept)  # memory dropped during the check waits for the next one
        in_use = self._in_use() if before else ()
        with self._lock:
            kept = [self._kept.get(number) for number in before if number not in in_use]
            unused = [each.lent.lease.number for each in kept if each is not None and not each.lent.users]
            taken = [self._kept.pop(number, None) for number in unused]
        return [each for each in taken if each is not None]

    def _check_later(self) -> None:
        with self._lock:
            if self._is_due or not self._kept:
                return
            self._is_due = True
            pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        self._later(pause, self._due)

    def _due(self) -> None:
        with self._lock:
            self._is_due = False
        self._check()

    def close(self, seconds: float) -> list[LentMemory]:
        """Wait at most this long for the transfers to end; return the memory that is still in use."""
        end, pause = time.monotonic() + seconds, FIRST_PAUSE
        while self._kept and time.monotonic() < end:
            time.sleep(pause)  # the users are other processes, which send no message when they finish
            pause = min(2 * pause, LONGEST_PAUSE)
            with contextlib.suppress(OSError):  # as above
                self._release_unused()
        with self._lock:
            return [each.lent for each in self._kept.values()]
