"""A sampled profile: the stacks of a process's threads, many times a second. Plain data, and pure.

Samples come from outside by py-spy (`runtime.hosts.profiler`) or from within (`runtime.cells.sampling`). This module
normalizes both: of each stack it keeps the user's frames, from the first one on, the outermost first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from meshbook.runtime.traces import is_ours

RATE = 100  # samples a second
MAIN = "main thread"


class CodeLine(msgspec.Struct, frozen=True, array_like=True):
    """A line of code, in a function."""

    function: str
    filename: str
    line: int


Stack = tuple[CodeLine, ...]


class ThreadSamples(msgspec.Struct, frozen=True, array_like=True):
    """The sampled stacks of a thread, in order, and for how many seconds each counts.

    An empty stack has no user code: the thread was idle.
    """

    thread: str
    stacks: tuple[Stack, ...]
    samples: tuple[int, ...]  # indices into stacks
    seconds: tuple[float, ...]

    @property
    def length(self) -> float:
        """Seconds in which user code ran."""
        return sum(seconds for sample, seconds in zip(self.samples, self.seconds, strict=True) if self.stacks[sample])


class RankSamples(msgspec.Struct, frozen=True, array_like=True):
    """The samples of one process. `by`: the sampler, `py-spy` or `its own thread`."""

    by: str
    threads: tuple[ThreadSamples, ...]


def from_speedscope(data: bytes, is_user: Callable[[str], bool]) -> RankSamples:
    """Parse the output of py-spy; raises msgspec.DecodeError for anything else."""
    content: dict[str, Any] = msgspec.json.Decoder().decode(data)
    frames = [
        CodeLine(each["name"], each.get("file") or "", each.get("line") or 0) for each in content["shared"]["frames"]
    ]
    threads = []
    for profile in content["profiles"]:
        seen = ([frames[at] for at in sample] for sample in profile["samples"])
        # The name is py-spy's `Thread 4711 "MainThread"`.
        _, quote, name = profile["name"].partition('"')
        name = name.rstrip('"') if quote else profile["name"]
        name = MAIN if name == "MainThread" else name.removeprefix("meshbook ")
        threads.append(gather(name, zip(seen, profile["weights"], strict=True), is_user))
    return RankSamples("py-spy", tuple(thread for thread in threads if thread.samples))


def gather(
    thread: str, seen: Iterable[tuple[Sequence[CodeLine], float]], is_user: Callable[[str], bool]
) -> ThreadSamples:
    """Keep the user's part of stacks (outermost frame first) with their seconds; no samples if there is none."""
    known: dict[Stack, int] = {}
    samples, seconds = [], []
    for stack, weight in seen:
        own = of_user(stack, is_user)
        samples.append(known.setdefault(own, len(known)))
        seconds.append(weight)
    if not any(known):  # only the runtime's own code
        return ThreadSamples(thread, (), (), ())
    return ThreadSamples(thread, tuple(known), tuple(samples), tuple(seconds))


def of_user(stack: Sequence[CodeLine], is_user: Callable[[str], bool]) -> Stack:
    """Return the frames from the cell on, or else from the user's first frame, without ours; maybe empty."""
    first = next((at for at, frame in enumerate(stack) if frame.filename.startswith("<cell")), None)
    if first is None:
        first = next((at for at, frame in enumerate(stack) if frame.filename and is_user(frame.filename)), len(stack))
    return tuple(frame for frame in stack[first:] if frame.filename and not is_ours(frame.filename))
