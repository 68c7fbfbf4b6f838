"""Profiles that are taken from within, and py-spy as the agents run it: it begins, ends, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from meshbook.runtime.cells.sampling import MOST_SAMPLES, Sampling
from meshbook.runtime.hosts.py_spy import Profiler, _start, _wait_begun
from tests.support import PATIENCE

SPY = pytest.mark.skipif(shutil.which("py-spy", path=Path(sys.executable).parent) is None, reason="py-spy is missing")
BUSY = """
def work():
    for _ in range(10_000):
        sum(range(1000))
while True:
    print("here", flush=True)
    work()
"""


def test_a_process_samples_its_own_threads() -> None:
    seen_often = threading.Event()

    class Noted(Sampling):
        def _sample(self, seconds: float) -> None:
            super()._sample(seconds)
            if self._count > 5:
                seen_often.set()

    sampling = Noted(1000)
    leave = threading.Event()

    def stand_here() -> None:
        leave.wait(PATIENCE)

    thread = threading.Thread(target=stand_here, name="meshbook actor idlers")
    thread.start()
    sampling.thread.start()
    assert seen_often.wait(PATIENCE)
    found = sampling.end()
    leave.set()
    thread.join()
    (own,) = [each for each in found.threads if each.thread == "actor idlers"]
    assert any("stand_here" in line.function for stack in own.stacks for line in stack)
    assert own.length > 0


def test_a_long_profile_stays_within_bounds_and_keeps_its_time() -> None:
    sampling = Sampling(100)
    sampling._seen[1] = [((), 0.01)] * (MOST_SAMPLES + 1)
    sampling._count = MOST_SAMPLES + 1
    sampling._thin_out()
    assert len(sampling._seen[1]) <= MOST_SAMPLES // 2 + 1
    assert sum(seconds for _, seconds in sampling._seen[1]) == pytest.approx((MOST_SAMPLES + 1) * 0.01, rel=0.001)


@SPY
@pytest.mark.process
def test_py_spy_looks_from_outside_and_leaves_nothing_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        profiler = Profiler(lambda node: process.pid if node == "mesh-1.0" else 0)
        try:
            seen: set[str] = set()
            while "work" not in seen:  # on a busy machine a short profile may hold no sample
                for _ in range(2):  # a profile that was not ended is ended by the next one
                    assert profiler.begin(["mesh-1.0", "mesh-1.7"], 100) == {"mesh-1.0": ""}
                    assert len(_others(process)) == 1
                for _ in range(2):
                    process.stdout.readline()  # after some 0.2 s of computing
                (data,) = profiler.end(["mesh-1.0"]).values()
                assert _others(process) == []
                seen = {frame["name"] for frame in json.loads(data)["shared"]["frames"]}
            profiler.begin(["mesh-1.0"], 100)
        finally:
            profiler.__cleanup__(None)
            process.kill()
        assert _others(process) == []


@SPY
@pytest.mark.process
def test_a_process_that_is_not_there_cannot_be_profiled() -> None:
    (why,) = Profiler(lambda node: 1 << 22).begin(["mesh-1.0"], 100).values()
    assert why.startswith("py-spy")


@pytest.mark.process
def test_a_full_pipe_does_not_stop_a_profile(tmp_path: Path) -> None:
    """py-spy prints while it samples; with nothing that reads it, its pipe fills and it waits."""
    program, done = tmp_path / "py-spy", tmp_path / "done"
    program.write_text(f"#!/bin/sh\necho Sampling process; head -c 200000 /dev/zero; echo > {done}; exec sleep 1000")
    program.chmod(0o755)
    os.mkfifo(done)
    spy = _start(str(program), os.getpid(), 100)
    try:
        assert _wait_begun(spy, time.monotonic() + PATIENCE) == ""
        spy.discard_output()
        with open(os.open(done, os.O_RDONLY | os.O_NONBLOCK)) as written:
            assert select.select([written], [], [], PATIENCE)[0]
    finally:
        assert spy.end() == b""


def _others(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.pid != process.pid]
