"""The writer of a process's status page: the activity of its main thread at once, the rest once a second.

For any thread, and for hot paths: an update is one word in memory. The values that are written once a second come from
their owners (`runtime.hosts.heartbeat`).
"""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from meshbook.runtime import devices
from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.memory.cuda import beside_captures
from meshbook.runtime.telemetry.status_page import (
    CELLS,
    COLLECTIVES,
    ENDPOINTS,
    GPU,
    PAUSES,
    QUEUED,
    STEP,
    TICK,
    TRAFFIC,
    GpuFigures,
    StatusPage,
    Traffic,
    activity_of,
    encode_report,
)
from meshbook.runtime.telemetry.vitals import Activity, ProcessReport

GPU_SECONDS = 0.25  # between two readings of a GPU's figures within a cell, or by actors
OPTIMIZER = "torch.optim.optimizer"


class StatusWriter:
    """The status of this process; until its page is open, it is not published."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._page = StatusPage()
        self.open, self.close = self._page.open, self._page.close
        self.pause = ""  # how the main thread waits for the user
        self.gpu = ""  # the UUID of the GPU that this process uses
        self._gpu_due = 0.0  # when its figures are read next
        self.when_changed: Callable[[], object] = (
            _do_nothing  # called when the values of the last second become invalid
        )

    def cell(self, runs: bool) -> None:
        """Record that a cell begins on the main thread, or has ended."""
        self._page.numbers[CELLS] = runs
        if not runs:
            self._gpu_due = 0.0

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
        self.note_gpu()

    def note_gpu(self) -> None:
        """Record the figures of this thread's current GPU in use: after each cell, else a few times a second.

        Only for threads that run the user's code. Torch may wait for a GPU that hangs while it holds the GIL; another
        thread that waited with it would stop the whole process, and this rank could not be freed.
        """
        if not devices.OWN_GPU.is_in_use or self.clock() < self._gpu_due:
            return
        self._gpu_due = self.clock() + GPU_SECONDS
        with contextlib.suppress(RuntimeError), beside_captures():  # it is raised if the CUDA context is lost
            if devices.is_capturing(None) or (memory := devices.memory()) is None:
                return
            figures = GpuFigures(memory.allocated, memory.peak, memory.reserved, devices.free_memory())
            for word, size in zip(GPU, figures, strict=True):
                self._page.numbers[word] = size
            if (name := devices.current_uuid()) != self.gpu:
                self.gpu = name
                self.when_changed()

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
