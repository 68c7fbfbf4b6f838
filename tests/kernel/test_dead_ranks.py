"""Ranks that die, and a kernel that dies: which errors appear, what continues, and that nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support import still_running

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = pytest.mark.kernel

KILL_RANK_1 = "%%mesh\nimport os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nkept = rank"


@pytest.fixture
def mesh(bare_notebook: KernelNotebook) -> Iterator[KernelNotebook]:
    """A notebook with a mesh of three ranks, whatever becomes of them."""
    bare_notebook.run("%mesh up --gpus 3")
    yield bare_notebook
    if "no mesh is up" not in bare_notebook.run("%mesh").stdout:
        bare_notebook.run("%mesh down --now")


def pids_of_ranks(notebook: KernelNotebook, selector: str = "all") -> list[int]:
    notebook.run(f"%%mesh {selector} -o pids\nimport os\nos.getpid()")
    pids: list[int] = notebook.evaluate("pids.values")
    return pids


# --- a rank dies ---


def test_a_killed_rank_fails_its_cell_and_the_others_live_on(mesh: KernelNotebook, signs: Signs) -> None:
    pids = pids_of_ranks(mesh)
    mesh.run(f"%%mesh\n{signs.definition}\nimport sys, threading\nkept = rank * 11")
    cell = mesh.start(
        "%%mesh\nfor number in range(30): print('word', number, file=sys.stderr)\n"
        "sys.stderr.flush(); tell('there')\nthreading.Event().wait()"
    )
    signs.wait_for("there", 3)
    os.kill(pids[1], signal.SIGKILL)
    mesh.wait_failed(cell)
    assert cell.error["ename"] == "ProcessDied"
    title = f"[rank 1] ProcessDied: rank 1 (pid {pids[1]}) died during the cell: SIGKILL: Killed(sig=9)"
    words = [f"    word {number}" for number in range(10, 30)]
    assert cell.traceback.splitlines()[:22] == [title, "last lines of its stderr:", *words]
    assert "outside meshbook" in cell.traceback
    assert cell.traceback.count("died during the cell") == 1
    assert cell.traceback.splitlines()[-1] == "restart rank 1 with %mesh heal; help: meshbook explain processdied"
    assert "ranks 0,2 failed as a consequence" in cell.traceback
    assert mesh.run("%%mesh !1\nkept").result == "[0] 0\n[2] 22"


@pytest.mark.parametrize(
    ("source", "cause", "last_words"),
    [
        ("os._exit(3)", "exit code 3", ""),
        ("os.write(2, b'no device\\n'); os._exit(0)", "exit code 0", "no device"),
        ("os.abort()", "SIGABRT: Aborted(sig=6)", "Fatal Python error: Aborted"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV: Segmentation fault(sig=11)", "line 3 in <module>"),
    ],
    ids=["exit", "words", "abort", "segfault"],
)
def test_a_rank_that_ends_itself_says_how(mesh: KernelNotebook, source: str, cause: str, last_words: str) -> None:
    mesh.run("%%mesh\nimport os; kept = rank")  # a cell of its own: the death may come before the others begin theirs
    failed = mesh.run_failing(f"%%mesh\nimport os\nif rank == 1: {source}")
    title, *rest = failed.traceback.splitlines()
    assert title.startswith("[rank 1] ProcessDied: rank 1 (pid ")
    assert title.endswith(f") died during the cell: {cause}")
    assert last_words in "\n".join(rest)
    assert "outside meshbook" not in failed.traceback
    assert mesh.run("%%mesh !1\nkept").result == "[0] 0\n[2] 2"


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_a_rank_writes_right_before_its_end_is_shown(mesh: KernelNotebook, end: str) -> None:
    mesh.run("%%mesh\nimport os, signal, sys")
    failed = mesh.run_failing(
        "%%mesh 1\n"
        "for step in range(45): print('step', step, flush=True)\n"
        "os.write(1, b'by C\\n'); os.write(2, b'error by C\\n'); print('error', file=sys.stderr, flush=True)\n"
        f"{end}"
    )
    assert failed.stdout.splitlines() == [*(f"[1] step {step}" for step in range(45)), "[1] by C"]
    assert sorted(failed.stderr.splitlines()) == ["[1] error", "[1] error by C"]
    assert "ProcessDied" in failed.traceback
    log = mesh.run("%mesh log 1").stdout
    assert log.count("step 44") == log.count("by C") - 1 == 1


def test_the_last_state_of_a_progress_bar_is_shown_after_its_rank_has_died(mesh: KernelNotebook) -> None:
    failed = mesh.run_failing(
        "%%mesh 1\nimport os\nprint('first')\n"
        "for step in range(45): print(f'\\rstep {step}', end='', flush=True)\n"
        "os._exit(3)"
    )
    assert failed.stdout.splitlines() == ["[1] first", "[1] step 44"]


def test_a_mesh_that_is_healed_runs_cells_on_all_ranks_again(mesh: KernelNotebook) -> None:
    """By hand: the variable of the mesh is its processes. The rank is a new one, and the others keep what they have."""
    mesh.run("%%mesh\nkept = rank * 11")
    mesh.run_failing(KILL_RANK_1.replace("kept = rank", "pass"))
    assert mesh.run("mesh.heal().get()").result == "[1]"
    assert "dead" not in mesh.run("%mesh").stdout
    assert mesh.run("%%mesh\nglobals().get('kept')").result == "[0] 0\n[2] 22\n[1] no value"
    mesh.run_failing(KILL_RANK_1)
    assert "rank 1 dead" in mesh.run("%mesh").stdout


def test_a_rank_dies_while_others_wait_for_it_in_a_collective(mesh: KernelNotebook, signs: Signs) -> None:
    pids = pids_of_ranks(mesh)
    mesh.run(
        f"%%mesh\n{signs.definition}\nimport threading, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nx = torch.ones(3)\ndist.all_reduce(x)"
    )
    cell = mesh.start("%%mesh\ntell('there')\nif rank == 1: threading.Event().wait()\ndist.all_reduce(x)\n'done'")
    signs.wait_for("there", 3)
    os.kill(pids[1], signal.SIGKILL)
    mesh.wait_failed(cell)
    assert cell.traceback.startswith(f"[rank 1] ProcessDied: rank 1 (pid {pids[1]}) ")
    assert "ranks 0,2 failed as a consequence" in cell.traceback
    assert mesh.run("%%mesh !1\nworld_size").result == "[0,2] 3"


def test_the_next_cell_names_the_dead_and_what_to_do(mesh: KernelNotebook) -> None:
    mesh.run_failing(KILL_RANK_1)
    for code in ["%%mesh\nprint('ran')", "%%mesh 1\nprint('ran')", "%%mesh failed\nprint('ran')"]:
        failed = mesh.run_failing(code)
        assert failed.error["evalue"] == (
            "rank 1 of mesh is dead (Killed(sig=9)); restart it with %mesh heal, or run on the others with %%mesh !1"
        )
        assert len(failed.traceback.splitlines()) == 1
        assert failed.stdout == ""
    first, second = mesh.run("%mesh").stdout.splitlines()
    assert first.endswith("; rank 1 dead")
    assert second.startswith("  rank 1 (pid ")
    assert second.endswith(") is dead: Killed(sig=9)")


def test_a_rank_that_dies_between_cells_is_known(mesh: KernelNotebook) -> None:
    os.kill(pids_of_ranks(mesh)[2], signal.SIGKILL)
    while "rank 2 dead" not in mesh.run("%mesh").stdout:
        pass
    assert "rank 2 of mesh is dead" in mesh.run_failing("%%mesh\n1").error["evalue"]
    assert mesh.run("%%mesh !2\nrank").result == "[0] 0\n[1] 1"


def test_all_ranks_die(mesh: KernelNotebook) -> None:
    for pid in pids_of_ranks(mesh):
        os.kill(pid, signal.SIGKILL)
    while "ranks 0-2 dead" not in mesh.run("%mesh").stdout:
        pass
    assert mesh.run_failing("%%mesh\n1").error["evalue"] == (
        "ranks 0-2 of mesh are dead (Killed(sig=9)); restart them with %mesh heal"
    )


@pytest.mark.parametrize("down", ["%mesh down", "%mesh down --now"])
def test_a_mesh_with_dead_ranks_goes_down_and_comes_up_again(mesh: KernelNotebook, down: str) -> None:
    mesh.run_failing(KILL_RANK_1)
    assert mesh.run("%mesh up --gpus 3").stdout.endswith("restart rank 1 with %mesh heal\n")
    pids = pids_of_ranks(mesh, "!1")
    assert mesh.run(down).stdout == "mesh is down\n"
    assert not any(psutil.pid_exists(pid) for pid in pids)
    mesh.run("%mesh up --gpus 3")
    assert mesh.run("%%mesh\nrank, 'kept' in globals()").result == "[0] (0, False)\n[1] (1, False)\n[2] (2, False)"


# --- what ranks live by dies, or is closed ---


def find_process(notebook: KernelNotebook, module: str) -> psutil.Process:
    """The agent or the fork server; workers, which are forked, have its command line too."""
    found = [process for process in notebook.processes() if f"meshbook.runtime.hosts.{module}" in process.cmdline()]
    (process,) = [process for process in found if process.parent() not in found]
    return process


@pytest.mark.parametrize(
    ("module", "cause"),
    [("agent", "its host agent ended: Killed(sig=9) (agent, pid "), ("forkserver", "the fork server ended (signal 9)")],
)
def test_ranks_die_with_what_started_them(
    open_notebook: Callable[..., KernelNotebook], signs: Signs, module: str, cause: str
) -> None:
    notebook = open_notebook()
    notebook.run("%mesh up --gpus 2")
    cell = notebook.start(f"%%mesh\n{signs.definition}\nimport threading\ntell('there'); threading.Event().wait()")
    signs.wait_for("there", 2)
    find_process(notebook, module).kill()
    notebook.wait_failed(cell)
    for rank in (0, 1):
        assert f"[rank {rank}] ProcessDied: rank {rank}" in cell.traceback
    assert cause in cell.traceback
    assert "pid 0" not in cell.traceback
    notebook.run("%mesh down")
    notebook.run("%mesh up --gpus 2")
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1"


def test_a_closed_session_takes_its_meshes_along(open_notebook: Callable[..., KernelNotebook]) -> None:
    notebook = open_notebook()
    notebook.run("%mesh up --gpus 2")
    notebook.run("import meshbook; old = mesh; meshbook.close_session()")
    assert notebook.run("%mesh").stdout.startswith("no mesh is up")
    assert "no mesh is up" in notebook.run_failing("%mesh down").error["evalue"]
    notebook.run("%mesh up --gpus 2")
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1"
    cell = notebook.run(
        "class Talker(meshbook.Actor):\n    @meshbook.endpoint\n    def say(self): print('said')\n"
        "mesh.slice(gpus=1).spawn('talkers', Talker).say.call().get();"
    )
    notebook.wait_until(lambda: cell.stdout == "[mesh 1] said\n")
    stale = notebook.run_failing("old.spawn('talkers', Talker).say.call().get()")
    assert "`ProcMesh` has already been stopped" in stale.error["evalue"]


# --- the kernel dies ---

CHILDREN = (
    "%%mesh\nimport subprocess\n"
    "subprocess.Popen(['sleep', '600']); subprocess.Popen(['sleep', '600'], start_new_session=True);"
)


@pytest.fixture
def busy_notebook(open_notebook: Callable[..., KernelNotebook], signs: Signs) -> Callable[[bool], KernelNotebook]:
    """Opens a notebook whose ranks have started processes of their own; and perhaps run a cell."""

    def open_one(is_running: bool) -> KernelNotebook:
        notebook = open_notebook()
        notebook.run("%mesh up --gpus 2")
        notebook.run(CHILDREN)
        if is_running:
            notebook.start(f"%%mesh\n{signs.definition}\ntell('there')\nwhile True: pass")
            signs.wait_for("there", 2)
        return notebook

    return open_one


def has_nothing_left(notebook: KernelNotebook, processes: set[psutil.Process]) -> bool:
    """`processes` are those to wait for."""
    still_running(processes)
    return not notebook.processes()


@pytest.mark.parametrize(
    ("number", "is_running"),
    [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, True)],
    ids=["killed idle", "killed running", "terminated running"],
)
def test_nothing_outlives_a_killed_kernel(
    busy_notebook: Callable[[bool], KernelNotebook], number: signal.Signals, is_running: bool
) -> None:
    notebook = busy_notebook(is_running)
    processes = notebook.processes()
    assert len(processes) >= 9, "kernel, agent, fork server, two ranks with two children each"
    os.kill(notebook.pid, number)
    assert has_nothing_left(notebook, processes)


SPAWN = """
def boot():
    tell('there')
    time.sleep(600)

this_host().spawn_procs(per_host={'gpus': 2}, bootstrap=boot).initialized.get()
"""
HEAL = """
class Healed(Actor):
    def __restore__(self):
        tell('there')
        time.sleep(600)

    @endpoint
    def wait(self):
        time.sleep(600)

procs = this_host().spawn_procs(per_host={'gpus': 2})
healed = procs.spawn('healed', Healed)
waiting = [healed.slice(gpus=rank).wait.call_one() for rank in range(2)]
await healed.initialized
procs.kill().get()
for each in waiting: each.exception()  # both are dead, and the heal is of both
procs.heal().get()
"""


@pytest.mark.parametrize("work", [SPAWN, HEAL], ids=["spawning", "healing"])
def test_nothing_outlives_a_kernel_killed_in_the_middle(
    open_notebook: Callable[..., KernelNotebook], signs: Signs, work: str
) -> None:
    notebook = open_notebook()
    notebook.run(f"import time\nfrom meshbook import Actor, endpoint, this_host\n{signs.definition}")
    notebook.start(work)
    signs.wait_for("there", 2)
    processes = notebook.processes()
    assert len(processes) >= 5, "kernel, agent, fork server, two ranks"
    os.kill(notebook.pid, signal.SIGKILL)
    assert has_nothing_left(notebook, processes)


@pytest.mark.parametrize("is_running", [False, True], ids=["idle", "running"])
def test_nothing_outlives_a_shut_down(busy_notebook: Callable[[bool], KernelNotebook], is_running: bool) -> None:
    notebook = busy_notebook(is_running)
    processes = notebook.processes()
    notebook.manager.shutdown_kernel()
    assert has_nothing_left(notebook, processes)
    assert list(notebook.folder.iterdir()) == []


@pytest.mark.parametrize("is_running", [False, True], ids=["idle", "running"])
def test_a_restarted_kernel_starts_afresh(busy_notebook: Callable[[bool], KernelNotebook], is_running: bool) -> None:
    notebook = busy_notebook(is_running)
    before = notebook.processes()
    notebook.restart()
    assert still_running(before) == []
    assert notebook.run("%mesh").stdout.startswith("no mesh is up")
    notebook.run("%mesh up --gpus 2")
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1"


# --- a rank without a CUDA context ---


def test_a_rank_that_has_lost_its_cuda_context_is_named_and_healed(mesh: KernelNotebook) -> None:
    mesh.run("%%mesh\nimport torch\nkept = rank")
    cell = mesh.run_failing('%%mesh 1\nraise torch.AcceleratorError("CUDA error: device-side assert triggered")')
    assert "restart it with %mesh restart 1" in cell.traceback
    assert "rank 1 has lost its CUDA context in cell" in mesh.run("%mesh").stdout
    assert "restarted rank 1" in mesh.run("%mesh heal").stdout
    assert "CUDA" not in mesh.run("%mesh").stdout
    assert mesh.run("%%mesh !1\nkept").result == "[0] 0\n[2] 2"
