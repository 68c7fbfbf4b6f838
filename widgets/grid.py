"""What the views have of each rank, so that they are told only what is new to them. Pure."""

from __future__ import annotations

import numpy as np

from meshbook.widgets.deltas import PackedArrays, differ, pack_changes, pack_whole
from meshbook.widgets.grid_metrics import Values
from meshbook.widgets.states import States

STEPS = 250  # of a scale that can be told apart; smaller changes are not sent


class SentGrid:
    """The states and values that the views have; None where they have none yet."""

    def __init__(self) -> None:
        self.states: States | None = None
        self.values: Values | None = None

    def pack(self, states: States, values: Values | None, span: float) -> PackedArrays:
        """What has to be sent so that the views have these. `values`: None where the channel has none.

        `span` is how wide the scale of the values is.
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
        # What was sent whole is known whole, small changes too.
        self.values = values if "values" in packed.names else np.where(changed, values, self.values)
        return packed
