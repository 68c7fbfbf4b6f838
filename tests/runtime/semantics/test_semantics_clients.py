"""Semantics: meshes that one client gives to another one, which is a process of its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Script

QUICK = {"MESHBOOK_PRELOAD": "", "MESHBOOK_STOP_TIMEOUT": "0.5"}
pytestmark = [pytest.mark.process, pytest.mark.without_torch]

# Each client reads lines: an expression is answered by its value, anything else is executed.
PROGRAM = """
import os, pickle, sys, threading
from pathlib import Path

import cloudpickle
import meshbook
from meshbook import Actor, Channel, SupervisionError, current_rank, endpoint, send, this_host

HANDLES = Path(os.environ["HANDLES"])
faults = []
meshbook.unhandled_fault_hook = faults.append

class Counter(Actor):
    def __init__(self, start=0):
        self.count = start

    @endpoint
    def add(self):
        self.count += 1
        return self.count

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def fail(self):
        raise ValueError("on purpose")

    @endpoint
    def die(self):
        os._exit(3)

    @endpoint
    def give(self, what):
        return what

    @endpoint
    def call(self, other):
        return other.add.call_one().get()

    @endpoint
    def own(self, procs):
        self.owned = procs.spawn("owned", Counter, 10)
        return self.owned

    def __supervise__(self, failure):
        self.told = f"{failure.mesh_name}: {failure.mesh.add.call().exception()}"
        return True

    @endpoint
    def what_failed(self):
        return getattr(self, "told", "")

    @endpoint
    def send_to(self, port):
        port.send(f"from {current_rank().rank}")

    @endpoint
    def open(self):
        port, self.receiver = Channel.open()
        return port

    @endpoint
    def receive(self):
        return self.receiver.recv().get()

    def __cleanup__(self, error):
        HANDLES.with_suffix(".ended").write_text("ended")

def error(do):
    try:
        do()
    except SupervisionError as error:
        return str(error)
    return "no error"

def values(future):
    return future.get(60).values()

def wait_for(condition):
    end = threading.Event()
    for _ in range(3000):
        if condition():
            return True
        end.wait(0.02)
    return False
"""
LOOP = """
for line in sys.stdin if __name__ == "__main__" else ():
    try:
        code = compile(line.strip(), "a line", "eval")
    except SyntaxError:
        exec(line.strip(), globals())
        print("done", flush=True)
    else:
        print(repr(eval(code)), flush=True)
"""
FIRST = """
procs = this_host().spawn_procs(per_host={"gpus": 2})
counter = procs.spawn("counter", Counter)
HANDLES.write_bytes(cloudpickle.dumps((procs, counter, procs.host_mesh)))
"""
SECOND = """
procs, counter, hosts = cloudpickle.loads(HANDLES.read_bytes())
"""


class Client:
    """A client in a process of its own, which does what the test says."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.pid = script.process.pid

    def say(self, line: str) -> Any:
        assert self.script.process.stdin is not None
        self.script.process.stdin.write(f"{line}\n")
        self.script.process.stdin.flush()
        answer = self.script.read_line()
        return None if answer == "done" else eval(answer)

    def end(self) -> None:
        """End the process as one that has nothing more to do."""
        assert self.script.process.stdin is not None
        self.script.process.stdin.close()
        assert self.script.process.wait(60) == 0


@pytest.fixture
def handles(runtime_dir: Path) -> Iterator[Path]:
    yield (path := runtime_dir.with_suffix(".handles"))
    for each in path.parent.glob(f"{path.stem}.handles*"):
        each.unlink()
    path.with_suffix(".ended").unlink(missing_ok=True)


@pytest.fixture
def start(run_script: Callable[..., Script], handles: Path) -> Callable[[str], Client]:
    def start(source: str) -> Client:
        return Client(run_script(PROGRAM + source + LOOP, HANDLES=str(handles), **QUICK))

    return start


@pytest.fixture
def first(start: Callable[[str], Client]) -> Client:
    client = start(FIRST)
    assert client.say("values(counter.add.call())") == [1, 1]
    return client


@pytest.fixture
def second(first: Client, start: Callable[[str], Client]) -> Client:
    return start(SECOND)


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("client*") if path.name != "clients")


def test_another_client_calls_and_spawns(first: Client, second: Client, runtime_dir: Path) -> None:
    pids = first.say("values(counter.pid.call())")
    assert second.say("values(counter.add.call())") == [2, 2]
    assert second.say("values(counter.pid.call())") == pids
    assert second.say("counter.slice(gpus=1).add.call_one().get(60)") == 3
    second.say('own = procs.slice(gpus=1).spawn("own", Counter, 10)')
    assert second.say("own.add.call_one().get(60), own.pid.call_one().get(60)") == (11, pids[1])
    # Handles that come back are of that run, and can be used there, on either side.
    assert second.say("counter.slice(gpus=0).give.call_one(own).get(60).add.call_one().get(60)") == 12
    assert second.say("counter.slice(gpus=0).call.call_one(own).get(60)") == 13
    assert second.say("list(procs.map(lambda item: item * 2, range(4), progress=False))") == [0, 2, 4, 6]
    # It has started no run of its own.
    assert len([path for path in runtime_dir.iterdir() if path.is_dir()]) == 1
    second.end()
    assert first.say("values(counter.pid.call())") == pids
    assert first.say("wait_for(HANDLES.with_suffix('.ended').exists)")
    assert files_of(runtime_dir) == []


def test_a_failure_reaches_the_client_that_has_spawned(first: Client, second: Client) -> None:
    second.say('own = procs.slice(gpus=1).spawn("own", Counter)')
    second.say("own.fail.broadcast()")
    assert second.say("wait_for(lambda: faults)")
    assert second.say("[failure.mesh_name for failure in faults]") == ["own"]
    assert "on purpose" in second.say("error(own.add.call_one().get)")
    second.say("faults[0].mesh.stop().get(60)")
    assert first.say("values(counter.add.call()), faults") == ([2, 2], [])
    # A process that dies is an event for both: each has spawned actors there.
    second.say('own = procs.slice(gpus=1).spawn("again", Counter)')
    second.say("faults.clear()")
    assert "exit code 3" in second.say("error(own.die.call_one().get)")
    assert second.say("wait_for(lambda: [failure.mesh_name for failure in faults] == ['again'])")
    assert first.say("wait_for(lambda: [failure.mesh_name for failure in faults] == ['counter'])")
    # And so is its restart: references reach the new process.
    assert first.say("procs.heal().get(60)") == [1]
    assert second.say("counter.slice(gpus=1).add.call_one().get(60)") == 1


def test_a_client_that_is_killed_leaves_the_first_alone(first: Client, second: Client, runtime_dir: Path) -> None:
    second.say('own = procs.spawn("own", Counter)')
    second.say('more = hosts.spawn_procs(per_host={"gpus": 1})')
    (pid,) = second.say('values(more.spawn("member", Counter).pid.call())')
    assert second.say("values(own.add.call())") == [1, 1]
    first.say("before = values(counter.pid.call())")
    os.kill(second.pid, 9)
    assert first.say("wait_for(HANDLES.with_suffix('.ended').exists)")
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=60)
    assert not psutil.pid_exists(pid)
    assert first.say("values(counter.add.call()), values(counter.pid.call()) == before, faults") == ([2, 2], True, [])
    assert first.say(f"wait_for(lambda: not list(Path({str(runtime_dir)!r}).rglob('client-*')))")


@pytest.mark.parametrize("how", ["end", "kill"])
def test_calls_fail_when_the_first_client_ends(first: Client, second: Client, how: str, runtime_dir: Path) -> None:
    assert second.say("values(counter.add.call())") == [2, 2]
    second.say('own = procs.spawn("own", Counter)')
    if how == "end":
        first.end()
    else:
        os.kill(first.pid, 9)
    assert second.say("wait_for(lambda: 'no error' != error(counter.add.call().get))")
    assert "Endpoint call counter.add() failed" in second.say("error(counter.add.call().get)")
    assert second.say("wait_for(lambda: 'has ended: its controller' in error(counter.slice(gpus=0).add.call().get))")
    assert second.say("'has ended: its controller' in error(own.add.call().get), faults") == (True, [])
    # It can still begin a run of its own.
    assert second.say("values(this_host().spawn_procs().spawn('mine', Counter).add.call())") == [1]
    second.end()
    assert [path for path in runtime_dir.iterdir() if path.is_dir()] == []


def test_a_handle_of_a_run_that_has_ended_is_an_error_at_once(first: Client, start: Callable[[str], Client]) -> None:
    first.end()
    late = start(SECOND)
    assert "has ended: its controller" in late.say("error(counter.add.call)")
    assert "has ended: its controller" in late.say("error(lambda: procs.spawn('own', Counter))")


def test_a_run_of_another_user_is_an_error(first: Client, second: Client) -> None:
    second.say("import meshbook.runtime.config as config")
    second.say("config.os.getuid = lambda: 12345")
    assert "must be owned by you" in second.say("error(counter.add.call)")


def test_a_client_of_another_version_is_refused(first: Client, second: Client) -> None:
    second.say("import meshbook.runtime.hosts.joined_runs as joining")
    second.say("joining.present_version = lambda: 'meshbook 0.0 on Python 2.7'")
    assert "this process is meshbook 0.0 on Python 2.7" in second.say("error(counter.add.call)")
    assert first.say("values(counter.add.call())") == [2, 2]


def test_what_is_no_client_is_refused(first: Client, runtime_dir: Path) -> None:
    (door,) = runtime_dir.rglob("clients")
    for said in (b"garbage\n", b"the beginning of a line"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(door))
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
    assert first.say("values(counter.add.call())") == [2, 2]


def test_calls_fail_when_the_host_agent_ends(first: Client, second: Client) -> None:
    assert second.say("values(counter.add.call())") == [2, 2]
    (agent,) = (child for child in psutil.Process(first.pid).children() if "start_agent" in " ".join(child.cmdline()))
    agent.kill()
    assert second.say("wait_for(lambda: 'its host agent ended' in error(counter.add.call().get))")


def test_a_client_with_a_run_of_its_own_uses_both(first: Client, second: Client) -> None:
    second.say("mine = this_host().spawn_procs(per_host={'gpus': 1}).spawn('mine', Counter, 100)")
    assert second.say("values(mine.add.call()), values(counter.add.call())") == ([101], [2, 2])
    # Actors of either run call those of the other.
    assert second.say("values(mine.call.call(counter.slice(gpus=0)))") == [3]
    assert second.say("counter.slice(gpus=1).call.call_one(mine).get(60)") == 102
    second.say("meshbook.close_session()")
    assert first.say("values(counter.add.call())") == [4, 3]
    assert second.say("values(counter.add.call())") == [5, 4]


def test_an_actor_owns_what_it_has_spawned_in_another_run(first: Client, second: Client) -> None:
    second.say("mine = this_host().spawn_procs().spawn('mine', Counter)")
    second.say("owned = mine.own.call_one(procs.slice(gpus=0)).get(60)")
    assert second.say("owned.add.call_one().get(60)") == 11
    second.say("owned.fail.broadcast()")
    assert second.say("wait_for(lambda: mine.what_failed.call_one().get(60))")
    assert second.say("mine.what_failed.call_one().get(60)").startswith("owned: Endpoint call owned.add() failed")
    second.say("owned = mine.own.call_one(procs.slice(gpus=0)).get(60)")
    assert second.say("owned.add.call_one().get(60)") == 11
    second.say("mine.stop().get(60)")
    assert second.say("wait_for(lambda: 'its owner has ended' in error(owned.add.call_one().get))")
    assert (first.say("faults"), second.say("faults")) == ([], [])


def test_ports_lead_from_one_run_to_the_other(first: Client, second: Client) -> None:
    second.say("port, receiver = Channel.open_ranked()")
    second.say("values(counter.send_to.call(port))")
    assert second.say("sorted(receiver.recv().get(60) for _ in range(2))") == [(0, "from 0"), (1, "from 1")]
    second.say("send(counter.add, [], {}, port)")
    assert second.say("sorted(receiver.recv().get(60) for _ in range(2))") == [(0, 2), (1, 2)]
    # A port of an actor of that run, which came in a reply, and goes back in an argument.
    second.say("theirs = counter.slice(gpus=0).open.call_one().get(60)")
    second.say("theirs.send('hello')")
    assert second.say("counter.slice(gpus=0).receive.call_one().get(60)") == "hello"
    second.say("counter.slice(gpus=1).send_to.call_one(theirs).get(60)")
    assert second.say("counter.slice(gpus=0).receive.call_one().get(60)") == "from 0"
    assert first.say("faults") == second.say("faults") == []
    # A receiver that waits hears of the end of the run.
    second.say("waiting = receiver.recv()")
    first.end()
    assert "has ended: its controller" in second.say("error(waiting.get)")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_handles_go_to_processes_of_multiprocessing(start: Callable[[str], Client], method: str) -> None:
    first = start(
        """
import multiprocessing

def other(procs, answers):
    own = procs.slice(gpus=1).spawn("own", Counter, 10)
    mine = this_host().spawn_procs().spawn("mine", Counter, 100)
    answers.put([values(mesh.add.call()) for mesh in (own, procs.spawn("all", Counter), mine)])

if __name__ == "__main__":
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    counter = procs.spawn("counter", Counter)
    counter.add.call().get(60)
"""
    )
    first.say(f"processes = multiprocessing.get_context({method!r})")
    first.say("answers = processes.Queue()")
    first.say("child = processes.Process(target=other, args=(procs, answers))")
    first.say("child.start()")
    assert first.say("answers.get(timeout=60)") == [[11], [1, 1], [101]]
    first.say("child.join(60)")
    assert first.say("child.exitcode, values(counter.add.call()), faults") == (0, [2, 2], [])


def test_a_client_stays_while_the_run_is_detached(
    first: Client, second: Client, start: Callable[[str], Client], runtime_dir: Path
) -> None:
    assert second.say("values(counter.add.call())") == [2, 2]
    second.say('own = procs.spawn("own", Counter)')
    first.say("from meshbook.runs import detach")
    run = first.say("detach(60)")
    first.end()
    assert second.say("values(counter.add.call()), values(own.add.call())") == ([3, 3], [1, 1])
    second.say("own.fail.broadcast()")
    assert second.say("wait_for(lambda: faults)")
    late = start(SECOND)  # it joins a detached run
    assert late.say("values(counter.add.call())") == [4, 4]
    third = start("from meshbook.runs import attach\n")
    third.say(f"procs = attach({run!r})['procs']")
    assert third.say("values(procs.actors['counter'].add.call())") == [5, 5]
    assert second.say("values(counter.add.call()), values(procs.spawn('more', Counter).add.call())") == (
        [6, 6],
        [1, 1],
    )
    third.end()
    assert second.say("wait_for(lambda: 'has ended: its controller' in error(counter.add.call().get))")
    second.end()
    late.end()
    assert [path for path in runtime_dir.iterdir() if path.is_dir()] == []


def test_a_client_reaches_other_hosts_of_the_run(start: Callable[[str], Client]) -> None:
    first = start(
        """
from meshbook.hosts import command
hosts = command({"h1": [], "h2": []})
procs = hosts.spawn_procs(per_host={"gpus": 1})
counter = procs.spawn("counter", Counter)
HANDLES.write_bytes(cloudpickle.dumps((procs.slice(hosts=1), counter, hosts)))
"""
    )
    assert first.say("values(counter.add.call())") == [1, 1]
    second = start(SECOND)
    assert second.say("values(counter.add.call())") == [2, 2]
    second.say('own = procs.spawn("own", Counter, 10)')
    assert second.say("values(own.add.call())") == [11]
    assert second.say("counter.slice(hosts=0).call.call_one(own).get(60)") == 12
    second.say("own.fail.broadcast()")
    assert second.say("wait_for(lambda: faults)")
    second.say('again = procs.spawn("again", Counter, 10)')
    assert second.say("values(again.add.call())") == [11]
    os.kill(second.pid, 9)
    assert first.say("wait_for(HANDLES.with_suffix('.ended').exists)")
    assert first.say("values(counter.add.call()), faults") == ([3, 3], [])
