"""The state of the grid that the views have, so that only changes are sent. Pure."""

from __future__ import annotations

import numpy as np

from meshbook.widgets.deltas import PackedArrays, differ, pack_changes, pack_whole
from meshbook.widgets.grid_metrics import Values
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
        first, second = self._pack_states(states), self._pack_values(values, span / STEPS)
        return PackedArrays(first.names + second.names, first.buffers + second.buffers)

    def _pack_states(self, states: States) -> PackedArrays:
        before, self.states = self.states, states
        return pack_whole("state", states) if before is None else pack_changes("state", states, before != states)

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
