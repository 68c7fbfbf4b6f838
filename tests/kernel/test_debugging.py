"""`breakpoint()` and the post-mortem on ranks, in our kernel and in a stock one."""

from __future__ import annotations

import re
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
    with make_notebook(request.param) as notebook:
        notebook.run("%mesh up --gpus 3")
        notebook.run("%%mesh\nimport threading, pdb")
        yield notebook


def number_of(cell: Cell) -> int:
    assert cell.reply is not None
    return int(cell.reply["execution_count"])


SPLIT = """%%mesh
def step(x):
    breakpoint()
    if rank == 0:
        x += 5
    y = x * 2
    return y
step(10)"""


def test_ranks_step_together_part_and_are_debugged_one_by_one(notebook: KernelNotebook) -> None:
    cell, prompts = notebook.converse(SPLIT, "p x + rank", "n", "n", "ranks", "@gpus=1:3 p x", "p x", "@all c")
    at = f"cell {number_of(cell)}"
    assert prompts == [
        f"[ranks 0-2 {at}:3 in step] (Pdb) ",
        f"[ranks 0-2 {at}:3 in step] (Pdb) ",
        f"[ranks 0-2 {at}:4 in step] (Pdb) ",
        f"[rank 0 {at}:5 in step] (Pdb) ",
        f"[rank 0 {at}:5 in step] (Pdb) ",
        f"[rank 0 {at}:5 in step] (Pdb) ",
        f"[rank 0 {at}:5 in step] (Pdb) ",
    ]
    assert cell.result == "[0] 30\n[1-2] 20"
    said = cell.plain
    assert "[0-2] ----> 3     breakpoint()\n" in said  # the cell's own lines, once for all
    assert "[0] 10\n[1] 11\n[2] 12\n" in said
    assert f"also stopped: ranks 1-2 at {at}:6 in step\n" in said
    assert f"rank 0 stopped at {at}:5 in step   <- commands go here\n" in said
    assert "[1-2] 10\n[0] 10\n" in said


def test_each_statement_of_a_cell_is_a_step_awaits_included(notebook: KernelNotebook) -> None:
    source = "%%mesh 0\nimport asyncio\nbreakpoint()\nawait asyncio.sleep(0)\nx = 1\nx"
    cell, prompts = notebook.converse(source, "n", "n", "s", "c")
    at = f"[rank 0 cell {number_of(cell)}"
    assert prompts == [f"{at}:{line}] (Pdb) " for line in (3, 4, 5, 6)]


def test_only_chosen_ranks_stop_and_the_others_go_on(notebook: KernelNotebook) -> None:
    cell, prompts = notebook.converse("%%mesh --break 1\npdb.set_trace()\nprint('on')", "c")
    assert prompts == [f"[rank 1 cell {number_of(cell)}:2] (Pdb) "]
    assert cell.plain.startswith("[0,2] on\n")


def test_a_breakpoint_set_at_the_prompt_holds_for_its_cell(notebook: KernelNotebook) -> None:
    source = "%%mesh 0\ndef f():\n    return 3\nbreakpoint()\nf()"
    cell, prompts = notebook.converse(source, "b f", "c", "c")
    assert prompts[-1] == f"[rank 0 cell {number_of(cell)}:3 in f] (Pdb) "
    assert notebook.run("%%mesh 0\nf()").result == "[0] 3"


def test_a_rank_is_debugged_while_others_wait_for_it(notebook: KernelNotebook) -> None:
    """Two stand where only the third can free them: the prompt turns to that."""
    notebook.run(
        "%%mesh\nimport torch, torch.distributed as dist\n"
        "if not dist.is_initialized(): dist.init_process_group('gloo')\nt = torch.ones(1); dist.all_reduce(t)"
    )
    source = "%%mesh\nt = torch.ones(1)\nbreakpoint()\ndist.all_reduce(t)\nt.item()"
    cell, prompts = notebook.converse(source, "@0 c", "ranks", "c")
    at = f"cell {number_of(cell)}"
    assert prompts[1:] == [f"[ranks 1-2 {at}:3] (Pdb) "] * 2
    assert f"rank 0 not stopped: in all_reduce ({at}:4)\n" in cell.plain
    assert cell.result == "[0-2] 3.0"


def test_quitting_ends_the_cell_in_a_line(notebook: KernelNotebook) -> None:
    cell, _ = notebook.converse("%%mesh\nbreakpoint()\nprint('nev' + 'er')", "q")
    at = f"cell {number_of(cell)}:2"
    assert cell.error["evalue"] == f"[ranks 0-2] BdbQuit: the user quit the debugger ({at})"
    assert "never" not in cell.plain
    assert "bdb.py" not in cell.traceback


def test_an_interrupt_ends_the_cell_at_the_prompt(notebook: KernelNotebook) -> None:
    cell = notebook.start_asking("%%mesh\nbreakpoint()")
    notebook.wait_for_prompt()
    notebook.interrupt()
    notebook.wait_failed(cell)
    assert cell.error["ename"] == "KeyboardInterrupt"


def test_an_interrupt_ends_the_cell_while_a_command_runs(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(f"%%mesh\n{signs.definition}")
    cell = notebook.start_asking("%%mesh\nbreakpoint()")
    notebook.wait_for_prompt()
    notebook.client.input("tell('there') or threading.Event().wait()")
    signs.wait_for("there", 3)
    notebook.interrupt()
    notebook.wait_failed(cell)
    assert cell.error["ename"] == "KeyboardInterrupt"


def test_a_breakpoint_without_a_prompt_is_an_error(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing("%%mesh\nbreakpoint()")
    assert failed.error["ename"] == "StdinNotImplementedError"
    assert "breakpoint(): this front end does not support input requests" in failed.error["evalue"]
    assert "debugger.py" not in failed.traceback
    assert notebook.run(
        "%%mesh --break 0\nif rank: breakpoint()\nrank"
    ).result  # a rank that does not stop there continues


def test_an_error_is_debugged_where_it_was_raised(notebook: KernelNotebook) -> None:
    source = "%%mesh --on-error debug\nzero = rank - rank\nif rank: 1 / zero\nprint('done')"
    cell, prompts = notebook.converse(source, "p rank, zero", "q")
    at = f"cell {number_of(cell)}:3"
    assert prompts == [f"[ranks 1-2 {at}] (Pdb) "] * 2
    assert "[0] done\n" in cell.plain
    assert "[1-2] ZeroDivisionError: division by zero\n" in cell.plain
    assert "[1] (1, 0)\n[2] (2, 0)\n" in cell.plain
    assert cell.error["evalue"] == f"[ranks 1-2] ZeroDivisionError: division by zero ({at})"
    again, prompts = notebook.converse("%%mesh failed\n%debug", "q")
    assert prompts == [f"[ranks 1-2 {at}] (Pdb) "]
    assert again.reply is not None
    assert again.reply["status"] == "ok"


def test_a_person_in_the_debugger_is_not_thrown_out_by_another_ranks_error(
    notebook: KernelNotebook, signs: Signs
) -> None:
    notebook.run(f"%%mesh\n{signs.definition}")
    cell = notebook.start_asking("%%mesh\nif rank: tell('fails'); 1 / 0\nbreakpoint()")
    notebook.wait_for_prompt()
    signs.wait_for("fails", 2)
    notebook.client.input("threading.Event().wait(1)")  # longer than the others would be given otherwise
    assert re.fullmatch(r"\[rank 0 cell \d+:3\] \(Pdb\) ", notebook.wait_for_prompt())
    notebook.client.input("q")
    notebook.wait_failed(cell)
    assert cell.error["ename"] == "ZeroDivisionError"


def test_failed_ranks_of_the_last_cell_are_debugged_afterwards(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing("%%mesh\nnames = {}\nif rank != 1: names['lost']")
    at = f"cell {number_of(failed)}:3"
    for _ in range(2):  # the debugger is no cell of its own
        cell, prompts = notebook.converse("%mesh debug", "p rank", "q")
        assert prompts == [f"[ranks 0,2 {at}] (Pdb) "] * 2
        assert "[0,2] KeyError: 'lost'\n" in cell.plain
        assert "[0] 0\n[2] 2\n" in cell.plain
    _, prompts = notebook.converse("%mesh debug 2", "q")
    assert prompts == [f"[rank 2 {at}] (Pdb) "]
    assert "the debugger needs a prompt" in notebook.run_failing("%mesh debug").error["evalue"]
    notebook.run("%%mesh failed\nrank")
    assert "no living rank of mesh failed" in notebook.run_failing("%mesh debug").error["evalue"]


def test_a_rank_at_a_prompt_is_paused(notebook: KernelNotebook) -> None:
    # Two seconds, so that a slow machine has come to the prompt by then.
    cell = notebook.start_asking("%%mesh --timeout 2\nif rank == 0: input('?')\nthreading.Event().wait()")
    assert notebook.wait_for_prompt() == "[rank 0] ?"
    notebook.wait_failed(cell)
    assert f"rank 0 paused in input() at cell {number_of(cell)}:2" in cell.error["evalue"]


def test_what_a_command_runs_may_stop_too(notebook: KernelNotebook) -> None:
    source = "%%mesh 0\ndef f():\n    breakpoint()\n    return 4\nx = 1\nbreakpoint()\nx = 2\nx"
    cell, prompts = notebook.converse(source, "p f()", "c", "n", "debug f()", "c", "c", "c")
    at = f"[rank 0 cell {number_of(cell)}"
    inside = f"{at}:3 in f] (Pdb) "
    assert prompts == [
        f"{at}:6] (Pdb) ",
        inside,
        f"{at}:6] (Pdb) ",
        f"{at}:7] (Pdb) ",
        f"{at}:2 in f] (Pdb) ",
        inside,
        f"{at}:7] (Pdb) ",
    ]
    assert "[0] 4\n" in cell.plain
    assert cell.result == "[0] 2"


def test_threads_of_a_rank_are_in_the_debugger_one_after_the_other(notebook: KernelNotebook) -> None:
    cell, _ = notebook.converse(
        "%%mesh 0\ndef work(name):\n    pdb.set_trace()\n    print(f'{name} goes on\\n', end='')\n"
        "threads = [threading.Thread(target=work, args=(name,)) for name in 'abcdef']\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()",
        *["p name", "c"] * 6,
    )
    assert sorted(re.findall("(.) goes on\n", cell.plain)) == list("abcdef")


def test_debugged_objects_are_not_kept_alive(notebook: KernelNotebook) -> None:
    source = (
        "%%mesh 0\nimport weakref\nclass Big: pass\ndef hold():\n    big = Big(); hold.ref = weakref.ref(big)\n"
        "    breakpoint()\nhold()"
    )
    notebook.converse(source, "n", "n")
    assert notebook.run("%%mesh 0\nimport sys\nhold.ref(), sys.gettrace()").result == "[0] (None, None)"
