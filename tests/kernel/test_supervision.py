"""Ranks that do not heed an interrupt: stuck in a collective, in C, stopped, or deaf; and how they come free."""

from __future__ import annotations

import functools
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from meshbook.magics.results.error_groups import HOW_TO_INITIALIZE
from meshbook.runtime.hosts.observer import Observation, observe
from tests.support import FRONT_DOORS

if TYPE_CHECKING:
    from tests.kernel.conftest import Cell, KernelNotebook, Signs

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(shutil.which("py-spy", path=Path(sys.executable).parent) is None, reason="py-spy is missing"),
]

ENDS_WITHIN = 10.0  # seconds
INIT = "%%mesh\ndist.init_process_group('gloo')\nx = torch.ones(3)\ndist.all_reduce(x)\nx[0].item()"
STUCK = "%%mesh\ntell('there')\nif rank == 1: threading.Event().wait()\ndist.all_reduce(x)"


@pytest.fixture
def mesh(bare_notebook: KernelNotebook, signs: Signs) -> Iterator[KernelNotebook]:
    """A notebook with a mesh of three ranks, whatever becomes of them."""
    bare_notebook.run("%mesh up --gpus 3")
    prepare(bare_notebook, signs)
    yield bare_notebook
    bare_notebook.run("%mesh down --now")


def prepare(notebook: KernelNotebook, signs: Signs, selector: str = "") -> None:
    imports = "import ctypes, os, signal, threading, time, torch, torch.distributed as dist"
    notebook.run(f"%%mesh {selector}\n{signs.definition}\n{imports}")


def pids_of_ranks(notebook: KernelNotebook) -> list[int]:
    notebook.run("%%mesh -o pids\nos.getpid()")
    pids: list[int] = notebook.evaluate("pids.values")
    return pids


def wait_until_seen(pid: int, is_there: Callable[[Observation], bool]) -> None:
    while not is_there(observe(pid)):
        pass


def is_in(function: str) -> Callable[[Observation], bool]:
    """Whether a process stands in a function, and does not run any more."""
    return lambda seen: (
        seen.state == "S" and any(frame.name == function for thread in seen.threads or () for frame in thread.frames)
    )


def shows(cell: Cell, text: str) -> bool:
    return text in live_text(cell)


def press(notebook: KernelNotebook, cell: Cell, *, after: int = 0, times: int) -> None:
    """Interrupt so many times, after so many interrupts, and wait for the end.

    Each interrupt waits until the cell shows the one before: Python handles two at once as one.
    """
    for number in range(after, after + times):
        if number:
            advice = ["break process groups", "kill"][number - 1]
            notebook.wait_until(functools.partial(shows, cell, f"interrupt again to {advice}"), ENDS_WITHIN)
        notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)


# --- in a collective ---


def test_a_second_interrupt_frees_ranks_in_a_collective(mesh: KernelNotebook, signs: Signs) -> None:
    pids = pids_of_ranks(mesh)
    assert mesh.run(INIT).result == "[0-2] 3.0"
    cell = mesh.start(STUCK)
    for rank in (0, 2):
        wait_until_seen(pids[rank], is_in("all_reduce"))
    signs.wait_for("there", 3)
    press(mesh, cell, times=2)
    number = cell.reply["execution_count"] if cell.reply else 0
    assert cell.error["ename"] == "KeyboardInterrupt"
    assert cell.error["evalue"] == (
        f"interrupted; ranks 0,2 were in all_reduce (cell {number}:4), rank 1 at cell {number}:3; "
        f"process groups were broken (gloo group of 3 ranks): {HOW_TO_INITIALIZE}"
    )
    assert pids_of_ranks(mesh) == pids, "nobody was killed"
    assert mesh.run(INIT).result == "[0-2] 3.0", "at the same port"


def test_the_error_of_a_rank_frees_those_that_wait_for_it_in_a_collective(mesh: KernelNotebook) -> None:
    mesh.run(INIT)
    cell = mesh.run_failing("%%mesh\nif rank == 1: 1 / 0\ndist.all_reduce(x)", ENDS_WITHIN)
    number = cell.reply["execution_count"] if cell.reply else 0
    assert cell.error["ename"] == "ZeroDivisionError"
    assert cell.traceback.splitlines()[-3:] == [
        f"ranks 0,2 failed as a consequence (KeyboardInterrupt in all_reduce (cell {number}:3))",
        "",
        f"process groups were broken (gloo group of 3 ranks): {HOW_TO_INITIALIZE}",
    ]
    assert mesh.run(INIT).result == "[0-2] 3.0"


def test_a_time_limit_reports_which_ranks_wait_for_which(mesh: KernelNotebook, signs: Signs) -> None:
    mesh.run(INIT)
    cell = mesh.start(STUCK.replace("%%mesh", "%%mesh --timeout 0.5", 1))
    mesh.wait_failed(cell, ENDS_WITHIN)
    number = cell.reply["execution_count"] if cell.reply else 0
    assert cell.error["ename"] == "TimeoutError"
    assert cell.error["evalue"].startswith(
        f"timed out after 0.5 s: 2 ranks [0,2] in all_reduce (cell {number}:4), rank 1 at cell {number}:3; "
    )


# --- in C, or stopped ---


@pytest.mark.parametrize(
    ("source", "state", "trouble"),
    [
        ("ctypes.PyDLL(None).sleep(600)", "S", r"holds the GIL in C \(waits in \w+\)"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "T", r"stopped \(SIGSTOP\)"),
    ],
    ids=["holds the GIL", "stopped"],
)
def test_a_third_interrupt_kills_a_rank_that_receives_none(
    mesh: KernelNotebook, signs: Signs, source: str, state: str, trouble: str
) -> None:
    pids = pids_of_ranks(mesh)
    mesh.run("%%mesh\nkept = rank")
    cell = mesh.start(f"%%mesh\ndef hold(): {source}\ntell('there')\nif rank == 1: hold()\nthreading.Event().wait()")
    signs.wait_for("there", 3)
    wait_until_seen(pids[1], lambda seen: seen.state == state and (state == "T" or is_in("hold")(seen)))
    mesh.interrupt()
    mesh.wait_until(lambda: "rank 1 does not answer: " in live_text(cell), ENDS_WITHIN)
    number = cell.messages and re.search(r"cell (\d+)", live_text(cell))
    assert number
    said = re.escape(f" at cell {number[1]}:2 in hold; interrupt again to break process groups")
    assert re.search(f"^interrupted, but rank 1 does not answer: {trouble}{said}$", live_text(cell), re.MULTILINE)
    press(mesh, cell, after=1, times=2)
    lost = r"rank 1 was killed and restarted in \d\.\d\d s; it lost \d+ names: tell, ctypes, os, .*$"
    text = cell.error["evalue"]
    at = rf"interrupted; ranks 0,2 were at cell {number[1]}:5, rank 1 at cell {number[1]}:2 in hold; {lost}"
    assert re.match(at, text), text
    assert mesh.run("%%mesh !1\nkept").result == "[0] 0\n[2] 2", "the others have kept what they had"
    assert mesh.run("%%mesh\nrank, world_size, 'kept' in globals()").result == (
        "[0] (0, 3, True)\n[1] (1, 3, False)\n[2] (2, 3, True)"
    )


def live_text(cell: Cell) -> str:
    """What the live area of a running cell says."""
    shown = [*cell.displays, *cell.updates]
    text: str = shown[-1]["text/plain"] if shown else ""
    return text


# --- deaf ---


@pytest.mark.parametrize("door", FRONT_DOORS)
def test_a_third_interrupt_kills_a_rank_that_ignores_the_others(
    open_notebook: Callable[..., KernelNotebook], signs: Signs, door: str
) -> None:
    notebook = open_notebook(door, torch=True)
    notebook.run("%mesh up --gpus 3")
    prepare(notebook, signs)
    notebook.run("%%mesh 0\nmodel = 1")
    notebook.run("%%mesh !0\nkept = rank")
    cell = notebook.start(
        # An interrupt may come as soon as the rank has written: so it writes inside the `try`.
        "%%mesh\ntold = []\nwhile rank == 0:\n"
        "    try:\n        told or told.append(tell('there'))\n        time.sleep(600)\n"
        "    except KeyboardInterrupt: tell('deaf')\n"
        "tell('there')\ntime.sleep(600)"
    )
    signs.wait_for("there", 3)
    notebook.interrupt()
    signs.wait_for("deaf")
    notebook.interrupt()
    notebook.wait_until(lambda: "again to kill" in live_text(cell), ENDS_WITHIN)  # by signals two at once may be one
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    assert cell.error["ename"] == "KeyboardInterrupt"
    assert re.search(r"; rank 0 was killed and restarted in \d\.\d\d s; it lost \d+ names: ", cell.error["evalue"])
    assert notebook.run("%%mesh !0\nkept").result == "[1] 1\n[2] 2", "the others have kept what they had"
    assert notebook.run("%%mesh\nrank, world_size, 'model' in globals()").result == (
        "[0] (0, 3, False)\n[1] (1, 3, False)\n[2] (2, 3, False)"
    )


DEAF = (
    "%%mesh\nkept = rank\nwhile rank == 0 and not os.path.exists('go'):\n"
    "    try: tell('there'); time.sleep(0.01)\n    except KeyboardInterrupt: pass\n"
    "os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else None"
)


def leave_rank_0(mesh: KernelNotebook, signs: Signs, then: str = "") -> None:
    """Let a cell end without rank 0, which heeds no interrupt."""
    cell = mesh.start(f"{DEAF}\n{then}")
    mesh.wait_failed(cell, ENDS_WITHIN)
    signs.wait_for("there")
    assert cell.traceback.startswith("[rank 1] ProcessDied: ")
    assert "rank 0 failed as a consequence (no answer at cell" in cell.traceback
    assert "%mesh interrupt --break" in cell.traceback
    mesh.run("%mesh heal")


def run_once_free(mesh: KernelNotebook, code: str) -> Cell:
    """Run a cell once its ranks have left the one that they were freed from, which takes a moment."""
    end = time.monotonic() + ENDS_WITHIN
    while (cell := mesh.wait(mesh.start(code))).reply["status"] == "error" and time.monotonic() < end:  # type: ignore[index]
        assert "still runs cell" in cell.error["evalue"]
    return cell


def test_a_rank_that_the_cell_ended_without_is_stuck_until_it_is_killed(mesh: KernelNotebook, signs: Signs) -> None:
    leave_rank_0(mesh, signs)
    stuck = mesh.run_failing("%%mesh\nrank")
    assert "rank 0 of mesh still runs cell" in stuck.error["evalue"]
    assert len(stuck.traceback.splitlines()) == 1
    assert "rank 0 stuck" in mesh.run("%mesh").stdout
    for command in ("%mesh heal", "%mesh interrupt", "%mesh status"):
        assert "%mesh interrupt --break" in mesh.run(command).stdout
    assert "rank 0 is still at cell" in mesh.run("%mesh interrupt --break").stdout, "it waits in no collective"
    assert mesh.run("%%mesh !0\nrank").result == "[1] 1\n[2] 2", "the others are free"
    assert mesh.run("%mesh interrupt --kill").stdout.startswith("restarted rank 0 in ")
    assert mesh.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2"


def test_a_rank_that_is_stuck_in_a_collective_after_its_cell_is_freed_without_loss(
    mesh: KernelNotebook, signs: Signs
) -> None:
    pid = pids_of_ranks(mesh)[0]
    leave_rank_0(mesh, signs, "dist.init_process_group('gloo') if rank == 0 else None")
    (mesh.folder / "go").touch()
    wait_until_seen(pid, is_in("init_process_group"))
    assert mesh.run("%mesh interrupt --break").stdout == (
        f"broke process groups (a process group that was being created): {HOW_TO_INITIALIZE}\nranks 0-2 run no cell\n"
    )
    assert run_once_free(mesh, "%%mesh 0\nkept").result == "[0] 0"
    (mesh.folder / "go").unlink()


def test_a_cell_says_that_the_ranks_it_waits_for_are_not_in_it(mesh: KernelNotebook) -> None:
    mesh.run("from meshbook.magics.cells import divergence; divergence.PATIENCE = divergence.SOON = 0.2")
    cell = mesh.start("%%mesh 0\ndist.init_process_group('gloo')")
    said = ":2), ranks 1-2 are not in this cell"
    mesh.wait_until(lambda: "rank 0 in init_process_group" in live_text(cell) and said in live_text(cell))
    press(mesh, cell, times=2)
    mesh.run("divergence.PATIENCE, divergence.SOON = 5.0, 1.0")


# --- in the second step of a training ---

TRAINING = """%%mesh
dist.init_process_group('gloo')
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
"""
SECOND_STEP_FAILS = """
for step in range(4):
    if step == 1: assert rank != 2
    model(torch.ones(2, 3)).sum().backward()
"""


def test_an_error_in_the_second_step_of_a_training_frees_the_others(mesh: KernelNotebook) -> None:
    mesh.run(TRAINING)
    cell = mesh.run_failing(f"%%mesh\n{SECOND_STEP_FAILS}", ENDS_WITHIN)
    number = cell.reply["execution_count"] if cell.reply else 0
    assert cell.traceback.splitlines()[-3:] == [
        f"ranks 0-1 failed as a consequence (KeyboardInterrupt in DistributedDataParallel (cell {number}:5))",
        "",
        f"process groups were broken (gloo group of 3 ranks): {HOW_TO_INITIALIZE}",
    ]
    # DDP keeps its group, so it fails also once the ranks have another.
    for again in ("", "dist.init_process_group('gloo')\n"):
        later = mesh.run_failing(f"%%mesh\n{again}model(torch.ones(2, 3)).sum().backward()", ENDS_WITHIN)
        assert (
            later.traceback.splitlines()[0]
            == f"the process groups of ranks 0-2 were broken by cell {number}: {HOW_TO_INITIALIZE}"
        )
        assert "distributed.py" not in later.traceback, "the frames of torch hide the cause"
    twice = mesh.run_failing("%%mesh\ndist.init_process_group('gloo')")
    assert twice.traceback.splitlines()[-1].startswith("end the present group first with dist.destroy_process_group()")
    mesh.run("%%mesh\ndist.destroy_process_group()")
    mesh.run(TRAINING)


def test_ranks_of_a_job_that_are_stuck_in_a_collective_are_freed_by_a_command(mesh: KernelNotebook) -> None:
    mesh.run(TRAINING)
    mesh.run(f"%%mesh -a --on-error finish\n{SECOND_STEP_FAILS}")
    stuck = "[0-1] main thread: in DistributedDataParallel"
    mesh.wait_until(lambda: mesh.run("%mesh stack").stdout.startswith(stuck))
    where = (
        r"  ranks 0-1 run job 1 of cell (\d+) · \d\d:\d\d · 2 ranks \[0-1\] in DistributedDataParallel \(cell \1:5\)\n"
    )
    mesh.wait_until(lambda: re.search(where, mesh.run("%mesh status").stdout) is not None)
    assert mesh.run("%mesh interrupt --break").stdout == (
        f"broke process groups (gloo group of 3 ranks): {HOW_TO_INITIALIZE}\nranks 0-2 run no cell\n"
    )
    error = mesh.run_failing("%mesh result", ENDS_WITHIN).error
    assert error["ename"] == "AssertionError"
    assert ": was freed from its collective by %mesh interrupt --break" in error["evalue"]
    mesh.run(TRAINING)
