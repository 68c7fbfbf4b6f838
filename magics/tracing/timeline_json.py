"""The timeline of a cell as data for the dashboard, which draws it itself. Static pictures are in `timeline_svg`.

Its size is bounded: short spans are merged, and the more lanes there are, the fewer spans each has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshbook.magics.tracing.collect import Trace, ranks_of, take_trace
from meshbook.magics.tracing.timeline_svg import Timeline
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.telemetry.timeline_lanes import Lane, thin_out
from meshbook.widgets.protocol import TimelineReply, TimelineSpan

if TYPE_CHECKING:
    from meshbook.magics.meshes.registry import NotebookMesh
    from meshbook.magics.notebook import Notebook

MOST_SPANS = 400  # of a lane
MOST_IN_ALL = 60_000
FEWEST_SPANS = 24


async def take_timeline(notebook: Notebook, mesh: NotebookMesh, cell: int | None = None) -> TimelineReply:
    """Return the timeline of this or the last cell on the ranks of a mesh; also of a running cell.

    Works on any event loop. Ranks that do not answer within three seconds are left out, and `notes` reports them.
    Raises MeshError if there is nothing to show. It is the reply to "timeline" in `meshbook.widgets.protocol`.
    """
    times = notebook.cell_times.known(notebook.cell_number)
    only = {node.node for node in mesh.procs.nodes}
    trace = await take_trace(notebook.session(), times, ranks_of([mesh]), only=only, number=cell)
    # On a thread, since it takes a while for ranks with thousands of spans each.
    return await asyncio.to_thread(timeline_of, trace, mesh.name)


def timeline_of(trace: Trace, mesh: str) -> TimelineReply:
    """Return what a view draws of a mesh's ranks, in seconds since the start of the cell; idle time is omitted."""
    timeline = Timeline(trace)
    lanes = timeline.lanes.get(mesh, {})
    most = min(MOST_SPANS, max(FEWEST_SPANS, MOST_IN_ALL // max(1, len(lanes))))
    notes = list(timeline.notes_on_trace()) if lanes else [f"no rank of {mesh} took part in this cell"]
    return {
        "cell": trace.cells[-1],
        "seconds": round(trace.window.length / 1e9, 6),
        "open": trace.is_open,
        "lanes": [
            {"label": f"rank {rank}", "rank": rank, "spans": list(_spans_of(thin_out(lane, most), trace.window.start))}
            for rank, lane in sorted(lanes.items())
        ],
        "notes": notes,
    }


def _spans_of(lane: Lane, start: int) -> Iterator[TimelineSpan]:
    for segment in lane:
        if segment.state != "idle":
            awaited = f", for {name_ranks(segment.awaited)}" if segment.awaited else ""
            begin, end = (round((time - start) / 1e9, 6) for time in segment[:2])
            yield begin, end, segment.state, segment.name + awaited
