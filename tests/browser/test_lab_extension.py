"""The extension of JupyterLab: the mesh in the status bar, the dashboard in a side panel, the quick start."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.dashboards import Dashboard
from tests.browser.jupyter import NotebookPage

if TYPE_CHECKING:  # it may be missing
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.browser, pytest.mark.kernel]
UP, HOLD, DIE, DOWN = range(4)


class LabPage:
    """A notebook in JupyterLab with a mesh of two ranks. A cell waits until the gate is written to."""

    def __init__(self, make_notebook: Callable[..., NotebookPage], gate: Path) -> None:
        cells = ("%mesh up --gpus 2", f"open({str(gate)!r}).read()", "%on 1 import os; os._exit(3)", "%mesh down")
        self.notebook = make_notebook("lab", "lab-extension", cells)
        self.status: Locator = self.notebook.page.locator(".meshbook-mesh")
        self.panel: Locator = self.notebook.page.locator("#meshbook-panel")
        self.notebook.run(UP)

    def wait_for_status(self, text: str) -> None:
        self.status.filter(has_text=text).wait_for()

    def start_quickly(self) -> Locator:
        """Choose the quick start in the launcher; the first cell of the notebook that opens."""
        page = self.notebook.page
        page.evaluate("window.jupyterapp.commands.execute('launcher:create').then(() => null)")
        page.locator(".jp-LauncherCard", has_text="meshbook quick start").click()
        return page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .cm-content").first


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lab") / "gate"
    os.mkfifo(path)
    return path


@pytest.fixture(scope="module")
def lab(make_notebook: Callable[..., NotebookPage], gate: Path) -> LabPage:
    return LabPage(make_notebook, gate)


def test_a_click_in_the_status_bar_shows_the_dashboard(lab: LabPage) -> None:
    lab.wait_for_status("mesh: 2 ranks, healthy")
    lab.status.click()
    Dashboard(lab.panel).wait_for(idle=2)
    assert lab.panel.evaluate("panel => panel.offsetWidth") == pytest.approx(420, abs=2)


def test_a_page_that_is_loaded_again_shows_the_mesh_while_a_cell_runs(lab: LabPage, gate: Path) -> None:
    lab.notebook.start(HOLD)
    lab.notebook.cell(HOLD).locator(".jp-InputPrompt", has_text="[*]").wait_for()
    lab.notebook.reload()
    lab.wait_for_status("mesh: 2 ranks")
    lab.status.click()
    Dashboard(lab.panel).wait_for_cell("in the notebook")
    gate.write_text("go on")
    Dashboard(lab.panel).wait_for_rest()


def test_status_bar_and_side_panel_follow_the_mesh(lab: LabPage) -> None:
    lab.status.click()
    lab.notebook.run(DIE)
    lab.wait_for_status("mesh: 2 ranks, 1 dead")
    Dashboard(lab.panel).wait_for(idle=1, dead=1)
    lab.notebook.run(DOWN)
    lab.status.wait_for(state="hidden")
    lab.panel.get_by_text("No mesh is up").wait_for()


def test_the_quick_start_opens_a_notebook_that_starts_a_mesh(lab: LabPage) -> None:
    lab.start_quickly().filter(has_text="%mesh up --gpus 2").wait_for()
