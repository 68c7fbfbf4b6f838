"""Faults on purpose, over real processes: each kind does what it says, and the mesh is left as it was found."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil
import pytest

from meshbook import Actor, ProcMesh, endpoint, this_host
from meshbook.runtime.errors import ProcessDied
from meshbook.runtime.hosts.session import close_session
from meshbook.testing import Chaos, ChaosReport, Event, chaos
from tests.support import PATIENCE

pytestmark = pytest.mark.process


class Member(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def add(self) -> int:
        self.count += 1
        return self.count

    @endpoint
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module", autouse=True)
def _session() -> Iterator[None]:
    """The agent and the fork server are there from now on, so that no test is blamed for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHBOOK_PRELOAD", "")
        warm = this_host().spawn_procs()
    warm.initialized.get(PATIENCE)
    warm.stop().get(PATIENCE)
    yield
    close_session()


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs(per_host={"gpus": 3})
    yield procs
    procs.stop().get(PATIENCE)


def processes(members: Any) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in members.pid.call().get(PATIENCE).values()]


def add_until(members: Any, report: ChaosReport, count: int) -> int:
    """Let all count, one call after the other, until so many faults were done; to how much."""
    total = 0
    while len(report.events) < count:
        total += 1
        assert list(members.add.call().get(PATIENCE).values()) == [total] * len(members)
    return total


@pytest.mark.parametrize("kind", ["stop", "delay", "drop"])
def test_what_only_takes_time_loses_nothing(procs: ProcMesh, kind: str) -> None:
    members: Any = procs.spawn("members", Member)
    before = processes(members)
    with chaos(procs, **{kind: 40.0}, seed=3, lasting=(0.02, 0.05), latency=0.01) as report:  # type: ignore[arg-type]
        total = add_until(members, report, 10)
    assert list(members.add.call().get(PATIENCE).values()) == [total + 1] * 3
    assert processes(members) == before
    assert {each.event.kind for each in report.events} == {kind}
    assert report.counts() == {kind: len(report.events)}, report


def test_a_stopped_process_continues_at_the_end(procs: ProcMesh) -> None:
    members: Any = procs.spawn("members", Member)
    found = processes(members)
    with chaos(procs, stop=50.0, lasting=(100.0, 100.0)) as report:
        while len(report.events) < 3:
            os.sched_yield()
        while any(process.status() != psutil.STATUS_STOPPED for process in found):
            os.sched_yield()
    assert list(members.add.call().get(PATIENCE).values()) == [1] * 3


def test_links_are_up_at_the_end(procs: ProcMesh) -> None:
    members: Any = procs.spawn("members", Member)
    members.initialized.get(PATIENCE)
    with chaos(procs, drop=50.0, lasting=(0.2, 0.2), most=3) as report:
        while len(report.events) < 3:
            os.sched_yield()
        waiting = members.add.call()
        assert not waiting.done()
    assert list(members.add.call().get(PATIENCE).values()) == [2] * 3
    assert waiting.done()


def test_a_mesh_is_healed_while_ranks_are_killed(procs: ProcMesh) -> None:
    members: Any = procs.spawn("members", Member)
    deaths = 0

    def add() -> bool:
        nonlocal deaths
        try:
            members.add.call().get(PATIENCE)
        except ProcessDied:
            deaths += 1
            procs.heal().exception(PATIENCE)
            return False
        return True

    with chaos(procs, kill=20.0, seed=5, most=6) as report:
        while len(report.events) < 6:
            add()
    while not add():
        pass
    assert deaths
    assert report.counts()["kill"] + sum(each.outcome == "the rank was dead" for each in report.events) == 6, report


def test_only_the_ranks_that_are_chosen(procs: ProcMesh) -> None:
    members: Any = procs.spawn("members", Member)
    members.initialized.get(PATIENCE)
    with chaos(procs, drop=100.0, only=[1, 2], spare_ranks=[2], lasting=(0.001, 0.002)) as report:
        add_until(members, report, 5)
    assert {each.event.rank for each in report.events} == {1}
    with chaos(procs.slice(gpus=slice(1, 3)), kill=100.0, only=[1], most=1) as report:
        while not report.events:
            os.sched_yield()
    with pytest.raises(ProcessDied):
        add_until(members.slice(gpus=2), report, 2)
    assert members.slice(gpus=slice(0, 2)).add.call().get(PATIENCE)


def test_in_a_coroutine(procs: ProcMesh) -> None:
    members: Any = procs.spawn("members", Member)

    async def use() -> ChaosReport:
        async with chaos(procs, delay=50.0, lasting=(0.01, 0.02), latency=0.001) as report:
            while len(report.events) < 3:
                await members.add.call()
        return report

    assert asyncio.run(use()).counts()["delay"] >= 3


def test_the_report_is_for_people_and_for_programs(procs: ProcMesh) -> None:
    procs.initialized.get(PATIENCE)
    with chaos(procs, kill=50.0, seed=9, only=[1], most=2) as report:
        while len(report.events) < 2:
            os.sched_yield()
    assert str(report).startswith("chaos(seed=9): ")
    assert "kill rank 1" in str(report)
    assert msgspec.json.Decoder(ChaosReport).decode(report.to_json()) == report


def test_what_goes_wrong_with_it_is_raised_at_the_end(procs: ProcMesh) -> None:
    def events() -> Iterator[Event]:
        yield Event(0.0, "stop", 0, 100.0)
        raise LookupError("no more")

    def enter() -> None:
        with Chaos(procs, events(), ChaosReport(1), 0.0) as report:
            while not report.events:
                os.sched_yield()

    with pytest.raises(LookupError, match="no more"):
        enter()
    assert len(procs.spawn("members", Member).pid.call().get(PATIENCE)) == 3  # and the stopped one continues


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kill": -1}, "^kill must be .* not -1"),
        ({"stop": float("nan")}, "^stop must be .* not nan"),
        ({"drop": 1, "only": [3]}, "ranks 0 to 2, not 3"),
        ({"drop": 1, "spare_ranks": [-1]}, "ranks 0 to 2, not -1"),
        ({"drop": 1, "lasting": (2, 1)}, "shortest, longest"),
        ({"delay": 1, "latency": float("inf")}, "^latency must be .* not inf"),
    ],
)
def test_what_cannot_be(procs: ProcMesh, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        chaos(procs, **wrong)
