"""The life of a mesh in a notebook: started unasked or by `%mesh up`, looked at, taken down; and starts that fail."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.support import still_running

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]

NO_MESH = "no mesh is up; start one with %mesh up --gpus 4"


def test_the_first_mesh_cell_starts_a_mesh_and_says_so(bare_notebook: KernelNotebook) -> None:
    cell = bare_notebook.run("%%mesh\nworld_size")
    said = cell.stdout.splitlines()
    assert len(said) == 1
    assert said[0].startswith("no mesh was up, so one was started: mesh: ")
    count = int(cell.result.split()[-1]) if cell.result else 0
    assert f"mesh: {count} ranks (gpus={count})" in said[0]
    assert count >= 2
    assert bare_notebook.run("mesh.extent['gpus']").result == str(count)
    assert bare_notebook.run("%mesh down").stdout == "mesh is down\n"


def test_up_status_down(bare_notebook: KernelNotebook) -> None:
    up = bare_notebook.run("%mesh up --gpus 2")
    shown = up.stdout or (up.updates or up.displays)[-1]["text/plain"]
    assert shown.startswith("mesh: 2 ranks (gpus=2), ")
    assert "ranks 0-1 up in " in shown
    for line in ("%mesh status", "%mesh", "%mesh status mesh"):
        assert bare_notebook.run(line).stdout.startswith("mesh: 2 ranks (gpus=2), ")
    bare_notebook.run("%%mesh\nkept = rank")
    for line in ("%mesh up --gpus 2", "%mesh up", "%mesh up --shape gpus=2"):
        assert bare_notebook.run(line).stdout.endswith("; already up\n"), "so that Run All works twice"
    assert bare_notebook.run("%%mesh\nkept").result == "[0] 0\n[1] 1"
    assert bare_notebook.run("%mesh down").stdout == "mesh is down\n"
    assert bare_notebook.run("%mesh").stdout.startswith("no mesh is up")


def test_a_mesh_that_was_stopped_by_code_is_down(bare_notebook: KernelNotebook) -> None:
    bare_notebook.run("%mesh up --gpus 2 --name stopped")
    bare_notebook.run("%mesh up --gpus 1")
    bare_notebook.run("stopped.stop().get()")
    assert "stopped" not in bare_notebook.run("%mesh").stdout
    failed = bare_notebook.run_failing("%%mesh stopped\nrank")
    assert failed.error["ename"] == "SelectionError"
    bare_notebook.run("%mesh up --gpus 2 --name stopped")
    assert bare_notebook.run("%%mesh stopped\nworld_size").result == "stopped[0-1] 2"
    late = bare_notebook.run_failing("ended = stopped.stop()\n%on stopped 1")
    assert "__mesh_run__" not in late.traceback
    bare_notebook.run("ended.get()\n%mesh down mesh")


def test_meshes_that_code_has_started_are_listed(bare_notebook: KernelNotebook) -> None:
    bare_notebook.run("import meshbook\nworkers = also = meshbook.this_host().spawn_procs({'hosts': 1, 'gpus': 2})")
    line = "workers, also: 2 ranks (hosts=1, gpus=2), started by code; cells cannot run there"
    for verb in ("%mesh", "%mesh status"):
        assert bare_notebook.run(verb).stdout.splitlines()[:2] == [
            "no mesh for cells is up; %mesh up --gpus 4 starts one, as does the first %%mesh cell",
            line,
        ]
    bare_notebook.run("%mesh up --gpus 1")
    assert bare_notebook.run("%mesh").stdout.splitlines() == ["mesh: 1 rank (gpus=1), on CPU (no GPU here)", line]
    bare_notebook.run("workers.stop().get()\n%mesh down")
    assert bare_notebook.run("%mesh").stdout.startswith("no mesh is up")


def test_a_mesh_has_a_shape(bare_notebook: KernelNotebook) -> None:
    bare_notebook.run("%mesh up --shape hosts=2,gpus=2")
    try:
        assert bare_notebook.run("%%mesh hosts=1\nrank, dict(point), local_rank").result == (
            "[2] (2, {'hosts': 1, 'gpus': 0}, 2)\n[3] (3, {'hosts': 1, 'gpus': 1}, 3)"
        )
    finally:
        bare_notebook.run("%mesh down")


def test_meshes_have_names(bare_notebook: KernelNotebook) -> None:
    bare_notebook.run("%mesh up --gpus 2 --name trainers")
    up = bare_notebook.run("%mesh up --gpus 1 --name judge")
    shown = up.stdout or (up.updates or up.displays)[-1]["text/plain"]
    assert shown.rstrip().endswith("; the current mesh")
    again = bare_notebook.run("%mesh up --gpus 2 --name trainers").stdout
    assert again.endswith("; already up; the current mesh\n"), "so that Run All works twice"
    assert bare_notebook.run("%%mesh judge\nrank, world_size").result == "judge[0] (0, 1)"
    cell = bare_notebook.run("%%mesh\nprint(rank)\nworld_size")
    assert (cell.stdout, cell.result) == ("trainers[0] 0\ntrainers[1] 1\n", "trainers[0-1] 2")
    status = bare_notebook.run("%mesh").stdout.splitlines()
    assert [line.endswith("; the current mesh") for line in status] == [True, False]
    assert bare_notebook.run("judge.extent['gpus'], trainers.extent['gpus']").result == "(1, 2)"
    failed = bare_notebook.run_failing("%%mesh trainers[1]\n1 / 0")
    assert failed.error["evalue"].startswith("[rank 1 of trainers] ZeroDivisionError")
    assert bare_notebook.run("%mesh use judge").stdout.startswith("judge: 1 rank")
    assert bare_notebook.run("%%mesh\nworld_size").result == "judge[0] 1"
    assert bare_notebook.run("%mesh down").stdout == "judge is down\nthe current mesh is now trainers\n"
    assert bare_notebook.run("%%mesh\nworld_size").result == "[0-1] 2"
    bare_notebook.run("%mesh up --gpus 1 --name judge")
    both = bare_notebook.run("%%mesh trainers,judge[0] -o both\nprint('here')\nrank")
    assert sorted(both.stdout.splitlines()) == ["judge[0] here", "trainers[0-1] here"]
    assert both.result == "trainers[0] 0\ntrainers[1] 1\njudge[0] 0"
    assert bare_notebook.evaluate("[len(both[name]) for name in ('trainers', 'judge')]") == [2, 1]
    failed = bare_notebook.start("%%mesh judge,trainers\n1 / 0")
    bare_notebook.wait(failed)
    assert [each["ename"] for each in failed.contents("error")] == ["ZeroDivisionError"] * 2
    assert "cannot be combined with" in bare_notebook.run_failing("%%mesh judge,trainers -a\n1").error["evalue"]
    bare_notebook.run("%%mesh trainers\nheld = rank")
    assert "held" in bare_notebook.run("%mesh whos --mesh trainers").stdout
    assert "ranks agree" not in bare_notebook.run("%mesh diff held 0 --mesh trainers").stdout
    failed = bare_notebook.run_failing("%mesh diff held judge[0] --mesh trainers")
    assert failed.error["ename"] == "UsageError"
    assert bare_notebook.run("%mesh down --all").stdout == "trainers is down\njudge is down\n"
    assert bare_notebook.run("%mesh").stdout.startswith("no mesh is up")


def test_a_name_of_the_users_is_left_alone(bare_notebook: KernelNotebook) -> None:
    bare_notebook.run("mine = 'precious'\n%mesh up --gpus 1 --name mine")
    assert bare_notebook.run("%mesh status mine").stdout.startswith("mine: 1 rank (gpus=1)")
    assert bare_notebook.evaluate("mine") == "precious"
    bare_notebook.run("%mesh down mine\ndel mine")


def test_log_shows_what_a_rank_wrote_last(bare_notebook: KernelNotebook) -> None:
    bare_notebook.run("%mesh up --gpus 2")
    assert bare_notebook.run("%mesh log 0").stdout == "no output yet from rank 0 of mesh\n"
    written = bare_notebook.run("%%mesh -q\nfor i in range(10): print('line', rank, i)")
    assert bare_notebook.run("%mesh log 1 -n 2").stdout == "line 1 8\nline 1 9\n"
    assert len(bare_notebook.run("%mesh log 0").stdout.splitlines()) == 10
    assert written.reply is not None
    found = bare_notebook.run(f"%mesh log -r -g '[0-9] [3]$' --cell {written.reply['execution_count']}").stdout
    assert sorted(found.splitlines()) == ["[0] line 0 3", "[1] line 1 3"]
    assert "regular expression: missing )" in bare_notebook.run_failing("%mesh log -r -g (").error["evalue"]
    failed = bare_notebook.run_failing("%mesh log 2")
    assert "rank 2 is out of range" in failed.error["evalue"]
    assert len(failed.traceback.splitlines()) == 1
    bare_notebook.run("%mesh down")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("%mesh down", NO_MESH),
        ("%mesh log 0", NO_MESH),
        ("%mesh up --name all", "invalid mesh name 'all'"),
        ("%mesh up --name 'a b'", "'a b' is not a valid variable name"),
        ("%mesh up --gpus 0", "'0' is not a whole number of 1 or more"),
        ("%mesh up --gpus many", "'many' is not a whole number of 1 or more"),
        ("%mesh up --shape gpus", "'gpus' is not a valid shape"),
        ("%mesh up --bogus 3", "unknown option '--bogus'"),
        ("%mesh bogus", "unknown verb 'bogus'"),
        ("%mesh dwon", "Did you mean 'down'?"),
    ],
)
def test_without_a_mesh_a_mistake_is_one_clear_line(bare_notebook: KernelNotebook, line: str, part: str) -> None:
    _check_one_clear_line(bare_notebook, line, part)


@pytest.mark.parametrize(
    "code",
    [
        *("%%mesh -a --profile\n1", "%%mesh 9999\n1", "%%mesh other\n1", "%%mesh 0 --first 1\n1", "%%mesh rows=0\n1"),
        *("%%mesh --push missing\n1", "%%mesh --show 9999\n1", "%%timeit\n%%mesh --pull x\n1", "%on 9999 1"),
    ],
)
def test_a_cell_with_a_mistake_in_its_line_starts_no_mesh(bare_notebook: KernelNotebook, code: str) -> None:
    bare_notebook.run_failing(code)
    assert bare_notebook.run("%mesh").stdout.startswith("no mesh is up")


def test_with_a_mesh_a_mistake_is_one_clear_line(bare_notebook: KernelNotebook) -> None:
    bare_notebook.run("%mesh up --gpus 2")
    for code, part in [
        ("%mesh up --gpus 3", "is already up; resize it with %mesh resize mesh --gpus N"),
        ("%mesh status other", "no mesh is named 'other'; meshes: mesh"),
        ("%mesh down other", "no mesh is named 'other'"),
        ("%%mesh 9\nx", "rank 9 is out of range"),
        ("%%mesh rows=0\nx", "'rows'"),
        ("%%mesh gpus=2\nx", "gpus"),
        ("%%mesh other[0]\nx", "'other'"),
        ("%%mesh --show 9\nx", "rank 9 is out of range"),
        ("%%mesh failed\nx", "no rank failed in the last cell"),
        ("%%mesh --bogus\nx", "unknown option '--bogus'"),
        ("%%mesh 0 1\nx", "unexpected argument"),
        ("%%mesh --on-error\nx", "--on-error"),
        ("%%mesh -o 1x\nx", "'1x' is not a valid variable name"),
        ("%%mesh 'open\nx", "cannot parse"),
        ("#mesh: 9\nx", "rank 9 is out of range"),
    ]:
        _check_one_clear_line(bare_notebook, code, part)
    bare_notebook.run("%mesh down")


def _check_one_clear_line(notebook: KernelNotebook, code: str, part: str) -> None:
    failed = notebook.run_failing(code)
    assert part in failed.error["evalue"]
    (line,) = failed.traceback.splitlines()
    assert line == f"{failed.error['ename']}: {failed.error['evalue']}"


# --- starts that fail: rank 1 meets `breaking.py` on its way up ---

BREAKING = """
import os
from IPython.core.interactiveshell import InteractiveShell
init_profile_dir = InteractiveShell.init_profile_dir

def break_rank_1(self, *arguments):
    if os.environ.get("RANK") == "1":
        exec(open({action!r}).read())
    return init_profile_dir(self, *arguments)

InteractiveShell.init_profile_dir = break_rank_1
"""


class Breaking:
    """A notebook, and what rank 1 of its meshes does on the way up."""

    def __init__(self, make_notebook: Any, folder: Path) -> None:
        self._action = folder / "action.py"
        (folder / "breaking.py").write_text(BREAKING.format(action=str(self._action)))
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        preload = "torch,meshbook.runtime.cells.preload,breaking"
        self.notebook: KernelNotebook = make_notebook(PYTHONPATH=path, MESHBOOK_PRELOAD=preload)

    def by(self, action: str) -> KernelNotebook:
        self._action.write_text(action)
        return self.notebook


@pytest.fixture(scope="module")
def breaking(make_notebook: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Breaking]:
    made = Breaking(make_notebook, tmp_path_factory.mktemp("breaking"))
    made.notebook.run("%mesh up --gpus 1")  # its agent and fork server are there from now on
    made.notebook.run("%mesh down")
    with made.notebook:
        yield made


@pytest.mark.parametrize(
    ("action", "parts"),
    [
        (
            "os.write(2, b'no device /dev/quantum1\\n'); os._exit(3)",
            ["rank 1 of mesh did not start", "exit code 3", "no device /dev/quantum1"],
        ),
        (
            "raise OSError('no device /dev/quantum1')",
            ["rank 1 of mesh did not start", "OSError", "no device /dev/quantum1"],
        ),
    ],
)
@pytest.mark.parametrize("start", ["%mesh up --gpus 2", "%%mesh\nx = 1"])
def test_a_rank_that_does_not_come_up_says_why(breaking: Breaking, action: str, parts: list[str], start: str) -> None:
    notebook = breaking.by(action)
    failed = notebook.run_failing(start)
    for part in parts:
        assert part in failed.error["evalue"]
    assert notebook.run("%mesh").stdout.startswith("no mesh is up")
    # The other rank is not left over: what is left is the kernel, the agent and the fork server.
    assert still_running(_workers(notebook)) == []
    notebook.run("%mesh up --gpus 1")
    notebook.run("%mesh down")


@pytest.mark.parametrize("start", ["%mesh up --gpus 2", "%%mesh\nx = 1"])
def test_an_interrupt_ends_a_start_that_hangs(breaking: Breaking, signs: Signs, start: str) -> None:
    hang = f"open({str(signs.path)!r}, 'w').write('hanging '); import time; time.sleep(600)"
    notebook = breaking.by(hang)
    cell = notebook.start(start)
    signs.wait_for("hanging")
    notebook.interrupt()
    notebook.wait_failed(cell, timeout=10)
    assert "interrupt" in cell.traceback.lower()
    assert notebook.run("%mesh").stdout.startswith("no mesh is up")
    assert still_running(_workers(notebook)) == []


def _workers(notebook: KernelNotebook) -> set[psutil.Process]:
    """What the fork server has forked."""
    found: set[psutil.Process] = set()
    for process in notebook.processes():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            parent = process.parent()
            if parent is not None and "meshbook.runtime.hosts.forkserver" in parent.cmdline():
                found.add(process)
    return found
