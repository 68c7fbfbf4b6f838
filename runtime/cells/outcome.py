"""What a cell left behind on one rank: its value, its error, its cost. Plain data, made in the worker.

Not for running cells (`shell`) or for showing results (`meshbook.magics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from meshbook.runtime.collectives.frames import find_collective

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
    `is_consequence` marks what fell because another rank did: an aborted collective, a reset connection, an
    interrupt sent after the first error.
    """

    kind: ErrorKind
    type_name: str
    message: str
    frames: tuple[Frame, ...] = ()
    rendered: tuple[str, ...] = ()
    is_consequence: bool = False
    pickled: bytes | None = field(default=None, repr=False)  # the exception itself, where it can be pickled

    @property
    def place(self) -> str:
        """Where the user's own code was: `cell 9:14 in step`, or the empty string."""
        return place_of(self.frames)


def format_place(frames: Sequence[Frame]) -> str:
    """`at cell 9:14 in step`, `in all_reduce (cell 9:14)`; empty without frames."""
    place = place_of(frames)
    collective = find_collective((frame.filename, frame.function) for frame in frames)
    if collective is None:
        return f"at {place}" if place else ""
    return f"in {collective} ({place})"


def place_of(frames: Sequence[Frame]) -> str:
    """The innermost of the user's own lines, or of all where none is theirs; empty without frames."""
    own = [frame for frame in frames if frame.is_user] or list(frames)
    if not own:
        return ""
    last = own[-1]
    name = "" if last.function == "<module>" else f" in {last.function}"
    return f"{last.filename.strip('<>')}:{last.line}{name}"


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """What is shown of a tensor or array without moving it; the statistics are None for empty or non-numeric ones."""

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

    `mime` is the display bundle (always with text/plain, bounded in size). `pickled` is the value where it is small
    enough to travel with the reply (under 1 MiB) and can be pickled; else the value stays with its rank and `note`
    says why.
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
        """Whether its looks are texts and images; a bundle may hold anything that JSON has."""
        return all(type(content) in (str, bytes) for content in self.mime.values())


class CellCost(msgspec.Struct, frozen=True):
    """What a cell cost on one rank: seconds of wall clock and processor, bytes of memory (peak)."""

    wall: float
    cpu: float
    peak_rss: int
    peak_gpu_memory: int | None = None


class CellOutcome(msgspec.Struct, frozen=True):
    """The reply of one rank to one cell: an error, or a value (None where the cell ends in no expression).

    `names` are those of the user's in the namespace of the rank; None where they are what the rank told last. `pulled`
    are variables that travel with it (`transfer`). `changed` says whether the cell has made, removed or rebound a
    variable; what it did to an object is not seen.
    """

    cost: CellCost
    value: CellValue | None = None
    error: RankError | None = None
    names: tuple[str, ...] | None = None
    pulled: Any = None
    changed: bool = False

    def _is_plain_on_wire(self) -> bool:
        """Whether nothing of the user's is in it: then it is pickled without looking at each part."""
        return self.pulled is None and (self.value is None or self.value._is_plain_on_wire())
