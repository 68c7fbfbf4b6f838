"""Healing with real processes: how soon, and what may happen meanwhile."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from meshbook import (
    Actor,
    MeshFailure,
    ProcMesh,
    Restarts,
    SupervisionError,
    default_bootstrap_cmd,
    endpoint,
    events,
    this_host,
)
from meshbook.runtime.errors import ProcessDied
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.mesh import process_groups
from meshbook.runtime.mesh.host_ownership import when_ended
from meshbook.runtime.mesh.hosts import ask_for
from meshbook.runtime.wire.messages import Address
from tests.support import AT_ONCE, PATIENCE, pids, still_running

LIMIT = 10.0  # seconds of a heal, where something that it asks for is not answered
pytestmark = [pytest.mark.process, pytest.mark.without_torch, pytest.mark.usefixtures("faults")]


class Probe(Actor):
    def __init__(self) -> None:
        self.calls = 0

    @endpoint
    def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    @endpoint
    def count(self) -> int:
        self.calls += 1
        return self.calls


def kill(procs: ProcMesh, session: Session) -> None:
    ended = when_ended(session.node, [address.node for address in procs.nodes])
    procs.kill().get(PATIENCE)
    ended.get(PATIENCE)


class Gate:
    """Two FIFOs: bootstraps write their pid, and wait until the test lets one continue."""

    def __init__(self, folder: Path) -> None:
        self._held = {}
        for name in ("told", "open"):
            os.mkfifo(folder / name)
            self._held[name] = os.open(folder / name, os.O_RDWR | os.O_NONBLOCK)
        self._folder = str(folder)
        self._rest = ""

    def bootstrap(self) -> Callable[[], None]:
        folder = self._folder

        def pass_through() -> None:
            with open(f"{folder}/told", "w") as told:
                told.write(f"{os.getpid()}\n")
            with open(f"{folder}/open", "rb", buffering=0) as gate:
                gate.read(1)

        return pass_through

    def wait_told(self) -> int:
        while "\n" not in self._rest:
            assert select.select([self._held["told"]], [], [], PATIENCE)[0]
            self._rest += os.read(self._held["told"], 4096).decode()
        line, self._rest = self._rest.split("\n", 1)
        return int(line)

    def open(self, times: int = 1) -> None:
        os.write(self._held["open"], b"!" * times)

    def close(self) -> None:
        self.open(100)
        for descriptor in self._held.values():
            os.close(descriptor)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("spares", [0, 1])
def test_ranks_of_eight_are_healed_one_after_another(spawn_procs: Any, spares: int) -> None:
    procs = spawn_procs(8, spares=spares)
    probe = procs.spawn("probe", Probe)
    for rank in (3, 7, 0):
        psutil.Process(pids(probe)[rank]).kill()
        while procs.heal().get(PATIENCE) != [rank]:  # until its death is known
            pass
        assert probe.slice(gpus=rank).count.call_one().get(PATIENCE) == 1


def test_a_rank_that_a_command_starts(spawn_procs: Any, session: Session) -> None:
    procs = spawn_procs(2, bootstrap_command=default_bootstrap_cmd())
    probe = procs.spawn("probe", Probe)
    before = pids(probe)
    kill(procs.slice(gpus=1), session)
    assert procs.heal().get(PATIENCE) == [1]
    after = pids(probe)
    assert (after[0], after[1] != before[1]) == (before[0], True)


# -- what may happen meanwhile ---------------------------------------------------------------


def test_a_call_during_a_heal_waits_for_it(spawn_procs: Any, session: Session, gate: Gate) -> None:
    procs = spawn_procs(2, bootstrap=gate.bootstrap())
    probe = procs.spawn("probe", Probe)
    gate.open(2)
    assert {gate.wait_told() for _ in range(2)} == set(pids(probe))
    kill(procs.slice(gpus=1), session)
    healing = procs.heal()
    called = [probe.slice(gpus=1).count.call_one() for _ in range(3)]
    everybody = probe.count.call()
    born = gate.wait_told()
    assert not any(future.done() for future in (healing, everybody, *called))
    gate.open()
    assert healing.get(PATIENCE) == [1]
    assert [call.get(PATIENCE) for call in called] == [1, 2, 3]
    assert list(everybody.get(PATIENCE).values()) == [1, 4]
    assert pids(probe)[1] == born


def test_others_die_during_a_heal(spawn_procs: Any, session: Session, gate: Gate) -> None:
    """The one that is being born, and one that was well: each heal is of what has died before it."""
    procs = spawn_procs(3, bootstrap=gate.bootstrap())
    probe = procs.spawn("probe", Probe)
    gate.open(3)
    probe.count.call().get(PATIENCE)
    for _ in range(3):
        gate.wait_told()
    kill(procs.slice(gpus=1), session)
    first = procs.heal()
    born = gate.wait_told()
    kill(procs.slice(gpus=2), session)
    second = procs.heal()
    also_born = gate.wait_told()
    psutil.Process(born).kill()
    with pytest.raises(ProcessDied, match="sig=9"):
        first.get(PATIENCE)
    with pytest.raises(ProcessDied, match="sig=9"):  # it waits for the one before it
        second.get(PATIENCE)
    gate.open(2)
    assert procs.heal().get(PATIENCE) == [1]
    assert [probe.slice(gpus=rank).count.call_one().get(PATIENCE) for rank in range(3)] == [2, 1, 1]
    assert pids(probe)[2] == also_born


class Owner(Actor):
    """Owns a mesh, and heals it."""

    def __init__(self, bootstrap: Any) -> None:
        self.procs = this_host().spawn_procs(per_host={"gpus": 2}, bootstrap=bootstrap, spares=1)
        self.members = self.procs.spawn("member", Probe)

    @endpoint
    def pids(self) -> list[int]:
        return pids(self.members)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.procs.heal()
        return True


def test_the_owner_dies_while_it_heals(spawn_procs: Any, session: Session, gate: Gate) -> None:
    """Everything ends with it: running, starting and spare processes."""
    owners = spawn_procs(1)
    owner = owners.spawn("owner", Owner, gate.bootstrap())
    gate.open(2)
    first = {gate.wait_told() for _ in range(3)}  # one of them is the spare, which may be the one that continued
    gate.open()
    members = owner.pids.call_one().get(PATIENCE)
    processes = [psutil.Process(pid) for pid in first]
    for victim in members:
        psutil.Process(victim).kill()
    born = gate.wait_told()  # a new rank, or a new spare
    processes.append(psutil.Process(born))
    kill(owners, session)
    in_time = session.settings.stop_timeout + AT_ONCE  # a rank at its bootstrap does not hear that it should leave
    assert still_running(processes, in_time) == []


def test_requests_of_a_dead_owner_are_not_started(spawn_procs: Any, session: Session) -> None:
    """Its request may come after the notice of its end: no owner would ever stop these processes."""
    owner, procs = spawn_procs(1), spawn_procs(1)
    for mesh in (owner, procs):
        mesh.initialized.get(PATIENCE)
    kill(owner, session)
    like = procs._ownership.specs[0]
    late = Address(f"{procs.name}-late", f"{like.address.url}-late")
    world = msgspec.structs.replace(like.world, owner=owner.nodes[0].node)
    ask_for(world.agent, [msgspec.structs.replace(like, address=late, world=world)]).get(PATIENCE)
    when_ended(session.node, [late.node]).get(PATIENCE)
    assert "its owner has ended" in session.node.peers.report_of(late.node).stopped


def test_callers_under_fire_get_their_answers(spawn_procs: Any, session: Session) -> None:
    """Ranks die again and again while several threads call: each call is answered, by a value or by its loss."""
    procs = spawn_procs(3, on_failure="respawn", restarts=Restarts(most=1000), spares=1)
    probe = procs.spawn("probe", Probe)
    probe.count.call().get(PATIENCE)
    over, answered, lost = threading.Event(), [0, 0], [0, 0]

    def call(place: int) -> None:
        while not over.is_set() or not answered[place]:
            try:
                probe.count.call().get(PATIENCE)
                answered[place] += 1
            except SupervisionError:
                lost[place] += 1
                procs.heal().exception(PATIENCE)  # or what has died meanwhile

    callers = [threading.Thread(target=call, args=(place,)) for place in range(2)]
    for caller in callers:
        caller.start()
    for rank in (0, 1, 2) * 4:
        kill(procs.slice(gpus=rank), session)
        while procs.heal().exception(PATIENCE) is not None:
            pass
    over.set()
    for caller in callers:
        caller.join(PATIENCE)
        assert not caller.is_alive()
    procs.heal().get(PATIENCE)
    assert len(probe.count.call().get(PATIENCE)) == 3
    assert all(answered)
    assert any(event.kind == "healed" for event in events() if event.procs == procs.name)


def test_a_mesh_is_resized_under_fire(spawn_procs: Any, session: Session) -> None:
    """Its policy heals what dies, while it is resized: what has an answer is right, and in the end all are well."""
    procs = spawn_procs(3, on_failure="respawn", restarts=Restarts(most=1000))
    probe = procs.spawn("probe", Probe)
    probe.count.call().get(PATIENCE)
    for size in (4, 2, 5, 1, 3):
        for rank in range(procs.size()):
            procs.slice(gpus=rank).kill().get(PATIENCE)
        procs = procs.resize(gpus=size)
        probe = procs.all_of(probe)
        procs.initialized.exception(PATIENCE)
    while True:
        try:
            procs.heal().get(PATIENCE)
            ranks = probe.run.call(lambda: os.environ["RANK"]).get(PATIENCE)
            break
        except SupervisionError:  # one that had been killed, and was not known to be
            continue
    assert list(ranks.values()) == ["0", "1", "2"]


def test_a_mesh_is_stopped_while_it_is_healed(spawn_procs: Any, session: Session) -> None:
    """Whichever is first: nothing is left of it."""
    [server] = psutil.Process(session._agent.pid).children()
    for _ in range(5):
        procs = spawn_procs(3)
        procs.spawn("probe", Probe).initialized.get(PATIENCE)
        kill(procs.slice(gpus=slice(0, 2)), session)
        both = threading.Barrier(2)

        def heal(procs: ProcMesh = procs, both: threading.Barrier = both) -> None:
            both.wait(PATIENCE)
            with contextlib.suppress(SupervisionError, RuntimeError):
                procs.heal().get(PATIENCE)

        healing = threading.Thread(target=heal)
        healing.start()
        both.wait(PATIENCE)
        procs.stop().get(PATIENCE)
        healing.join(PATIENCE)
        assert not healing.is_alive()
        assert still_running(server.children()) == []


# -- what is left of the dead ------------------------------------------------------------------


def test_the_text_of_a_dead_rank_is_kept(spawn_procs: Any, session: Session) -> None:
    """More than its last words: what it printed, also past Python, and that of the rank after it."""

    def speak(incarnation: str) -> None:
        for number in range(100):
            print(f"{incarnation} line {number}")
        os.write(1, f"{incarnation} past Python\n".encode())
        sys.stdout.flush()

    procs = spawn_procs(1)
    probe = procs.spawn("probe", Probe)
    for incarnation in ("first", "second"):
        probe.run.call_one(speak, incarnation).get(PATIENCE)
        while f"{incarnation} past Python" not in session.output.recent(
            procs.name, 0
        ):  # files are looked at from time to time
            time.sleep(0.01)
        kill(procs, session)
        procs.heal().get(PATIENCE)
    text = session.output.recent(procs.name, 0)
    assert [f"{incarnation} line {number}" in text for incarnation in ("first", "second") for number in range(100)] == [
        True
    ] * 200


def test_a_rank_that_is_stopped_holds_up_no_heal(
    spawn_procs: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked whether it is in a group of torch's, and cannot say."""
    monkeypatch.setattr(process_groups, "FREEING_S", 0.1)
    monkeypatch.setattr(process_groups, "SET_PORT_S", 0.1)
    procs = spawn_procs(3)
    probe = procs.spawn("probe", Probe)
    before = pids(probe)
    procs.slice(gpus=0).kill(signal.SIGSTOP).get(PATIENCE)
    kill(procs.slice(gpus=1), session)
    assert procs.heal().get(LIMIT) == [1]
    procs.slice(gpus=0).kill(signal.SIGCONT).get(PATIENCE)
    after = pids(probe)
    assert (after[0], after[2]) == (before[0], before[2])


def test_two_healed_ranks_lose_nothing_that_they_send_each_other(spawn_procs: Callable[..., ProcMesh]) -> None:
    """The second one starts after the first was healed, so it has heard of no restart when it connects."""
    procs = spawn_procs(2)
    probe: Any = procs.spawn("probe", Probe)
    for rank in range(2):
        probe.slice(gpus=rank).run.broadcast(os.kill, pids(probe)[rank], signal.SIGKILL)
        with pytest.raises(SupervisionError):
            probe.slice(gpus=rank).count.call_one().get(PATIENCE)
        procs.heal().get(PATIENCE)
    first, second = probe.slice(gpus=0), probe.slice(gpus=1)

    def pour(other: Any) -> list[int]:
        answers = [other.count.call_one() for _ in range(500)]
        return [answer.get(PATIENCE) for answer in answers]

    assert second.run.call_one(pour, first).get(PATIENCE) == list(range(1, 501))
