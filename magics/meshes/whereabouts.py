"""A query of where every rank is: it queries the ranks, and the hosts of ranks that do not answer.

    7 ranks [0-2,4-7] in all_reduce (cell 9:14), rank 3 at data.py:88 in load

Not for whole stacks (`stacks`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.failures import is_user_code
from meshbook.runtime.cells.outcome import Frame, format_place
from meshbook.runtime.cells.thread_stacks import MainThreadState
from meshbook.runtime.formats import format_label
from meshbook.runtime.hosts.observer import Observation, SampledThread, ask_observers
from meshbook.runtime.traces import is_ours

ANSWER_WITHIN = 0.5  # seconds for a rank, and then for its host
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankWhereabouts:
    """Where one rank is: `said` by the rank, or `seen` by its host; both None if neither answers."""

    said: MainThreadState | None = None
    seen: Observation | None = None

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The known frames of its main thread, the outermost first."""
        if self.said is not None:
            return self.said.frames
        return frames_seen(self.seen.threads or ()) if self.seen is not None else ()

    @property
    def is_waiting(self) -> bool:
        """Whether it cannot proceed without other ranks: it is idle, or in a collective."""
        return self.said is not None and (self.said.is_idle or self.said.is_in_collective)

    @property
    def trouble(self) -> str:
        """Why it does not answer: `stopped (SIGSTOP)`; empty if it does, or if the reason is not known."""
        return self.seen.trouble if self.said is None and self.seen is not None else ""

    def __str__(self) -> str:
        # The user's files without their folders: a line has no room for more.
        place = format_place(
            [
                dataclasses.replace(frame, filename=Path(frame.filename).name)
                if frame.is_user and not frame.filename.startswith("<")
                else frame
                for frame in self.frames
            ]
        )
        if self.said is None:
            why = f": {self.trouble}" if self.trouble else ""
            return f"does not answer{why}" + (f" {place}" if place else "")
        if self.said.is_idle:
            return "idle"
        if self.said.pause:
            return f"{self.said.pause} {place}".rstrip()
        return place or "at the beginning or end of the cell"


def format_whereabouts(whereabouts: Mapping[int, RankWhereabouts]) -> str:
    """Format whereabouts as one line: ranks at the same place together, larger groups first."""
    return ", ".join(f"{count_ranks(ranks)} {place}" for place, ranks in _group_by_place(whereabouts))


def format_remaining(whereabouts: Mapping[int, RankWhereabouts]) -> str:
    """Format the whereabouts of ranks that should have left, as clauses: `rank 0 is still in barrier`."""
    clauses = []
    for place, ranks in _group_by_place(whereabouts):
        verb = "" if place.startswith("do") else "is still " if len(ranks) == 1 else "are still "  # `does not answer`
        clauses.append(f"{count_ranks(ranks)} {verb}{place}")
    return ", ".join(clauses)


def _group_by_place(whereabouts: Mapping[int, RankWhereabouts]) -> list[tuple[str, list[int]]]:
    ranks_at: dict[str, list[int]] = {}
    for rank in sorted(whereabouts):
        ranks_at.setdefault(str(whereabouts[rank]), []).append(rank)
    return [
        (place if len(ranks) == 1 else place.replace("does not", "do not", 1), ranks)
        for place, ranks in sorted(ranks_at.items(), key=lambda group: -len(group[1]))
    ]


def count_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3`, or `7 ranks [0-2,4-7]`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks {format_label(ranks)}"


async def collect_whereabouts(mesh: NotebookMesh, ranks: Iterable[int]) -> dict[int, RankWhereabouts]:
    """Query where these ranks are, within a second."""
    ranks = sorted(ranks)
    asked = ask_ranks(mesh, ranks).where.call_each() if ranks else []
    said = dict(zip(ranks, await answers_of(asked), strict=True))
    unresponsive = [rank for rank in ranks if said[rank] is None]
    seen = await look_at(mesh, unresponsive) if unresponsive else {}
    return {rank: RankWhereabouts(said[rank], seen.get(rank)) for rank in ranks}


async def locate_ranks(mesh: NotebookMesh, ranks: Iterable[int]) -> dict[int, str]:
    """Return where each of these ranks is, as text."""
    return {rank: str(where) for rank, where in (await collect_whereabouts(mesh, ranks)).items()}


def ask_ranks(mesh: NotebookMesh, ranks: Sequence[int]) -> Any:
    """Return the control actors of these ranks, which answer while a cell runs."""
    return mesh.pick(mesh.control, ranks)


async def look_at(mesh: NotebookMesh, ranks: Sequence[int]) -> dict[int, Observation]:
    """Return what the hosts observe of these ranks."""
    addresses = mesh.procs.nodes
    nodes = {addresses[rank].node: rank for rank in ranks}
    asked = ask_observers(mesh.pick(mesh.procs, ranks))
    found = [seen or {} for seen in await answers_of(asked)]
    return {nodes[node]: observation for seen in found for node, observation in seen.items()}


async def answers_of(asked: Sequence[Future[T]], within: float = ANSWER_WITHIN) -> list[T | None]:
    """Return the answers that arrive within this many seconds; None for late or failed ones."""
    twins = [future.as_asyncio() for future in asked]
    if twins:
        await asyncio.wait(twins, timeout=within)
    return [_answer_of(twin) for twin in twins]


def _answer_of(twin: asyncio.Future[T]) -> T | None:
    if not twin.done():
        twin.cancel()
        return None
    return twin.result() if twin.exception() is None else None


def frames_seen(threads: Iterable[SampledThread]) -> tuple[Frame, ...]:
    """Return the main thread's frames from the cell's first on, the outermost first."""
    main = next((thread for thread in threads if thread.thread_name == "MainThread"), None)
    frames = [] if main is None else [frame_of(each.filename, each.line, each.name) for each in reversed(main.frames)]
    first = next((at for at, frame in enumerate(frames) if frame.filename.startswith("<cell")), len(frames))
    return tuple(frame for frame in frames[first:] if not is_ours(frame.filename))


def frame_of(filename: str, line: int, function: str) -> Frame:
    return Frame(filename, line, function, is_user=is_user_code(filename))
