"""How far numbers of ranks are apart, element by element. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LargestDifference:
    """Where values are farthest apart: the index, the two values, and which of the arrays they are in.

    So many elements are not the same in all. Where only some arrays have a NaN, the index is of that.
    """

    index: int
    least: Any
    most: Any
    least_in: int
    most_in: int
    differing: int

    @property
    def size(self) -> float:
        """The largest absolute difference; NaN where one of the two is none."""
        return float(abs(self.most - self.least))


def find_gap(arrays: Sequence[Any]) -> LargestDifference | None:
    """The largest difference between flat arrays of one length; None where all numbers are the same."""
    import numpy  # weight: who compares nothing needs none

    rows = numpy.stack([_as_numpy(array) for array in arrays])
    unlike = ((rows != rows[0]) & ~(numpy.isnan(rows) & numpy.isnan(rows[0]))).any(axis=0)
    if not unlike.any():
        return None
    index = _widest(rows, unlike)
    values = rows[:, index]
    least_in, most_in = _extremes(values)
    ends = values[least_in].item(), values[most_in].item()
    return LargestDifference(index, *ends, least_in, most_in, int(unlike.sum()))


def _widest(rows: Any, unlike: Any) -> int:
    """The index at which the values are farthest apart; where some are NaN and others are not, the first such."""
    import numpy

    mixed = numpy.isnan(rows).any(axis=0) & unlike
    if mixed.any():
        return int(mixed.argmax())
    if rows.dtype.kind == "c":
        return int(abs(rows - rows[0]).max(axis=0).argmax())
    with numpy.errstate(invalid="ignore"):  # two infinities of one sign are no distance apart
        return int(numpy.where(unlike, rows.max(axis=0) - rows.min(axis=0), -math.inf).argmax())


def _extremes(values: Any) -> tuple[int, int]:
    import numpy

    is_nan = numpy.isnan(values)
    if is_nan.any():
        return int((~is_nan).argmax()), int(is_nan.argmax())
    if values.dtype.kind == "c":
        return 0, int(abs(values - values[0]).argmax())
    return int(values.argmin()), int(values.argmax())


def _as_numpy(values: Any) -> Any:
    import numpy

    if hasattr(values, "detach"):  # NumPy has no bfloat16
        values = values.detach()
        values = (values if values.is_complex() else values.double()).numpy()
    array = numpy.asarray(values)
    return array if array.dtype.kind == "c" else array.astype("float64")
