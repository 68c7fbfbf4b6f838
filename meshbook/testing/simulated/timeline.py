"""The last steps of a simulated training as lanes, as the protocol's reply to "timeline". Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from meshbook.testing.simulated.training import EXCHANGE, TrainingStep
from meshbook.widgets.protocol import TimelineLane, TimelineReply, TimelineSpan

MOST_SPANS = 60_000  # in all lanes
_SPANS = 3  # per rank and step


def timeline_of(cell: int, steps: Collection[TrainingStep]) -> TimelineReply:
    """Return the lanes, in seconds since the first step shown; for more ranks fewer steps, but at least one."""
    size = len(next(iter(steps)).arrived) if steps else 1
    shown = list(steps)[-max(1, MOST_SPANS // (_SPANS * size)) :]
    start = shown[0].began if shown else 0.0
    lanes: list[TimelineLane] = [
        {"label": f"rank {rank}", "rank": rank, "spans": [span for step in shown for span in _spans(step, rank, start)]}
        for rank in range(size if shown else 0)
    ]
    seconds = shown[-1].ended - start if shown else 0.0
    return {"cell": cell, "seconds": seconds, "lanes": lanes, "open": True, "notes": []}


def _spans(step: TrainingStep, rank: int, start: float) -> Iterator[TimelineSpan]:
    began, arrived, ended = step.began - start, float(step.arrived[rank]) - start, step.ended - start
    met = ended - EXCHANGE
    yield round(began, 4), round(arrived, 4), "running", "step"
    if met > arrived:
        last = int(step.arrived.argmax())
        yield round(arrived, 4), round(met, 4), "waiting", f"all_reduce, for rank {last}"
    yield round(met, 4), round(ended, 4), "collective", "all_reduce"
