"""A running cell over ranks that answer when the test says so; and which ranks may run one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from meshbook.magics.cells import execution as module
from meshbook.magics.cells.cell import PreparedCell as MeshCell
from meshbook.magics.cells.escalation import GracePeriods
from meshbook.magics.cells.execution import CellExecution
from meshbook.magics.errors import CellError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.output.model import OutputLimits
from meshbook.magics.output.publisher import LiveDisplay, Publication, StreamText
from meshbook.magics.results.error_groups import HOW_TO_INITIALIZE
from meshbook.magics.results.result import MeshResult
from meshbook.magics.shell.cell_interrupts import interruptible
from meshbook.magics.syntax.cell_options import CellOptions
from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, Frame, RankError
from meshbook.runtime.cells.thread_stacks import MainThreadState
from meshbook.runtime.errors import ExitReport, MeshbookError, MessageTooLarge, ProcessDied, SupervisionError
from meshbook.runtime.geometry import Extent, Region
from meshbook.runtime.telemetry.output import OutputChunk, OutputStore
from meshbook.runtime.telemetry.prompt_questions import QuestionRouter
from meshbook.runtime.wire.messages import Address

ALL_REDUCE = Frame("/lib/torch/distributed/distributed_c10d.py", 88, "all_reduce", is_user=False)
DONE = CellOutcome(CellCost(wall=0.1, cpu=0.1, peak_rss=1))
RAISED = CellOutcome(DONE.cost, error=RankError("raised", "ValueError", "bad"))
LOST_PEER = CellOutcome(DONE.cost, error=RankError("raised", "RuntimeError", "closed by peer", is_consequence=True))
INTERRUPTED = CellOutcome(DONE.cost, error=RankError("interrupted", "KeyboardInterrupt", ""))


class FakeRanks:
    """The ranks of a mesh: `answers` are theirs to the cell; `on_interrupt` and its like hear what is done to them."""

    def __init__(self, count: int) -> None:
        self.region = Extent.of(gpus=count).region
        self.answers: list[Future[CellOutcome]] = [Future.pending() for _ in range(count)]
        self.origins: list[str] = []
        self.interrupted: list[int] = []
        self.aborted: list[tuple[int, bool]] = []  # and whether it was forced
        self.killed: list[int] = []
        self.on_interrupt: Callable[[int], None] = lambda rank: None
        self.on_abort: Callable[[int], None] = lambda rank: None
        self.on_kill: Callable[[int], None] = lambda rank: None
        self.places: dict[int, MainThreadState] = {}

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

    def abort(self, ranks: Sequence[int], origin: str, forced: bool) -> list[Future[list[str]]]:
        for rank in ranks:
            self.aborted.append((rank, forced))
            self.on_abort(rank)
        return [Future.completed(["gloo group of 3 ranks"]) for rank in ranks]

    def kill(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.killed.append(rank)
            self.on_kill(rank)

    def where(self, ranks: Sequence[int]) -> list[Future[MainThreadState]]:
        return [Future.completed(self.places.get(rank, MainThreadState())) for rank in ranks]


class FakeActors:
    """Both actors of a cell, on some of the ranks."""

    def __init__(self, ranks: FakeRanks, region: Region) -> None:
        self._ranks = ranks
        members = region.ranks()
        self.run = SimpleNamespace(call_each=lambda source, number, *debugs: ranks.begin(members))
        self.interrupt = SimpleNamespace(broadcast=lambda origin: ranks.interrupt(members))
        self.where = SimpleNamespace(call_each=lambda: ranks.where(members))
        self.abort = SimpleNamespace(call_each=lambda origin, forced: ranks.abort(members, origin, forced))

    def _with_region(self, region: Region) -> FakeActors:
        return FakeActors(self._ranks, region)


class FakeProcs:
    """The processes of the ranks."""

    name = "mesh"

    def __init__(self, ranks: FakeRanks, region: Region) -> None:
        self._ranks = ranks
        self.region = region
        self.extent = region.extent
        self.nodes = [Address(f"mesh.{rank}", "ipc://nowhere") for rank in region.ranks()]
        self.healed: Future[list[int]] = Future.completed(list(region.ranks()))

    def _with_region(self, region: Region) -> FakeProcs:
        return FakeProcs(self._ranks, region)

    def kill(self, *, sender: str) -> None:
        self._ranks.kill(self.region.ranks())

    def abort_process_groups(self) -> Future[dict[int, tuple[str, ...]]]:
        return Future.completed({})

    def heal(self) -> Future[list[int]]:
        return self.healed


SHORT = GracePeriods(0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01)


class Cell:
    """Runs one cell on fake ranks; `script` is called once it waits."""

    def __init__(self, count: int = 3, periods: GracePeriods = SHORT, **options: Any) -> None:
        self.ranks = FakeRanks(count)
        self.periods = periods
        actors: Any = FakeActors(self.ranks, self.ranks.region)
        procs: Any = FakeProcs(self.ranks, self.ranks.region)
        self.mesh = NotebookMesh("mesh", procs, actors, actors, actors, session=None, has_gpus=False)  # type: ignore[arg-type]
        self.store = OutputStore()
        self.options = CellOptions(**options)
        self.limits = OutputLimits()
        self.published: list[Publication] = []

    def run(self, script: Callable[[CellExecution], None]) -> MeshResult:
        async def main() -> MeshResult:
            session: Any = SimpleNamespace(
                incarnation=0,
                output=self.store,
                questions=QuestionRouter(),
                context=SimpleNamespace(actor_instance=None),
            )
            publisher: Any = SimpleNamespace(publish=self.published.extend)
            cell = MeshCell(*(session, self.mesh, self.ranks.region, self.options, publisher, 7), limits=self.limits)
            run = CellExecution(cell, periods=self.periods)
            asyncio.get_running_loop().call_soon(script, run)
            return await run.run("source")

        return asyncio.run(main())

    def run_failing(self, script: Callable[[CellExecution], None]) -> CellError:
        with pytest.raises(CellError) as caught:
            self.run(script)
        return caught.value

    def say(self, run: CellExecution, rank: int, text: str) -> None:
        self.store.add(OutputChunk(run.origin, "mesh-0a1b", rank, "stdout", text))


def test_a_cell_ends_with_its_last_answer() -> None:
    cell = Cell()

    def script(run: CellExecution) -> None:
        for rank in (2, 0, 1):
            cell.say(run, rank, "said\n")
            cell.ranks.answer(rank, DONE)

    result = cell.run(script)
    assert (list(result.ranks), result[1].stdout) == ([0, 1, 2], "said\n")
    assert cell.published == [StreamText("stdout", "[0-2] said\n")]
    assert cell.mesh.last.ok == {0, 1, 2}
    (origin,) = cell.ranks.origins
    assert origin.startswith("7."), "what ranks print is told apart by the cell they print for"


def test_a_cell_that_has_ended_is_freed_without_the_garbage_collector() -> None:
    runs: list[weakref.ref[CellExecution]] = []

    def script(run: CellExecution) -> None:
        runs.append(weakref.ref(run))
        for rank in range(3):
            cell.ranks.answer(rank, DONE)

    cell = Cell()
    gc.collect()
    gc.disable()
    try:
        result = cell.run(script)
        assert runs[0]() is None, "the result needs only its output"
    finally:
        gc.enable()
    assert list(result.ranks) == [0, 1, 2]


def test_two_executions_of_a_number_are_distinguished() -> None:
    origins = []
    for _ in range(2):
        cell = Cell(1)
        cell.run(lambda run, cell=cell: cell.ranks.answer(0, DONE))  # type: ignore[misc]
        origins += cell.ranks.origins
    assert len(set(origins)) == 2


def test_after_a_first_error_the_others_are_interrupted() -> None:
    cell = Cell()
    cell.ranks.on_interrupt = lambda rank: cell.ranks.answer(rank, INTERRUPTED)
    error = cell.run_failing(lambda run: cell.ranks.answer(1, RAISED))
    assert cell.ranks.interrupted == [0, 2]
    assert [(group.ranks, group.is_consequence) for group in error.groups] == [((1,), False), ((0, 2), True)]
    assert (cell.mesh.last.failed, cell.mesh.busy) == ({0, 1, 2}, {})


def test_with_on_error_finish_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK", 0.001)
    cell = Cell(on_error="finish")

    def script(run: CellExecution) -> None:
        cell.ranks.answer(1, RAISED)
        # Several ticks later, in which an interrupt would have been sent.
        asyncio.get_running_loop().call_later(0.05, lambda: [cell.ranks.answer(rank, DONE) for rank in (0, 2)])

    error = cell.run_failing(script)
    assert (list(error.by_rank), cell.ranks.interrupted) == ([1], [])
    assert (cell.mesh.last.failed, cell.mesh.last.ok) == ({1}, {0, 2})


def test_a_rank_that_stays_silent_is_busy_until_it_answers() -> None:
    cell = Cell(2)
    cell.ranks.places[0] = MainThreadState(frames=(Frame("<cell 7>", 4, "wait"),))
    error = cell.run_failing(lambda run: cell.ranks.answer(1, RAISED))
    assert cell.ranks.aborted == [(0, False), (0, True)], "first only where it is in a collective"
    assert error.by_rank[0].place == "cell 7:4 in wait"
    assert error.by_rank[0].message.startswith("ignores interrupts and still runs the cell")
    assert cell.mesh.busy == {0: 7}
    cell.ranks.answer(0, DONE)
    assert cell.mesh.busy == {}


def test_after_an_error_a_collective_is_broken() -> None:
    cell = Cell(2)
    cell.ranks.places[0] = MainThreadState(frames=(Frame("<cell 7>", 4, "<module>"), ALL_REDUCE))
    cell.ranks.on_abort = lambda rank: cell.ranks.answer(rank, LOST_PEER)
    error = cell.run_failing(lambda run: cell.ranks.answer(1, RAISED))
    assert str(error).splitlines() == [
        "[rank 1] ValueError: bad",
        "rank 0 failed as a consequence (KeyboardInterrupt in all_reduce (cell 7:4))",
        f"process groups were broken (gloo group of 3 ranks): {HOW_TO_INITIALIZE}",
    ]
    assert cell.mesh.busy == {}


def test_after_a_death_waits_are_short() -> None:
    cell = Cell()
    died = ProcessDied("", ExitReport("mesh.1", 4711, -9))

    def script(run: CellExecution) -> None:
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


# --- a person, and a time limit ---


def press(run: CellExecution | None = None) -> None:
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)


def test_a_second_interrupt_breaks_process_groups() -> None:
    cell = Cell(periods=GracePeriods())
    cell.ranks.answer(2, DONE)
    cell.ranks.places[1] = MainThreadState(frames=(Frame("<cell 7>", 4, "<module>"), ALL_REDUCE))

    def interrupt(rank: int) -> None:
        if rank == 0:
            cell.ranks.answer(0, INTERRUPTED)
            press()

    cell.ranks.on_interrupt = interrupt
    cell.ranks.on_abort = lambda rank: cell.ranks.answer(rank, LOST_PEER)
    error = cell.run_failing(press)
    assert (cell.ranks.interrupted, cell.ranks.aborted) == ([0, 1, 1], [(1, True)])
    assert (error.is_interrupt, cell.mesh.busy) == (True, {})
    assert str(error) == (
        "interrupted; rank 0 was at an unknown place, rank 1 in all_reduce (cell 7:4); "
        f"process groups were broken (gloo group of 3 ranks): {HOW_TO_INITIALIZE}"
    )


def test_a_cell_that_waits_for_another_is_interrupted_at_once() -> None:
    cell = Cell(2)
    cell.mesh.queues.join(["mesh.1"], "1.1", "job 1 of cell 1")
    cell.ranks.on_interrupt = lambda rank: cell.ranks.answer(0, INTERRUPTED)
    error = cell.run_failing(press)
    assert str(error) == (
        "interrupted; rank 0 was at an unknown place; rank 1 did not run: job 1 of cell 1 was still running"
    )
    assert cell.ranks.interrupted == [0, 1], "it has the cell in its queue"
    assert cell.mesh.busy == {}
    cell.ranks.answer(1, INTERRUPTED)
    assert cell.mesh.queues.at_work() == {"job 1 of cell 1": ["mesh.1"]}


def test_a_cell_that_cannot_be_sent_delays_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell()

    def refuse(ranks: Sequence[int]) -> list[Future[CellOutcome]]:
        raise MessageTooLarge("a message of 5 GB")

    monkeypatch.setattr(cell.ranks, "begin", refuse)
    with pytest.raises(MessageTooLarge):
        cell.run(lambda run: None)
    assert cell.mesh.queues.at_work() == {}
    assert not cell.store._sinks


def test_a_cell_whose_later_ranks_cannot_be_sent_it_shows_what_was_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(count=2, seq=True)
    begin = cell.ranks.begin

    def refuse_others(ranks: Sequence[int]) -> list[Future[CellOutcome]]:
        if 0 not in ranks:
            raise MessageTooLarge("a message of 5 GB")
        return begin(ranks)

    def script(run: CellExecution) -> None:
        cell.say(run, 0, "here")
        cell.ranks.answer(0, DONE)

    monkeypatch.setattr(cell.ranks, "begin", refuse_others)
    with pytest.raises(MessageTooLarge):
        cell.run(script)
    assert cell.published == [StreamText("stdout", "[0] here\n")]
    assert cell.mesh.queues.at_work() == {}


def test_the_time_limit_of_a_cell_that_waits_has_not_begun() -> None:
    cell = Cell(1, timeout=0.01)
    cell.mesh.queues.join(["mesh.0"], "1.1", "cell 1")

    def script(run: CellExecution) -> None:
        # Several times the limit.
        asyncio.get_running_loop().call_later(0.1, cell.ranks.answer, 0, DONE)

    cell.run(script)
    assert cell.ranks.interrupted == []


def test_a_third_interrupt_kills_and_heals_and_says_what_was_lost() -> None:
    cell = Cell(2, periods=GracePeriods(kill=0.01))
    cell.ranks.answer(0, DONE)
    cell.ranks.places[1] = MainThreadState(frames=(Frame("<cell 7>", 4, "<module>"),))
    cell.mesh.lost[1] = ("model", "step")
    cell.ranks.on_interrupt = cell.ranks.on_abort = lambda rank: press()
    cell.ranks.on_kill = lambda rank: cell.ranks.answer(rank, ProcessDied("", ExitReport("mesh.1", 4711, -9)))
    error = cell.run_failing(press)
    assert cell.ranks.killed == [1]
    assert type(error).__name__ == "KeyboardInterrupt"
    told = error.by_rank[1]
    assert (told.kind, told.place) == ("interrupted", "cell 7:4")
    assert re.fullmatch(r"was killed and restarted in 0.0\d s; it lost 2 names: model, step", told.message)


def test_the_names_of_the_cell_in_which_a_rank_died_are_lost_there() -> None:
    cell = Cell(3, on_error="finish")
    cell.mesh.names = {0: ("writer",), 1: ("model",), 2: ("model",)}
    cell.mesh.lost[1] = ("optimizer",)

    def script(run: CellExecution) -> None:
        cell.ranks.answer(0, msgspec.structs.replace(DONE, names=("writer", "os", "step")))
        cell.ranks.answer(1, ProcessDied("", ExitReport("mesh.1", 4711, -9)))
        cell.ranks.answer(2, msgspec.structs.replace(RAISED, names=("model", "os")))

    cell.run_failing(script)
    assert cell.mesh.lost == {1: ("os", "step", "optimizer")}


@pytest.mark.parametrize(
    ("ended", "wall"), [(DONE, "100 ms"), (ProcessDied("", ExitReport("mesh.1", 4711, -9)), "42.00 s")]
)
def test_the_footer_has_the_time_of_the_cell_if_a_rank_has_died(
    ended: CellOutcome | MeshbookError, wall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(2, on_error="finish")
    cell.limits = OutputLimits(plain_time=0.0, update_interval=0.0)  # from the beginning, the cell has an area
    monkeypatch.setattr(CellExecution, "seconds", 42.0)
    cell.ranks.answer(0, DONE)
    with contextlib.suppress(CellError):
        cell.run(lambda run: cell.ranks.answer(1, ended))
    area = cell.published[-1]
    assert isinstance(area, LiveDisplay)
    assert area.data["text/plain"].splitlines()[-1].startswith(f"wall {wall} · ")


def test_a_rank_that_cannot_be_healed_says_so() -> None:
    cell = Cell(1, periods=GracePeriods(kill=0.01))
    cell.mesh.procs.healed = Future.failed(MeshbookError("no more memory"))  # type: ignore[attr-defined]
    cell.ranks.on_interrupt = cell.ranks.on_abort = lambda rank: press()
    cell.ranks.on_kill = lambda rank: cell.ranks.answer(rank, ProcessDied("", ExitReport("mesh.0", 4711, -9)))
    told = cell.run_failing(press).by_rank[0]
    assert told.message.startswith("was killed but could not be restarted (no more memory); restart it with %mesh heal")


def test_errors_after_a_command_has_broken_the_process_groups_name_the_command() -> None:
    cell = Cell(3, on_error="finish")
    frames = (Frame("<cell 7>", 4, "<module>"), ALL_REDUCE)
    closed = [
        RankError(
            "raised", "RuntimeError", f"Connection closed by peer [127.0.0.1]:{port}", frames, is_consequence=True
        )
        for port in (4711, 4712)
    ]

    def script(run: CellExecution) -> None:
        cell.mesh.breaks += 1
        cell.ranks.answer(0, CellOutcome(DONE.cost, error=closed[0]))
        cell.ranks.answer(1, DONE)
        cell.ranks.answer(2, CellOutcome(DONE.cost, error=closed[1]))

    error = cell.run_failing(script)
    assert type(error).__name__ == "KeyboardInterrupt"
    assert str(error) == (
        "interrupted; ranks 0,2 were in all_reduce (cell 7:4); "
        "ranks 0,2 were freed from their collective by %mesh interrupt --break"
    )
    cell = Cell(1)
    cell.mesh.breaks = 1
    assert cell.run_failing(lambda run: cell.ranks.answer(0, LOST_PEER)).by_rank[0].message == "closed by peer"


def test_a_time_limit_says_where_ranks_are_and_interrupts() -> None:
    cell = Cell(2, timeout=0.01)
    cell.ranks.places[0] = MainThreadState(frames=(Frame("<cell 7>", 4, "<module>"), ALL_REDUCE))
    cell.ranks.places[1] = MainThreadState(
        frames=(Frame("<cell 7>", 2, "<module>"), Frame("/home/me/data.py", 88, "load"))
    )
    cell.ranks.on_interrupt = lambda rank: cell.ranks.answer(rank, INTERRUPTED)
    error = cell.run_failing(lambda run: None)
    assert type(error).__name__ == "TimeoutError"
    assert str(error) == "timed out after 0.01 s: rank 0 in all_reduce (cell 7:4), rank 1 at data.py:88 in load"


def test_ranks_whose_whereabouts_are_unknown_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def collect_whereabouts(*_: Any) -> Any:
        cell.ranks.answer(0, DONE)
        raise OSError("no descriptor is left")

    cell = Cell(1, timeout=0.01)
    monkeypatch.setattr("meshbook.magics.cells.supervision.collect_whereabouts", collect_whereabouts)
    cell.run(lambda run: None)
    assert "failed to query the ranks of a running cell" in caplog.text
    assert "no descriptor is left" in caplog.text


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
