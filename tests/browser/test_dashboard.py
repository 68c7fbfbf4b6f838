"""The dashboard in JupyterLab and Notebook 7: it shows, it is true while cells run, and its buttons work then."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.dashboards import Dashboard
from tests.browser.jupyter import NotebookPage, Server
from tests.support import few

if TYPE_CHECKING:  # it may be missing
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.kernel]
UP, DASH, PID, LOCAL, RANKS, PRINT, CURVES, TRAIN = range(8)
PROMISED = 1.0  # seconds within which a death shows, and a curve
# Rank 1 is behind, and the loss of rank 3 rises.
TRAINING = """%%mesh
import meshbook
for step in range(10 if rank == 1 else 50):
    meshbook.log(step=step, loss=1 / (step + 1) + (rank == 3) * step)"""
# Whether another run than this one is the present one in the chart, and it is drawn.
DRAWS_OTHER_RUN = """([output, run]) => {
  const [head, canvas] = [".meshbook-curve-head span", "canvas"].map((each) => output.querySelector(each));
  return head !== null && canvas !== null && head.textContent !== "" && head.textContent !== run;
}"""
MARKUP = "a needle in <script>document.title = 'run'</script>"


@dataclass
class Open:
    """A notebook with a mesh of four ranks and its dashboard. `folder` has what cells and tests tell each other."""

    notebook: NotebookPage
    dashboard: Dashboard
    folder: Path

    def kill_rank(self) -> float:
        """Kill rank 2 from outside; after how many seconds it shows. Cell PID has run."""
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)
        return self.dashboard.wait_for(idle=3, dead=1)

    def heal(self) -> None:
        self.dashboard.press("heal")
        self.dashboard.wait_for(idle=4)

    def reload(self) -> None:
        """Reload the page, as a person does that comes back to it."""
        self.notebook.save()
        self.notebook.reload()
        self.dashboard = Dashboard(self.notebook.output(DASH))


@pytest.fixture(scope="module", params=few(["lab", "notebook"]))
def open_(
    request: pytest.FixtureRequest, make_notebook: Callable[..., NotebookPage], tmp_path_factory: pytest.TempPathFactory
) -> Open:
    folder = tmp_path_factory.mktemp("signs")
    os.mkfifo(folder / "gate")
    cells = [
        "%mesh up --gpus 4",
        "%mesh dash",
        f"%%mesh 2\nimport os\nopen('{folder}/pid', 'w').write(str(os.getpid()))",
        f"open('{folder}/gate').read()",
        "%%mesh\nimport time\ntime.sleep(600)",
        f'%%mesh\nprint("plain")\nif rank == 3:\n    print("{MARKUP}")',
    ]
    cells += ["%mesh curves loss", TRAINING]
    notebook = make_notebook(request.param, f"dashboard-{request.param}", cells)
    notebook.run(UP)
    return Open(notebook, Dashboard(notebook.run(DASH)), folder)


def test_it_shows_the_mesh(open_: Open) -> None:
    open_.dashboard.wait_for(idle=4)
    open_.dashboard.wait_for_rest()
    assert "mesh" in open_.dashboard.root.locator("header").inner_text()


def test_its_keys_are_its_own(open_: Open) -> None:
    grid = open_.dashboard.root.locator(".meshbook-grid")
    grid.focus()
    for key in ("End", " ", "d", "d"):  # which deletes the cell, where JupyterLab hears it
        grid.press(key)
    open_.dashboard.root.locator(".meshbook-count", has_text="1 of 4").wait_for()
    grid.press("Escape")


def test_beside_a_local_cell_a_killed_rank_is_dead_at_once_and_heal_brings_it_back(open_: Open) -> None:
    open_.notebook.run(PID)
    open_.notebook.start(LOCAL)
    taken = [open_.kill_rank()]
    open_.heal()
    (open_.folder / "gate").write_text("on")
    assert "on" in open_.notebook.wait(LOCAL).inner_text()
    while min(taken) > PROMISED and len(taken) < 3:  # the machine may be busy
        open_.notebook.run(PID)
        taken.append(open_.kill_rank())
        open_.heal()
    assert min(taken) < PROMISED


def test_interrupt_ends_a_cell_of_the_ranks(open_: Open) -> None:
    open_.notebook.start(RANKS)
    open_.dashboard.wait_for(running=4)
    open_.dashboard.wait_for_cell("cell")
    open_.dashboard.press("interrupt")
    assert "KeyboardInterrupt" in open_.notebook.wait(RANKS).inner_text()
    open_.dashboard.wait_for_rest()


def test_a_reload_amid_a_cell_brings_everything_back(open_: Open) -> None:
    open_.notebook.start(RANKS)
    open_.dashboard.wait_for(running=4)
    open_.reload()
    open_.dashboard.wait_for(running=4)
    open_.dashboard.wait_for_cell("cell")
    open_.dashboard.press("interrupt")
    open_.dashboard.wait_for_rest()


def test_the_log_is_searched_and_its_markup_is_text(open_: Open) -> None:
    assert MARKUP in open_.notebook.run(PRINT).inner_text()
    open_.dashboard.select("2:4")
    log = open_.dashboard.show("Logs")
    log.get_by_label("Search the log").fill("needle")
    log.get_by_label("Search the log").press("Enter")
    log.locator(".meshbook-log-current .meshbook-log-match").filter(has_text="needle").wait_for()
    assert "plain" in log.inner_text()
    log.get_by_label("Filter the log").fill("needle")
    log.get_by_text("1 matching line").wait_for()
    assert MARKUP in log.inner_text()
    assert "plain" not in log.inner_text()
    open_.dashboard.select("")
    assert open_.notebook.page.title() != "run"


def test_curves_of_ranks_that_train_appear_at_once(open_: Open) -> None:
    output = open_.notebook.run(CURVES)
    output.locator(".meshbook-dashboard").get_by_text("No metric has been logged yet").wait_for()
    taken, run = [float("inf")], ""
    while min(taken) > PROMISED and len(taken) < 4:  # the machine may be busy
        open_.notebook.start(TRAIN)
        start = time.monotonic()
        open_.notebook.page.wait_for_function(DRAWS_OTHER_RUN, arg=[output.element_handle(), run])
        taken.append(time.monotonic() - start)
        run = output.locator(".meshbook-curve-head span").inner_text()
        open_.notebook.wait(TRAIN)
    assert min(taken) < PROMISED
    output.locator("[data-kind=straggler]").filter(has_text="rank 1").wait_for()
    output.locator("[data-kind=diverging]").filter(has_text="rank 3").wait_for()


@pytest.mark.parametrize("open_", ["lab"], indirect=True)  # the picture is the same in both
def test_the_saved_notebook_shows_a_picture_to_others(
    open_: Open, make_page: Callable[..., Page], server: Server
) -> None:
    open_.dashboard.wait_for(idle=4)
    saved = open_.notebook.save_with("4 idle")
    _, picture = saved["cells"][DASH]["outputs"]
    assert "4 ranks" in "".join(picture["data"]["text/plain"])
    for cell in saved["cells"]:
        cell["source"] = "1"  # so that it is not the one that was saved here, and trusted
    copy = open_.notebook.file.with_stem(f"copy-{open_.notebook.file.stem}")
    copy.write_text(json.dumps(saved))
    stranger = NotebookPage(make_page(), server, open_.notebook.front_end, copy)
    assert "4 idle" in stranger.output(DASH).inner_text()
    stranger.close()
