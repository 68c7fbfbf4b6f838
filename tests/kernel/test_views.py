"""Programs written for ipyparallel, in a notebook: what `end_to_end/test_ipyparallel_programs` does not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]


@pytest.fixture(scope="module")
def notebook(make_notebook: Any) -> Iterator[KernelNotebook]:
    with make_notebook(torch=False) as notebook:
        notebook.run("%load_ext meshbook.magics.compat\nimport ipyparallel as ipp")
        notebook.run("rc = ipp.Cluster(n=2).start_and_connect_sync()\ndv, lv = rc[:], rc.load_balanced_view()")
        yield notebook


def test_px_is_run_by_programs(notebook: KernelNotebook) -> None:
    cell = notebook.run("result = get_ipython().run_cell_magic('px', '--targets 1 -o kept', 'print(rank)\\nrank + 5')")
    assert "[1] 1" in cell.plain
    assert notebook.evaluate("kept.values") == [6]
    assert notebook.run_failing("get_ipython().run_cell_magic('px', '', '1 / 0')").error["ename"] == "ZeroDivisionError"


def test_px_runs_on_the_ranks_of_the_activated_view(notebook: KernelNotebook) -> None:
    notebook.run("rc[1].activate()")
    assert notebook.run("%px rank").result == "[1] 1"
    assert notebook.run("%%px\nrank + 5").result == "[1] 6"
    assert notebook.run("%%px --targets 0\nrank").result == "[0] 0"
    notebook.run("dv.activate()")
    assert notebook.run("%%px\nrank").result == "[0] 0\n[1] 1"


def test_px_returns_a_job_where_it_does_not_wait(notebook: KernelNotebook) -> None:
    notebook.run("%pxconfig --noblock")
    notebook.run("later = %px rank + 1")
    assert notebook.evaluate("later.get().values") == [1, 2]
    notebook.run("%pxconfig --block")


def test_the_traceback_of_a_px_cell_has_the_line_of_the_user(notebook: KernelNotebook) -> None:
    traceback = notebook.run_failing("%%px --targets 1\n1 / 0").traceback
    assert "1 %%px --targets 1\n" in traceback
    assert "%%mesh" not in traceback


def test_errors_of_cells_have_what_programs_ask(notebook: KernelNotebook) -> None:
    cell = notebook.run(
        "try:\n    get_ipython().run_cell_magic('px', '', '1 / 0')\n"
        "except ipp.RemoteError as error:\n    print(error.ename, error.evalue)\n    error.print_traceback()"
    )
    assert "ZeroDivisionError division by zero\n" in cell.plain
    assert "1 / 0" in cell.plain


def test_tasks_that_have_not_begun_are_aborted(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(f"dv.execute({signs.definition!r}, block=True)\nimport os, tempfile\nfolder = tempfile.mkdtemp()")
    notebook.run(
        "os.mkfifo(f'{folder}/go')\n"
        "def wait(path):\n    tell('there')\n    open(path).close()\n    return 1\n"
        "running = [lv.apply_async(wait, f'{folder}/go') for _ in range(2)]\n"
        "waiting = [lv.apply_async(wait, f'{folder}/go') for _ in range(4)]"
    )
    signs.wait_for("there", 2)
    assert notebook.evaluate("rc.queue_status()['unassigned'] + sum(rc.queue_status(r)['tasks'] for r in (0, 1))") == 6
    notebook.run("rc.abort(waiting)\nrc.wait(waiting)")
    cell = notebook.run("try: waiting[0].get()\nexcept ipp.error.TaskAborted as error: print('aborted')")
    assert cell.plain == "aborted\n"
    notebook.run("open(f'{folder}/go', 'w').close()")
    assert notebook.evaluate("[each.get(60) for each in running]") == [1, 1]
    assert notebook.evaluate("rc.queue_status()['unassigned']") == 0


def test_a_task_whose_dependency_no_rank_meets_fails(notebook: KernelNotebook) -> None:
    notebook.run(
        "@ipp.require('no_such_module')\ndef task(): return 1\n@ipp.depend(lambda: False)\ndef never(): return 1"
    )
    for name in ("task", "never"):
        cell = notebook.run(f"try: lv.apply_sync({name})\nexcept ipp.RemoteError as error: print(error.ename)")
        assert cell.plain == "UnmetDependency\n"


def test_a_task_that_fails_is_tried_again(notebook: KernelNotebook) -> None:
    notebook.run(
        "import tempfile\nmark = tempfile.mktemp()\n"
        "def sometimes(mark):\n    import os\n    if not os.path.exists(mark):\n        open(mark, 'w').close()\n"
        "        raise OSError('not yet')\n    os.remove(mark)\n    return 'done'"
    )
    assert (
        notebook.run("with lv.temp_flags(retries=1): found = lv.apply_sync(sometimes, mark)\nfound").result == "'done'"
    )
    assert notebook.run_failing("lv.apply_sync(sometimes, mark)").error["ename"] == "OSError"
    notebook.run("import os; os.remove(mark)")


def test_progress_and_outputs_are_shown(notebook: KernelNotebook) -> None:
    cell = notebook.run("ar = lv.map_async(lambda x: print('item', x), range(3))\nar.wait_interactive()")
    assert "3/3" in (cell.updates or cell.displays)[-1]["text/plain"]
    assert notebook.run("ar.display_outputs()").plain.count("item") == 3
    cell = notebook.run(
        "said = dv.execute('from IPython.display import HTML\\nHTML(\"<b>\")', silent=False)\n"
        "said.get()\nsaid.display_outputs()"
    )
    assert [each["text/html"] for each in cell.displays] == ["<b>", "<b>"]


def test_an_interrupt_cancels_tasks_that_have_not_begun(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(f"dv.execute({signs.definition!r}, block=True)\nimport os, tempfile\nfolder = tempfile.mkdtemp()")
    notebook.run("os.mkfifo(f'{folder}/go')\ndef wait(path):\n    tell('there')\n    open(path).close()")
    # An interrupt before the wait would stop the cell's code elsewhere, and cancel nothing.
    notebook.run(f"{signs.watcher}\nfrom meshbook.magics.compat.calls import wait_for")
    cell = notebook.start("ar = lv.map_async(wait, [f'{folder}/go'] * 9, chunksize=1)\nwatch(wait_for)\nar.get()")
    signs.wait_for("waiting")
    signs.wait_for("there", 2)
    notebook.interrupt()
    notebook.wait_failed(cell)
    assert cell.error["ename"] == "KeyboardInterrupt"
    notebook.run("go = open(f'{folder}/go', 'w')")
    assert notebook.evaluate("ar.wait(60), sum(status == 'ok' for status in ar.status)") == (True, 2)


def test_tasks_of_a_rank_that_dies_are_done_by_others(open_notebook: Callable[..., KernelNotebook]) -> None:
    notebook = open_notebook()
    notebook.run("%load_ext meshbook.magics.compat\nimport ipyparallel as ipp, os, tempfile")
    notebook.run("lv = ipp.Cluster(n=2).start_and_connect_sync().load_balanced_view()\nmark = tempfile.mktemp()")
    notebook.run(
        "def fall(mark, x):\n    import os\n    if rank == 1 and not os.path.exists(mark):\n"
        "        open(mark, 'w').close()\n        os.kill(os.getpid(), 9)\n    return x"
    )
    assert notebook.evaluate("lv.map_sync(fall, [mark] * 8, range(8), chunksize=1)") == list(range(8))
    assert notebook.evaluate("os.remove(mark), lv.apply_sync(abs, -1)") == (None, 1)
