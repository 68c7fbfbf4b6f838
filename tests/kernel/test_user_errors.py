"""Mistakes in a cell or its options: an error of one clear line, before anything runs; and the next cell works.

Mistakes in the verbs of `%mesh`, and the selectors and options that `test_start_stop` has, are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook

OURS = re.compile("/meshbook/(kernel|magics|runtime)/")  # in the paths of files of meshbook
pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def notebook(make_notebook: Any) -> Iterator[KernelNotebook]:
    """A mesh with two dimensions, and actors on it."""
    with make_notebook(torch=False) as notebook:
        notebook.run("%mesh up --shape hosts=2,gpus=2")
        notebook.run(
            "import threading\nfrom meshbook import Actor, endpoint\n"
            "class Counter(Actor):\n"
            "    def __init__(self, start=0): self.count = start\n"
            "    @endpoint\n"
            "    def add(self, step): self.count += step; return self.count\n"
            "    @endpoint\n"
            "    def lock(self): import threading; return threading.Lock()\n"
            "    @endpoint\n"
            "    def divide(self, x):\n"
            "        return 1 / x\n"
            "    def plain(self): pass\n"
            "counters = mesh.spawn('counters', Counter)"
        )
        yield notebook


@pytest.mark.parametrize(
    ("line", "part"),
    [
        # an empty selection
        ("5:9", "rank 5:9 selects nothing; the mesh 'mesh' has 4 ranks (hosts=2, gpus=2)"),
        ("gpus=2:", "column 6: gpus 2: selects nothing; the size of gpus is 2"),
        ("!0:4", "excludes all ranks"),
        ("!all", "excludes all ranks"),
        ("changed", "the last cell changed no variable"),
        # something that is not there
        ("-5", "rank -5 is out of range"),
        ("0,4", "rank 4 is out of range"),
        ("gpu=0", "unknown dimension 'gpu'; the mesh 'mesh' has 4 ranks (hosts=2, gpus=2). Did you mean 'gpus'?"),
        ("hosts=0,gpus=7", "column 14: gpus 7 is out of range"),
        ("trainers", "unknown mesh 'trainers'; the meshes are 'mesh'"),
        ("mesh[gpus=0", "but the selector ends"),
        ("1.5", "unexpected character '.'"),
        # options
        ("--group bogus", "invalid choice: 'bogus'"),
        ("--shw 0", "Did you mean '--show'?"),
        ("0 --show !all", "excludes all ranks"),
        ("-o", "-o"),
    ],
)
def test_a_mistake_in_the_first_line_runs_nothing(notebook: KernelNotebook, line: str, part: str) -> None:
    failed = notebook.run_failing(f"%%mesh {line}\nprint('ran'); ran = True")
    assert part in failed.error["evalue"]
    assert failed.traceback == f"{failed.error['ename']}: {failed.error['evalue']}"
    assert failed.stdout == ""
    assert notebook.run("%%mesh\n'ran' in globals()").result == "[0-3] False"


@pytest.mark.parametrize(
    ("body", "name", "part"),
    [
        ("ran = True\n1 +* 2", "SyntaxError", "invalid syntax"),
        ("ran = (True,", "SyntaxError", "'(' was never closed"),
        ("ran = True\n  x = 1", "IndentationError", "unexpected indent"),
        ("def f(:\n  pass", "SyntaxError", "invalid syntax"),
        ("ran = 'open", "SyntaxError", "unterminated string literal"),
        ("ran = True\nawait = 3", "SyntaxError", "invalid syntax"),
    ],
)
def test_a_syntax_error_runs_nothing(notebook: KernelNotebook, body: str, name: str, part: str) -> None:
    failed = notebook.run_failing(f"%%mesh\n{body}")
    assert failed.error["ename"] == name
    title, *rest = failed.traceback.splitlines()
    assert title.startswith(f"[ranks 0-3] {name}: ")
    assert part in title
    assert len(rest) < 6, "no frames of IPython or meshbook"
    assert notebook.run("%%mesh\n'ran' in globals()").result == "[0-3] False"


@pytest.mark.parametrize("cell", ["%%mesh", "%%mesh\n", "%%mesh -T\n\n", "#mesh:", "%%mesh\n# a comment"])
def test_a_cell_without_code_is_no_mistake(notebook: KernelNotebook, cell: str) -> None:
    assert notebook.run(cell).result is None
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2\n[3] 3"


@pytest.mark.parametrize(
    ("code", "name", "part"),
    [
        ("counters.add.call(threading.Lock())", "PickleError", "argument 0 (lock): TypeError: cannot pickle"),
        ("counters.add.call(step=threading.Lock())", "PickleError", "cannot be pickled"),
        ("counters.add.call(1, 2)", "TypeError", "add(step): too many positional arguments"),
        ("counters.add.call()", "TypeError", "add(step): missing a required argument: 'step'"),
        ("counters.add.call_one(1)", "ValueError", "call_one requires exactly 1 actor, but mesh has 4"),
        ("counters.add(1)", "TypeError", "use counters.add.call(...)"),
        ("counters.nope.call()", "AttributeError", "no endpoint 'nope'; its endpoints: add, divide, lock"),
        ("counters.plain.call()", "RuntimeError", "mark it with @endpoint"),
        ("counters.lock.call().get()", "ActorError", "cannot be pickled: TypeError"),
        ("counters.slice(gpus=9)", "OutOfRange", "gpus=9 is out of range"),
        ("mesh.spawn('wrong', dict)", "ValueError", "is not a subclass of Actor"),
        ("mesh.spawn('wrong', Counter, threading.Lock())", "PickleError", "an argument of Counter cannot be pickled"),
        ("mesh.spawn('wrong', Counter, 1, 2)", "TypeError", "Counter(start=0): too many positional arguments"),
    ],
)
def test_a_mistake_with_an_actor_has_the_cells_line(notebook: KernelNotebook, code: str, name: str, part: str) -> None:
    failed = notebook.run_failing(f"x = 1\n{code}")
    assert failed.error["ename"] == name
    assert part in failed.error["evalue"]
    assert f"----> 2 {code}" in failed.traceback
    assert not OURS.search(failed.traceback), "no frames of ours"
    assert notebook.evaluate("[count for _, count in counters.add.call(0).get().items()]") == [0, 0, 0, 0]


def test_the_error_of_an_actor_names_the_cells_that_called_and_that_raised(notebook: KernelNotebook) -> None:
    """Neither is the one that waits, which IPython shows; and nothing of the runtime is in between."""
    asked = notebook.run("def ask():\n    return counters.divide.call(0)\nfuture = ask()")
    assert asked.reply is not None
    failed = notebook.run_failing("x = 1\nfuture.get()")
    assert failed.error["ename"] == "ActorError"
    first, *_ = failed.error["evalue"].splitlines()
    assert first.startswith("counters.divide() on rank {'hosts': 0/2, 'gpus': 0/2} (")
    assert first.endswith(") raised ZeroDivisionError: division by zero")
    asked_in = asked.reply["execution_count"]
    assert f"called at Cell In[{asked_in}], line 2, in ask\n    return counters.divide.call(0)" in failed.traceback
    assert ", line 11, in divide\n    return 1 / x" in failed.traceback
    assert "  Cell In[" in failed.traceback
    assert "----> 2 future.get()" in failed.traceback
    assert not OURS.search(failed.traceback)
    assert "/tmp/ipykernel" not in failed.traceback
    awaited = notebook.run_failing("await future")
    assert "----> 1 await future" in awaited.traceback
    assert not OURS.search(awaited.traceback)


def test_verbose_tracebacks_have_the_frames_of_the_runtime(notebook: KernelNotebook) -> None:
    """On request."""
    notebook.run("%xmode Verbose")
    assert OURS.search(notebook.run_failing("counters.add.call(1, 2)").traceback)
    notebook.run("%xmode Context")
    assert not OURS.search(notebook.run_failing("counters.add.call(1, 2)").traceback)


def test_a_cell_that_replaces_clocks_and_pickle_is_answered(notebook: KernelNotebook) -> None:
    replacing = (
        "%%mesh 0\nimport time, pickle\n"
        "def fail(*arguments, **keywords): raise RuntimeError('replaced')\n"
        "clocks = 'monotonic', 'time', 'perf_counter', 'process_time', 'sleep'\n"
        "kept = {name: getattr(time, name) for name in clocks}\n"
        "for name in kept: setattr(time, name, fail)\n"
        "pickles = pickle.dumps, pickle.loads\n"
        "pickle.dumps = pickle.loads = fail"
    )
    notebook.run(replacing)
    assert notebook.run("%%mesh 0\nprint('text')\n[1, 'one']").result == "[0] [1, 'one']"
    assert "KeyError" in notebook.run_failing("%%mesh 0\n{}['key']").traceback
    notebook.run("%%mesh 0\nfor name in kept: setattr(time, name, kept[name])\npickle.dumps, pickle.loads = pickles")
