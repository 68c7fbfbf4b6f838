"""The signs that a process gives of itself, on its page: at once what its main thread is at, the rest once a second.

For any thread, and from where every nanosecond counts: a sign is one word in memory. What is told once a second comes
from whoever owns it (`runtime.hosts.heartbeat`).
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
    fit,
)
from meshbook.runtime.telemetry.vitals import Activity, ProcessWords

OPTIMIZER = "torch.optim.optimizer"


class StatusWriter:
    """What a process says of itself; until it has a page, to nobody."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._page = StatusPage()
        self.open, self.close = self._page.open, self._page.close
        self.pause = ""  # how the main thread waits for a person
        self.when_changed: Callable[[], object] = (
            _nobody  # told when what was written for a second is not true any more
        )

    def cell(self, runs: bool) -> None:
        """A cell begins on the main thread, or has ended."""
        self._page.numbers[CELLS] = runs

    def collectives(self, count: int) -> None:
        """So many threads stand in a collective."""
        self._page.numbers[COLLECTIVES] = count

    def paused(self, pause: str) -> None:
        """The main thread waits for a person: `in the debugger`; or does so no more."""
        self.pause = pause
        self._page.numbers[PAUSES] = bool(pause)
        self.when_changed()

    @property
    def activity(self) -> Activity:
        """What this process does, as its page says."""
        numbers = self._page.numbers
        return activity_of(numbers[CELLS] + numbers[ENDPOINTS], numbers[COLLECTIVES], numbers[PAUSES])

    def step(self, seconds: float) -> None:
        """A step of training took so long."""
        self._page.seconds[STEP] = seconds

    def tick(self, words: ProcessWords, traffic: Traffic) -> None:
        """Give a sign of life, with what is to be told once a second; from one thread only."""
        numbers = self._page.numbers
        numbers[QUEUED] = sum(queued for _, queued, _ in words.actors)
        numbers[ENDPOINTS] = sum(bool(endpoint) for _, _, endpoint in words.actors)
        for word, count in zip(TRAFFIC, traffic, strict=True):
            numbers[word] = count
        self._page.say(fit(words))
        self._page.seconds[TICK] = self.clock()


def _nobody() -> None:
    """There is nobody to tell."""


def watch_steps(signs: StatusWriter) -> bool:
    """Have steps of training timed: from one `step()` of an optimizer to its next in the same execution.

    False where torch has not been imported yet. A step that torch has compiled is not seen.
    """
    optimizers = sys.modules.get(OPTIMIZER)
    if optimizers is None:
        return False
    compiler = sys.modules["torch"].compiler
    steps: weakref.WeakKeyDictionary[Any, tuple[float, str]] = weakref.WeakKeyDictionary()

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiler.is_compiling():
            return
        now, origin = signs.clock(), current_origin()
        before, its_origin = steps.get(optimizer, (now, ""))
        if before < now and its_origin == origin:
            signs.step(now - before)
        steps[optimizer] = now, origin

    optimizers.register_optimizer_step_post_hook(stepped)
    return True
