"""Meshes that outlive their kernel: `%mesh detach`, a kernel that restarts, `%mesh attach`, in both doors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from meshbook.runtime.config import Settings
from meshbook.runtime.hosts.attaching import end
from meshbook.runtime.hosts.detached_runs import detached_runs
from meshbook.runtime.hosts.journal import MESSAGES
from meshbook.runtime.hosts.lifeline import JOURNAL
from tests.support import FRONT_DOORS, PATIENCE

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = pytest.mark.kernel

CLASS = """
from meshbook import Actor, endpoint

class Counter(Actor):
    def __init__(self):
        self.count = 0

    @endpoint
    def add(self):
        self.count += 1
        return {sign}self.count
"""
ACTORS = """
counters = mesh.spawn("counters", Counter)
first = mesh.slice(gpus=0)
buffer = first.pull("lent")
list(counters.add.call().get().values())
"""


@pytest.fixture(params=FRONT_DOORS)
def notebook(request: pytest.FixtureRequest, open_notebook: Callable[..., KernelNotebook]) -> Iterator[KernelNotebook]:
    """In each door a kernel with a mesh of two ranks."""
    notebook = open_notebook(request.param)
    notebook.manager.shutdown_wait_time = PATIENCE  # by default, a kernel that detaches is killed after five seconds
    notebook.run("%mesh up --gpus 2")
    yield notebook
    settings = Settings(runtime_dir=str(notebook.folder))
    for run in detached_runs(settings):  # after a test that has failed
        if not run.held_by:
            end(run, "a test", settings)


def restart(notebook: KernelNotebook) -> None:
    """Restart the kernel; a stock one has to load the extension again."""
    is_ours = notebook.manager.kernel_name == "meshbook"
    notebook.restart()
    if not is_ours:
        notebook.run("%load_ext meshbook")


def test_a_mesh_outlives_its_kernel(notebook: KernelNotebook, signs: Signs, tmp_path: Path) -> None:
    """With its variables, its actors, and a cell that runs on: output, curve and result come to the next kernel."""
    go_on = tmp_path / "go on"
    os.mkfifo(go_on)
    notebook.run(
        f"%%mesh\n{signs.definition}\nx = rank * 10\nfrom meshbook import RDMABuffer, log\nlent = RDMABuffer(b'lent')"
    )
    notebook.run(CLASS.format(sign=""))
    assert notebook.run(ACTORS).result == "[1, 1]"
    notebook.start(
        f"%%mesh -a -o late\nprint('before')\nlog(loss=2)\ntell('begun')\nopen({str(go_on)!r}).read()\n"
        "print('after')\nlog(loss=1)\ntell('ended')\nx + 1"
    )
    signs.wait_for("begun", 2)
    assert "will be detached when its kernel shuts down" in notebook.run("%mesh detach --at-exit --for 30m").stdout
    restart(notebook)
    assert "no mesh is up" in (brief := notebook.run("%mesh").stdout)
    assert "mesh: 2 ranks, 2 busy" in brief, "what was detached is not forgotten"
    descriptor = os.open(go_on, os.O_RDWR)
    assert "mesh: 2 ranks" in notebook.run("%mesh attach --list").stdout
    attached = notebook.run("%mesh attach")
    assert "mesh: 2 ranks (gpus=2)" in attached.stdout
    assert "variables: buffer, counters, first, late, mesh" in attached.stdout
    assert "detached again when this notebook ends" in attached.stdout
    assert "job 1 of cell" in notebook.run("%mesh jobs").stdout
    os.close(descriptor)  # the reader gets the end of the file
    signs.wait_for("ended", 2)
    assert notebook.evaluate("late.result().values") == [1, 11]
    assert notebook.evaluate("late.result()[1].stdout") == "before\nafter\n"
    notebook.run("curve = mesh.slice(gpus=1).history('loss').to_pandas()")
    assert notebook.evaluate("curve.run.nunique(), list(curve.step), list(curve.value)") == (1, [0, 1], [2, 1])
    notebook.run("del curve")
    assert notebook.run("%%mesh\nx").result == "[0] 0\n[1] 10"
    assert notebook.evaluate("list(counters.add.call().get().values())") == [2, 2]
    assert notebook.run("mesh.actors").result.startswith("{'counters': <ActorMesh counters of Counter")
    assert notebook.run("first.pull('x')").result == "0"
    assert notebook.run("buffer.read_into(got := bytearray(4)).get()\ngot").result == "bytearray(b'lent')"
    assert "before\nafter" in notebook.run("%mesh log 1").stdout

    check_redefinition(notebook)
    check_deaths(notebook)
    check_refusals(notebook)


def check_redefinition(notebook: KernelNotebook) -> None:
    """A class that is defined anew: the next spawn uses it, live actors take it on, and keep their state."""
    notebook.run(CLASS.format(sign="-"))
    notebook.run("await counters.reload()")
    assert notebook.evaluate("list(counters.add.call().get().values())") == [-3, -3]
    assert notebook.evaluate("list(mesh.spawn('more', Counter).add.call().get().values())") == [-1, -1]


def test_the_cell_of_a_running_job_says_that_it_was_detached(notebook: KernelNotebook, signs: Signs) -> None:
    job = notebook.run(
        f"%%mesh -a\n{signs.definition}\nimport threading\nprint('begun')\ntell('begun')\nthreading.Event().wait()"
    )
    signs.wait_for("begun", 2)
    # What arrives later is for the notebook that attaches.
    notebook.wait_until(lambda: notebook.run("%mesh log").stdout.count("begun") == 2)
    detached = notebook.run("%mesh detach").stdout
    assert "1 job continues" in detached
    notebook.wait_until(lambda: "2 ranks · detached after" in job.outputs[0].data["text/plain"])
    listed = notebook.run("%mesh jobs").stdout
    assert "2 ranks · detached after" in listed
    assert "failed" not in listed
    assert "detached: " in notebook.run("%mesh status").stdout, "so the job's cell has shown what it will"
    assert job.contents("error") == []
    assert [output.get("text") for output in job.outputs[1:]] == ["[0-1] begun\n"]


def check_deaths(notebook: KernelNotebook) -> None:
    """Ranks that died meanwhile are reported, and can be healed. The same kernel may attach again."""
    cell = notebook.run("%%mesh 1\nimport os\nprint(os.getpid())")
    victim = psutil.Process(int(cell.stdout.split()[-1]))
    assert "is detached: mesh (2 ranks)\n" in notebook.run("%mesh detach").stdout
    assert "it belongs to another run" in notebook.run_failing("counters.add.call().get()").traceback
    (news,) = notebook.folder.glob(f"*/{JOURNAL}/{MESSAGES}")
    before = news.stat().st_size
    victim.send_signal(signal.SIGKILL)
    while news.stat().st_size == before:  # its agent hears of it a moment after the system has seen it
        pass
    attached = notebook.run("%mesh attach mesh").stdout
    assert "rank 1 dead" in attached
    assert f"rank 1 (pid {victim.pid}) is dead: " in attached
    assert "rank 1 of mesh is dead" in notebook.run_failing("%%mesh\n1").traceback
    notebook.run("%mesh heal")
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1"


def check_refusals(notebook: KernelNotebook) -> None:
    """Impossible requests are errors of one line, and change nothing."""
    for line, why in {
        "%mesh attach": "this notebook already has mesh",
        "%mesh detach --for ever": "invalid duration 'ever'",
    }.items():
        assert why in notebook.run_failing(line).traceback
    assert notebook.run("%mesh attach --list").stdout.strip().endswith(")"), "this very notebook has it"
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1"
    notebook.run("%mesh down")
    for line, why in {
        "%mesh detach": "nothing to detach: no mesh is up",
        "%mesh attach": "no detached runs",
        "%mesh attach nobody": "no detached run matches 'nobody'",
    }.items():
        assert why in notebook.run_failing(line).traceback
