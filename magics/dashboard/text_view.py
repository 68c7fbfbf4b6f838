"""A dashboard for terminals without widgets: a snapshot of the mesh as text."""

from __future__ import annotations

from typing import Any

from meshbook.widgets.snapshot import at_rest, snapshot_text
from meshbook.widgets.source import DashboardBackend


class TextDashboard:
    """A dashboard that takes a new snapshot each time it is displayed."""

    def __init__(self, board: DashboardBackend) -> None:
        self._board = board

    def __repr__(self) -> str:
        return snapshot_text(at_rest(self._board.source.snapshot()))

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"text/plain": repr(self)}, {}

    def outputs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the outputs to display, as data and metadata."""
        return [self._repr_mimebundle_()]
