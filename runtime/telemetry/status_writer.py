"""The writer of a process's status page: the activity of its main thread at once, the rest once a second.

For any thread, and for hot paths: an update is one word in memory. The values that are written once a second come from
their owners (`runtime.hosts.heartbeat`).
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.telemetry.status_page import (
    CELLS,
    COLLECTIVES,
    ENDPOINTS,
    PAUSES,
    QUEUED,
    STEP,
    TICK,
    TRAFFIC,
    StatusPage,
    Traffic,
    activity_of,
    encode_report,
)
from meshbook.runtime.telemetry.vitals import Activity, ProcessReport

OPTIMIZER = "torch.optim.optimizer"


class StatusWriter:
    """The status of this process; until its page is open, it is not published."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._page = StatusPage()
        self.open, self.close = self._page.open, self._page.close
        self.pause = ""  # how the main thread waits for the user
        self.when_changed: Callable[[], object] = (
            _do_nothing  # called when the values of the last second become invalid
        )

    def cell(self, runs: bool) -> None:
        """Record that a cell begins on the main thread, or has ended."""
        self._page.numbers[CELLS] = runs

    def collectives(self, count: int) -> None:
        """Record how many threads are in a collective."""
        self._page.numbers[COLLECTIVES] = count

    def paused(self, pause: str) -> None:
        """Record that the main thread waits for the user, such as `in the debugger`, or no longer does."""
        self.pause = pause
        self._page.numbers[PAUSES] = bool(pause)
        self.when_changed()

    @property
    def activity(self) -> Activity:
        """The activity of this process according to its page."""
        numbers = self._page.numbers
        return activity_of(numbers[CELLS] + numbers[ENDPOINTS], numbers[COLLECTIVES], numbers[PAUSES])

    def step(self, seconds: float) -> None:
        """Record the duration of a training step."""
        self._page.seconds[STEP] = seconds

    def tick(self, words: ProcessReport, traffic: Traffic) -> None:
        """Write a heartbeat, with the values of the last second; from one thread only."""
        numbers = self._page.numbers
        numbers[QUEUED] = sum(queued for _, queued, _ in words.actors)
        numbers[ENDPOINTS] = sum(bool(endpoint) for _, _, endpoint in words.actors)
        for word, count in zip(TRAFFIC, traffic, strict=True):
            numbers[word] = count
        self._page.write_text(encode_report(words))
        self._page.seconds[TICK] = self.clock()


def _do_nothing() -> None:
    """Do nothing: the default of `when_changed`."""


def watch_steps(status: StatusWriter) -> bool:
    """Time training steps: from one `step()` of an optimizer to its next in the same execution.

    Returns False if torch is not imported yet. Steps that torch has compiled are not seen.
    """
    optimizers = sys.modules.get(OPTIMIZER)
    if optimizers is None:
        return False
    compiler = sys.modules["torch"].compiler
    steps: weakref.WeakKeyDictionary[Any, tuple[float, str]] = weakref.WeakKeyDictionary()

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiler.is_compiling():
            return
        now, origin = status.clock(), current_origin()
        before, its_origin = steps.get(optimizer, (now, ""))
        if before < now and its_origin == origin:
            status.step(now - before)
        steps[optimizer] = now, origin

    optimizers.register_optimizer_step_post_hook(stepped)
    return True
