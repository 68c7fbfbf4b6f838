"""A running cell over ranks that answer when the test says so; and who may run one."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.magics import run as module
from meshbook.magics.meshes import MeshError, NotebookMesh
from meshbook.magics.options import CellOptions
from meshbook.magics.publications import Publication, Stream
from meshbook.magics.results import MeshResult
from meshbook.magics.run import CellRun, check_able, interruptible
from meshbook.magics.tracebacks import CellError
from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, Frame, RankError
from meshbook.runtime.errors import ExitReport, MeshbookError, ProcessDied, SupervisionError
from meshbook.runtime.geometry import Extent, Region
from meshbook.runtime.telemetry.output import OutputChunk, OutputStore

DONE = CellOutcome(CellCost(wall=0.1, cpu=0.1, peak_rss=1))
RAISED = CellOutcome(DONE.cost, error=RankError("raised", "ValueError", "bad"))
INTERRUPTED = CellOutcome(DONE.cost, error=RankError("interrupted", "KeyboardInterrupt", ""))


class FakeRanks:
    """The ranks of a mesh: `answers` are theirs to the cell; `on_interrupt` hears of interrupts."""

    def __init__(self, count: int) -> None:
        self.region = Extent.of(gpus=count).region
        self.answers: list[Future[CellOutcome]] = [Future.pending() for _ in range(count)]
        self.origins: list[str] = []
        self.interrupted: list[int] = []
        self.on_interrupt: Callable[[int], None] = lambda rank: None
        self.places: dict[int, Frame | None] = {}

    def answer(self, rank: int, outcome: CellOutcome | MeshbookError) -> None:
        if isinstance(outcome, MeshbookError):
            self.answers[rank].fail(outcome)
        else:
            self.answers[rank].resolve(lambda: outcome)

    def begin(self, ranks: Sequence[int]) -> list[Future[CellOutcome]]:
        self.origins.append(current_origin())
        return [self.answers[rank] for rank in ranks]

    def interrupt(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.interrupted.append(rank)
            self.on_interrupt(rank)

    def where(self, ranks: Sequence[int]) -> list[Future[Frame | None]]:
        return [Future.completed(self.places.get(rank)) for rank in ranks]


class FakeActors:
    """Both actors of a cell, on some of the ranks."""

    def __init__(self, ranks: FakeRanks, region: Region) -> None:
        self._ranks = ranks
        members = region.ranks()
        self.run = SimpleNamespace(call_each=lambda source, number: ranks.begin(members))
        self.interrupt = SimpleNamespace(broadcast=lambda origin: ranks.interrupt(members))
        self.where = SimpleNamespace(call_each=lambda: ranks.where(members))

    def _with_region(self, region: Region) -> FakeActors:
        return FakeActors(self._ranks, region)


class Cell:
    """Runs one cell on fake ranks; `script` is called once it waits."""

    def __init__(self, count: int = 3, **options: Any) -> None:
        self.ranks = FakeRanks(count)
        actors: Any = FakeActors(self.ranks, self.ranks.region)
        procs: Any = SimpleNamespace(region=self.ranks.region)
        self.mesh = NotebookMesh("mesh", procs, actors, actors, session=None, has_gpus=False)  # type: ignore[arg-type]
        self.store = OutputStore()
        self.options = CellOptions(**options)
        self.published: list[Publication] = []

    def run(self, script: Callable[[CellRun], None]) -> MeshResult:
        async def main() -> MeshResult:
            session: Any = SimpleNamespace(output=self.store, context=SimpleNamespace(actor_instance=None))
            publisher: Any = SimpleNamespace(publish=self.published.extend)
            region = self.ranks.region
            run = CellRun(session, self.mesh, region, self.options, None, publisher, number=7)
            asyncio.get_running_loop().call_soon(script, run)
            return await run.run("source")

        return asyncio.run(main())

    def run_failing(self, script: Callable[[CellRun], None]) -> CellError:
        with pytest.raises(CellError) as caught:
            self.run(script)
        return caught.value

    def say(self, run: CellRun, rank: int, text: str) -> None:
        self.store.add(OutputChunk(run.origin, "mesh-0a1b", rank, "stdout", text))


def test_a_cell_ends_with_its_last_answer() -> None:
    cell = Cell()

    def script(run: CellRun) -> None:
        for rank in (2, 0, 1):
            cell.say(run, rank, "said\n")
            cell.ranks.answer(rank, DONE)

    result = cell.run(script)
    assert (list(result.ranks), result[1].stdout) == ([0, 1, 2], "said\n")
    assert cell.published == [Stream("stdout", "[0-2] said\n")]
    assert cell.mesh.last.ok == {0, 1, 2}
    (origin,) = cell.ranks.origins
    assert origin.startswith("7."), "what ranks print is told apart by the cell they print for"


def test_two_executions_of_a_number_are_told_apart() -> None:
    origins = []
    for _ in range(2):
        cell = Cell(1)
        cell.run(lambda run, cell=cell: cell.ranks.answer(0, DONE))  # type: ignore[misc]
        origins += cell.ranks.origins
    assert len(set(origins)) == 2


def test_after_a_first_error_the_others_are_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.01)
    cell = Cell()
    cell.ranks.on_interrupt = lambda rank: cell.ranks.answer(rank, INTERRUPTED)
    error = cell.run_failing(lambda run: cell.ranks.answer(1, RAISED))
    assert cell.ranks.interrupted == [0, 2]
    assert [(group.ranks, group.is_consequence) for group in error.groups] == [((1,), False), ((0, 2), True)]
    assert (cell.mesh.last.failed, cell.mesh.busy) == ({0, 1, 2}, {})


def test_with_on_error_finish_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.0)
    monkeypatch.setattr(module, "TICK", 0.001)
    cell = Cell(on_error="finish")

    def script(run: CellRun) -> None:
        cell.ranks.answer(1, RAISED)
        # Several ticks later, in which an interrupt would have been sent.
        asyncio.get_running_loop().call_later(0.05, lambda: [cell.ranks.answer(rank, DONE) for rank in (0, 2)])

    error = cell.run_failing(script)
    assert (list(error.by_rank), cell.ranks.interrupted) == ([1], [])
    assert (cell.mesh.last.failed, cell.mesh.last.ok) == ({1}, {0, 2})


def test_a_rank_that_stays_silent_is_busy_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.0)
    monkeypatch.setattr(module, "STUCK_WAIT", 0.01)
    cell = Cell(2)
    cell.ranks.places[0] = Frame("<cell 7>", 4, "wait")
    error = cell.run_failing(lambda run: cell.ranks.answer(1, RAISED))
    assert error.by_rank[0].place == "cell 7:4 in wait"
    assert cell.mesh.busy == {0: 7}
    cell.ranks.answer(0, DONE)
    assert cell.mesh.busy == {}


def test_after_a_death_nobody_is_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEATH_WAIT", 0.01)
    cell = Cell()
    died = ProcessDied("", ExitReport("mesh.1", 4711, -9))

    def script(run: CellRun) -> None:
        cell.ranks.answer(0, DONE)
        cell.ranks.answer(1, died)

    error = cell.run_failing(script)
    assert cell.ranks.interrupted == [2]
    assert [(group.ranks, group.error.kind) for group in error.groups] == [((1,), "died"), ((2,), "interrupted")]
    assert cell.mesh.busy == {2: 7}


@pytest.mark.parametrize(
    ("error", "type_name", "message", "rendered"),
    [
        (
            ProcessDied("", ExitReport("mesh.0", 11, -9, ("out", "of luck"), "it came from outside")),
            "ProcessDied",
            "rank 0 (pid 11) died during the cell: SIGKILL: Killed(sig=9)\nit came from outside",
            ("last lines of its stderr:", "    out", "    of luck"),
        ),
        (
            ProcessDied("", ExitReport("mesh.0", 11, 3)),
            "ProcessDied",
            "rank 0 (pid 11) died during the cell: exit code 3",
            (),
        ),
        (
            ProcessDied("", ExitReport("mesh.0", 0, None, (), "its host agent ended\nwith all")),
            "ProcessDied",
            "rank 0 died during the cell: its host agent ended\nwith all",
            (),
        ),
        (SupervisionError("the mesh was stopped"), "SupervisionError", "the mesh was stopped", ()),
    ],
)
def test_a_rank_that_will_not_answer_is_an_error_of_the_cell(
    error: MeshbookError, type_name: str, message: str, rendered: tuple[str, ...]
) -> None:
    cell = Cell(1)
    told = cell.run_failing(lambda run: cell.ranks.answer(0, error)).by_rank[0]
    assert (told.kind, told.type_name, told.message, told.rendered) == ("died", type_name, message, rendered)


def test_a_person_interrupts_and_then_gives_up() -> None:
    cell = Cell()
    cell.ranks.answer(2, DONE)
    asked = []

    def interrupt(rank: int) -> None:
        asked.append(rank)
        if asked == [0, 1]:
            cell.ranks.answer(0, INTERRUPTED)
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)

    cell.ranks.on_interrupt = interrupt
    error = cell.run_failing(lambda run: os.kill(os.getpid(), signal.SIGINT))
    assert asked == [0, 1, 1]
    assert error.is_interrupt
    assert cell.mesh.busy == {1: 7}


# --- Ctrl-C while something waits ---


def test_an_interrupt_does_what_is_asked_and_nothing_else() -> None:
    before, heard = signal.getsignal(signal.SIGINT), []
    with interruptible(lambda: heard.append("interrupt")):
        signal.raise_signal(signal.SIGINT)
    assert heard == ["interrupt"]
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_leaves_interrupts_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def wait() -> None:
        with interruptible(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert seen == [before]


# --- who can run a cell ---


@pytest.mark.parametrize(
    ("dead", "busy", "ranks", "said"),
    [
        ([], {}, [0, 1, 2, 3], None),
        ([3], {2: 5}, [0, 1], None),
        (
            [3, 1],
            {},
            [0, 1, 2, 3],
            "ranks 1,3 of mesh died (Killed(sig=9)). Run on the others with %%mesh !1,3, "
            "or start afresh: %mesh down, then %mesh up",
        ),
        ([0, 1, 2, 3], {}, [0], "rank 0 of mesh died (Killed(sig=9)). Start afresh: %mesh down, then %mesh up"),
        (
            [3],
            {1: 5},
            [1, 3],
            "rank 3 of mesh died (Killed(sig=9)). Run on the others with %%mesh !3, "
            "or start afresh: %mesh down, then %mesh up",
        ),
        (
            [],
            {1: 5, 2: 5},
            [0, 1, 2],
            "ranks 1-2 of mesh did not answer in cell 5 and still run it. Wait, or run on the others with %%mesh !1,2, "
            "or start afresh: %mesh down --now, then %mesh up",
        ),
    ],
)
def test_the_dead_and_the_busy_are_refused(
    dead: list[int], busy: dict[int, int], ranks: list[int], said: str | None
) -> None:
    mesh: Any = SimpleNamespace(
        name="mesh", extent=Extent.of(gpus=4), dead={rank: ExitReport("", 1, -9) for rank in dead}, busy=busy
    )
    region = Extent.of(gpus=4).region.pick(ranks)
    if said is None:
        check_able(mesh, region)
        return
    with pytest.raises(MeshError) as caught:
        check_able(mesh, region)
    assert str(caught.value) == said
