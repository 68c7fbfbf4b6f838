"""Memory that was dropped, and is kept until nobody is at it any more."""

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

FIRST_LOOK, LAST_LOOK = 0.001, 0.5  # seconds between two looks; each waits twice as long as the one before
Later = Callable[[float, Callable[[], object]], None]


@dataclass(slots=True)
class _Kept:
    lent: LentMemory
    released: Future[None] = field(default_factory=Future.pending)


class Retention:
    """Keeps what is lent no more. `in_use` says at which leases others are, `release` lets go of the memory."""

    def __init__(self, in_use: Callable[[], Set[int]], release: Callable[[LentMemory], object], later: Later) -> None:
        self._in_use = in_use
        self._release = release
        self._later = later
        self._lock = threading.RLock()  # guards all of these; under it, garbage may drop a buffer
        self._kept: dict[int, _Kept] = {}
        self._is_due = False  # somebody looks again
        self._pause = FIRST_LOOK

    def keep(self, dropped: Sequence[LentMemory]) -> list[Future[None]]:
        """Keep this memory as long as somebody is at it; a future each, of the moment when it is let go of.

        Their words say by now that they are lent no more: who comes from now on does not touch the memory.
        """
        kept = [_Kept(lent) for lent in dropped]
        with self._lock:
            self._kept.update((each.lent.lease.number, each) for each in kept)
            self._pause = FIRST_LOOK
        self._look()
        return [each.released for each in kept]

    def released(self, number: int) -> Future[None] | None:
        """The future of what is still kept under this number."""
        kept = self._kept.get(number)
        return None if kept is None else kept.released

    def _look(self) -> None:
        try:
            self._let_go_of_unused()
        except OSError as error:  # no descriptor is left to look with: it is kept, and looked for later
            logger.debug("whether anybody is at dropped memory cannot be seen now: %s", error)
        finally:
            self._look_again()

    def _let_go_of_unused(self) -> None:
        for each in self._take_unused():
            try:
                self._release(each.lent)
            except Exception:  # who has dropped it waits, and so do those who have dropped the others
                logger.exception("memory that was dropped could not be withdrawn")
            each.released.resolve(lambda: None)

    def _take_unused(self) -> list[_Kept]:
        with self._lock:
            before = list(self._kept)  # what is dropped during the look is for the next one
        in_use = self._in_use() if before else ()
        with self._lock:
            kept = [self._kept.get(number) for number in before if number not in in_use]
            unused = [each.lent.lease.number for each in kept if each is not None and not each.lent.users]
            taken = [self._kept.pop(number, None) for number in unused]
        return [each for each in taken if each is not None]

    def _look_again(self) -> None:
        with self._lock:
            if self._is_due or not self._kept:
                return
            self._is_due = True
            pause, self._pause = self._pause, min(2 * self._pause, LAST_LOOK)
        self._later(pause, self._due)

    def _due(self) -> None:
        with self._lock:
            self._is_due = False
        self._look()

    def close(self, seconds: float) -> list[LentMemory]:
        """Wait so long until nobody is at what is kept; what somebody still is at."""
        end, pause = time.monotonic() + seconds, FIRST_LOOK
        while self._kept and time.monotonic() < end:
            time.sleep(pause)  # those at it are other processes, and tell nobody when they are done
            pause = min(2 * pause, LAST_LOOK)
            with contextlib.suppress(OSError):  # as above
                self._let_go_of_unused()
        with self._lock:
            return [each.lent for each in self._kept.values()]
