"""Widgets on a rank, which have no comm to the notebook: their text is shown, and bars of tqdm are text."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

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
