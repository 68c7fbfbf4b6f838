"""Faults of the controller and of its host agent: everything of the run is gone within two seconds, whatever it did."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from meshbook.runtime.config import Settings
from meshbook.runtime.errors import LaunchError, ProcessDied
from meshbook.runtime.hosts.session import Session
from tests.support import PATIENCE, Probe, few, has_no_runs, still_running

pytestmark = [pytest.mark.process, pytest.mark.without_torch]


# -- the controller, its workers at work ---------------------------------------------------

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
@pytest.mark.parametrize("work", few(reversed(WORKS)))
def test_a_killed_controller_leaves_nothing(run_script, runtime_dir: Path, work: str, stopped: bool):
    source, subprocesses = WORKS[work]
    run = Run(run_script, source, "time.sleep(1000)")
    assert len(run.family) >= 4 + subprocesses
    if stopped:
        for worker in run.workers:
            worker.suspend()
    run.controller.kill()
    assert still_running(run.family) == []
    assert has_no_runs(runtime_dir)


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
    assert still_running(run.family) == []
    if end not in (
        "SIGTERM",
        "no finalisers",
    ):  # a process that ends in order is the last, and removes the folder itself
        assert list(runtime_dir.iterdir()) == []
    assert has_no_runs(runtime_dir)


# -- the controller, in the middle of things -----------------------------------------------

BUSY_CONTROLLER = """
import os, sys, time
from meshbook import Actor, endpoint, this_host, this_proc

class Here(Actor):
    @endpoint
    def say(self, text: str) -> None:
        print(text, flush=True)

class Worker(Actor):
    def __init__(self, here) -> None:
        self.here = here

    def __restore__(self) -> None:
        self.here.say.call("healing").get()
        time.sleep(1000)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def own(self) -> None:
        self.children = this_host().spawn_procs(per_host={"gpus": 2})
        self.grandchildren = self.children.spawn("child", Parent).own.call().get()
        self.here.say.call("owning").get()
        time.sleep(1000)

class Parent(Actor):
    @endpoint
    def own(self) -> None:
        self.children = this_host().spawn_procs()
        self.children.initialized.get()

def tell_and_wait() -> None:
    here.say.broadcast("spawning")
    time.sleep(1000)

here = this_proc().spawn("here", Here)
"""
BUSY: dict[str, tuple[str, list[str], int]] = {  # what it does, what is said, how many processes there are by then
    "first spawn": (  # the fork server is starting; an agent that is still at its own imports needs longer to notice
        "this_host().initialized.get()\nthis_host().spawn_procs(per_host={'gpus': 4}); print('asked', flush=True)",
        ["asked"],
        3,
    ),
    "spawn": ("this_host().spawn_procs(per_host={'gpus': 4}, bootstrap=tell_and_wait)", ["spawning"], 4),
    "owners": (
        "this_host().spawn_procs(per_host={'gpus': 2}).spawn('worker', Worker, here).own.broadcast()",
        ["owning"] * 2,
        1 + 2 + 2 + 4 + 4,
    ),
    "heal": (
        "procs = this_host().spawn_procs(per_host={'gpus': 2})\n"
        "worker = procs.spawn('worker', Worker, here)\n"
        "sys.modules['meshbook'].unhandled_fault_hook = lambda failure: None\n"
        "os.kill(worker.slice(gpus=1).pid.call_one().get(), 9)\n"
        "worker.pid.call().exception()\n"
        "procs.heal()",
        ["healing"],
        5,
    ),
}


@pytest.mark.parametrize("work", few(BUSY, 2))
def test_a_controller_killed_in_the_middle(run_script, runtime_dir: Path, work: str):
    source, said, count = BUSY[work]
    script = run_script(f"{BUSY_CONTROLLER}\n{source}\ntime.sleep(1000)", MESHBOOK_PRELOAD="")
    assert [script.read_line() for _ in said] == said
    before = script.processes()
    assert len(before) >= count
    script.process.kill()
    # What was forked at that very moment is no member of what was seen before.
    assert still_running([*before, *script.processes()]) == []
    assert script.processes() == set()
    assert has_no_runs(runtime_dir)


def test_a_controller_killed_before_its_agent_knows_the_run(run_script, runtime_dir: Path):
    script = run_script(
        "import os, signal\nfrom meshbook.runtime.hosts.session import Session\n"
        "Session._make_node = lambda session: os.kill(os.getpid(), signal.SIGKILL)\nSession()"
    )
    script.process.wait(PATIENCE)
    assert still_running(list(script.processes())) == []
    assert list(runtime_dir.iterdir()) == [], "its agent has removed the folder"


# -- the agent -----------------------------------------------------------------------------


def test_a_killed_agent(own_session: Session):
    def wait_forever() -> None:
        threading.Event().wait()

    def leave_one_behind() -> int:
        return subprocess.Popen(["sleep", "1000"]).pid

    probe = own_session.host.spawn_procs(per_host={"gpus": 2}).spawn("probe", Probe)
    started = [pid for work in (os.getpid, leave_one_behind) for pid in probe.run.call(work).get(PATIENCE).values()]
    agent = psutil.Process(own_session._agent.pid)
    processes = [agent, *agent.children(recursive=True)]
    assert set(started) <= {process.pid for process in processes}
    waiting = probe.run.call_each(wait_forever)
    agent.kill()
    for future in (*waiting, probe.run.call(os.getpid)):
        with pytest.raises(ProcessDied, match=rf"its host agent ended: Killed\(sig=9\) \(agent, pid {agent.pid}\)"):
            future.get(PATIENCE)
    assert still_running(processes) == []
    with pytest.raises((LaunchError, ProcessDied), match=r"call close_session\(\)"):
        own_session.host.spawn_procs().initialized.get(PATIENCE)


def test_an_agent_killed_together_with_its_controller(run_script):
    run = Run(run_script, SUBPROCESSES, "time.sleep(1000)")
    run.controller.suspend()  # so that neither sees the other's end
    run.agent.kill()
    run.controller.kill()
    assert still_running([run.controller, *run.family]) == []  # they hold the folder


def test_the_next_start_sweeps_what_a_killed_run_left(run_script, runtime_dir: Path):
    run = Run(run_script, "ready()", "time.sleep(1000)")
    run.controller.suspend()
    run.agent.kill()
    run.controller.kill()
    assert still_running([run.controller, *run.family]) == []  # they hold the folder
    [left] = runtime_dir.iterdir()
    session = Session(Settings(runtime_dir=str(runtime_dir), preload=""))
    assert list(runtime_dir.iterdir()) == [session.folder.path]
    assert session.folder.path != left
    session.close()
    assert list(runtime_dir.iterdir()) == []
