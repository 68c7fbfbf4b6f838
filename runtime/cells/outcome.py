"""The outcome of a cell on one rank: its value, its error, its cost. Plain data, made in the worker.

`shell` runs the cells, and `meshbook.magics` shows the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from meshbook.runtime.collectives.abort import find_collective
from meshbook.runtime.traces import short_name

ErrorKind = Literal["raised", "interrupted", "died", "skipped"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One stack frame of a remote traceback; `line` counts from 1."""

    filename: str
    line: int
    function: str
    source: str = ""
    is_user: bool = True  # code of a cell or of the user's own file, not of a library or of meshbook


@dataclass(frozen=True, slots=True)
class RankError:
    """An exception as its rank saw it, outermost frame first; or why the rank did not run the cell (`skipped`).

    `rendered` holds the traceback as IPython prints it (ANSI colours, source lines), without the last line.
    `is_consequence` marks an error caused by the failure of another rank: an aborted collective, a reset connection, an
    interrupt sent after the first error.
    """

    kind: ErrorKind
    type_name: str
    message: str
    frames: tuple[Frame, ...] = ()
    rendered: tuple[str, ...] = ()
    is_consequence: bool = False
    pickled: bytes | None = field(default=None, repr=False)  # the exception itself, if it can be pickled

    @property
    def place(self) -> str:
        """The place of the user's own code: `cell 9:14 in step`, or the empty string."""
        return place_of(self.frames)


def format_place(frames: Sequence[Frame]) -> str:
    """Return `at cell 9:14 in step` or `in all_reduce (cell 9:14)`; empty without frames."""
    place = place_of(frames)
    collective = find_collective((frame.filename, frame.function) for frame in frames)
    if collective is None:
        return f"at {place}" if place else ""
    return f"in {collective} ({place})"


def place_of(frames: Sequence[Frame]) -> str:
    """Return the innermost of the user's own lines, or of all lines if the user has none; empty without frames."""
    own = [frame for frame in frames if frame.is_user] or list(frames)
    if not own:
        return ""
    last = own[-1]
    name = "" if last.function == "<module>" else f" in {last.function}"
    return f"{short_name(last.filename)}:{last.line}{name}"


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """A summary of a tensor or array, shown without moving it; statistics are None for empty or non-numeric ones."""

    type_name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    minimum: float | None = None
    mean: float | None = None
    maximum: float | None = None


# These three are structs: each rank pickles them in every cell, and a frozen dataclass costs several times as much.
class CellValue(msgspec.Struct, frozen=True):
    """The value of a cell's last expression on one rank.

    `mime` is the display bundle (always with text/plain, bounded in size). `pickled` is the value if it can be pickled
    and is small enough for the reply (under 1 MiB). Otherwise the value stays on its rank, and `note` has the reason.
    """

    mime: Mapping[str, Any]
    type_name: str
    tensor: TensorSummary | None = None
    pickled: bytes | None = None
    note: str = ""

    def __repr__(self) -> str:  # without the pickled value, which may be long
        return (
            f"CellValue(mime={self.mime!r}, type_name={self.type_name!r}, tensor={self.tensor!r}, note={self.note!r})"
        )

    def _is_plain_on_wire(self) -> bool:
        """Whether its representations are texts and images only; a bundle may hold any JSON."""
        return all(type(content) in (str, bytes) for content in self.mime.values())


class CellCost(msgspec.Struct, frozen=True):
    """The cost of a cell on one rank: seconds of wall clock and processor, bytes of memory (peak)."""

    wall: float
    cpu: float
    peak_rss: int
    peak_gpu_memory: int | None = None


class CellOutcome(msgspec.Struct, frozen=True):
    """The reply of one rank to one cell: an error, or a value (None if the cell does not end in an expression).

    `names` are the user's variables on the rank; None if they are the same as in its last report. `pulled` are
    variables sent with it (`Transfer`). `changed`: whether the cell has made, removed or rebound a variable; changes
    inside an object are not detected.
    """

    cost: CellCost
    value: CellValue | None = None
    error: RankError | None = None
    names: tuple[str, ...] | None = None
    pulled: Any = None
    changed: bool = False

    def _is_plain_on_wire(self) -> bool:
        """Whether it contains no object of the user's. Then it is pickled without a check of each part."""
        return self.pulled is None and (self.value is None or self.value._is_plain_on_wire())
