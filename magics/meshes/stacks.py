"""`%mesh stack`: where all user threads are on all ranks; identical stacks appear once.

Each distinct stack has a title line with its ranks, and the frames below:

    [0-2,5] main thread: in all_reduce
        cell 9:14               dist.all_reduce(x)
    [3] main thread: does not answer: stopped (SIGSTOP)
        cell 9:12 in load
    [6-7] main thread: idle
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.meshes.whereabouts import answers_of, ask_ranks, frame_of, look_at
from meshbook.runtime.cells.outcome import Frame
from meshbook.runtime.cells.thread_stacks import MAIN, ThreadStack
from meshbook.runtime.formats import format_elapsed, format_label
from meshbook.runtime.hosts.observer import Observation, SampledThread
from meshbook.runtime.traces import is_ours, short_name

_COLUMN = 40  # column where the source begins


async def take_stacks(mesh: NotebookMesh, ranks: Iterable[int]) -> dict[int, list[ThreadStack]]:
    """Return the stacks of these ranks, the main thread's first, within a second."""
    ranks = sorted(ranks)
    asked: Sequence[list[ThreadStack] | None] = await answers_of(ask_ranks(mesh, ranks).stacks.call_each())
    answered = {rank: stacks for rank, stacks in zip(ranks, asked, strict=True) if stacks is not None}
    unresponsive = [rank for rank in ranks if rank not in answered]
    seen = await look_at(mesh, unresponsive) if unresponsive else {}
    return answered | {rank: list(stacks_seen(seen.get(rank))) for rank in unresponsive}


def stacks_seen(seen: Observation | None) -> Iterator[ThreadStack]:
    """Yield the stacks of a rank that does not answer, as its host observes them."""
    threads = seen.threads or () if seen is not None else ()
    main = next((thread for thread in threads if thread.thread_name == "MainThread"), None)
    trouble = f"does not answer: {seen.trouble}" if seen is not None else "does not answer"
    advice = "" if seen is None or seen.threads is not None else " (install meshbook[debug] to see its stack)"
    yield ThreadStack(MAIN, _frames_of(main), f"{trouble}{advice}")
    for thread in threads:
        if thread is not main and any(frame.is_user for frame in _frames_of(thread)):
            yield ThreadStack((thread.thread_name or "a thread").removeprefix("meshbook "), _frames_of(thread))


def _frames_of(thread: SampledThread | None) -> tuple[Frame, ...]:
    """Return the frames from the user's first on, the outermost first."""
    frames = [frame_of(each.filename, each.line, each.name) for each in reversed(thread.frames)] if thread else []
    first = next((at for at, frame in enumerate(frames) if frame.is_user), len(frames))
    return tuple(frame for frame in frames[first:] if not is_ours(frame.filename))


def render_stacks(by_rank: Mapping[int, Sequence[ThreadStack]], mesh: str = "") -> str:
    """Render each distinct stack of a thread once, with its ranks; `mesh`, if given, is the prefix of the ranks."""
    lines = []
    for stack, ranks in group_stacks(by_rank).items():
        since = "" if stack.seconds is None else f", for {format_elapsed(stack.seconds)}"
        lines.append(f"{mesh}{format_label(ranks)} {title_of(stack)}{since}")
        for frame in stack.frames:
            place = f"    {place_of(frame)}"
            lines.append(f"{place:<{_COLUMN}}  {frame.source}".rstrip())
    return "\n".join(lines)


def group_stacks(by_rank: Mapping[int, Sequence[ThreadStack]]) -> dict[ThreadStack, list[int]]:
    """Return each distinct stack of a thread, with its ranks."""
    ranks_of: dict[ThreadStack, list[int]] = {}
    for rank in sorted(by_rank):
        for stack in by_rank[rank]:
            ranks_of.setdefault(stack, []).append(rank)
    return ranks_of


def title_of(stack: ThreadStack) -> str:
    """Return `main thread: in all_reduce`."""
    return stack.thread + (f": {stack.remark}" if stack.remark else "")


def place_of(frame: Frame) -> str:
    """Return `cell 9:14 in load`."""
    name = "" if frame.function == "<module>" else f" in {frame.function}"
    # A file needs its folder: `distributed/distributed_c10d.py`.
    is_cell = frame.filename.startswith("<")
    file = short_name(frame.filename) if is_cell else "/".join(Path(frame.filename).parts[-2:])
    return f"{file}:{frame.line}{name}"
