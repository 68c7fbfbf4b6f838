"""Sends the displays of a rank to the cell that they belong to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.cells.widgets import without_widgets
from meshbook.runtime.geometry import Extent
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.telemetry.output import SHOWN, TELEMETRY, Chunk, ClearChunk, DisplayChunk, LogOptions

REMEMBERED_DISPLAYS = 1000


class Displays:
    """Sends displays, their updates and clearings to the controller. `spec` returns this worker's spec."""

    def __init__(self, node: Any, spec: Callable[[], Any]) -> None:
        self._node = node
        self._spec = spec
        self._origins: OrderedDict[str, str] = OrderedDict()  # display id -> the cell that has shown it

    def publish(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str = "", *, update: bool) -> None:
        """Display something; an update goes to the cell that shows the display it replaces."""
        if self._node.capture is not None:
            self._node.capture.flush()  # earlier output is shown before the display
        origin = (self._origins.get(display_id) if update else "") or current_origin()
        if display_id and not update:
            self._origins[display_id] = origin
            while len(self._origins) > REMEMBERED_DISPLAYS:
                self._origins.popitem(last=False)
        spec = self._spec()
        shown = without_widgets(data)
        chunk = DisplayChunk(
            origin, spec.world.mesh, spec.rank, shown, metadata, self._options, display_id=display_id, update=update
        )
        self._send(chunk)

    def clear(self, wait: bool) -> None:
        """Clear the output of this rank in the cell, at once or with its next output (`wait`)."""
        origin, spec = current_origin(), self._spec()
        if self._node.capture is not None:
            self._node.capture.end(origin)  # with its rows, which would come back otherwise
        self._send(ClearChunk(origin, spec.world.mesh, spec.rank, wait, self._options))

    @property
    def _options(self) -> LogOptions:
        return SHOWN if self._node.capture is None else self._node.capture.options

    def _send(self, chunk: Chunk) -> None:
        target = Target(self._node.controller, TELEMETRY)
        self._node.calls.send([target], "output", ((chunk,), {}), Extent((), ()), None)
