"""A profile by samples: where the threads of a process were, many times a second. Plain data, and pure.

Taken from outside by py-spy (`runtime.hosts.profiler`) or from within (`runtime.cells.sampling`). Here they are made
alike: of each thread what is the user's, from their first frame on, the outermost first.
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
    """The stacks that a thread was seen in, in order, and for how many seconds each counts.

    The empty stack is no code of the user's: the thread was idle.
    """

    thread: str
    stacks: tuple[Stack, ...]
    samples: tuple[int, ...]  # which of the stacks
    seconds: tuple[float, ...]

    @property
    def length(self) -> float:
        """Seconds in which code of the user's was seen."""
        return sum(seconds for sample, seconds in zip(self.samples, self.seconds, strict=True) if self.stacks[sample])


class RankSamples(msgspec.Struct, frozen=True, array_like=True):
    """What was seen of one process. `by`: what looked, `py-spy` or `its own thread`."""

    by: str
    threads: tuple[ThreadSamples, ...]


def from_speedscope(data: bytes, is_user: Callable[[str], bool]) -> RankSamples:
    """What py-spy has written; msgspec.DecodeError for anything else."""
    content: dict[str, Any] = msgspec.json.decode(data)
    frames = [
        CodeLine(each["name"], each.get("file") or "", each.get("line") or 0) for each in content["shared"]["frames"]
    ]
    threads = []
    for profile in content["profiles"]:
        seen = ([frames[at] for at in sample] for sample in profile["samples"])
        threads.append(gather(_thread_name(profile["name"]), zip(seen, profile["weights"], strict=True), is_user))
    return RankSamples("py-spy", tuple(thread for thread in threads if thread.samples))


def gather(
    thread: str, seen: Iterable[tuple[Sequence[CodeLine], float]], is_user: Callable[[str], bool]
) -> ThreadSamples:
    """Of stacks (the outermost frame first) with their seconds what is the user's; no samples where nothing is."""
    known: dict[Stack, int] = {}
    samples, seconds = [], []
    for stack, weight in seen:
        own = of_user(stack, is_user)
        samples.append(known.setdefault(own, len(known)))
        seconds.append(weight)
    if not any(known):  # the runtime's own business
        return ThreadSamples(thread, (), (), ())
    return ThreadSamples(thread, tuple(known), tuple(samples), tuple(seconds))


def of_user(stack: Sequence[CodeLine], is_user: Callable[[str], bool]) -> Stack:
    """From the cell on, or else from the user's first frame, without ours; nothing where there is none of theirs."""
    first = next((at for at, frame in enumerate(stack) if frame.filename.startswith("<cell")), None)
    if first is None:
        first = next((at for at, frame in enumerate(stack) if frame.filename and is_user(frame.filename)), len(stack))
    return tuple(frame for frame in stack[first:] if frame.filename and not is_ours(frame.filename))


def _thread_name(text: str) -> str:
    """`Thread 4711 "MainThread"` has a name in it."""
    _, quote, name = text.partition('"')
    name = name.rstrip('"') if quote else text
    return MAIN if name == "MainThread" else name.removeprefix("meshbook ")
