"""JupyterLab and Notebook 7 run mesh cells, and show them after a reload as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.browser.jupyter import NotebookPage

pytestmark = [pytest.mark.browser, pytest.mark.kernel]
CELLS = ("%mesh up --gpus 2", "%%mesh\nprint('<script>fails()</script>')\nrank")


@pytest.fixture(scope="module", params=["lab", "notebook"])
def notebook(request: pytest.FixtureRequest, make_notebook: Callable[..., NotebookPage]) -> NotebookPage:
    notebook = make_notebook(request.param, f"cells-{request.param}", CELLS)
    notebook.run(0)
    return notebook


def test_a_mesh_cell_shows_and_stays(notebook: NotebookPage) -> None:
    shown = notebook.run(1).inner_text()
    assert "[0-1] <script>fails()</script>" in shown
    notebook.save()
    notebook.reload()
    assert notebook.output(1).inner_text() == shown
