"""The state of the grid that the views have, so that only changes are sent. Pure.

An array is sent whole or as changes, whichever is shorter. A change too small to be seen is not sent. The comparison is
with the values that the views have, so small changes cannot add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from meshbook.widgets.grid_metrics import Values
from meshbook.widgets.protocol import BufferName
from meshbook.widgets.states import States

STEPS = 250  # distinguishable steps of a scale; smaller changes are not sent


class SentGrid:
    """The states and values that the views have; None before the first message."""

    def __init__(self) -> None:
        self.states: States | None = None
        self.values: Values | None = None

    def pack(self, states: States, values: Values | None, span: float) -> PackedArrays:
        """Return the buffers that bring the views to these arrays. `values`: None if the channel has none.

        `span`: the width of the values' scale.
        """
        before, self.states = self.states, states
        first = pack_whole("state", states) if before is None else pack_changes("state", states, before != states)
        second = self._pack_values(values, span / STEPS)
        return PackedArrays(first.names + second.names, first.buffers + second.buffers)

    def _pack_values(self, values: Values | None, tolerance: float) -> PackedArrays:
        if values is None:
            self.values = None
            return PackedArrays()
        if self.values is None:
            self.values = values
            return pack_whole("value", values)
        changed = differ(self.values, values, tolerance)
        packed = pack_changes("value", values, changed)
        # A whole array also sends the small changes.
        self.values = values if "values" in packed.names else np.where(changed, values, self.values)
        return packed


Array: TypeAlias = npt.NDArray[np.generic]
ArrayName = Literal["state", "value"]
# Names of the buffers: the whole array; the ranks that changed; their values.
_BUFFERS: Final[dict[ArrayName, tuple[BufferName, BufferName, BufferName]]] = {
    "state": ("states", "state_ranks", "state_values"),
    "value": ("values", "value_ranks", "value_values"),
}
_RANK_BYTES = 4


@dataclass(frozen=True)
class PackedArrays:
    """Buffers by their names, in this order; empty if nothing has changed."""

    names: tuple[BufferName, ...] = ()
    buffers: tuple[bytes, ...] = ()


def pack_whole(name: ArrayName, array: Array) -> PackedArrays:
    """Pack the whole array."""
    whole, _, _ = _BUFFERS[name]
    return PackedArrays((whole,), (_bytes_of(array),))


def pack_changes(name: ArrayName, array: Array, changed: npt.NDArray[np.bool_]) -> PackedArrays:
    """Pack the changed ranks and their values; the whole array if that is shorter."""
    ranks = np.flatnonzero(changed)
    if not len(ranks):
        return PackedArrays()
    if len(ranks) * (_RANK_BYTES + array.itemsize) >= array.nbytes:
        return pack_whole(name, array)
    _, *changes = _BUFFERS[name]
    return PackedArrays(tuple(changes), (_bytes_of(ranks.astype(np.uint32)), _bytes_of(array[ranks])))


def _bytes_of(array: Array) -> bytes:
    little: Array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return bytes(little.tobytes())


def differ(before: Array, after: Array, tolerance: float = 0.0) -> npt.NDArray[np.bool_]:
    """Return where two arrays differ by more than the tolerance; NaN equals NaN."""
    with np.errstate(invalid="ignore"):  # inf - inf is NaN
        near = (np.abs(after - before) <= tolerance) | (after == before)
    different: npt.NDArray[np.bool_] = ~(near | (np.isnan(before) & np.isnan(after)))
    return different
