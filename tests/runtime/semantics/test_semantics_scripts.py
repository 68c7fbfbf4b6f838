"""Semantics: clients that are processes of their own, how they end, and what ends with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import PATIENCE, still_running

QUICK = {"MESHBOOK_PRELOAD": "", "MESHBOOK_STOP_TIMEOUT": "0.5"}
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
    environment = os.environ | {"MESHBOOK_RUNTIME_DIR": str(folder)} | QUICK
    done = subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))  # short: a socket's path has 107 bytes
    yield made
    shutil.rmtree(made)


# -- 19 --------------------------------------------------------------------------------

CLIENT = """
import os
from meshbook import Actor, endpoint, this_host

class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

workers = this_host().spawn_procs(per_host={"gpus": 2}).spawn("worker", Worker)
print(*workers.pid.call().get(60).values(), flush=True)
input()
print(*workers.pid.call().get(60).values(), flush=True)
"""


def test_19_the_processes_of_a_killed_client_die_and_those_of_another_live(run_script: Callable[..., Any]) -> None:
    """Two clients on one host: the end of one, which says no goodbye, is no business of the other."""
    killed, other = run_script(CLIENT, **QUICK), run_script(CLIENT, **QUICK)
    theirs = [[psutil.Process(int(pid)) for pid in client.read_line().split()] for client in (killed, other)]
    everything = killed.family()
    assert {*theirs[0]} < {*everything}
    killed.process.kill()
    assert still_running(everything) == []
    assert all(process.is_running() for process in other.family())
    other.go_on()
    assert other.read_line().split() == [str(process.pid) for process in theirs[1]]


# -- 23 --------------------------------------------------------------------------------


def test_23_an_unhandled_fault_ends_a_script(folder: Path) -> None:
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


def test_23_a_hook_that_raises_is_not_called_again_for_the_same_failure(folder: Path) -> None:
    """Also where what it raises ends the script, with the exit code that it says; the default's is 1."""
    source = """
def end(failure):
    print("the hook was called for", failure.crashed_ranks, flush=True)
    raise SystemExit(7)

meshbook.unhandled_fault_hook = end
member.slice(gpus=1).fail.broadcast()
threading.Event().wait()
"""
    code, out, err = run(folder, source)
    assert (code, out) == (7, "the hook was called for [1]\nthe exit handler ran\n"), err


# -- a failure that a caller receives as an exception ------------------------------------

MORTAL = """
import asyncio, atexit, os, threading
from meshbook import Actor, SupervisionError, current_rank, endpoint, this_host

class Mortal(Actor):
    @endpoint
    def die(self, *ranks: int) -> None:
        if current_rank().rank in ranks:
            os._exit(3)

    @endpoint
    def die_beside(self) -> None:
        if current_rank().rank == 1:
            os._exit(3)
        threading.Event().wait()

    @endpoint
    def exit(self) -> None:
        raise SystemExit("of the actor alone")

    @endpoint
    def answer(self) -> int:
        return current_rank().rank

atexit.register(print, "the exit handler ran", flush=True)
procs = this_host().spawn_procs(per_host={"gpus": 2})
mortal = procs.spawn("mortal", Mortal)
mortal.answer.call().get(60)
"""
HEALS = """
    procs.heal().get(60)
while True:  # another rank may end only after the heal
    try:
        print(*mortal.answer.call().get(60).values(), flush=True)
        break
    except SupervisionError:
        procs.heal().get(60)
"""
CAUGHT = {
    "get": "try:\n    mortal.die.call(1).get(60)\nexcept SupervisionError:",
    "all ranks": "try:\n    mortal.die.call(0, 1).get(60)\nexcept SupervisionError:",
    "actor": "try:\n    mortal.slice(gpus=1).exit.call_one().get(60)\nexcept SupervisionError:",
    "stream": "try:\n    for each in mortal.die.stream(1):\n        each.get(60)\nexcept SupervisionError:",
    "await": "async def fail():\n    await mortal.die.call(1)\ntry:\n    asyncio.run(fail())\nexcept SupervisionError:",
    "later": "late = mortal.die.call(1)\ntry:\n    mortal.die.call(0).get(60)\nexcept SupervisionError:\n"
    "    assert late.exception() is not None",
}


@pytest.mark.parametrize("way", CAUGHT)
def test_a_script_goes_on_after_it_has_caught_the_error_of_a_call(run_script: Callable[..., Any], way: str) -> None:
    script = run_script(MORTAL + CAUGHT[way] + HEALS + "input()", **QUICK)
    assert script.read_line() == "0 1"
    script.go_on()
    assert script.read_line() == "the exit handler ran"
    assert script.process.wait(PATIENCE) == 0


DIE = "mortal.slice(gpus=1).die.broadcast(0)"
UNRECEIVED = {
    "a dropped future": "mortal.die_beside.call()",
    "a broadcast": DIE,
    "a call of another rank": f"other = mortal.slice(gpus=0).die_beside.call()\n{DIE}",
}


@pytest.mark.parametrize("way", UNRECEIVED)
def test_a_failure_that_no_caller_can_receive_ends_a_script(folder: Path, way: str) -> None:
    code, _, err = run(folder, f"{MORTAL}\n{UNRECEIVED[way]}\nthreading.Event().wait()")
    assert code == 1, err
    assert "MeshFailure of mesh mortal" in err


def test_a_failure_that_no_caller_has_received_at_the_end_is_an_exit_status(folder: Path) -> None:
    source = f"{MORTAL}\nheld = mortal.die_beside.call()\nwhile not held.done(): pass"
    code, _, err = run(folder, source)
    assert code == 1, err
    assert "MeshFailure of mesh mortal" in err


def test_under_the_alias_each_failure_ends_a_script(folder: Path) -> None:
    """As in Monarch."""
    source = f"import meshbook.monarch; meshbook.monarch.install(); import monarch\n{MORTAL}{CAUGHT['get']}"
    code, _, err = run(folder, source + "\n    threading.Event().wait()")
    assert code == 1, err


def test_after_a_failure_that_ends_a_script_calls_say_so(folder: Path) -> None:
    source = f"""{MORTAL}
def call():
    ending.wait()
    try:
        mortal.answer.call().get(60)
    except SupervisionError as error:
        print(error)
    called.release()

ending = threading.Event()
called = threading.Semaphore(0)
threading.Thread(target=call, daemon=True).start()
atexit._clear()
atexit.register(called.acquire)
atexit.register(ending.set)
from meshbook.runtime.hosts.session import _close_at_exit
atexit.register(_close_at_exit)
mortal.slice(gpus=1).die.broadcast(0)
threading.Event().wait()
"""
    code, out, err = run(folder, source)
    assert code == 1, err
    assert out.startswith("an unhandled failure ends this process: "), out
    assert "mortal" in out


# -- 32 --------------------------------------------------------------------------------

ENDED = """
import psutil
from meshbook import context, shutdown_context, this_proc

member.answer.call().get()
family = psutil.Process().children(recursive=True)
for _ in range(2):
    print(len(family), shutdown_context().get(30), [each for each in family if each.is_running()], flush=True)
for use in (this_host, this_proc, context, member.answer.call):
    try:
        use()
    except RuntimeError as error:
        print(error)
print(psutil.Process().children())
"""


def test_32_a_client_is_shut_down_once_and_for_all(folder: Path) -> None:
    """All child processes are gone when it says so, saying it again is no error, and nothing can be started again."""
    code, out, err = run(folder, ENDED)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[:2] == ["4 None []"] * 2, "agent, fork server and two workers"
    refused = "shutdown_context() has shut down meshbook in this process"
    assert [line[: len(refused)] for line in lines[2:6]] == [refused] * 4
    assert lines[6:] == ["[]", "the exit handler ran"]


# -- 42 --------------------------------------------------------------------------------

BY_VALUE = """
import sys
from meshbook import Actor, endpoint, this_host, this_proc

LEVEL = "at the spawn"

class Value: ...

def level() -> str:
    return LEVEL

class Holder(Actor):
    @endpoint
    def look(self, value):
        return LEVEL, level(), isinstance(value, Value), hasattr(sys.modules["__main__"], "Value")

    @endpoint
    def change(self) -> None:
        global LEVEL
        LEVEL = "by the actor"

procs = this_host().spawn_procs()
there, here = (mesh.spawn("holder", Holder) for mesh in (procs, this_proc()))
there.look.call_one(Value()).get(60)
LEVEL = "by the client"
for holder in (there, here):
    print(*holder.look.call_one(Value()).get(60), sep=", ")
there.change.call_one().get(60)
print(LEVEL)
print(*there.look.call_one(Value()).get(60), sep=", ")
here.change.call_one().get(60)
print(LEVEL)
"""


def test_42_what_a_script_defines_travels_by_value(run_script: Callable[..., Any]) -> None:
    """In another process its classes, functions and globals are copies of the time of the spawn; in the own one not."""
    script = run_script(BY_VALUE, **QUICK)
    lines = [script.read_line() for _ in range(5)]
    assert lines == [
        "at the spawn, at the spawn, True, False",
        "by the client, by the client, True, True",
        "by the client",
        "by the actor, by the actor, True, False",
        "by the actor",
    ]
