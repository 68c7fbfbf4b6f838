"""`mesh.map` in a notebook: variables of the ranks, output, errors with the lines of cells, Ctrl-C, deaths."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]


@pytest.fixture(autouse=True)
def _ranks_can_tell(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(f"%%mesh\n{signs.definition}\nimport time\nbase = 100 * rank")


def test_functions_see_the_variables_of_their_rank_and_of_the_notebook(notebook: KernelNotebook) -> None:
    notebook.run("factor = 2\ndef f(x): return base // 100, factor * x")
    assert notebook.run("[x for _, x in mesh.map(f, range(6))]").result == "[0, 2, 4, 6, 8, 10]"
    notebook.run("result = mesh.map(f, range(40))\nassert {r.rank for r in result.runs if r} <= {r for r, _ in result}")
    assert notebook.run("mesh.slice(gpus=2).map(f, [5]).get()").result == "[(2, 10)]"


def test_what_items_print_is_in_the_cell_and_errors_name_its_lines(notebook: KernelNotebook) -> None:
    cell = notebook.run("def g(x):\n    print('at', x)\n    return 1 / x\nresult = mesh.map(g, [1, 2])\nresult.get()")
    assert cell.result == "[1.0, 0.5]"
    assert "at 1" in cell.plain
    assert "at 2" in cell.plain
    failed = notebook.run_failing("mesh.map(g, [1, 0, 2]).get()")
    assert failed.error["ename"] == "ItemError"
    assert "item 1 of g failed on rank" in failed.error["evalue"]
    assert "return 1 / x" in failed.traceback


def test_helpers_see_the_variables_of_their_rank_and_globals_are_written_there(notebook: KernelNotebook) -> None:
    notebook.run(
        "factor, total = 2, 0\n"
        "def helper(x): return (base >= 0) * factor * x\n"
        "def count(x):\n    global total\n    total += sum(helper(y) for y in (x,))\n    return total"
    )
    notebook.run("%%mesh\ntotal = 0")
    notebook.run("mesh.map(count, [1, 2, 3, 4]).get()")
    assert notebook.run("sum(mesh.pull('total')), total").result == "(20, 0)"
    assert notebook.run_failing("%%mesh 0\nhelper").error["ename"] == "NameError"


def test_functions_of_the_notebook_have_their_source_on_ranks(notebook: KernelNotebook) -> None:
    notebook.run("import inspect\ndef helper(x):\n    return x * 4")
    assert "return x * 4" in str(notebook.run("mesh.map(lambda x: inspect.getsource(helper), [1]).get()[0]").result)


def test_a_bar_shows_the_progress_of_a_longer_map(notebook: KernelNotebook) -> None:
    cell = notebook.run("quick = mesh.map(abs, range(4)).get()")
    assert cell.displays == []
    cell = notebook.run("import time\nmesh.map(time.sleep, [0.3] * 12).get();")
    (bar,) = [each["text/plain"] for each in cell.displays]
    assert bar.startswith("map of sleep ")
    assert "12/12" in cell.updates[-1]["text/plain"]
    assert notebook.run("mesh.map(time.sleep, [0.3] * 12, progress=False).get();").displays == []


def test_failures_that_no_code_reads_are_shown_in_the_cell_of_the_map(notebook: KernelNotebook) -> None:
    cell = notebook.run("unread = mesh.map(lambda x: 1 / x, range(3))")
    notebook.wait_until(lambda: "\n" in cell.stderr)
    assert cell.stderr.startswith("map of <lambda>: 1 of 3 items failed, and no code has read that")
    assert notebook.run("unread").result == "<MapResult of <lambda>: 3 of 3 items done, 1 failed>"
    read = notebook.run_failing("list(mesh.map(lambda x: 1 / x, range(3)))")
    assert (read.error["ename"], read.stderr) == ("ItemError", "")


def test_an_interrupt_cancels_what_has_not_begun(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(
        "import os\n"
        "def wait(x):\n    tell('there')\n    fifo = open('go') if x < 4 else None\n    return x\n"
        "os.path.exists('go') or os.mkfifo('go')\n"
        "here = os.getcwd()\n"
    )
    notebook.run("%%mesh --push here\nimport os; os.chdir(here)")
    notebook.run(f"{signs.watcher}\nfrom meshbook.runtime.threads import Latch")
    cell = notebook.start("result = mesh.map(wait, range(20), chunksize=1)\nwatch(Latch.wait)\nresult.get()")
    signs.wait_for("waiting")
    signs.wait_for("there", 4)
    notebook.interrupt()
    notebook.wait_failed(cell)
    assert cell.error["ename"] == "KeyboardInterrupt"
    notebook.run("gate = open('go', 'w')")
    assert notebook.run("result.wait(60)").result == "True"
    assert notebook.evaluate("[i for i in range(20) if i not in result.errors]") == [0, 1, 2, 3]


def test_a_rank_that_is_at_something_else_holds_back_no_item(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run("import os, tempfile\nfolder = tempfile.mkdtemp()\nos.mkfifo(f'{folder}/go')")
    notebook.run("%%mesh 0 -a --push folder\ntell('busy')\nopen(f'{folder}/go').close()")
    signs.wait_for("busy")
    assert notebook.run("mesh.map(lambda x: (rank, x), range(12)).wait(60)").result == "True"
    assert notebook.evaluate("{r for r, _ in mesh.map(lambda x: (rank, x), range(12))} <= {1, 2, 3}") is True
    notebook.run("open(f'{folder}/go', 'w').close()")
    notebook.run("%%mesh 0\nrank")


def test_items_of_a_rank_that_dies_are_handed_out_again(open_notebook: Callable[..., KernelNotebook]) -> None:
    notebook = open_notebook()
    notebook.run("%mesh up --gpus 2")
    notebook.run("import os, tempfile\nmark = tempfile.mktemp()")
    notebook.run(
        "def fall(x):\n    if rank == 1 and not os.path.exists(mark):\n"
        "        open(mark, 'w').close()\n        os.kill(os.getpid(), 9)\n    return x"
    )
    notebook.run("result = mesh.map(fall, range(20), chunksize=1)\nvalues = result.get(60)\nos.remove(mark)")
    assert notebook.evaluate("values") == list(range(20))
    assert notebook.evaluate("set(result.handed_out_again.values())") == {(1,)}
    notebook.run("%mesh heal")
    notebook.run("result = mesh.map(lambda x: rank, range(20), chunksize=1)")
    assert notebook.evaluate("set(result.get())") == {0, 1}
