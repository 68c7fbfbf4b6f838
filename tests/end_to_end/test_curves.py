"""Curves of real processes: what a killed rank has logged, and how curves go on after a heal, a resize, an attach."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import meshbook
from meshbook import Actor, close_session, endpoint, this_host
from meshbook.runs import attach, detach, detached_runs, end
from meshbook.runtime.errors import ProcessDied
from meshbook.runtime.hosts.session import current_session
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.telemetry.curves import NOTEBOOK, CurveStore
from tests.support import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.without_torch]


class Trainer(Actor):
    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    """Two processes with an actor; all runs end with the test."""
    made = this_host().spawn_procs({"gpus": 2}, name="trainers")
    made.spawn("trainers", Trainer)
    yield made
    for run in detached_runs():
        if not run.held_by:
            end(run.run)
    close_session()


def trainers(procs: ProcMesh) -> Any:
    return procs.actors["trainers"]


def train(count: int) -> None:
    for _ in range(count):
        meshbook.log(loss=0.5)


def curves() -> CurveStore:
    store = current_session().curves
    store.flush()
    return store


def steps(rank: int) -> list[float]:
    return list(curves().series("loss", "script", rank)[0])


def test_a_killed_rank_keeps_its_points_and_its_curve_goes_on(procs: ProcMesh, tmp_path: Path) -> None:
    log = tmp_path / "logged"

    def train_for_ever(path: str) -> None:
        with open(path, "a") as file:
            step = 0
            while True:
                meshbook.log(step=step, loss=0.5)
                file.write(f"{time.monotonic()}\n")
                file.flush()
                step += 1
                time.sleep(0.001)

    [pid, _] = trainers(procs).run.call(os.getpid).get(PATIENCE).values()
    training = trainers(procs).slice(gpus=0).run.call(train_for_ever, str(log))
    deadline = time.monotonic() + PATIENCE
    while not (log.exists() and len(log.read_text().splitlines()) > 500):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcessDied):
        training.get(PATIENCE)
    # On a busy machine a thread may run late; 100 ms hold where it does not.
    before = sum(float(line) < killed_at - 2.0 for line in log.read_text().splitlines())
    kept = steps(0)
    assert len(kept) >= before
    assert kept == [float(step) for step in range(len(kept))]

    assert procs.heal().get(PATIENCE) == [0]
    trainers(procs).run.call(train, 3).get(PATIENCE)
    assert steps(0)[len(kept) :] == [len(kept), len(kept) + 1, len(kept) + 2]
    assert steps(1) == [0, 1, 2]

    larger = procs.resize(gpus=3)
    larger.initialized.get(PATIENCE)
    trainers(larger).run.call(train, 1).get(PATIENCE)
    assert (steps(1), steps(2)) == ([0, 1, 2, 3], [0])


def test_what_a_forked_child_logs_is_dropped(procs: ProcMesh) -> None:
    def log_in_child() -> None:
        for value in (1.0, 2.0):
            if not (child := os.fork()):
                meshbook.log(forked=-1.0)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            meshbook.log(forked=value)  # from now on there is a thread, which a child does not have

    trainers(procs).slice(gpus=0).run.call(log_in_child).get(PATIENCE)
    assert list(curves().series("forked", "script", 0)[2]) == [1, 2]


def test_what_a_forked_child_of_a_script_logs_is_dropped(procs: ProcMesh, tmp_path: Path) -> None:
    meshbook.log(own=1.0)
    if not (child := os.fork()):
        try:
            logging.getLogger("meshbook").addHandler(logging.FileHandler(tmp_path / "warnings"))
            for _ in range(2):
                meshbook.log(own=2.0)
            meshbook.curves.SummaryWriter().flush()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "warnings").read_text().count("child process") == 1
    meshbook.log(own=3.0)
    current_session().node.points.flush()
    assert list(curves().series("own", "script", NOTEBOOK)[2]) == [1, 3]


def test_curves_are_there_for_the_next_controller(procs: ProcMesh, tmp_path: Path) -> None:
    def train_later(count: int, begin: str, done: str) -> None:
        Path(begin).read_text()  # waits for the test to write
        train(count)
        Path(done).write_text("done")

    trainers(procs).run.call(train, 2).get(PATIENCE)
    begin, done = tmp_path / "begin", tmp_path / "done"
    for path in (begin, done):
        os.mkfifo(path)
    trainers(procs).slice(gpus=1).run.call(train_later, 1000, str(begin), str(done))
    detach(60)
    begin.write_text("now")
    assert done.read_text() == "done"
    found = attach()["trainers"]
    trainers(found).run.call(train, 1).get(PATIENCE)
    assert steps(0) == [0, 1, 2]
    assert steps(1) == [float(step) for step in range(1003)]
    detach(60)
    attach()
    assert curves().count("loss", "script", 1) == 1003
    assert steps(0) == [0, 1, 2]
