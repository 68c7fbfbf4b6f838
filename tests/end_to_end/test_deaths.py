"""Deaths of processes, whoever dies and however: who waited gets the reason, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from meshbook import Actor, SupervisionError, endpoint
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import LaunchError, ProcessDied
from meshbook.runtime.hosts.session import Session

PATIENCE = 60.0
AT_ONCE = 2.0  # the promise to users: nothing is left two seconds after a death
pytestmark = pytest.mark.process
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Probe(Actor):
    """Runs what it is sent."""

    @endpoint
    def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


def wait_for_ever() -> None:
    threading.Event().wait()


def pids(probe: Any) -> list[int]:
    return list(probe.run.call(os.getpid).get(PATIENCE).values())


def died(future: Any) -> ProcessDied:
    with pytest.raises(ProcessDied) as caught:
        future.get(PATIENCE)
    return caught.value


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Who still lives when nobody should any more."""
    return psutil.wait_procs(processes, timeout=AT_ONCE)[1]


# -- of a worker -------------------------------------------------------------------------


def test_a_killed_worker(spawn_procs):
    probe = spawn_procs(3).spawn("probe", Probe)

    def speak() -> None:
        print("through Python", file=sys.stderr)
        os.write(2, b"past Python\n")

    killed = psutil.Process(pids(probe)[1])
    probe.slice(gpus=1).run.call(speak).get(PATIENCE)
    waiting = probe.slice(gpus=1).run.call_one(wait_for_ever)
    gathered = probe.run.call(os.getpid)
    killed.kill()
    for future in (waiting, gathered):
        error = died(future)
        assert f"Killed(sig=9) (SIGKILL, {error.report.node}, pid {killed.pid})" in str(error)
        assert "Endpoint call probe.run() failed" in str(error)
        assert error.report.stderr == ("through Python", "past Python")
        assert "it came from outside meshbook" in str(error)
    late = probe.run.call_each(os.getpid)
    assert late[1].done()
    assert died(late[1]).report.pid == killed.pid


def test_the_other_ranks_answer(spawn_procs):
    probe = spawn_procs(3).spawn("probe", Probe)
    before = pids(probe)
    killed = probe.slice(gpus=1).run.call_one(os.kill, before[1], signal.SIGKILL)
    died(killed)
    others = probe.run.call_each(os.getpid)
    assert [others[rank].get(PATIENCE) for rank in (0, 2)] == [before[0], before[2]]


def test_a_worker_that_waits_for_another_hears_of_its_death(spawn_procs):
    def ask(other: Any) -> str:
        return type(other.run.call_one(wait_for_ever).exception(PATIENCE)).__name__

    probe = spawn_procs(2).spawn("probe", Probe)
    other = psutil.Process(pids(probe)[0])
    asking = probe.slice(gpus=1).run.call_one(ask, probe.slice(gpus=0))
    other.kill()
    assert asking.get(PATIENCE) == "ProcessDied"


def segfault() -> None:
    import ctypes

    ctypes.string_at(0)


def fall_silent() -> None:
    os._exit(3)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (segfault, ["SIGSEGV", "Segmentation fault(sig=11)", "Fatal Python error: Segmentation fault", "in segfault"]),
        (os.abort, ["SIGABRT", "Fatal Python error: Aborted", "in run"]),
        (fall_silent, ["exit code 3"]),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), ["SIGTERM"]),
    ],
    ids=["segmentation fault", "abort", "exit", "SIGTERM"],
)
@pytest.mark.parametrize("asked", [True, False], ids=["call", "broadcast"])
def test_a_worker_that_ends_itself(spawn_procs, end: Callable[[], None], said: list[str], asked: bool):
    probe = spawn_procs().spawn("probe", Probe)
    probe.initialized.get(PATIENCE)
    if not asked:
        probe.run.broadcast(end)
    text = str(died(probe.run.call_one(end if asked else wait_for_ever)))
    assert [each for each in said if each not in text] == [], text


def test_a_worker_that_ends_while_an_actor_is_made(spawn_procs):
    class Ends(Probe):
        def __init__(self) -> None:
            os._exit(7)

    probe = spawn_procs().spawn("ends", Ends)
    early = probe.run.call_one(os.getpid)
    assert [died(future).report.returncode for future in (probe.initialized, early)] == [7, 7]


def test_a_mesh_that_lost_a_worker_is_stopped(spawn_procs):
    mesh = spawn_procs(2)
    probe = mesh.spawn("probe", Probe)
    processes = [psutil.Process(pid) for pid in pids(probe)]
    processes[0].kill()
    died(probe.slice(gpus=0).run.call(wait_for_ever))
    mesh.stop().get(PATIENCE)
    assert alive(processes) == []
    with pytest.raises(SupervisionError, match="stopped"):
        probe.slice(gpus=1).run.call_one(os.getpid).get(PATIENCE)


def test_a_worker_in_an_endless_loop_is_killed_in_time(spawn_procs, session):
    def loop_in_python() -> None:
        while True:
            pass

    def loop_in_c() -> None:
        import collections
        import itertools

        collections.deque(itertools.repeat(0), maxlen=0)  # never lets another thread of Python's run

    mesh = spawn_procs(2)
    probe = mesh.spawn("probe", Probe)
    processes = [psutil.Process(pid) for pid in pids(probe)]
    for rank, loop in enumerate((loop_in_python, loop_in_c)):
        probe.slice(gpus=rank).run.broadcast(loop)
    begun = time.monotonic()
    mesh.stop().get(PATIENCE)
    assert time.monotonic() - begun < session.settings.stop_timeout + AT_ONCE
    assert alive(processes) == []


# -- of the controller ---------------------------------------------------------------------

CONTROLLER = """
import os, signal, subprocess, sys, time
from meshbook import Actor, endpoint, this_host
from meshbook.runtime.hosts.session import this_proc

class Here(Actor):
    @endpoint
    def say(self, text: str) -> None:
        print(text, flush=True)

class Worker(Actor):
    @endpoint
    def work(self, here, source: str) -> None:
        known = {"os": os, "subprocess": subprocess, "time": time}
        exec(source, known | {"ready": lambda: here.say.call("ready").get(60)})

here = this_proc().spawn("here", Here)
workers = this_host().spawn_procs(per_host={"gpus": 2}).spawn("worker", Worker)
working = workers.work.call(here, sys.argv[1])
working.when_done(lambda: print("worked:", working.exception(), flush=True))
"""


class Run:
    """A script whose two workers are at work, each of which has said so, and everything that the script started."""

    def __init__(self, run_script: Any, work: str, then: str) -> None:
        source = CONTROLLER.replace("sys.argv[1]", repr(work)) + then
        # What workers import at birth does not matter here.
        self.script = run_script(source, MESHBOOK_PRELOAD="")
        assert [self.script.read_line() for _ in range(2)] == ["ready"] * 2
        self.controller = psutil.Process(self.script.process.pid)
        self.family = self.script.family()
        [self.agent] = self.controller.children()
        [self.fork_server] = self.agent.children()
        self.workers = self.fork_server.children()
        assert len(self.workers) == 2


SUBPROCESSES = """
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.Popen(["sh", "-c", "sleep 1000 & trap '' TERM HUP INT; wait"])
ready()
time.sleep(1000)
"""
WORKS = {
    "idle": ("ready()", 0),
    "in a sleep": ("ready(); time.sleep(1000)", 0),
    "in a loop": ("ready()\nwhile True: pass", 0),
    "with subprocesses": (SUBPROCESSES, 6),
}


@pytest.mark.parametrize("stopped", [False, True], ids=["", "stopped"])
@pytest.mark.parametrize("work", WORKS)
def test_a_killed_controller_leaves_nothing(run_script, runtime_dir: Path, work: str, stopped: bool):
    source, subprocesses = WORKS[work]
    run = Run(run_script, source, "time.sleep(1000)")
    assert len(run.family) >= 4 + subprocesses
    if stopped:
        for worker in run.workers:
            worker.suspend()
    run.controller.kill()
    assert alive(run.family) == []
    assert list(runtime_dir.iterdir()) == []


ENDS: dict[str, tuple[str, int]] = {
    "normal": ("", 0),
    "exception": ("raise ValueError('unhandled')", 1),
    "exit": ("sys.exit(3)", 3),
    "Ctrl-C": ("signal.raise_signal(signal.SIGINT)\ntime.sleep(1000)", -signal.SIGINT),
    "SIGTERM": ("signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
    "no finalisers": ("os._exit(4)", 4),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_that_ends_leaves_nothing(run_script, runtime_dir: Path, end: str):
    source, code = ENDS[end]
    run = Run(run_script, "ready(); time.sleep(1000)", "input()\n" + source)
    run.script.go_on()
    assert run.script.process.wait(PATIENCE) == code
    assert alive(run.family) == []
    assert list(runtime_dir.iterdir()) == []


# -- of the agent --------------------------------------------------------------------------


def test_a_killed_agent(own_session: Session):
    def leave_one_behind() -> int:
        return subprocess.Popen(["sleep", "1000"]).pid

    probe = own_session.host.spawn_procs(per_host={"gpus": 2}).spawn("probe", Probe)
    started = [*pids(probe), *probe.run.call(leave_one_behind).get(PATIENCE).values()]
    agent = psutil.Process(own_session._agent.pid)
    processes = [agent, *agent.children(recursive=True)]
    assert set(started) <= {process.pid for process in processes}
    waiting = probe.run.call_each(wait_for_ever)
    agent.kill()
    for future in (*waiting, probe.run.call(os.getpid)):
        assert f"its host agent ended: Killed(sig=9) (agent, pid {agent.pid})" in str(died(future))
    assert alive(processes) == []
    with pytest.raises((LaunchError, ProcessDied), match=r"close_session\(\) makes room for a new one"):
        own_session.host.spawn_procs().initialized.get(PATIENCE)


def test_an_agent_killed_together_with_its_controller(run_script):
    run = Run(run_script, SUBPROCESSES, "time.sleep(1000)")
    run.controller.suspend()  # so that neither sees the other's end
    run.agent.kill()
    run.controller.kill()
    assert alive(run.family) == []


def test_the_next_start_sweeps_what_a_killed_run_left(run_script, runtime_dir: Path):
    run = Run(run_script, "ready()", "time.sleep(1000)")
    run.controller.suspend()
    run.agent.kill()
    run.controller.kill()
    assert alive(run.family) == []
    [left] = runtime_dir.iterdir()
    session = Session(Settings(runtime_dir=str(runtime_dir), preload=""))
    assert list(runtime_dir.iterdir()) == [session.folder.path]
    assert session.folder.path != left
    session.close()
    assert list(runtime_dir.iterdir()) == []
