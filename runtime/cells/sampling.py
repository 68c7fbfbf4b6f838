"""A profile that a worker takes of itself, for hosts on which py-spy has no permission.

A thread reads the stacks of the others, and needs the GIL for that. C code that holds the GIL is sampled only when it
releases it; the sample then counts for the whole time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from types import CodeType, FrameType

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.cells.failures import is_user_code
from meshbook.runtime.telemetry.samples import MAIN, CodeLine, RankSamples, gather

MOST_FRAMES = 200  # of a stack; the innermost
MOST_SAMPLES = 100_000  # of a process; beyond it, every second sample is dropped and the rate is halved
Place = tuple[CodeType, int]
Places = tuple[Place, ...]


class Sampler(Actor):
    """Samples the other threads of its process, between `begin` and `end`."""

    def __init__(self) -> None:
        self._sampling: Sampling | None = None

    @endpoint
    def begin(self, rate: int) -> None:
        """Begin to sample, this many times a second."""
        self._stop()
        self._sampling = Sampling(rate)
        self._sampling.thread.start()

    @endpoint
    def end(self) -> RankSamples:
        """Stop, and return the samples. RuntimeError if sampling has not begun."""
        if self._sampling is None:
            raise RuntimeError("no profile is running on this rank; its process may have been restarted")
        return self._stop()

    def __cleanup__(self, error: BaseException | None) -> None:
        self._stop()

    def _stop(self) -> RankSamples:
        sampling, self._sampling = self._sampling, None
        return sampling.end() if sampling is not None else RankSamples("", ())


class Sampling:
    """A profile that is being taken."""

    def __init__(self, rate: int) -> None:
        self._pause = 1 / rate
        self._over = threading.Event()
        self._seen: dict[int, list[tuple[Places, float]]] = defaultdict(list)  # by thread
        self._names: dict[int, str] = {}
        self._count = 0
        # The runtime's own thread is left out of the profile.
        self._control_thread = threading.get_ident()
        self.thread = threading.Thread(target=self._run, name="meshbook sampler", daemon=True)

    def end(self) -> RankSamples:
        """Stop, and return the samples."""
        self._over.set()
        self.thread.join()
        threads = []
        for thread, seen in self._seen.items():
            name = self._names.get(thread, f"thread {thread}")
            stacks = (
                ([CodeLine(code.co_qualname, code.co_filename, line) for code, line in places], seconds)
                for places, seconds in seen
            )
            name = MAIN if name == "MainThread" else name.removeprefix("meshbook ")
            threads.append(gather(name, stacks, is_user_code))
        return RankSamples("its own thread", tuple(thread for thread in threads if thread.samples))

    def _run(self) -> None:
        before = time.perf_counter()
        while not self._over.wait(self._pause):
            now = time.perf_counter()
            self._sample(now - before)
            before = now

    def _sample(self, seconds: float) -> None:
        frames = sys._current_frames()
        del frames[threading.get_ident()]  # a frame that references itself would stay alive
        frames.pop(self._control_thread, None)
        self._names |= {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}
        for thread, frame in frames.items():
            places = _places(frame)
            if places or thread in self._seen:  # a thread sampled before is also recorded when idle
                self._seen[thread].append((places, seconds))
                self._count += 1
        if self._count > MOST_SAMPLES:
            self._thin_out()

    def _thin_out(self) -> None:
        """Drop every second sample, and halve the rate."""
        self._pause *= 2
        for thread, seen in self._seen.items():
            self._seen[thread] = [(places, 2 * seconds) for places, seconds in seen[::2]]
        self._count //= 2


def _places(frame: FrameType | None) -> Places:
    """The stack, innermost frame last; empty if no frame is the user's."""
    found: list[Place] = []
    is_of_user = False
    while frame is not None and len(found) < MOST_FRAMES:
        found.append((frame.f_code, frame.f_lineno or 0))
        is_of_user = is_of_user or is_user_code(frame.f_code.co_filename)
        frame = frame.f_back
    return tuple(reversed(found)) if is_of_user else ()
