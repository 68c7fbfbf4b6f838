"""A notebook that uses a mesh which a script has pickled, beside its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]

SCRIPT = """
import os, cloudpickle
from meshbook import Actor, endpoint, this_host

class Counter(Actor):
    def __init__(self, count=0):
        self.count = count

    @endpoint
    def add(self):
        self.count += 1
        return self.count

    @endpoint
    def fail(self):
        raise ValueError("for nobody")

procs = this_host().spawn_procs(per_host={"gpus": 2})
counter = procs.spawn("counter", Counter)
with open(os.environ["HANDLES"], "wb") as file:
    cloudpickle.dump((procs, counter, Counter), file)
print("ready", flush=True)
input()
print(counter.add.call().get(60).values(), flush=True)
"""


def test_a_notebook_uses_the_mesh_of_a_script(
    run_script: Callable[..., Any], bare_notebook: KernelNotebook, tmp_path: Path
) -> None:
    handles = tmp_path / "handles"
    script = run_script(SCRIPT, HANDLES=str(handles), MESHBOOK_PRELOAD="")
    assert script.read_line() == "ready"
    notebook = bare_notebook
    notebook.run("%mesh up --gpus 1")
    notebook.run(f"import cloudpickle\nprocs, counter, Counter = cloudpickle.load(open({str(handles)!r}, 'rb'))")
    assert notebook.run("counter.add.call().get().values()").result == "[1, 1]"
    spawning = notebook.run("own = procs.slice(gpus=1).spawn('own', Counter, 10)\nawait own.add.call_one()")
    assert spawning.result == "11"
    notebook.run("%%mesh\nx = 1")
    assert notebook.run("mesh.spawn('mine', Counter, 100).add.call().get().values()").result == "[101]"
    notebook.run("own.fail.broadcast()")
    notebook.wait_until(lambda: spawning.contents("error"))
    assert "ValueError: for nobody" in spawning.traceback
    notebook.run("from meshbook import close_session\nclose_session()")
    script.go_on()
    assert script.read_line() == "[2, 2]"
