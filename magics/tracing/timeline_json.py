"""The timeline of a cell as data, for a view that draws it itself: the dashboard's. Static pictures are in `timeline`.

Small whatever was recorded: what is below a pixel is merged, and the more lanes there are, the less each has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshbook.magics.tracing.collect import Trace, ranks_of, take_trace
from meshbook.magics.tracing.timeline_svg import Timeline
from meshbook.runtime.geometry.ranges import name_ranks
from meshbook.runtime.telemetry.timeline_lanes import Lane, thin_out
from meshbook.widgets.protocol import TimelineLane, TimelineReply, TimelineSpan

if TYPE_CHECKING:
    from meshbook.magics.meshes.registry import NotebookMesh
    from meshbook.magics.notebook import Notebook

MOST_SPANS = 400  # of a lane
MOST_IN_ALL = 60_000
FEWEST_SPANS = 24


async def take_timeline(notebook: Notebook, mesh: NotebookMesh, cell: int | None = None) -> TimelineReply:
    """The timeline of the last cell, or of that one, on the ranks of a mesh; also of one that runs.

    On any event loop. Ranks that do not answer within three seconds are left out, which `notes` say. MeshError where
    there is nothing to be shown. The reply to "timeline" in `meshbook.widgets.protocol`.
    """
    times = notebook.cell_times.known(notebook.cell_number)
    only = {node.node for node in mesh.procs.nodes}
    trace = await take_trace(notebook.session(), times, ranks_of([mesh]), only=only, number=cell)
    # Beside the loop: of ranks with thousands of spans each it takes a while.
    return await asyncio.to_thread(timeline_of, trace, mesh.name)


def timeline_of(trace: Trace, mesh: str) -> TimelineReply:
    """What a view draws of a mesh's ranks, in seconds since the begin of the cell; nothing where a rank was idle."""
    timeline = Timeline(trace)
    lanes = timeline.lanes.get(mesh, {})
    most = min(MOST_SPANS, max(FEWEST_SPANS, MOST_IN_ALL // max(1, len(lanes))))
    notes = list(timeline.notes_on_trace()) if lanes else [f"no rank of {mesh} took part in it"]
    return {
        "cell": trace.cells[-1],
        "seconds": round(trace.window.length / 1e9, 6),
        "open": trace.is_open,
        "lanes": [_describe(rank, thin_out(lane, most), trace.window.start) for rank, lane in sorted(lanes.items())],
        "notes": notes,
    }


def _describe(rank: int, lane: Lane, start: int) -> TimelineLane:
    return {"label": f"rank {rank}", "rank": rank, "spans": list(_spans_of(lane, start))}


def _spans_of(lane: Lane, start: int) -> Iterator[TimelineSpan]:
    for segment in lane:
        if segment.state != "idle":
            awaited = f", for {name_ranks(segment.awaited)}" if segment.awaited else ""
            begin, end = (round((time - start) / 1e9, 6) for time in segment[:2])
            yield begin, end, segment.state, segment.name + awaited
