"""Sends the displays of a rank to the cell that they belong to.

Widgets on a rank have no comm to the notebook: their text is shown, and progress bars of tqdm are text.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from meshbook.runtime.actor.context import current_origin
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
        self._node.calls.notify(self._node.controller, TELEMETRY, "output", chunk)


WIDGET = "application/vnd.jupyter.widget-view+json"
TEXT = "text/plain"
REMEDY = "(widgets do not work on ranks; create this one in a cell without %%mesh)"
_NOTEBOOK_BARS = "tqdm.notebook"


def without_widgets(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a display bundle without a widget's view. Its model is not in the notebook, so it would show as an error.

    If only text is left, a line explains what to do instead.
    """
    if WIDGET not in data or len(data) == 1:
        return dict(data)
    rest = {mime: content for mime, content in data.items() if mime != WIDGET}
    if rest.keys() == {TEXT}:
        rest[TEXT] = f"{rest[TEXT]}\n{REMEDY}"
    return rest


def use_text_bars() -> None:
    """Make `tqdm.notebook` offer bars of text, from its next import on; also if ipywidgets is not installed."""
    if not any(isinstance(finder, _TextBars) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TextBars())


class _TextBars(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports `tqdm.notebook` as a module with the bars of `tqdm.std`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == _NOTEBOOK_BARS else None

    def exec_module(self, module: ModuleType) -> None:
        from tqdm import std  # the user's own: meshbook does not depend on it

        class TextBar(std.tqdm):  # type: ignore[misc]
            """A bar of text that accepts the arguments of the notebook's bar."""

            def __init__(self, *arguments: Any, display: bool = True, **keywords: Any) -> None:
                super().__init__(*arguments, **keywords)

        def trange(*arguments: Any, **keywords: Any) -> TextBar:
            """A bar over `range(*arguments)`."""
            return TextBar(range(*arguments), **keywords)

        offered = {"tqdm": TextBar, "tqdm_notebook": TextBar, "trange": trange, "tnrange": trange}
        module.__dict__.update(offered, __all__=list(offered))
