"""Sections of the dashboard's messages: a snapshot in the terms of `protocol`, in types that JSON has.

`answer_logs` answers a view's request for logs; the request is untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from meshbook.runtime.formats import format_ranks
from meshbook.runtime.telemetry.logbook import Logbook
from meshbook.runtime.telemetry.logsearch import LogPage, LogQuery, find_lines
from meshbook.runtime.telemetry.patterns import QueryError
from meshbook.runtime.telemetry.vitals import ProcessDetail
from meshbook.widgets.host_sums import rounded
from meshbook.widgets.protocol import (
    ActorEntry,
    BarEntry,
    CellSection,
    EventEntry,
    HostProcesses,
    LogsReply,
    MeshSection,
    PauseEntry,
    ProcessEntry,
    StackEntry,
    StacksSection,
    WorstEntry,
)
from meshbook.widgets.source import CellFacts, MeshEvent, MeshFacts, PausedRanks, ProgressBar, Stacks
from meshbook.widgets.worst import WorstRank

MOST_EVENTS = 10
MOST_PROCESSES = 64  # processes whose actors are listed
HISTORY_POINTS = 60
_HISTORY_DIGITS = 5
DRIFT = 1.0  # seconds by which a view's cell clock must be wrong before it is set


def mesh_section(mesh: MeshFacts) -> MeshSection:
    """Return the facts of a mesh."""
    host_of = np.asarray(mesh.host_of).tolist()
    return {
        "name": mesh.name,
        "dims": list(mesh.dims),
        "hosts": list(mesh.hosts),
        "host_of": host_of,
        "alive": mesh.alive,
    }


def cell_section(cell: CellFacts | None) -> CellSection | None:
    """Return the running cell."""
    if cell is None:
        return None
    return {
        "number": cell.number,
        "title": cell.title,
        "seconds": round(cell.seconds, 2),
        "ranks": format_ranks(cell.ranks),
        "waits": cell.waits,
        "jobs": cell.jobs,
        "interruptible": cell.interruptible,
    }


def counts_on(before: CellSection | None, after: CellSection | None, passed: float) -> bool:
    """Return whether a view that counts on from `before`, `passed` seconds old, shows what `after` has."""
    if before is None or after is None:
        return before == after
    is_same = {**before, "seconds": 0} == {**after, "seconds": 0}
    return is_same and abs(before["seconds"] + passed - after["seconds"]) < DRIFT


def worst_section(worst: Sequence[WorstRank], histories: npt.NDArray[np.float32]) -> list[WorstEntry]:
    """Return the worst ranks, each with its history: float32 of the shape [worst, points], the newest last."""
    return [
        {"rank": each.rank, "value": rounded(each.value), "text": each.text, "history": _shortened(history)}
        for each, history in zip(worst, histories, strict=True)
    ]


def _shortened(history: npt.NDArray[np.float32]) -> list[float | None]:
    """Return means of equal pieces, at most sixty; None for a piece without a known value."""
    each = -(-len(history) // HISTORY_POINTS) or 1
    missing = -len(history) % each
    pieces = np.pad(history, (missing, 0), constant_values=np.nan).reshape(-1, each)
    known = np.isfinite(pieces)
    with np.errstate(invalid="ignore"):  # a piece may have no known value
        means = np.where(known, pieces, 0).sum(axis=1) / known.sum(axis=1)
    # More digits than a reader needs: a curve drawn at full height would show rounding as steps.
    return [rounded(mean, _HISTORY_DIGITS) for mean in means.tolist()]


def topology_section(
    mesh: MeshFacts, ranks: Sequence[int], details: Sequence[ProcessDetail | None]
) -> list[HostProcesses]:
    """Return the hosts with their processes, of these ranks, and the actors of each."""
    hosts: dict[str, list[ProcessEntry]] = {}
    for rank, detail in zip(ranks, details, strict=True):
        process: ProcessEntry = {"rank": rank, "pid": None, "actors": []}
        if detail is not None:
            actors: list[ActorEntry] = [
                {"name": actor.name, "queued": actor.queued, "endpoint": actor.endpoint} for actor in detail.actors
            ]
            process = {"rank": rank, "pid": detail.pid, "actors": actors}
        hosts.setdefault(mesh.hosts[mesh.host_of[rank]], []).append(process)
    return [{"host": host, "procs": procs} for host, procs in hosts.items()]


def pauses_section(pauses: Sequence[PausedRanks]) -> list[PauseEntry]:
    """Return the ranks that wait for the user."""
    return [{"ranks": format_ranks(each.ranks), "what": each.what, "place": each.place} for each in pauses]


def bars_section(bars: Sequence[ProgressBar]) -> list[BarEntry]:
    """Return the progress bars, as fractions with three digits."""
    return [
        {
            "text": bar.text,
            "fraction": rounded(bar.fraction),
            "ranks": format_ranks(bar.ranks),
            "low": rounded(bar.low),
            "high": rounded(bar.high),
        }
        for bar in bars
    ]


def events_section(events: Sequence[MeshEvent]) -> list[EventEntry]:
    """Return the last ten events, the newest last."""
    return [
        {"at": event.at, "kind": event.kind, "ranks": format_ranks(event.ranks), "text": event.text}
        for event in events[-MOST_EVENTS:]
    ]


def stacks_section(stacks: Stacks | None) -> StacksSection | None:
    """Return the stacks that were taken last."""
    if stacks is None:
        return None
    groups: list[StackEntry] = [
        {"ranks": format_ranks(each.ranks), "title": each.title, "frames": list(each.frames)} for each in stacks.groups
    ]
    return {"at": stacks.at, "groups": groups}


class LogsRequest(msgspec.Struct, frozen=True):
    """The part of a "logs" message that selects lines."""

    query: LogQuery = LogQuery()
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    before: int | None = None
    limit: int = 500


msgspec.json.Decoder(LogsRequest)  # prepares the struct for `convert`, whose first call is not thread-safe


def answer_logs(logbook: Logbook, ranks: Mapping[str, int], content: Mapping[str, Any]) -> LogsReply:
    """Return the reply to a "logs" message, without its id. `ranks`: the processes to search, and their numbers.

    Takes half a second at most, from any thread. Raises QueryError if the message is invalid.
    """
    try:
        request = msgspec.convert(content, LogsRequest)
    except msgspec.ValidationError as error:
        raise QueryError(f"invalid log query: {error}") from error
    extract = logbook.extract(ranks, request.after)
    return reply_of(
        find_lines(extract, ranks, request.query, after=request.after, before=request.before, limit=request.limit)
    )


def reply_of(page: LogPage) -> LogsReply:
    """Return a page as the views receive it."""
    return {
        "lines": page.lines,
        "live": page.live,
        "first": page.first,
        "next": page.next,
        "end": page.end,
        "dropped": page.dropped,
        "matches": page.matches,
        "partial": page.partial,
    }
