"""One thread that does what must be done by one alone, several things in turn: each is a generator.

It yields to wait: True where something new has begun since its last turn, False where it still waits for the same.

What is under way is looked at again after a pause that grows with how long nothing has happened: a short transfer is
seen to be over at once, and one that hangs costs nothing.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

from meshbook.runtime.errors import TransferError
from meshbook.runtime.queues import get_within

Course: TypeAlias = Generator[bool, None, None]
SPIN = 200e-6  # seconds for which it looks without a pause: what is shorter is not worth one
LONGEST_PAUSE = 0.01
LAST_TURN = 1.0  # seconds that it may take to end; it is a daemon, and the process is about to leave
_SHARE = 20  # the pause is this part of the time that something has waited already


@dataclass(slots=True)
class RunningTransfer:
    """A course under way, and since when it waits for the same."""

    supervisor: Course
    outcome: Future[Any]
    since: float


class TransferScheduler:
    """The thread. It is made for the first course; `close()` is idempotent."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._new: queue.SimpleQueue[tuple[Course, Future[Any]] | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # guards the next two; under it, garbage may drop a buffer
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def start(self, supervisor: Course, outcome: Future[Any]) -> None:
        """Let it take turns with the others. `outcome` fails with what it raises, unless it is settled by then."""
        with self._lock:
            if self._is_closed:
                settle(outcome, _leaving())
                return
            try:
                self._begin()
            except RuntimeError as error:  # there are too many threads already
                settle(outcome, TransferError(f"the thread for it cannot be started: {error}"))
                return
            self._new.put((supervisor, outcome))  # under the lock: what comes after the end of all would wait for ever

    def _begin(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        under_way: list[RunningTransfer] = []
        while True:
            with contextlib.suppress(queue.Empty):
                given = self._next(pause_for(under_way, time.monotonic()))
                if given is None:
                    break
                under_way.append(RunningTransfer(*given, time.monotonic()))
            under_way = [each for each in under_way if _goes_on(each)]
        for each in under_way:
            settle(each.outcome, _leaving())

    def _next(self, pause: float | None) -> tuple[Course, Future[Any]] | None:
        if pause == 0:
            time.sleep(0)  # other threads have their turn; a wait of the queue would take 50 us at least
            return self._new.get_nowait()
        return self._new.get() if pause is None else get_within(self._new, pause)

    def close(self) -> None:
        """What is under way fails."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            self._new.put(None)
            thread.join(LAST_TURN)


def pause_for(under_way: list[RunningTransfer], now: float) -> float | None:
    """Seconds until the next look; None: until something new comes."""
    if not under_way:
        return None
    waited = now - max(each.since for each in under_way)
    return 0.0 if waited < SPIN else min(waited / _SHARE, LONGEST_PAUSE)


def _goes_on(each: RunningTransfer) -> bool:
    try:
        if next(each.supervisor):
            each.since = time.monotonic()
    except StopIteration:
        settle(each.outcome, None)
        return False
    except BaseException as error:  # whoever waits gets it
        settle(each.outcome, error)
        return False
    return True


def settle(outcome: Future[Any], error: BaseException | None) -> None:
    """Done, or failed; the first word counts."""
    if outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)


def _leaving() -> TransferError:
    return TransferError("this process is about to leave, and moves no data any more")
