"""Runs that outlive their controller: left to themselves, taken over by another process, ended in time."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

import meshbook
from meshbook import Actor, close_session, concurrent_endpoint, endpoint, metrics, this_host, this_proc
from meshbook.__main__ import main
from meshbook.runs import DetachError, attach, detach, detached_runs, end
from meshbook.runtime.errors import ProcessDied, SupervisionError
from meshbook.runtime.hosts import attaching, detached_controller
from meshbook.runtime.hosts import detached_runs as detached
from meshbook.runtime.hosts.lifeline import RUN_SOCKET, RunRequest, send_request
from meshbook.runtime.hosts.session import current_session, running_session
from meshbook.runtime.mesh.procs import ProcMesh
from tests.support import PATIENCE, StatementInterrupts, few, still_running

pytestmark = pytest.mark.process


class Counter(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def add(self) -> int:
        self.count += 1
        return self.count

    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class FailsOnRank1(Actor):
    def __init__(self) -> None:
        assert os.environ["RANK"] != "1"


@pytest.fixture(autouse=True)
def _ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End all runs at the end of a test. What workers import when they start does not matter here."""
    monkeypatch.setenv("MESHBOOK_PRELOAD", "")
    yield
    for run in detached_runs():
        if not run.held_by:
            end(run.run)
    close_session()


@pytest.fixture
def trainers() -> ProcMesh:
    """Two processes with counters, which may be detached."""
    procs = this_host().spawn_procs({"gpus": 2}, name="trainers")
    procs.spawn("counters", Counter)
    return procs


def counters(procs: ProcMesh) -> Any:
    return procs.actors["counters"]


def counted(procs: ProcMesh) -> list[int]:
    return list(counters(procs).add.call().get(PATIENCE).values())


def pids(procs: ProcMesh) -> list[int]:
    return list(counters(procs).run.call(os.getpid).get(PATIENCE).values())


def family_of(session: Any) -> list[psutil.Process]:
    """The agent of a session, its fork server and all workers."""
    agent = psutil.Process(session._agent.pid)
    return [agent, *agent.children(recursive=True)]


def test_actors_go_on_for_the_next_controller(trainers: ProcMesh) -> None:
    """Their state is there, they can be called, healed and stopped, and others are spawned beside them."""
    assert counted(trainers) == [1, 1]
    before = pids(trainers)
    run = detach(60)
    [status] = detached_runs()
    assert (status.run, status.meshes[0].name, status.meshes[0].ranks) == (run, "trainers", 2)
    assert 0 < status.until - status.since <= 61
    found = attach(run)["trainers"]
    assert counted(found) == [2, 2]
    assert pids(found) == before
    assert detached_runs()[0].held_by == f"pid {os.getpid()} ({Path.cwd().name})"
    more = found.spawn("more", Counter)
    assert list(more.add.call().get(PATIENCE).values()) == [1, 1]
    found.stop().get(PATIENCE)
    assert not any(map(psutil.pid_exists, before))


def test_it_waits_for_a_rank_that_starts_also_if_its_resize_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the rank has not received by then is not sent again."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def start() -> None:
        if os.environ["RANK"] == "2":
            gate.read_text()

    procs = this_host().spawn_procs({"gpus": 1}, name="trainers", bootstrap=start)
    procs.spawn("fails", FailsOnRank1)
    grown = procs.resize(gpus=3)
    with pytest.raises(SupervisionError, match="AssertionError"):
        grown.initialized.get(PATIENCE)
    session = current_session()
    with monkeypatch.context() as quick:
        quick.setattr(session, "settings", msgspec.structs.replace(session.settings, launch_timeout=0.1))
        with pytest.raises(TimeoutError):
            detach(60)
    main = threading.main_thread().ident or 0
    threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt) as caught:
        detach(60)
    assert not isinstance(caught.value.__context__, TimeoutError)
    gate.write_text("")


def test_it_can_be_healed_and_resized(trainers: ProcMesh) -> None:
    detach(60)
    found = attach("trainers")["trainers"]
    before = pids(found)
    first = counters(found).slice(gpus=0).run.call(signal.pause)
    os.kill(before[0], signal.SIGKILL)
    with pytest.raises(ProcessDied):
        first.get(PATIENCE)
    assert found.heal().get(PATIENCE) == [0]
    assert counted(found) == [1, 1]
    larger = found.resize(gpus=3)
    larger.initialized.get(PATIENCE)
    assert counted(larger) == [2, 2, 1]
    detach(60)
    again = attach()["trainers"]
    assert counted(again) == [3, 3, 2]


def test_what_is_printed_meanwhile_is_kept(trainers: ProcMesh, tmp_path: Path) -> None:
    """Before, between and after, in order; nothing twice."""
    started, told = tmp_path / "started", tmp_path / "told"
    for path in (started, told):
        os.mkfifo(path)

    def talk(lines: int) -> None:
        for line in range(lines):
            print(f"before {line}", flush=True)
        started.write_text("now")  # waits for the reader
        for line in range(lines):
            print(f"between {line}", flush=True)
        print("the end", flush=True)
        told.write_text("now")

    counters(trainers).slice(gpus=0).run.call(talk, 1000)
    started_word = _read(started, lambda: detach(60))
    assert started_word == "now"
    assert _read(told) == "now"
    found = attach()["trainers"]
    store = current_session().output
    counters(found).slice(gpus=0).run.call(_flush).get(PATIENCE)
    said = store.recent(found.name, 0).splitlines()
    assert said == [*(f"before {n}" for n in range(1000)), *(f"between {n}" for n in range(1000)), "the end"]


def _read(path: Path, then: Callable[[], object] = lambda: None) -> str:
    descriptor = os.open(path, os.O_RDWR)  # so that the writer goes on only now
    word = os.read(descriptor, 100).decode()
    then()
    os.close(descriptor)
    return word


def _flush() -> None:
    meshbook.context().actor_instance.node.capture.flush()


class Talker(Actor):
    """Counts in what it prints."""

    def __init__(self) -> None:
        self.count, self.talks = 0, True

    @concurrent_endpoint
    async def talk(self) -> None:
        while self.talks:
            for _ in range(20):
                print("line", self.count)
                self.count += 1
            await asyncio.sleep(0)

    @concurrent_endpoint
    async def end(self) -> int:
        self.talks = False
        _flush()
        return self.count


def test_nothing_is_lost_while_it_changes_hands(trainers: ProcMesh) -> None:
    """Nor comes twice, nor in another order, however much is on its way."""
    talkers = trainers.spawn("talkers", Talker)
    talkers.initialized.get(PATIENCE)
    talkers.talk.broadcast()
    for _ in range(5):
        detach(60)
        trainers = attach()["trainers"]
        counted(trainers)
    counts = list(trainers.actors["talkers"].end.call().get(PATIENCE).values())
    for rank, count in enumerate(counts):
        lines = current_session().output.recent(trainers.name, rank).splitlines()
        said = [int(line.removeprefix("line ")) for line in lines[1:]]  # of the first one only an end may be kept
        assert said == list(range(count - len(said), count))


def listeners() -> set[str]:
    """The IP addresses at which the processes of this run, this one included, can be reached."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    entries = [entry for process in family for entry in process.net_connections("inet")]
    return {entry.laddr.ip for entry in entries if entry.status == psutil.CONN_LISTEN}


def test_a_run_is_reached_over_the_loopback_interface_alone(trainers: ProcMesh) -> None:
    pytest.importorskip("prometheus_client")
    metrics.serve(0)
    assert counted(trainers) == [1, 1]
    assert listeners() == {"127.0.0.1"}
    metrics.stop()
    detach(60)
    assert listeners() == set()
    assert counted(attach()["trainers"]) == [2, 2]


def test_deaths_meanwhile_are_reported(trainers: ProcMesh, faults: Any) -> None:
    victim = psutil.Process(pids(trainers)[1])
    detach(60)
    victim.kill()
    psutil.wait_procs([victim], timeout=PATIENCE)
    found = attach()["trainers"]
    with pytest.raises(ProcessDied, match="SIGKILL"):
        counters(found).run.call(signal.pause).get(PATIENCE)
    assert "SIGKILL" in str(faults.get(timeout=PATIENCE))
    wait_until_happened("failed")
    assert found.heal().get(PATIENCE) == [1]


def test_calls_to_the_controller_meanwhile_are_answered(trainers: ProcMesh, tmp_path: Path) -> None:
    """What lived in that process has ended with it."""
    here = this_proc().spawn("here", Counter)
    here.add.call().get(PATIENCE)
    answer = tmp_path / "answer"
    os.mkfifo(answer)

    def ask() -> None:
        error = here.add.call_one().exception(PATIENCE)
        answer.write_text(str(error))

    counters(trainers).slice(gpus=0).run.call(os.getpid).get(PATIENCE)
    os.mkfifo(tmp_path / "go")
    counters(trainers).slice(gpus=0).run.call(_wait_and, str(tmp_path / "go"), ask)
    detach(60)
    (tmp_path / "go").write_text("now")
    assert re.search("no actor|was handed over", _read(answer))


def _wait_and(path: str, function: Callable[[], None]) -> None:
    Path(path).read_text()
    function()


def test_one_controller_at_a_time(trainers: ProcMesh) -> None:
    run = detach(60)
    attach(run)
    folder = current_session().folder.path
    answer, connection = send_request(folder, RunRequest("attach", "somebody else"))
    connection.close()
    assert answer.error == f"run {run} is already attached by pid {os.getpid()} ({Path.cwd().name})"
    with pytest.raises(RuntimeError, match="has running meshes"):
        attach(run)
    with pytest.raises(DetachError, match="already attached"):
        end(run)
    assert counted(trainers) == [1, 1]


def test_an_attach_that_fails_leaves_it_detached(trainers: ProcMesh) -> None:
    """As often as one likes, and with what happened meanwhile."""
    assert counted(trainers) == [1, 1]
    run = detach(60)

    def fail(session: Any) -> None:
        raise KeyError("a part that cannot be read")

    for _ in range(2):
        with pytest.raises(KeyError):
            attaching.attach(detached.choose(run), "a test", fail)
        wait_until_free(run)
    _, connection = send_request(current_session().folder.path.parent / run, RunRequest("attach", "one who goes again"))
    connection.close()
    wait_until_free(run)
    assert counted(attach(run)["trainers"]) == [2, 2]


def wait_until_happened(*kinds: str) -> None:
    """Wait until these are the events: they come on the I/O thread, and a fault on another one."""
    end = time.monotonic() + PATIENCE
    while (found := tuple(event.kind for event in meshbook.events())) != kinds:
        assert time.monotonic() < end, found
        time.sleep(0.01)


def wait_until_free(run: str) -> None:
    """Wait until the agent has noticed the end of the controller; each status request is a round trip."""
    while not any(each.run == run and not each.held_by for each in detached_runs()):
        continue


def test_what_cannot_be(trainers: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DetachError, match="is not detached: its controller is still running"):
        attach(current_session().run)
    with pytest.raises(DetachError, match="no detached runs"):
        attach()
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds must be a positive number"):
            detach(seconds)
    with monkeypatch.context() as another_system:
        another_system.delattr(os, "pidfd_open")
        with pytest.raises(DetachError, match="requires Linux"):
            detach(60)
    assert counted(trainers) == [1, 1]
    run = detach(60)
    with pytest.raises(RuntimeError, match="no session to detach"):
        detach(60)
    with pytest.raises(DetachError, match=f"no detached run matches 'nobody'.*:\n{run}  trainers: 2 ranks, idle"):
        attach("nobody")
    status = msgspec.structs.replace(detached.choose(run), version="meshbook 0.0.1 on Python 3.7")
    with pytest.raises(
        DetachError,
        match=r"was started by meshbook 0.0.1 on Python 3.7, but this is meshbook ",
    ):
        attaching.attach(status, "a test", lambda session: None)


# -- Ctrl-C ------------------------------------------------------------------------------------


def notes(interrupt: BaseException) -> str:
    return "".join(getattr(interrupt, "__notes__", ()))


@pytest.mark.parametrize("stride", few([16, 1]))
def test_an_interrupt_at_any_statement_leaves_it_detached_or_attached(trainers: ProcMesh, stride: int) -> None:
    """And the error says which; no call is lost, and both can be repeated."""
    leaving, coming = StatementInterrupts(stride), StatementInterrupts(stride)
    found, count, run = trainers, 0, current_session().run
    while leaving.are_left or coming.are_left:
        if leaving.are_left:
            interrupt = leaving.run(lambda: detach(60))
            if running_session() is not None:
                assert interrupt is not None
                assert f"run {run} was detached" not in notes(interrupt), leaving.where
        else:
            detach(60)
        if running_session() is None:
            wait_until_free(run)
            if coming.are_left:
                interrupt = coming.run(lambda: attach(run))
                if running_session() is None:
                    assert interrupt is not None
                    assert "was attached" not in notes(interrupt), coming.where
                    wait_until_free(run)
            if running_session() is None:
                attach(run)
            found = current_session().meshes()["trainers"]
        count += 1
        assert counted(found) == [count, count], (leaving.where, coming.where)


def test_an_interrupt_while_it_waits_for_a_stopped_rank_leaves_all_as_it_was(
    trainers: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own actors too: they end once nothing can fail any more."""
    monkeypatch.setattr(detached_controller, "HOLD_SECONDS", PATIENCE)
    own = this_proc().spawn("own", Counter)
    assert own.add.call_one().get(PATIENCE) == 1
    stopped = psutil.Process(pids(trainers)[1])
    stopped.suspend()
    peers = current_session().node.peers
    ask_to_hold = peers.ask_to_hold

    def ask_and_interrupt(*arguments: Any) -> Any:
        asked = ask_to_hold(*arguments)
        asked[0].exception(PATIENCE)
        signal.raise_signal(signal.SIGINT)
        return asked

    monkeypatch.setattr(peers, "ask_to_hold", ask_and_interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        detach(60)
    assert notes(caught.value) == f"run {current_session().run} was not detached"
    stopped.resume()
    assert counted(trainers) == [1, 1]
    assert own.add.call_one().get(PATIENCE) == 2
    monkeypatch.undo()
    detach(60)
    assert counted(attach()["trainers"]) == [2, 2]


def test_its_time_is_limited(trainers: ProcMesh) -> None:
    """A run without a controller does not hold a GPU for ever."""
    session = current_session()
    family = family_of(session)
    run = detach(0.3)
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []
    with pytest.raises(DetachError, match=f"no detached run matches '{run}': it has ended"):
        attach(run)
    assert not session.folder.path.exists()


def test_it_can_be_ended(trainers: ProcMesh, capsys: pytest.CaptureFixture[str]) -> None:
    """From a shell, where they are listed."""
    family = family_of(current_session())
    run = detach(60)
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.startswith(f"{run}  trainers: 2 ranks, idle · on ")
    assert main(["end", run[:4]]) == 0
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []
    assert main(["end", run]) == 1
    assert main(["runs"]) == 0
    told = capsys.readouterr()
    assert told.out == f"run {run} has ended\nno detached runs\n"
    assert f"no detached run matches '{run}'" in told.err


def test_without_its_agent_nothing_is_left(trainers: ProcMesh) -> None:
    """Also of what is looked for: the next run sweeps the folder."""
    family = family_of(current_session())
    folder = current_session().folder.path
    detach(60)
    assert (folder / RUN_SOCKET).exists()
    family[0].kill()
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []
    assert detached_runs() == []
    this_host().initialized.get(PATIENCE)
    assert not folder.exists()


SCRIPT = """
import os, signal, sys
from meshbook import Actor, endpoint, this_host
from meshbook.runs import detach

class Keeper(Actor):
    def __init__(self):
        self.kept = []
    @endpoint
    def keep(self, what):
        self.kept.append(what)
        return self.kept

keepers = this_host().spawn_procs({"gpus": 1}, name="kept").spawn("keepers", Keeper)
keepers.keep.call("one").get()
print(detach(60), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_whatever_becomes_of_the_process_that_detached(
    run_script: Any, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHBOOK_RUNTIME_DIR", str(runtime_dir))
    script = run_script(SCRIPT, MESHBOOK_PRELOAD="")
    run = script.read_line()
    assert script.process.wait(PATIENCE) == -signal.SIGKILL
    kept = attach(run)["kept"]
    assert kept.actors["keepers"].keep.call_one("two").get(PATIENCE) == ["one", "two"]
    kept.stop().get(PATIENCE)


ATTACHER = """
import sys
import time
from meshbook.runs import attach
attach()
print("attached", flush=True)
sys.stdin.read()
"""


def test_a_killed_controller_that_had_attached_leaves_nothing(
    trainers: ProcMesh, run_script: Any, runtime_dir: Path
) -> None:
    family = family_of(current_session())
    detach(60)
    script = run_script(ATTACHER, MESHBOOK_RUNTIME_DIR=os.environ["MESHBOOK_RUNTIME_DIR"])
    assert script.read_line() == "attached"
    script.process.kill()
    assert still_running(family) == []


# -- runs on several hosts ---------------------------------------------------------------------


def family_of_hosts(session: Any) -> list[psutil.Process]:
    """The agents of other hosts, and all processes there."""
    agents = [psutil.Process(host.process.pid) for host in session.remote]
    return [each for agent in agents for each in (agent, *agent.children(recursive=True))]


@pytest.fixture
def spread() -> ProcMesh:
    """A mesh with a counter on each of two hosts."""
    procs = meshbook.hosts.command({"h1": [], "h2": []}).spawn_procs(name="spread")
    procs.spawn("counters", Counter)
    return procs


def test_a_run_on_several_hosts_is_detached_and_attached_to_again(spread: ProcMesh) -> None:
    """Twice, and the hosts end with the last controller."""
    assert counted(spread) == [1, 1]
    before, family = pids(spread), family_of_hosts(current_session())
    for count in (2, 3):
        run = detach()
        assert all(process.is_running() for process in family)
        procs = attach(run)["spread"]
        assert counted(procs) == [count, count]
        assert pids(procs) == before
        assert procs.host_mesh.names == ("h1", "h2")
    more = procs.host_mesh.spawn_procs()
    assert pids_of_new(more) not in ([], before)
    one = procs.drain("h1")
    assert one.initialized.get(PATIENCE) is True
    assert counted(one) == [4]
    late = meshbook.hosts.command({"h3": []})  # with the same keys
    assert counted(one.join(late)) == [5, 1]
    close_session()
    assert still_running(family) == []


def pids_of_new(procs: ProcMesh) -> list[int]:
    return list(procs.spawn("new", Counter).run.call(os.getpid).get(PATIENCE).values())


def test_hosts_of_a_detached_run_end_with_it(spread: ProcMesh) -> None:
    counted(spread)
    family = family_of_hosts(current_session())
    end(detach())
    assert still_running(family) == []


def test_a_host_that_ends_while_the_run_is_detached_is_reported(spread: ProcMesh) -> None:
    counted(spread)
    [agent] = [psutil.Process(host.process.pid) for host in current_session().remote if host.name == "h2"]
    run = detach()
    agent.kill()
    agent.wait(PATIENCE)
    procs = attach(run)["spread"]
    with pytest.raises(ProcessDied, match="h2"):
        counters(procs).slice(hosts=1).add.call_one().get(PATIENCE)
    assert counters(procs).slice(hosts=0).add.call_one().get(PATIENCE) == 2
    rest = procs.drain("h2")
    assert rest.initialized.get(PATIENCE) is True
    assert counted(rest) == [3]


def test_a_killed_attached_controller_takes_its_hosts_with_it(spread: ProcMesh) -> None:
    """What keeps the hosts while there is no controller does not keep them after that."""
    counted(spread)
    family = family_of_hosts(current_session())
    run = detach()
    program = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, meshbook.runs as r; r.attach(sys.argv[1]); print(1, flush=True); input()",
            run,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"1\n"
        assert all(process.is_running() for process in family)
        program.kill()
    assert still_running(family) == []
