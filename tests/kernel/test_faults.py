"""Unhandled failures: in a notebook an error of the cell that spawned the mesh, and the kernel continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]

FRAGILE = """
import meshbook
from meshbook import Actor, endpoint, this_host

class Fragile(Actor):
    @endpoint
    def fail(self, why):
        raise ValueError(why)
    @endpoint
    def fine(self):
        return "fine"
"""


@pytest.fixture
def fragile(bare_notebook: KernelNotebook) -> KernelNotebook:
    bare_notebook.run(FRAGILE)
    return bare_notebook


def stop(notebook: KernelNotebook) -> None:
    notebook.run("procs.stop().get()")


def test_a_fault_is_an_error_of_the_cell_that_spawned_the_mesh(fragile: KernelNotebook) -> None:
    """However much later it comes; the cell that runs then goes on."""
    spawning = fragile.run("procs = this_host().spawn_procs({'gpus': 1})\nfragile = procs.spawn('fragile', Fragile)")
    failing = fragile.run("fragile.fail.broadcast('for nobody')")
    fragile.wait_until(lambda: spawning.contents("error"))
    assert spawning.error["ename"] == "MeshFailure"
    assert spawning.error["evalue"] == "rank 0 of mesh fragile has failed"
    assert "ValueError: for nobody" in spawning.traceback
    assert "line 7, in fail\n    raise ValueError(why)" in spawning.traceback
    assert not failing.contents("error")
    assert fragile.run("1 + 1").result == "2"
    stop(fragile)


def test_an_end_that_a_person_asked_for_is_no_failure(fragile: KernelNotebook) -> None:
    fragile.run("%mesh up --gpus 2")
    spawning = fragile.run("fragile = mesh.spawn('fragile', Fragile)\nfragile.fine.call().get();")
    fragile.run("%mesh restart 1")
    assert fragile.run("list(fragile.fine.call().get().values())").result == "['fine', 'fine']"
    assert not spawning.contents("error")
    fragile.run("%mesh down")


def test_ranks_that_fail_alike_are_reported_in_a_line(fragile: KernelNotebook) -> None:
    """The first one in full."""
    spawning = fragile.run("procs = this_host().spawn_procs({'gpus': 3})\nfragile = procs.spawn('fragile', Fragile)")
    fragile.run("fragile.fail.broadcast('alike')")
    fragile.wait_until(lambda: len(spawning.contents("error")) == 3)
    reports = [len(error["traceback"]) > 1 for error in spawning.contents("error")]
    assert reports == [True, False, False]
    stop(fragile)


def test_a_waiting_caller_gets_the_error_in_its_own_cell_too(fragile: KernelNotebook) -> None:
    """The fault belongs to the cell that spawned, the failed call to the one that called."""
    fragile.run("procs = this_host().spawn_procs({'gpus': 1})\nfragile = procs.spawn('fragile', Fragile)")
    fragile.run("fragile.fail.broadcast('before')")
    cell = fragile.run_failing("fragile.fine.call_one().get()")
    assert cell.error["ename"] == "SupervisionError"
    assert "ValueError: before" in cell.traceback
    stop(fragile)


def test_a_hook_of_the_users_is_called_instead(fragile: KernelNotebook) -> None:
    """Whatever it does."""
    fragile.run("import queue\nfaults = queue.Queue()\nbefore = meshbook.unhandled_fault_hook")
    fragile.run("meshbook.unhandled_fault_hook = faults.put")
    fragile.run("procs = this_host().spawn_procs({'gpus': 1})\nfragile = procs.spawn('fragile', Fragile)")
    fragile.run("fragile.fail.broadcast('to the hook')")
    assert "to the hook" in fragile.run("print(faults.get(timeout=60).report())").stdout
    fragile.run("meshbook.unhandled_fault_hook = before")
    stop(fragile)


def test_a_fault_below_a_rank_is_shown_in_its_cell(fragile: KernelNotebook) -> None:
    """What a %%mesh cell spawns on its rank is owned by that rank's shell, which survives."""
    fragile.run("%mesh up --gpus 2")
    fragile.run(f"%%mesh 0{FRAGILE}\nfrom meshbook import this_proc\ninner = this_proc().spawn('inner', Fragile)")
    fragile.run("%%mesh 0\ninner.fail.broadcast('below a rank')")
    seen = fragile.run_failing("%%mesh 0\ninner.fine.call_one().get()")
    assert "below a rank" in seen.traceback
    assert fragile.run("%%mesh\nrank").result == "[0] 0\n[1] 1"
    fragile.run("%mesh down")
