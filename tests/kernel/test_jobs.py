"""Cells that run beside others (`%%mesh -a`), in turns, and here as well; through both front doors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import FRONT_DOORS

if TYPE_CHECKING:
    from tests.kernel.conftest import Cell, KernelNotebook, Signs

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module", params=FRONT_DOORS)
def notebook(request: pytest.FixtureRequest, make_notebook: Any) -> Iterator[KernelNotebook]:
    """Both front doors, with three ranks."""
    with make_notebook(request.param, torch=False) as notebook:
        notebook.run("%mesh up --gpus 3")
        yield notebook


@pytest.fixture(autouse=True)
def _ranks_can_tell(notebook: KernelNotebook, signs: Signs) -> Iterator[None]:
    gate = signs.path.with_name("gate")
    notebook.run(f"%%mesh\n{signs.definition}\nimport os, time\ngate = {str(gate)!r}\n{HOLD}")
    notebook.run(f"gate = {str(gate)!r}")
    yield
    notebook.run("%mesh cancel all")
    notebook.run(f"for each in {JOBS}: each.wait()")


JOBS = "get_ipython().user_ns_hidden['__meshbook__'].jobs"
# A rank waits until the file is there: unlike a sleep it ends when the test says so.
HOLD = "def hold(name=''):\n    while not os.path.exists(gate + name): time.sleep(0.005)\n"
OPEN = "open(gate, 'w').close()"


def text_of(cell: Cell) -> str:
    """All that it shows: a cell of more than two seconds has an area, a quicker one a stream."""
    return "".join(output.get("text") or output.data["text/plain"] for output in cell.outputs)


def number_of(cell: Cell) -> int:
    return int(cell.displays[0]["text/plain"].split()[1])


def number_of_cell(cell: Cell) -> int:
    return int(cell.reply["execution_count"]) if cell.reply else 0


def title_of(cell: Cell) -> str:
    return f"job {number_of(cell)} of cell {number_of_cell(cell)}"


def test_a_job_returns_at_once_and_shows_all_in_its_own_cell(notebook: KernelNotebook, signs: Signs) -> None:
    cell = notebook.run("%%mesh -a -o job\nprint('begun')\nhold()\nrank * 2")
    count = cell.reply["execution_count"] if cell.reply else 0
    (state,) = cell.displays
    assert state["text/plain"].startswith(f"job {number_of(cell)} of cell {count}: 3 ranks · 3 running · 00:0")
    assert f"job {number_of(cell)} of cell" in state["text/html"]
    assert notebook.evaluate(f"job is Out[{count}], job.done()") == (True, False)
    assert "3 running" in notebook.run("%mesh jobs").stdout.splitlines()[-1]
    other = notebook.run(f"{OPEN}\n(await job).values, job.done(), job.result(timeout=0)[1].stdout")
    assert other.result == "([0, 2, 4], True, 'begun\\n')"
    assert other.stdout == ""
    notebook.wait_until(lambda: len(cell.displays) > 1 and "3 done" in cell.outputs[0].data["text/plain"])
    assert "[0-2] begun\n" in text_of(cell)
    assert cell.displays[-1]["text/plain"] == "[0] 0\n[1] 2\n[2] 4"
    again = notebook.run("%mesh result job")
    assert again.displays[0]["text/plain"].startswith(f"{title_of(cell)}: 3 ranks · 3 done · 00:0")
    assert "[0-2] begun\n" in text_of(again)
    assert again.displays[-1]["text/plain"] == cell.displays[-1]["text/plain"]


def test_an_error_that_is_not_awaited_is_shown_in_its_cell_and_in_the_list(notebook: KernelNotebook) -> None:
    cell = notebook.run("%%mesh -a 1\n1 / 0")
    notebook.wait_until(lambda: bool(cell.contents("error") and cell.updates))
    assert cell.error["evalue"].startswith("[rank 1] ZeroDivisionError: division by zero (cell ")
    assert "----> 2 1 / 0" in cell.traceback
    assert "1 failed" in cell.outputs[0].data["text/plain"]
    assert "[rank 1] ZeroDivisionError" in notebook.run("%mesh jobs").stdout.splitlines()[-1]
    assert notebook.run("%%mesh failed\nrank").result == "[1] 1"
    number = number_of(cell)
    assert notebook.run_failing(f"%mesh result {number}").error["ename"] == "ZeroDivisionError"
    assert notebook.run_failing(f"job = Out[{number_of_cell(cell)}]\nawait job").error["ename"] == "ZeroDivisionError"
    assert notebook.evaluate("type(job.exception()).__name__, job.cancelled(), job.cancel()") == (
        "ZeroDivisionError",
        False,
        False,
    )


def areas_of(cell: Cell) -> list[str]:
    """The texts of its area, one after the other."""
    return [data["text/plain"] for data in [*cell.displays, *cell.updates]]


def test_a_later_cell_waits_for_the_ranks_and_says_so(notebook: KernelNotebook, signs: Signs) -> None:
    job = notebook.run("%%mesh -a 1:\nhold()")
    assert f"  ranks 1-2 run {title_of(job)} · " in notebook.run("%mesh status").stdout
    notebook.run("%mesh config plain_time 0.1")
    cell = notebook.start("%%mesh\ntell('free')\nrank")
    signs.wait_for("free")
    waiting = f"waiting for {title_of(job)} (ranks 1-2)"
    # In the area of a cell that takes longer.
    notebook.wait_until(lambda: any(" · 2 waiting · 1 done · " in text and waiting in text for text in areas_of(cell)))
    signs.path.with_name("gate").touch()
    notebook.wait(cell)
    assert cell.result == "[0] 0\n[1] 1\n[2] 2"
    notebook.run("%mesh config plain_time default")


def test_the_list_of_jobs_says_where_ranks_are_that_are_apart(notebook: KernelNotebook) -> None:
    notebook.run("from meshbook.magics.cells import divergence; divergence.PATIENCE = 0.2")
    notebook.run("%%mesh -a\nif rank == 1: hold()")
    while "2 ranks [0,2] done, rank 1 at cell " not in notebook.run("%mesh jobs").stdout:
        pass
    notebook.run(f"divergence.PATIENCE = 5.0; {OPEN}")


def test_ctrl_c_is_for_the_cell_that_waits_and_not_for_the_job(notebook: KernelNotebook, signs: Signs) -> None:
    job = notebook.run("%%mesh -a -o job\ntell('there'); hold()\nrank")
    signs.wait_for("there", 3)
    notebook.interrupt()  # no cell waits: it has no effect
    for line in ("%%mesh --timeout 600\nran = True", "await job", "job.result()", "%mesh result"):
        cell = notebook.start(line)
        notebook.wait_until(lambda cell=cell: bool(cell.contents("execute_input")))
        notebook.interrupt()
        notebook.wait_failed(cell)
        assert cell.error["ename"] in ("KeyboardInterrupt", "CancelledError")
    assert notebook.evaluate("job.done()") is False
    late = notebook.run_failing("job.result(timeout=0.01)").error
    assert late["evalue"] == f"{title_of(job)} has not ended within 0.01 s; it keeps running"
    assert notebook.run(f"{OPEN}\njob.result().values").result == "[0, 1, 2]"
    assert notebook.run("%%mesh\n'ran' in globals()").result == "[0-2] False"
    notebook.wait_until(lambda: len(job.displays) > 1)


def test_a_job_is_cancelled_with_what_waits_behind_it_unharmed(notebook: KernelNotebook, signs: Signs) -> None:
    job = notebook.run("%%mesh -a -o job\ntell('there'); hold()")
    behind = notebook.run("%%mesh -a\nrank")
    assert f"waiting for {title_of(job)}" in behind.displays[0]["text/plain"]
    signs.wait_for("there", 3)
    assert notebook.run("%mesh cancel job").stdout == f"interrupted {title_of(job)}\n"
    notebook.wait_until(lambda: bool(job.contents("error")) and len(behind.displays) > 1)
    assert job.error["ename"] == "KeyboardInterrupt"
    assert notebook.evaluate("job.cancelled(), job.done()") == (True, True)
    assert behind.displays[-1]["text/plain"] == "[0] 0\n[1] 1\n[2] 2"
    assert "nothing to cancel" in notebook.run("%mesh cancel").stdout


def test_what_was_cancelled_before_it_began_never_runs(notebook: KernelNotebook, signs: Signs) -> None:
    first = notebook.run("%%mesh -a -o first\nhold()")
    second = notebook.run("%%mesh -a -o second\nran = True")
    notebook.run("second.cancel()")
    notebook.wait_until(lambda: bool(second.contents("error")))
    assert second.error["evalue"] == f"interrupted; ranks 0-2 did not run: {title_of(first)} was still running"
    notebook.run(f"{OPEN}\nawait first;")
    assert notebook.run("%%mesh\n'ran' in globals()").result == "[0-2] False"


def test_a_mesh_goes_down_after_its_jobs(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run("%mesh up --gpus 1 --name other")
    gate = str(signs.path.with_name("gate"))
    job = notebook.run(f"%%mesh other -a\nimport os, time\nwhile not os.path.exists({gate!r}): time.sleep(0.005)")
    cell = notebook.start("%mesh down other")
    notebook.wait_until(lambda: f"waiting for {title_of(job)}" in cell.stdout)
    signs.path.with_name("gate").touch()
    notebook.wait(cell)
    assert cell.stdout.splitlines()[1:] == ["other is down", "the current mesh is now mesh"]
    notebook.wait_until(lambda: bool(job.updates))
    assert "1 rank · 1 done" in job.outputs[0].data["text/plain"]
    notebook.run("%mesh up --gpus 1 --name other")
    job = notebook.run("%%mesh other -a\nimport threading; threading.Event().wait()")
    assert notebook.run("%mesh down other --now").stdout.startswith("other is down\n")
    notebook.wait_until(lambda: bool(job.contents("error")))


@pytest.mark.parametrize(
    ("line", "problem"),
    [("%mesh result 4711", "no job '4711'; jobs: "), ("%mesh cancel nobody", "no job 'nobody'")],
)
def test_a_job_that_is_not_there(notebook: KernelNotebook, line: str, problem: str) -> None:
    assert problem in notebook.run_failing(line).error["evalue"]


# --- turns ---


def test_first_lets_some_ranks_finish_before_the_others_begin(notebook: KernelNotebook, signs: Signs) -> None:
    done = str(signs.path.with_name("done"))
    cell = notebook.run(f"%%mesh --first 1\nseen = os.path.exists({done!r})\nopen({done!r}, 'w').close()\nseen")
    assert cell.result == "[0,2] True\n[1] False"
    failed = notebook.run_failing("%%mesh --first 1\nbegan = rank\nif rank == 1: 1 / 0")
    assert failed.error["evalue"].splitlines()[1:] == ["ranks 0,2 did not run: a rank of --first failed"]
    assert "ranks 0,2 did not run" in failed.traceback
    assert notebook.run("%%mesh failed\n'began' in globals()").result == "[0,2] False\n[1] True"
    refused = notebook.run_failing("%%mesh 0:2 --first 2\n1")
    assert "--first 2 selects ranks that the cell does not run on" in refused.error["evalue"]


def test_seq_runs_rank_by_rank_and_stops_at_the_first_error(notebook: KernelNotebook) -> None:
    order = "import sys\nopen(gate + 'order', 'a').write(f'{rank} ')\nif rank == 1: 1 / 0"
    failed = notebook.run_failing(f"%%mesh --seq\n{order}")
    assert failed.error["evalue"].splitlines()[1:] == ["rank 2 did not run: --seq stops at the first error"]
    failed = notebook.run_failing(f"%%mesh --seq --on-error finish\n{order}")
    assert len(failed.error["evalue"].splitlines()) == 1
    assert notebook.evaluate("open(gate + 'order').read()") == "0 1 0 1 2 "


def test_an_interrupt_between_turns_names_the_ranks_that_did_not_run(notebook: KernelNotebook, signs: Signs) -> None:
    cell = notebook.start("%%mesh --seq\ntell('there'); hold(str(rank))")
    signs.wait_for("there")
    signs.path.with_name("gate0").touch()
    signs.wait_for("there")
    notebook.interrupt()
    notebook.wait_failed(cell)
    assert "; rank 2 did not run: the cell ended first" in cell.error["evalue"]
    assert cell.error["evalue"].startswith("interrupted; rank 1 was at ")


# --- here as well ---


def test_local_runs_the_cell_here_as_well(notebook: KernelNotebook) -> None:
    notebook.run("rank = 'here'")
    cell = notebook.run("%%mesh --local -o kept\nprint('mine', rank)\nimport asyncio\nawait asyncio.sleep(0)\nrank")
    assert "[local] mine here\n" in cell.stdout
    assert "[1] mine 1\n" in text_of(cell)
    assert cell.result == "[local] 'here'\n[0] 0\n[1] 1\n[2] 2"
    assert notebook.evaluate("kept['local'].value, kept['local'].stdout, kept.values, _ is kept") == (
        "here",
        "mine here\n",
        [0, 1, 2],
        True,
    )
    assert notebook.run("%%mesh --local\nNone if rank == 1 else 7;").result is None
    assert notebook.run("rank").result == "'here'"
    refused = notebook.run_failing("%%mesh --local -a\n1")
    assert "cannot be combined" in refused.error["evalue"]


def test_an_error_here_fails_the_cell(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run("rank = 'here'")
    failed = notebook.run_failing("%%mesh --local --on-error finish\nif rank in ('here', 1):\n    1 / 0\nrank")
    assert failed.error["ename"] == "ZeroDivisionError"
    first, second = failed.error["evalue"].splitlines()
    assert first == "[local] ZeroDivisionError: division by zero"
    assert second.startswith("[rank 1] ZeroDivisionError: division by zero")
    assert failed.traceback.startswith("[local] ZeroDivisionError: division by zero\n")
    assert f"Cell In[{number_of_cell(failed)}], line 3" in failed.traceback
    assert notebook.evaluate("__import__('sys').last_value.result[2].value") == 2
    stopped = notebook.run_failing("%%mesh --local\nif rank == 'here':\n    1 / 0\nhold()")
    assert "interrupted; rank" in stopped.error["evalue"]
    assert notebook.run_failing("%%mesh --local\nx = (1").error["ename"] == "SyntaxError"


@pytest.mark.parametrize(
    "wait", ["import threading\nwhile True: threading.Event().wait(0.05)", "import asyncio; await asyncio.sleep(600)"]
)
def test_an_interrupt_reaches_the_code_here_and_on_ranks(notebook: KernelNotebook, signs: Signs, wait: str) -> None:
    notebook.run(signs.definition)
    cell = notebook.start(f"%%mesh --local\ntell('there')\n{wait}")
    signs.wait_for("there", 4)
    notebook.interrupt()
    notebook.wait_failed(cell)
    assert cell.error["ename"] in ("KeyboardInterrupt", "CancelledError")
    assert cell.error["evalue"].splitlines()[0].startswith("[local] ")
    assert "interrupted; rank" in cell.error["evalue"]
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2"
