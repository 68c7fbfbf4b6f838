"""Semantics: what becomes of a script, in a process of its own, when a fault is handled by nobody."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PATIENCE = 60.0
pytestmark = pytest.mark.process

SCRIPT = """
import atexit, threading
import meshbook
from meshbook import Actor, endpoint, this_host

class Member(Actor):
    @endpoint
    def fail(self) -> None:
        raise ValueError("for nobody")

    @endpoint
    def answer(self) -> str:
        return "answered"

atexit.register(print, "the exit handler ran", flush=True)
called = threading.Semaphore(0)

def hook(failure):
    print("the hook was called for", failure.mesh_name, failure.crashed_ranks, flush=True)
    called.release()
    raise RuntimeError("in the hook")

procs = this_host().spawn_procs(per_host={"gpus": 2})
member = procs.spawn("member", Member)
"""


def run(folder: Path, source: str) -> tuple[int, str, str]:
    """Its exit code, and what it printed."""
    file = folder / "script.py"
    file.write_text(SCRIPT + source)
    environment = os.environ | {"MESHBOOK_RUNTIME_DIR": str(folder), "MESHBOOK_PRELOAD": ""}
    done = subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))  # short: a socket's path has 107 bytes
    yield made
    shutil.rmtree(made)


def test_23_a_fault_that_nobody_handles_ends_a_script(folder: Path) -> None:
    """It is printed, exit handlers run, and the exit code is 1, though the script waits for something else."""
    code, out, err = run(folder, "member.slice(gpus=1).fail.broadcast()\nthreading.Event().wait()")
    assert (code, out) == (1, "the exit handler ran\n")
    assert "MeshFailure" in err
    assert "crashed_ranks=[1]" in err
    assert "ValueError: for nobody" in err


def test_23_a_hook_of_the_users_is_called_once_though_it_raises(folder: Path) -> None:
    """And the script goes on."""
    source = """
meshbook.unhandled_fault_hook = hook
member.slice(gpus=1).fail.broadcast()
called.acquire()
print(member.slice(gpus=0).answer.call_one().get())
procs.stop().get()
"""
    code, out, err = run(folder, source)
    assert code == 0, err
    assert out == "the hook was called for member [1]\nanswered\nthe exit handler ran\n"
    assert "RuntimeError: in the hook" in err
