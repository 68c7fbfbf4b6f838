"""A cell that fails on some ranks: its reply, its traceback, its error object; and values that do not travel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]


def test_one_traceback_with_the_cells_own_lines(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing("%%mesh\nx = 1\n\nif rank >= 2:\n    1 / 0")
    number = failed.reply["execution_count"] if failed.reply else 0
    assert failed.error["ename"] == "ZeroDivisionError"
    assert failed.error["evalue"] == f"[ranks 2-3] ZeroDivisionError: division by zero (cell {number}:5)"
    first, *_, last = failed.traceback.splitlines()
    assert first == "[ranks 2-3] ZeroDivisionError: division by zero"
    assert last == "ZeroDivisionError: division by zero"
    assert f"In[{number}], line 5" in failed.traceback
    assert "----> 5     1 / 0" in failed.traceback
    assert failed.traceback.count("Traceback") == 1
    assert "meshbook" not in failed.traceback, "the runtime's own frames are of no use to anybody here"
    assert "local.py" not in notebook.run_failing("%%mesh\nimport meshbook\nmeshbook.RDMABuffer('text')").traceback


@pytest.mark.parametrize("magic", ["", "%%mesh 0\n"], ids=["in the notebook", "on a rank"])
def test_text_that_utf_8_cannot_encode_ends_no_cell_and_no_kernel(notebook: KernelNotebook, magic: str) -> None:
    text = r"'a\ud800b'"
    assert "a\ufffdb" in notebook.run(f"{magic}print({text})").stdout
    assert "a\ufffdb" in notebook.run_failing(f"{magic}raise ValueError({text})").traceback
    shown = notebook.run(f"{magic}from IPython.display import Markdown, display\ndisplay(Markdown({text}))")
    assert shown.displays
    assert notebook.run(f"{magic}{text}").result is not None


def test_lines_count_as_in_any_cell(notebook: KernelNotebook) -> None:
    # IPython itself drops them, so that they count in no cell.
    assert ":2)" in notebook.run_failing("\n\n%%mesh\n1 / 0").error["evalue"]
    assert ":2)" in notebook.run_failing("#mesh: 0\n1 / 0").error["evalue"]
    notebook.run("only_here = 1")
    assert "%mesh push only_here 0" in notebook.run_failing("%%mesh 0\nonly_here").traceback
    failed = notebook.run_failing("# a note\n\n%%mesh 0 -q\n1 / 0")
    assert "      3 %%mesh 0 -q\n----> 4 1 / 0\n" in failed.traceback
    assert "30;43m" in "".join(failed.error["traceback"])  # the part of the line that has failed
    assert "      1 #mesh: 0\n----> 2 1 / 0\n" in notebook.run_failing("#mesh: 0\n1 / 0").traceback


def test_the_frames_of_a_function_of_an_earlier_cell_have_their_source(notebook: KernelNotebook) -> None:
    defined = notebook.run("%%mesh\ndef step(x):\n    return 1 / x")
    number = defined.reply["execution_count"] if defined.reply else 0
    failed = notebook.run_failing("%%mesh\nstep(0)")
    assert f"(cell {number}:3 in step)" in failed.error["evalue"]
    assert "return 1 / x" in failed.traceback
    assert "step(0)" in failed.traceback


def test_cells_of_one_number_keep_their_source(notebook: KernelNotebook) -> None:
    notebook.run(
        "for name in ('early', 'late'):\n"
        "    get_ipython().run_cell_magic('mesh', '', f'def {name}(x):\\n    return {name}_missing / x\\n')"
    )
    shown = notebook.run("%%mesh 0\nimport inspect\nprint(inspect.getsource(early) + inspect.getsource(late))").plain
    assert shown.index("def early") < shown.index("early_missing") < shown.index("def late")
    traceback = notebook.run_failing("%%mesh 0\nearly(1)").traceback
    assert "return early_missing / x" in traceback
    assert "late_missing" not in traceback


def test_distinct_errors_are_shown_once_each(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing(
        "%%mesh --on-error finish\nif rank == 0: raise KeyError('zero')\nif rank in (1, 3): raise ValueError('odd')"
    )
    titles = [line for line in failed.traceback.splitlines() if line.startswith("[rank")]
    assert sorted(titles) == ["[rank 0] KeyError: 'zero'", "[ranks 1,3] ValueError: odd"]
    assert failed.error["ename"] in ("KeyError", "ValueError")


def test_the_first_failure_comes_first(notebook: KernelNotebook, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    failed = notebook.start(
        "%%mesh --on-error finish\nif rank == 2: raise KeyError('first')\n"
        f"if rank == 0: open({str(gate)!r}).read(); raise ValueError('then')"
    )
    notebook.wait_until(lambda: "1 failed" in str([*failed.displays, *failed.updates]))
    gate.write_text("go")
    notebook.wait_failed(failed)
    titles = [line for line in failed.traceback.splitlines() if line.startswith("[rank")]
    assert titles == ["[rank 2] KeyError: 'first'", "[rank 0] ValueError: then"]
    assert failed.error["ename"] == "KeyError"


def test_a_failure_stops_the_ranks_that_still_run(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing(
        "%%mesh\nimport time\nif rank == 1: raise ValueError('one')\ntime.sleep(60)", timeout=20
    )
    assert failed.error["ename"] == "ValueError"
    assert "ranks 0,2-3 failed as a consequence (KeyboardInterrupt at cell" in failed.traceback
    assert notebook.run("%%mesh failed\nrank;").outputs == []


def test_on_error_finish_lets_the_others_finish(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing(
        "%%mesh --on-error finish\nimport time\nif rank == 1: raise ValueError('one')\n"
        "time.sleep(0.8); finished = 'yes'"  # longer than the half second after which `stop` interrupts
    )
    assert "consequence" not in failed.traceback
    assert notebook.run("%%mesh !1\nfinished").result == "[0,2-3] 'yes'"


def test_what_was_printed_before_the_failure_is_shown(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing("%%mesh\nprint('before')\nassert rank")
    assert failed.stdout == "[0-3] before\n"
    assert [output.output_type for output in failed.outputs] == ["stream", "error"]


def test_a_syntax_error_is_shown_once_with_its_line(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing("%%mesh\nx = 1\n1 +* 2")
    assert failed.error["ename"] == "SyntaxError"
    assert failed.traceback.startswith("[ranks 0-3] SyntaxError: invalid syntax")
    assert "line 3" in failed.traceback
    assert "    1 +* 2\n       ^" in failed.traceback


@pytest.mark.parametrize("source", ["exit()", "quit()", "import sys; sys.exit(3)", "raise SystemExit"])
def test_exit_in_a_cell_is_an_error_and_ends_no_rank(notebook: KernelNotebook, source: str) -> None:
    failed = notebook.run_failing(f"%%mesh\n{source}")
    assert "%mesh down ends all ranks" in failed.error["evalue"]
    assert failed.stderr == ""
    assert "shell.py" not in failed.traceback
    assert notebook.run("%%mesh\n1").result == "[0-3] 1"


def test_a_group_of_exceptions_is_shown_whole(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing("%%mesh\nraise ExceptionGroup('many', [ValueError(1), KeyError(2)])")
    assert "| ValueError: 1" in failed.traceback
    assert "| KeyError: 2" in failed.traceback
    assert failed.stderr == ""


def test_a_misused_magic_is_reported_once(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing("%%mesh\n%bogus")
    assert failed.error["ename"] == "UsageError"
    assert failed.stderr == ""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("%mesh status", "%mesh works only in the notebook, not on ranks; use it in a cell of its own"),
        ("%%mesh 0\n1", "%%mesh works only in the notebook, not on ranks; put it on the first line"),
    ],
)
def test_a_magic_of_the_notebooks_says_so_on_ranks(notebook: KernelNotebook, line: str, told: str) -> None:
    failed = notebook.run_failing(f"%%mesh\n{line}")
    assert failed.error["ename"] == "UsageError"
    assert told in failed.error["evalue"]


def test_an_exception_of_the_users_own_class(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing("%%mesh\nclass Unhappy(Exception): pass\nraise Unhappy('so', rank // 4)")
    assert failed.error["ename"] == "Unhappy"
    assert "[ranks 0-3] Unhappy: ('so', 0)" in failed.traceback


@pytest.mark.parametrize(
    "source",
    [
        "class Odd(Exception):\n    def __str__(self): raise ValueError('no text')\nraise Odd",
        "class Odd(Exception):\n    def __reduce__(self): raise ValueError('no pickle')\nraise Odd('fine')",
        "raise ValueError('x' * 3_000_000)",
        "raise BaseException('base')",
        "raise GeneratorExit",
        "raise KeyboardInterrupt",
        "import asyncio; raise asyncio.CancelledError",
        "raise StopIteration",
        "import sys\nsys.setrecursionlimit(300)\ndef down(): down()\n"
        "try:\n    down()\nfinally:\n    sys.setrecursionlimit(3000)",
    ],
)
def test_an_odd_exception_fails_the_cell_and_breaks_nothing(notebook: KernelNotebook, source: str) -> None:
    failed = notebook.run_failing(f"%%mesh\n{source}", timeout=30)
    assert len(failed.as_notebook()) < 2_000_000
    assert notebook.run("%%mesh\n1").result == "[0-3] 1"


def test_the_error_can_be_asked_by_rank(notebook: KernelNotebook) -> None:
    notebook.run_failing("%%mesh --on-error finish\nif rank in (1, 2): raise ValueError(f'mine: {rank}')\nrank * 2")
    notebook.run("import sys; error = sys.last_value")
    assert notebook.evaluate("sorted(error.by_rank), error.by_rank[2].message, len(error.groups)") == (
        [1, 2],
        "mine: 2",
        2,
    )
    assert notebook.evaluate("error.result.values") == [0, None, None, 6]
    assert notebook.evaluate("type(error).__name__") == "ValueError"
    failed = notebook.run_failing("error.raise_from_rank(2)")
    assert (failed.error["ename"], failed.error["evalue"]) == ("ValueError", "mine: 2")
    assert "rank 0 did not fail" in notebook.run_failing("error.raise_from_rank(0)").error["evalue"]


def test_an_interrupt_while_an_error_is_rendered_costs_its_rendering_alone(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing(
        "%%mesh 0:2\nimport time\nclass Slow(Exception):\n    told = False\n    def __str__(self):\n"
        "        if not Slow.told: Slow.told = True; time.sleep(60)\n        return 'slow'\n"
        "raise Slow if rank else ValueError('quick')",
        timeout=30,
    )
    assert failed.stderr == ""
    assert "[rank 0] ValueError: quick" in failed.traceback
    assert "[rank 1] Slow: slow" in failed.traceback


def test_xmode_minimal_shows_a_line(notebook: KernelNotebook) -> None:
    notebook.run("%xmode Minimal")
    failed = notebook.run_failing("%%mesh\n1 / 0")
    notebook.run("%xmode Context")
    assert failed.traceback == failed.error["evalue"]


def test_the_result_of_a_cell_that_failed_is_there(notebook: KernelNotebook) -> None:
    notebook.run_failing("%%mesh -o kept\nprint(rank)\nif rank == 1: raise ValueError('one')\nrank * 2")
    assert notebook.evaluate("kept.values, kept[1].stdout") == ([0, None, 4, 6], "1\n")
    assert notebook.evaluate("kept[1].error.type_name") == "ValueError"
    assert "[rank 1] ValueError: one" in notebook.run("%tb").traceback


def test_a_misused_cell_magic_shows_the_cell_alone(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing("%%mesh\n%%nonsense\nx")
    assert "site-packages" not in failed.traceback
    assert "Cell magic `%%nonsense` not found" in failed.traceback


def test_input_in_a_cell_is_refused_at_once(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing("%%mesh\ninput('name: ')")
    assert failed.error["ename"] == "StdinNotImplementedError"
    assert "this front end does not support input requests" in failed.traceback


# --- values ---


def test_a_value_that_cannot_be_pickled_is_shown(notebook: KernelNotebook) -> None:
    cell = notebook.run(
        "%%mesh -o kept\nimport threading\nclass Lock:\n    def __init__(self): self.lock = threading.Lock()\n"
        "    def __repr__(self): return 'a lock'\nLock()"
    )
    assert cell.result == "[0-3] a lock"
    failed = notebook.run_failing("kept[0].value")
    assert "cannot be pickled" in failed.error["evalue"]


def test_a_value_of_a_class_of_a_cell_travels(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh -o kept\nclass Thing:\n    def __init__(self, size): self.size = size\nThing(rank)")
    assert notebook.evaluate("[thing.size for thing in kept.values]") == [0, 1, 2, 3]


def test_a_large_value_stays_with_its_rank_until_it_is_wanted(notebook: KernelNotebook) -> None:
    cell = notebook.run(
        "%%mesh -o kept\nimport numpy\nfull = numpy.full((1024, 1024), float(rank), numpy.float32)\nfull"
    )
    assert cell.result is not None
    assert cell.result.startswith("[0-3] ndarray (1024, 1024) float32 cpu\n")
    assert "[2] min 2  mean 2  max 2" in cell.result
    notebook.run("%%mesh\nfull += 1  # the value is what it was at the end of its cell")
    assert notebook.evaluate("kept[3].outcome.value.pickled is None, kept[3].value.sum().item()") == (True, 3 * 2.0**20)
    assert notebook.evaluate("tuple(kept.stack().shape)") == (4, 1024, 1024)
    cell = notebook.run("%%mesh 0 -o kept\n'x' * 5_000_000")
    assert cell.result is not None
    assert len(cell.result) < 100_000
    assert notebook.evaluate("len(kept[0].value)") == 5_000_000


def test_a_large_value_that_is_gone_says_so(notebook: KernelNotebook) -> None:
    """A rank keeps that of the last cell, those of results with a name, and those that its variables hold."""
    notebook.run("%%mesh 0 -o kept\nb'x' * 2_000_000")
    shown = [notebook.run(f"%%mesh 0\n{value}") for value in ("b'x' * 2_000_000", "full", "b'x' * 2_000_000")]
    gone, held, last = [cell.reply["execution_count"] if cell.reply else 0 for cell in shown]
    assert "the value was discarded" in notebook.run_failing(f"Out[{gone}][0].value").error["evalue"]
    assert notebook.evaluate(f"[len(each[0].value) for each in (kept, Out[{held}], Out[{last}])]") == [
        *(2_000_000, 1024, 2_000_000)
    ]


@pytest.mark.parametrize("body", ["raise ValueError('no text')", "return 7"])
def test_a_value_whose_text_cannot_be_made_fails_the_cell(notebook: KernelNotebook, body: str) -> None:
    failed = notebook.run_failing(f"%%mesh\nclass Odd:\n    def __repr__(self): {body}\nOdd()")
    assert failed.error["ename"] in ("ValueError", "TypeError")
    assert "meshbook" not in failed.traceback


@pytest.mark.parametrize(
    "source",
    [
        "class Odd:\n    def __getattr__(self, name): raise RuntimeError(name)\nOdd()",
        "class Odd:\n    def _repr_html_(self): raise ValueError('no html')\nOdd()",
        "class Odd:\n    def __reduce__(self): raise ValueError('no pickle')\nOdd()",
    ],
)
def test_an_odd_value_is_shown_all_the_same(notebook: KernelNotebook, source: str) -> None:
    assert "<__main__.Odd at " in (notebook.run(f"%%mesh\n{source}").result or "")


def test_a_section_about_an_error_is_shown_as_markdown(notebook: KernelNotebook) -> None:
    (shown,) = notebook.run("%mesh explain GroupError").displays
    assert shown["text/markdown"].startswith("### GroupError\n\n`init_process_group`")
    assert shown["text/plain"].startswith("GroupError\n\n")
    assert "\ngrouperror  " in notebook.run("%mesh explain").stdout
