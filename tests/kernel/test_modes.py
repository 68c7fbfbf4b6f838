"""Mesh mode, `%%here` and `%on`, through both front doors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import Notebook, Signs

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]


@pytest.fixture(scope="module", params=["meshbook", "python3"])
def notebook(request: pytest.FixtureRequest, make_notebook: Any) -> Iterator[Notebook]:
    with make_notebook(request.param) as notebook:
        notebook.run("%mesh up --gpus 2")
        yield notebook


@pytest.fixture
def mode(notebook: Notebook) -> Iterator[None]:
    """Mesh mode is on."""
    said = notebook.run("%mesh mode on").stdout
    assert said == "mesh mode is on: cells run as under %%mesh; %%here runs one here, %mesh mode off ends it\n"
    yield
    said = notebook.run("%mesh mode off").stdout
    assert said == "mesh mode is off: cells run here, unless they begin with %%mesh\n"


@pytest.mark.usefixtures("mode")
def test_in_mesh_mode_every_cell_runs_on_ranks(notebook: Notebook) -> None:
    assert notebook.run("where = rank").stdout == "[0-1] done\n", "nothing else says that it has run there"
    cell = notebook.run("where")
    assert cell.result == "[0] 0\n[1] 1"
    count = cell.reply["execution_count"] if cell.reply else 0
    assert notebook.run(f"%%here\n_.values, _i{count}").result == "([0, 1], 'where')"
    failed = notebook.run_failing("x = 1\nif rank: 1 / 0")
    assert "----> 2 if rank: 1 / 0" in failed.traceback
    assert notebook.run("%%mesh failed\nrank").result == "[1] 1"


@pytest.mark.usefixtures("mode")
def test_in_mesh_mode_magics_and_here_are_the_notebooks_own(notebook: Notebook) -> None:
    assert notebook.run("%%here\nimport asyncio\nawait asyncio.sleep(0)\n'rank' in globals()").result == "False"
    assert notebook.run("!echo local").stdout.split() == ["local"]
    assert notebook.run("%%bash\necho local").stdout == "local\n"
    cell = notebook.run("%mesh mode\nrank")
    assert (cell.stdout[:15], cell.result) == ("mesh mode is on", "[0] 0\n[1] 1")
    assert "Wall time" in notebook.run("%time rank").stdout
    assert notebook.run("%%here\nget_ipython().run_cell('1 + 1').result").result == "2", "a cell within a cell"


@pytest.mark.usefixtures("mode")
def test_in_mesh_mode_what_is_typed_is_what_is_judged(notebook: Notebook) -> None:
    assert notebook.ask("is_complete", "for i in range(3):") == {"status": "incomplete", "indent": "    "}
    assert notebook.ask("is_complete", "x = 1")["status"] == "complete"
    notebook.wait(notebook.start("silently = 1", silent=True))  # as debuggers and variable viewers do
    assert notebook.run("%%here\nsilently").result == "1"


def test_the_mode_has_options_of_the_mesh_magic(notebook: Notebook) -> None:
    assert "as under %%mesh 0 -g rank;" in notebook.run("%mesh mode on 0 -g rank").stdout
    assert notebook.run("rank").result == "[0] 0"
    notebook.run("%mesh mode off")
    for line, problem in (("on --onerror stop", "no option '--onerror'"), ("off 0", "options are for `on`")):
        assert problem in notebook.run_failing(f"%mesh mode {line}").error["evalue"]
    assert notebook.run("%mesh mode").stdout.startswith("mesh mode is off")
    assert notebook.run("%%here\n1").result == "1"


def test_on_runs_a_line_on_ranks(notebook: Notebook, signs: Signs) -> None:
    cell = notebook.run("for turn in range(2):\n    %on 1 print('turn', {rank: 1})\nvalues = %on all rank * 2\nvalues")
    assert (cell.stdout, cell.result) == ("[1] turn {1: 1}\n[1] turn {1: 1}\n", "[0] 0\n[1] 2")
    assert notebook.run("%on 0 rank").result == "[0] 0"
    assert notebook.run_failing("%on 0 1 / 0").error["evalue"].startswith("[rank 0] ZeroDivisionError")
    assert "wants ranks and then code" in notebook.run_failing("%on 0").error["evalue"]
    notebook.run(f"%%mesh\n{signs.definition}\nimport time")
    cell = notebook.start("%on 1 tell('there'); time.sleep(600)")
    signs.wait_for("there")
    notebook.interrupt()
    notebook.wait_failed(cell)
    assert cell.error["evalue"].startswith("interrupted; rank 1 was at ")


def test_the_magics_have_help(notebook: Notebook) -> None:
    listed = (notebook.run("%lsmagic").result or "").split()
    assert {"%%here", "%on", "%%mesh", "%mesh"} <= set(listed)
