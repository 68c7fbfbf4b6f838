"""Mesh mode, `%%here` and `%on`, through both front doors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import FRONT_DOORS

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]


@pytest.fixture(scope="module", params=FRONT_DOORS)
def notebook(request: pytest.FixtureRequest, make_notebook: Any) -> Iterator[KernelNotebook]:
    with make_notebook(request.param, torch=False) as notebook:
        notebook.run("%mesh up --gpus 2")
        yield notebook


@pytest.fixture
def mode(notebook: KernelNotebook) -> Iterator[None]:
    """Mesh mode is on."""
    said = notebook.run("%mesh mode on").stdout
    assert said.startswith("mesh mode is on: ")
    yield
    said = notebook.run("%mesh mode off").stdout
    assert said.startswith("mesh mode is off: ")


@pytest.mark.usefixtures("mode")
def test_in_mesh_mode_every_cell_runs_on_ranks(notebook: KernelNotebook) -> None:
    assert notebook.run("where = rank").stdout == "[0-1] done\n", "nothing else says that it has run there"
    cell = notebook.run("where")
    assert cell.result == "[0] 0\n[1] 1"
    count = cell.reply["execution_count"] if cell.reply else 0
    assert notebook.run(f"%%here\n_.values, _i{count}").result == "([0, 1], 'where')"
    failed = notebook.run_failing("x = 1\nif rank: 1 / 0")
    assert "----> 2 if rank: 1 / 0" in failed.traceback
    assert notebook.run("%%mesh failed\nrank").result == "[1] 1"


@pytest.mark.usefixtures("mode")
def test_in_mesh_mode_magics_and_here_are_the_notebooks_own(notebook: KernelNotebook) -> None:
    assert notebook.run("%%here\nimport asyncio\nawait asyncio.sleep(0)\n'rank' in globals()").result == "False"
    assert notebook.run("!echo local").stdout.split() == ["local"]
    assert notebook.run("%%bash\necho local").stdout == "local\n"
    cell = notebook.run("%mesh mode\nrank")
    assert (cell.stdout[:15], cell.result) == ("mesh mode is on", "[0] 0\n[1] 1")
    assert "Wall time" in notebook.run("%time rank").stdout
    assert notebook.run("%%here\nget_ipython().run_cell('1 + 1').result").result == "2", "a cell within a cell"
    assert "got 'rank'" in notebook.run_failing("%%here rank\n1").error["evalue"]


@pytest.mark.usefixtures("mode")
def test_in_mesh_mode_what_is_typed_is_what_is_judged(notebook: KernelNotebook) -> None:
    assert notebook.ask("is_complete", "for i in range(3):") == {"status": "incomplete", "indent": "    "}
    assert notebook.ask("is_complete", "x = 1")["status"] == "complete"
    notebook.wait(notebook.start("silently = 1", silent=True))  # as debuggers and variable viewers do
    assert notebook.run("%%here\nsilently").result == "1"


def test_the_mode_has_options_of_the_mesh_magic(notebook: KernelNotebook) -> None:
    assert "as with %%mesh 0 -g rank;" in notebook.run("%mesh mode on 0 -g rank").stdout
    assert notebook.run("rank").result == "[0] 0"
    notebook.run("%mesh mode off")
    for line, problem in (("on --onerror stop", "unknown option '--onerror'"), ("off 0", "takes no options")):
        assert problem in notebook.run_failing(f"%mesh mode {line}").error["evalue"]
    assert notebook.run("%mesh mode").stdout.startswith("mesh mode is off")
    assert notebook.run("%%here\n1").result == "1"


def test_on_runs_a_line_on_ranks(notebook: KernelNotebook, signs: Signs) -> None:
    line = "%on 1 print('turn', {rank: 1})"
    cell = notebook.run(f"for turn in range(2):\n    print('now')\n    {line}\nvalues = %on all rank * 2\nvalues")
    assert (cell.stdout, cell.result) == ("now\n[1] turn {1: 1}\n" * 2, "[0] 0\n[1] 2")
    assert notebook.run("%on 0 rank").result == "[0] 0"
    assert notebook.run_failing("%on 0 1 / 0").error["evalue"].startswith("[rank 0] ZeroDivisionError")
    assert "needs ranks and code" in notebook.run_failing("%on 0").error["evalue"]
    notebook.run(f"%%mesh\n{signs.definition}\nimport time")
    cell = notebook.start("%on 1 tell('there'); time.sleep(600)")
    signs.wait_for("there")
    notebook.interrupt()
    notebook.wait_failed(cell)
    assert cell.error["evalue"].startswith("interrupted; rank 1 was at ")


def test_the_magics_have_help(notebook: KernelNotebook) -> None:
    listed = (notebook.run("%lsmagic").result or "").split()
    assert {"%%here", "%on", "%%mesh", "%mesh"} <= set(listed)


def test_config_holds_for_the_cells_that_come(notebook: KernelNotebook) -> None:
    assert notebook.run("%mesh config").stdout.split()[:2] == ["group", "auto"]
    assert notebook.run("%mesh config group rank").stdout.startswith("group  rank  how output is grouped")
    assert notebook.run("%%mesh\nprint('same')").stdout == "[0] same\n[1] same\n"
    assert notebook.run("%%mesh -g same\nprint('same')").stdout == "[0-1] same\n"
    assert notebook.run("%mesh config group default").stdout.startswith("group  auto")
    notebook.run("%mesh config plain-time 600")
    assert "unknown setting 'plane'" in notebook.run_failing("%mesh config plane 1").error["evalue"]
    notebook.run("%mesh config plain-time default")


def test_loops_nest_where_a_person_asks_for_it(notebook: KernelNotebook) -> None:
    """The last of this module: it cannot be turned off."""
    notebook.run("import asyncio\nasync def answer(): return 42")
    assert notebook.run_failing("asyncio.run(answer())").error["ename"] == "RuntimeError"
    assert notebook.run("%mesh config nest_asyncio on").stdout.startswith("nest_asyncio  on")
    assert notebook.run("asyncio.run(answer())").result == "42"
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1"
    assert notebook.run("%%mesh -a -o job\nrank").reply
    assert notebook.run("(await job).values").result == "[0, 1]"
    assert "cannot be turned off" in notebook.run_failing("%mesh config nest_asyncio off").error["evalue"]
