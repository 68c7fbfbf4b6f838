"""A saved notebook that is opened again shows the last state of its dashboards, with whatever kernel it has then."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from nbconvert import HTMLExporter

from tests.browser.dashboards import Dashboard
from tests.browser.jupyter import FrontEnd, NotebookPage, Server
from tests.support import few

if TYPE_CHECKING:  # it may be missing
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.kernel]
MESHES, ONE, TWO, KILL, KILL_AGAIN, CHARTS = range(6)
CELLS = (
    "from meshbook.testing import fake_mesh\none, two = fake_mesh(8, faults=0), fake_mesh(4, faults=0)\n"
    "two.advance(90)",
    "print('before')\none.dashboard()",
    "two.dashboard()",
    "one.kill(3)",
    "one.kill(4)",
    "two.charts('train/*')",
)
# The widget manager of JupyterLab logs it about the widgets of a kernel that has ended.
NOT_FOUND = "Error: widget model not found"
DEAD = ".meshbook-chip[data-state=dead]"


@pytest.fixture(params=few(["lab", "notebook"]))
def front_end(request: pytest.FixtureRequest) -> FrontEnd:
    name: FrontEnd = request.param
    return name


def wait_for_picture(output: Locator, text: str) -> None:
    """Until the picture stands there, with this text and with nothing that a widget left."""
    output.locator(".meshbook-picture").filter(has_text=text).wait_for()
    assert "widget" not in output.inner_text()
    assert output.locator(".meshbook-dashboard").count() == 0


def wait_for_charts(output: Locator) -> None:
    """Until the curves stand there as drawings, with the names of the ranks that differ."""
    wait_for_picture(output, "diverges")
    titles = output.locator(".meshbook-picture svg text[font-weight]")
    assert [title.split(" · ")[0] for title in titles.all_text_contents()] == ["train/loss", "train/accuracy"]


def wait_for_loss(output: Locator) -> None:
    """Until JupyterLab has given up the widget."""
    output.get_by_text("model not found").wait_for(state="attached")


def choose_missing_kernel(notebook: NotebookPage, server: Server, saved: dict[str, Any]) -> None:
    """Let the kernel of the notebook be one that is not installed."""
    saved["metadata"]["kernelspec"] |= {"name": "gone", "display_name": "gone"}
    notebook.file.write_text(json.dumps(saved))
    server.trust(notebook.file)


def open_without_kernel(page: Page, server: Server, front_end: FrontEnd, notebook: NotebookPage) -> Locator:
    """Its cells of code, in a page that has no kernel."""
    page.goto(server.address(notebook.file, front_end), wait_until="domcontentloaded")
    dialog = page.locator(".jp-Dialog")
    dialog.locator("select").select_option(label="No Kernel")
    dialog.locator(".jp-mod-accept").click()
    return page.locator(".jp-Notebook .jp-CodeCell")


def test_a_notebook_that_is_opened_again_shows_the_last_state(
    front_end: FrontEnd,
    make_notebook: Callable[..., NotebookPage],
    make_page: Callable[..., Page],
    server: Server,
    errors: list[str],
) -> None:
    notebook = make_notebook(front_end, f"saved-{front_end}", CELLS)
    for cell in (MESHES, ONE, TWO, CHARTS):
        notebook.run(cell)
    notebook.output(CHARTS).locator(".meshbook-curve[data-metric='train/loss'] canvas").wait_for()
    notebook.output(CHARTS).locator(".meshbook-picture").wait_for(state="hidden")
    notebook.run(KILL)
    Dashboard(notebook.output(ONE)).root.locator(DEAD).wait_for()
    notebook.output(ONE).locator(".meshbook-picture").wait_for(state="hidden")
    notebook.save_with("1 dead (X)")
    notebook.reload()  # after which the kernel cannot replace the outputs of the page
    notebook.run(KILL_AGAIN)
    Dashboard(notebook.output(ONE)).root.locator(DEAD).filter(has_text="2").wait_for()
    notebook.output(ONE).locator(".meshbook-picture").wait_for(state="hidden")
    saved = notebook.save_with("2 dead (X)")
    assert "dead" not in json.dumps(saved["cells"][TWO])
    notebook.close()

    again = NotebookPage(make_page(), server, front_end, notebook.file)
    wait_for_picture(again.output(ONE), "2 dead")
    wait_for_picture(again.output(TWO), "4 ranks")
    wait_for_charts(again.output(CHARTS))
    wait_for_loss(again.output(ONE))
    wait_for_picture(again.output(ONE), "2 dead")
    assert "before" in again.output(ONE).inner_text()
    again.close()

    choose_missing_kernel(notebook, server, saved)
    cells = open_without_kernel(make_page(), server, front_end, notebook)
    wait_for_picture(cells.nth(ONE), "2 dead")
    wait_for_picture(cells.nth(TWO), "4 ranks")
    wait_for_charts(cells.nth(CHARTS))
    errors[:] = [error for error in errors if NOT_FOUND not in error]

    static = make_page(java_script_enabled=False)
    static.set_content(HTMLExporter().from_filename(str(notebook.file))[0])
    wait_for_picture(static.locator(".jp-CodeCell").nth(ONE), "2 dead")
    wait_for_charts(static.locator(".jp-CodeCell").nth(CHARTS))
