"""Messages with what ranks log by `meshbook.log`: points of curves, histograms and images. Types only, and pure.

A rank sends one message per flush and execution. Numbers travel as float64 in the byte order of these machines.
"""

from __future__ import annotations

import functools
from typing import Literal

import msgspec

from meshbook.runtime.errors import MeshbookError

NOTEBOOK = -1  # the rank of points that the notebook's own process logs
MediaKind = Literal["histogram", "image"]
# The origins of cells: `CELL.incarnation.serial` of a `%%mesh` cell, and `local CELL` of an ordinary one.
LOCAL_ORIGIN = "local "
SCRIPT = "script"  # the run of points that no cell has caused


class HistoryError(MeshbookError):
    """The history of curves cannot be read or exported."""


class MetricPoints(msgspec.Struct, frozen=True, array_like=True):
    """New points of one metric, in order: `times` in seconds since 1970.

    A NaN in `steps` stands for the step after the previous one; empty `steps` stand for NaN only.
    """

    metric: str
    steps: bytes
    times: bytes
    values: bytes


class LoggedPoints(msgspec.Struct, frozen=True, array_like=True):
    """Points that a rank logged in one execution; `dropped` counts those that it had no room for since the last."""

    origin: str
    mesh: str
    rank: int
    points: tuple[MetricPoints, ...]
    dropped: int = 0

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        return sum(len(new.steps) + len(new.times) + len(new.values) for new in self.points)


class LoggedMedia(msgspec.Struct, frozen=True, array_like=True):
    """A histogram or an image that a rank logged; `step` NaN stands for one more than the previous one.

    `data`: of an image its PNG; of a histogram the counts of its bins and then their edges, one more, as float64.
    """

    origin: str
    mesh: str
    rank: int
    metric: str
    kind: MediaKind
    step: float
    time: float
    data: bytes

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        return len(self.data)


Logged = LoggedPoints | LoggedMedia


@functools.lru_cache(maxsize=1024)
def name_run(origin: str, incarnation: int = 0) -> str:
    """Return the name of the run that an execution belongs to, such as `cell 12`.

    Cell numbers begin again in each controller of a detached run; `incarnation` is that of the present one.
    """
    if origin.startswith(LOCAL_ORIGIN):
        number, controller = origin.removeprefix(LOCAL_ORIGIN), str(incarnation)
    else:
        number, _, rest = origin.partition(".")
        controller = rest.partition(".")[0]
    if not number.isdecimal():
        return SCRIPT
    attached = f", attach {controller}" if controller not in ("", "0") else ""
    return f"cell {number}{attached}"
