"""One thread for everything that only one thread may do. It runs several generators in turns.

A generator yields to wait: True if something new has started since its last turn, False if it still waits for the same.
The thread polls with a pause that grows while nothing happens: it notices the end of a short transfer at once, and a
transfer that hangs costs nothing.
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
from meshbook.runtime.threads import get_within

Steps: TypeAlias = Generator[bool, None, None]
SPIN = 200e-6  # seconds of polling without a pause: shorter waits are not worth one
LONGEST_PAUSE = 0.01
JOIN_SECONDS = 1.0  # seconds that the last turn may take; the thread is a daemon, and the process is about to leave
_SHARE = 20  # the pause is this fraction of the time waited so far


@dataclass(slots=True)
class RunningTransfer:
    """A running generator, and since when it has waited for the same."""

    steps: Steps
    outcome: Future[Any]
    since: float


class TransferScheduler:
    """The thread, started on first use. `close()` is idempotent."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._new: queue.SimpleQueue[tuple[Steps, Future[Any]] | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # guards the next two; reentrant: a garbage collection may drop a buffer
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def start(self, steps: Steps, outcome: Future[Any]) -> None:
        """Run this generator in turns with the others. If it raises, `outcome` fails, unless it is settled by then."""
        with self._lock:
            if self._is_closed:
                settle(outcome, _leaving())
                return
            try:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    thread.start()
                    self._thread = thread
            except RuntimeError as error:  # too many threads
                settle(outcome, TransferError(f"cannot start the thread of NIXL: {error}"))
                return
            self._new.put((steps, outcome))  # under the lock: an entry after the final None would wait forever

    def _run(self) -> None:
        under_way: list[RunningTransfer] = []
        while True:
            with contextlib.suppress(queue.Empty):
                given = self._next(pause_for(under_way, time.monotonic()))
                if given is None:
                    break
                under_way.append(RunningTransfer(*given, time.monotonic()))
            under_way = [each for each in under_way if _advance(each)]
        for each in under_way:
            settle(each.outcome, _leaving())

    def _next(self, pause: float | None) -> tuple[Steps, Future[Any]] | None:
        if pause == 0:
            time.sleep(0)  # yields to other threads; a wait on the queue would take 50 us at least
            return self._new.get_nowait()
        return self._new.get() if pause is None else get_within(self._new, pause)

    def close(self) -> None:
        """Stop the thread. Transfers under way fail."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            self._new.put(None)
            thread.join(JOIN_SECONDS)


def pause_for(under_way: list[RunningTransfer], now: float) -> float | None:
    """Return the seconds until the next poll; None: until something new arrives."""
    if not under_way:
        return None
    waited = now - max(each.since for each in under_way)
    return 0.0 if waited < SPIN else min(waited / _SHARE, LONGEST_PAUSE)


def _advance(each: RunningTransfer) -> bool:
    try:
        if next(each.steps):
            each.since = time.monotonic()
    except StopIteration:
        settle(each.outcome, None)
        return False
    except BaseException as error:  # passed on to the waiting thread
        settle(each.outcome, error)
        return False
    return True


def settle(outcome: Future[Any], error: BaseException | None) -> None:
    """Complete or fail `outcome`. Only the first call has an effect."""
    if outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)


def _leaving() -> TransferError:
    return TransferError("this process is leaving the run and moves no more data")
