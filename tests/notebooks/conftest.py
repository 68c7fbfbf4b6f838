"""What the tests of notebooks share: notebooks, as committed or as run anew, and what a person reads in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from meshbook.runtime.config import Settings

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PATIENCE = 240  # seconds for a cell


class Page:
    """A notebook with its outputs; cells of code by their ids."""

    def __init__(self, notebook: nbformat.NotebookNode) -> None:
        self.cells: dict[str, Any] = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}

    @property
    def shown(self) -> dict[str, str]:
        """What a person reads below each cell."""
        return {name: "".join(map(text_of, cell.outputs)) for name, cell in self.cells.items()}

    @property
    def failed(self) -> set[str]:
        """The cells that ended with an error."""
        return {name for name, cell in self.cells.items() if any(each.output_type == "error" for each in cell.outputs)}

    @property
    def may_fail(self) -> set[str]:
        """The cells that are marked for it."""
        return {name for name, cell in self.cells.items() if "raises-exception" in cell.metadata.get("tags", ())}


def text_of(output: Any) -> str:
    if output.output_type == "stream":
        return COLOURS.sub("", output.text)
    if output.output_type == "error":
        return COLOURS.sub("", "\n".join(output.traceback))
    return COLOURS.sub("", output.data.get("text/plain", ""))


@pytest.fixture
def committed() -> Callable[[Path], Page]:
    """A notebook as it was saved."""
    return lambda file: Page(nbformat.read(file, as_version=4))


@pytest.fixture
def executed(tmp_path: Path) -> Callable[[Path], Page]:
    """A notebook run from its first cell to its last, with the kernel that it names, in a folder of its own.

    Raises where a cell fails that is not marked for it.
    """

    def execute(file: Path) -> Page:
        notebook = nbformat.read(file, as_version=4)
        NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
        return Page(notebook)

    return execute


@pytest.fixture
def sklearn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are born with scikit-learn: four that import it at once, on two cores, take seconds."""
    monkeypatch.setenv("MESHBOOK_PRELOAD", f"{Settings().preload},sklearn.datasets")
