"""What is seen of a process from outside: its state in /proc, and its stacks where py-spy is there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshbook.runtime.hosts import observer
from meshbook.runtime.hosts.observer import Observation, Observer, SampledThread, observe

HOLDER = SampledThread("MainThread", True, ())
OTHER = SampledThread("MainThread", False, ())


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (Observation(1, "T"), "stopped (SIGSTOP)"),
        (Observation(1, "t"), "stopped by a debugger"),
        (Observation(1, "Z"), "ended"),
        (Observation(1, ""), "ended"),
        (Observation(1, "D", "nfs_wait"), "waits in the operating system in nfs_wait and cannot be interrupted"),
        (Observation(1, "R"), "holds the GIL in C (computes)"),
        (Observation(1, "S", "futex_wait_queue", (HOLDER,)), "holds the GIL in C (waits in futex_wait_queue)"),
        (Observation(1, "S", "0"), "holds the GIL in C (waits)"),
        (Observation(1, "S", "ep_poll", (OTHER,)), "its threads do not respond"),
    ],
)
def test_why_a_rank_does_not_answer(seen: Observation, said: str) -> None:
    assert seen.trouble == said


def test_a_process_is_read_from_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "spy", lambda pid: None)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (an (odd) name) D 1 7 7 0 -1")
    (tmp_path / "7" / "wchan").write_text("io_schedule")
    assert observe(7, tmp_path) == Observation(7, "D", "io_schedule")
    assert observe(8, tmp_path) == Observation(8, "")


def test_an_observer_looks_at_the_workers_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "observe", lambda pid: Observation(pid, "S"))
    look = Observer(lambda node: {"mesh.0": 7}.get(node, 0))
    assert look.look(["mesh.0", "elsewhere.1"]) == {"mesh.0": Observation(7, "S")}


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that holds the GIL in C, below a function named `hold`."""
    source = "import ctypes\ndef hold():\n    print(flush=True)\n    ctypes.PyDLL(None).sleep(600)\nhold()"
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.process
@pytest.mark.skipif(shutil.which("py-spy", path=Path(sys.executable).parent) is None, reason="py-spy is not installed")
def test_py_spy_sees_which_thread_holds_the_gil_and_where(process: subprocess.Popen[bytes]) -> None:
    for number, state in [(signal.SIGCONT, "S"), (signal.SIGSTOP, "T")]:
        os.kill(process.pid, number)
        while (seen := observe(process.pid)).state != state or not _holders(seen):
            pass  # it has yet to fall asleep in C, or to stop
        assert [frame.name for thread in _holders(seen) for frame in thread.frames] == ["hold", "<module>"]


def _holders(seen: Observation) -> list[SampledThread]:
    return [thread for thread in seen.threads or () if thread.owns_gil]


def test_without_py_spy_there_are_no_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *arguments, **keywords: None)
    assert observer.spy(os.getpid()) is None
