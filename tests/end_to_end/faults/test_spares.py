"""Spares: processes that wait, with everything done that can be, to take the place of a rank that dies."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from meshbook import Actor, ProcMesh, default_bootstrap_cmd, endpoint, events
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.mesh.host_ownership import when_ended
from tests.support import PATIENCE, Probe, has_no_runs, still_running

pytestmark = [pytest.mark.process, pytest.mark.without_torch]


class Fifo:
    """What bootstraps tell the test, in whichever process they run."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._held = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def lines(self, count: int) -> list[str]:
        text = ""
        while text.count("\n") < count:
            assert select.select([self._held], [], [], PATIENCE)[0], text
            text += os.read(self._held, 4096).decode()
        return text.splitlines()

    def close(self) -> None:
        os.close(self._held)


@pytest.fixture
def fifo(tmp_path: Path) -> Any:
    made = Fifo(tmp_path / "fifo")
    yield made
    made.close()


def booting(path: str) -> Callable[[], None]:
    def boot() -> None:
        with open(path, "w") as file:
            file.write(f"{os.getpid()} {os.environ.get('RANK')}\n")
        os.environ["BOOTED"] = "here"
        print("booted", file=sys.stderr)

    return boot


def wait_warm(procs: ProcMesh, count: int) -> None:
    end = time.monotonic() + PATIENCE
    while procs.spares().get(PATIENCE) != count:  # no event reports it: a mesh that needs a spare takes it, warm or not
        assert time.monotonic() < end
        time.sleep(0.01)


def kill(procs: ProcMesh, session: Session) -> None:
    ended = when_ended(session.node, [address.node for address in procs.nodes])
    procs.kill().get(PATIENCE)
    ended.get(PATIENCE)


def who() -> Any:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "BOOTED", "GIVEN", "OMP_NUM_THREADS")
    return os.getpid(), {name: os.environ.get(name) for name in names}


def pids_and_bootings(fifo: Fifo, count: int) -> dict[int, str]:
    """By process id, the rank that its bootstrap saw."""
    return {int(pid): rank for pid, rank in map(str.split, fifo.lines(count))}


@pytest.mark.parametrize("command", [False, True], ids=["forked", "command"])
def test_a_spare_takes_the_place_of_a_rank_that_died(spawn_procs, session, fifo, command):
    """The very process: with what its bootstrap did, and the surroundings of the rank."""
    how: Any = {"bootstrap_command": default_bootstrap_cmd()} if command else {}
    procs = spawn_procs(2, spares=1, bootstrap=booting(fifo.path), env={"GIVEN": "by the user"}, **how)
    probe = procs.spawn("probe", Probe)
    before = list(probe.run.call(who).get(PATIENCE).values())
    booted = pids_and_bootings(fifo, 3)
    [spare] = [pid for pid, rank in booted.items() if rank == "None"]
    assert {pid for pid, _ in before} == booted.keys() - {spare}
    wait_warm(procs, 1)
    kill(procs.slice(gpus=1), session)
    assert procs.heal().get(PATIENCE) == [1]
    assert list(probe.run.call(who).get(PATIENCE).values()) == [before[0], (spare, before[1][1])]
    [used] = [event for event in events() if (event.kind, event.procs) == ("spare used", procs.name)]
    assert (used.ranks, used.text) == ((1,), f"pid {spare}")
    [another] = pids_and_bootings(fifo, 1)  # it is replaced
    wait_warm(procs, 1)
    processes = [psutil.Process(pid) for pid in (before[0][0], spare, another)]
    procs.stop().get(PATIENCE)
    assert still_running(processes) == []  # and ends with the mesh


def test_what_its_bootstrap_printed_is_the_ranks(spawn_procs, session, heard, fifo):
    procs = spawn_procs(1, spares=1, bootstrap=booting(fifo.path))
    procs.spawn("probe", Probe).run.call(who).get(PATIENCE)
    wait_warm(procs, 1)
    heard.chunks.clear()
    kill(procs, session)
    procs.heal().get(PATIENCE)
    heard.wait_until(lambda: "booted" in heard.text("stderr"))


def test_more_ranks_die_than_there_are_spares(spawn_procs, session):
    procs = spawn_procs(3, spares=1)
    wait_warm(procs, 1)
    probe = procs.spawn("probe", Probe)
    before = [pid for pid, _ in probe.run.call(who).get(PATIENCE).values()]
    kill(procs.slice(gpus=slice(1, 3)), session)
    assert procs.heal().get(PATIENCE) == [1, 2]
    after = [(pid, found["RANK"]) for pid, found in probe.run.call(who).get(PATIENCE).values()]
    assert after[0] == (before[0], "0")
    assert [rank for _, rank in after[1:]] == ["1", "2"]
    assert not {pid for pid, _ in after[1:]} & set(before)


def test_a_spare_whose_bootstrap_fails_is_done_without(spawn_procs, session):
    """It cannot know its rank; the mesh is healed as without spares, and nothing is started for ever."""

    def boot() -> None:
        os.environ["BOOTED"] = f"as {os.environ['RANK']}"

    procs = spawn_procs(2, spares=2, bootstrap=boot)
    probe = procs.spawn("probe", Probe)
    probe.run.call(who).get(PATIENCE)
    kill(procs.slice(gpus=1), session)
    assert procs.heal().get(PATIENCE) == [1]
    assert [found["BOOTED"] for _, found in probe.run.call(who).get(PATIENCE).values()] == ["as 0", "as 1"]
    assert procs.spares().get(PATIENCE) == 0
    lost = [event.text for event in events() if (event.kind, event.procs) == ("spare lost", procs.name)]
    assert 1 <= len(lost) <= 4  # two, and after the heal two more
    assert "KeyError: 'RANK'" in lost[0]


def test_a_spare_that_is_killed_is_replaced(spawn_procs, session, fifo):
    procs = spawn_procs(1, spares=1, bootstrap=booting(fifo.path))
    [first] = [pid for pid, rank in pids_and_bootings(fifo, 2).items() if rank == "None"]
    wait_warm(procs, 1)
    psutil.Process(first).kill()
    [second] = pids_and_bootings(fifo, 1)
    wait_warm(procs, 1)
    kill(procs, session)
    procs.heal().get(PATIENCE)
    assert procs.spawn("probe", Probe).run.call_one(os.getpid).get(PATIENCE) == second


def test_spares_are_there_again_after_the_fork_server_has_died(request, monkeypatch):
    """With it died all ranks, and the spares; the next heal starts another one, and those."""
    monkeypatch.setenv("MESHBOOK_PRELOAD", "")
    session: Session = request.getfixturevalue("own_session")
    procs = session.host.spawn_procs(per_host={"gpus": 2}, spares=1)
    probe = procs.spawn("probe", Probe)
    probe.run.call(who).get(PATIENCE)
    wait_warm(procs, 1)
    [server] = psutil.Process(session._agent.pid).children()
    ended = when_ended(session.node, [address.node for address in procs.nodes])
    server.kill()
    ended.get(PATIENCE)
    assert procs.spares().get(PATIENCE) == 0
    assert procs.heal().get(PATIENCE) == [0, 1]
    assert [found["RANK"] for _, found in probe.run.call(who).get(PATIENCE).values()] == ["0", "1"]
    wait_warm(procs, 1)


def test_spares_end_with_their_owner(spawn_procs, fifo):
    """With the actor that spawned their mesh, even where all ranks of that have died."""

    class Owner(Actor):
        @endpoint
        def own(self, boot: Any) -> None:
            from meshbook import this_host

            self.procs = this_host().spawn_procs(per_host={"gpus": 1}, spares=1, bootstrap=boot)
            self.procs.initialized.get(PATIENCE)
            self.procs.kill().get(PATIENCE)

        def __supervise__(self, failure: Any) -> bool:
            return True

    owners = spawn_procs(1)
    owners.spawn("owner", Owner).own.call_one(booting(fifo.path)).get(PATIENCE)
    [spare] = [psutil.Process(pid) for pid, rank in pids_and_bootings(fifo, 2).items() if rank == "None"]
    owners.stop().get(PATIENCE)
    assert still_running([spare]) == []


def test_spares_that_are_dismissed_at_once_leave_nothing(spawn_procs, session):
    """Some have not even been forked when their mesh is stopped."""
    left: list[str] = []
    for _ in range(5):
        procs = spawn_procs(1, spares=3)
        procs.stop().get(PATIENCE)
        end = time.monotonic() + PATIENCE
        while left := [path.name for path in session.folder.path.iterdir() if path.name.startswith(procs.name)]:
            assert time.monotonic() < end, left
            time.sleep(0.01)


def test_a_controller_that_is_killed_leaves_no_spare(run_script, runtime_dir):
    script = run_script(
        """
import time
from meshbook import this_host
procs = this_host().spawn_procs(per_host={"gpus": 1}, spares=2)
procs.initialized.get(60)
while procs.spares().get(60) < 2:
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(1000)
""",
        MESHBOOK_PRELOAD="",
    )
    assert script.read_line() == "ready"
    family = script.family()
    assert len(family) == 2 + 3
    script.process.kill()
    assert still_running(family) == []
    assert has_no_runs(runtime_dir)


@pytest.mark.parametrize(
    ("spares", "error", "said"),
    [
        (-1, ValueError, "zero or more, not -1"),
        (True, TypeError, "not True"),
        ("1", TypeError, "not '1'"),
    ],
)
def test_a_number_that_is_none(host, spares, error, said):
    with pytest.raises(error, match=said):
        host.spawn_procs(per_host={"gpus": 1}, spares=spares)


def test_what_depends_on_the_rank_has_no_spares(host):
    def command(point: Any) -> Any:
        return default_bootstrap_cmd().with_env({"N": str(point.rank)})

    with pytest.raises(ValueError, match="bootstrap_command must be the same for all"):
        host.spawn_procs(per_host={"gpus": 2}, spares=1, bootstrap_command=command)
    with pytest.raises(ValueError, match="numactl binds at the start"):
        host.spawn_procs(per_host={"gpus": 1}, spares=1, proc_bind=[{"cpunodebind": "0"}])


def test_a_spare_that_dies_as_it_is_called_leaves_nothing(spawn_procs, session, fifo):
    """It was called, and had not taken the birth of the rank that it was to become."""
    procs = spawn_procs(spares=1, bootstrap=booting(fifo.path))
    procs.initialized.get(PATIENCE)
    [spare] = [pid for pid, rank in pids_and_bootings(fifo, 2).items() if rank == "None"]
    wait_warm(procs, 1)
    os.kill(spare, signal.SIGSTOP)
    kill(procs, session)
    healing = procs.heal()
    while not list(session.folder.path.glob("*.place")):
        os.sched_yield()
    os.kill(spare, signal.SIGKILL)
    assert healing.exception(PATIENCE) is not None
    assert procs.heal().get(PATIENCE) == [0]
    assert list(session.folder.path.glob("*.place")) == []
