"""The data of `%mesh trace`: the cells, their times, and what all processes recorded in these, on one clock.

Not for drawing or writing (`timeline_svg`, `chrome_trace`).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from meshbook.magics.errors import MeshError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.meshes.whereabouts import answers_of
from meshbook.runtime.actor.context import name_of
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.control import CONTROL, ControlActor
from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.spans import CallMark, Span, SpanRecording, now
from meshbook.runtime.telemetry.timeline_lanes import TimeWindow
from meshbook.runtime.transport.home import host_of
from meshbook.runtime.wire.messages import Address

MOST_CELLS = 1000  # whose times are kept
ANSWER_SECONDS = 3.0  # seconds for a process to send its recording
PINGS = 5  # of a clock; the quickest counts
CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class CellTime:
    """The time in which a notebook cell ran here, in nanoseconds of this process's clock."""

    number: int
    start: int
    end: int
    is_open: bool = False


class CellTimes:
    """The times of the notebook's last cells. Cells may run cells: only the outermost counts.

    Cells of subshells have threads of their own, and run beside those of the main thread.
    """

    def __init__(self) -> None:
        self._ended: deque[CellTime] = deque(maxlen=MOST_CELLS)
        self._begun: defaultdict[int, list[int]] = defaultdict(list)  # by thread

    def install(self, shell: Any) -> None:
        """Register for the shell's events."""
        shell.events.register("pre_run_cell", self.begin)
        shell.events.register("post_run_cell", self.end)

    def begin(self, info: Any = None) -> None:
        """Record that a cell begins."""
        self._begun[threading.get_ident()].append(now())

    def end(self, result: Any) -> None:
        """Record that a cell has ended."""
        begun = self._begun[threading.get_ident()]
        start = begun.pop() if begun else now()
        if not begun and result.execution_count is not None:
            self._ended.append(CellTime(result.execution_count, start, now()))

    @property
    def seconds(self) -> float:
        """How long the present cell of the main thread has run; 0 if none runs."""
        return sum((now() - start) / 1e9 for start in self._of_main_thread)

    def known(self, present: int) -> list[CellTime]:
        """Return the times in order, including the running cell of the main thread, which has this number."""
        return [*self._ended, *(CellTime(present, start, now(), True) for start in self._of_main_thread)]

    @property
    def _of_main_thread(self) -> list[int]:
        return self._begun[threading.main_thread().ident or 0][:1]


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The offset of another host's clock from ours (positive: theirs is ahead), and its error, in nanoseconds."""

    offset: int = 0
    error: int = 0


@dataclass(frozen=True, slots=True)
class TracedProcess:
    """One process of a trace: a rank of a notebook's mesh, another worker, or (rank -1) the controller."""

    node: str
    mesh: str
    rank: int
    recording: SpanRecording  # by our clock
    clock: ClockOffset = ClockOffset()

    @property
    def label(self) -> str:
        """`mesh rank 3`, or `controller`."""
        return f"{self.mesh} rank {self.rank}" if self.rank >= 0 else self.node


@dataclass(frozen=True)
class Trace:
    """The recordings of some cells. `silent` are the processes that did not answer."""

    cells: tuple[int, ...]
    window: TimeWindow
    processes: tuple[TracedProcess, ...]
    silent: tuple[str, ...] = ()
    gone: int = 0  # ranks that took part and have ended
    # Nanoseconds since 1970 at the zero of our clock, so that a trace can be compared with logs.
    epoch: int = field(default_factory=lambda: time.time_ns() - now())

    @property
    def clock_error(self) -> int:
        """The largest error between the times of different hosts, in nanoseconds."""
        return max((process.clock.error for process in self.processes), default=0)

    @property
    def is_open(self) -> bool:
        """Whether one of its cells still runs."""
        return any(span.is_open and span.kind == "cell" for each in self.processes for span in each.recording.spans)

    def meshes(self) -> dict[str, dict[int, SpanRecording]]:
        """Return the recordings of ranks, by mesh; without the controller."""
        found: dict[str, dict[int, SpanRecording]] = {}
        for process in self.processes:
            if process.rank >= 0:
                found.setdefault(process.mesh, {})[process.rank] = process.recording
        return found

    @property
    def controller(self) -> TracedProcess | None:
        """The notebook's own process."""
        return next((process for process in self.processes if process.rank < 0), None)


def choose(times: Sequence[CellTime], calls: Sequence[Span], *, number: int | None, last: int) -> list[CellTime]:
    """Return the cell of this number, or the last cells that used a mesh. Raises MeshError if there is none."""
    if number is not None:
        found = [each for each in times if each.number == number][-1:]
        if not found:
            known = f"; the last {len(times)} cells are known" if times else ""
            raise MeshError(f"no cell {number} was run in this notebook{known}")
        return found
    used = [each for each in times if any(each.start <= call.start <= each.end for call in calls)]
    if not used:
        raise MeshError("no cell has used a mesh yet; run one that begins with %%mesh or calls actors")
    return used[-last:]


def is_use(call: Span) -> bool:
    """Whether this call comes from the user: cells and calls of actors, but not the preparation of a mesh."""
    return call.kind == "call" and (name_of(call.link[2]) != "cells" or call.name == "run")


async def take_trace(
    session: Session,
    times: Sequence[CellTime],
    ranks: Mapping[str, tuple[str, int]],
    *,
    only: set[str] | None = None,
    number: int | None = None,
    last: int = 1,
) -> Trace:
    """Collect the recordings of a cell from all processes (`only`: from these nodes).

    `ranks` maps nodes to mesh name and rank. Raises MeshError if nothing was recorded.
    """
    if not session.node.recorder.on:
        raise MeshError("tracing is off because MESHBOOK_SPANS is 0")
    own = session.node.recorder.recording(0)
    chosen = choose(times, [span for span in own.spans if is_use(span)], number=number, last=last)
    start = chosen[0].start
    addresses = [each for each in session.workers() if only is None or each.node in only]
    traced = await _request_recordings(session.node.address, addresses, start)
    numbers = {each.number for each in chosen}
    # A cell that was not awaited may end later on a rank than here.
    ends = [span.end for each in traced for span in each.recording.spans if cell_of(span) in numbers]
    window = TimeWindow(start, max([chosen[-1].end, *ends]))
    processes = [_name_process(each, ranks) for each in traced if any(map(window.has, each.recording.spans))]
    controller = TracedProcess(CONTROLLER, "", -1, _with_cells(own, chosen))
    silent = {address.node for address in addresses} - {each.node for each in traced}
    order = sorted(processes, key=lambda each: (each.mesh, each.rank, each.node))
    gone = 0
    if only is None:  # compare with the largest `%%mesh` cell
        used_spans = filter(is_use, controller.recording.spans)
        calls = (span for span in used_spans if (span.kind, span.name) == ("call", "run"))
        of_cells = (call.link for call in calls if name_of(call.link[2]) == "cells" and window.has(call))
        used = max((last - first + 1 for first, last, _ in of_cells), default=0)
        gone = used - len(order) - len(silent)
    return Trace(tuple(sorted(numbers)), window, (controller, *order), tuple(sorted(silent)), max(0, gone))


async def take_run_trace(node: Node, addresses: Sequence[Address], seconds: float | None) -> Trace:
    """Collect what these processes of a run did in the last seconds, or all that they have recorded.

    `node` is this process in the run, which is not its controller. Raises MeshError if nothing was recorded.
    """
    since = 0 if seconds is None else now() - int(seconds * 1e9)
    traced = await _request_recordings(node.address, addresses, since)
    processes = [
        replace(each, rank=-1) if each.node == CONTROLLER else _name_process(each, {})
        for each in traced
        if each.recording.spans
    ]
    if not processes:
        raise MeshError("no process of the run has recorded anything: it is idle, or MESHBOOK_SPANS is 0")
    start = min(span.start for each in processes for span in each.recording.spans)
    silent = {address.node for address in addresses} - {each.node for each in traced}
    order = sorted(processes, key=lambda each: (each.rank >= 0, each.mesh, each.rank))
    return Trace((), TimeWindow(max(start, since), now()), tuple(order), tuple(sorted(silent)))


def cell_of(span: Span) -> int | None:
    """Return the number of the `%%mesh` cell whose run on a rank is this span."""
    number = span.origin.partition(".")[0]
    return int(number) if span.kind == "cell" and number.isdecimal() else None


def _name_process(process: TracedProcess, ranks: Mapping[str, tuple[str, int]]) -> TracedProcess:
    """Name a worker by its mesh and rank; a node unknown to the notebook by the mesh and number in its name."""
    mesh, _, number = process.node.rpartition(".")
    rank = int(number) if number.isdecimal() else 0
    mesh, rank = ranks.get(process.node, (mesh, rank))
    return TracedProcess(process.node, mesh, rank, process.recording, process.clock)


def _with_cells(own: SpanRecording, cells: Sequence[CellTime]) -> SpanRecording:
    """Return the controller's recording, with these cells and their waits for answers."""
    answers = ReplyTimes(own)
    spans = [Span("cell", each.start, each.end, 0, f"{each.number}", is_open=each.is_open) for each in cells]
    for cell in cells:
        asked = (span for span in own.spans if span.kind == "call" and cell.start <= span.start <= cell.end)
        # Not beyond the cell: a call whose rank has died has no answer.
        waits = union((call.end, min(answers.end_of(call), cell.end)) for call in asked)
        spans += [Span("wait", start, end, 0, "answers") for start, end in waits]
    return msgspec.structs.replace(own, spans=(*own.spans, *spans))


def union(times: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of these intervals as disjoint (start, end) pairs."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(times):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        elif end > start:
            joined.append((start, end))
    return joined


class ReplyTimes:
    """The arrival times of the answers to the calls of a process."""

    def __init__(self, recording: SpanRecording) -> None:
        self._times = {mark.call: mark.time for mark in recording.marks if not mark.node}
        self._asked = recording.asked
        self._since = recording.marked_since

    def end_of(self, call: Span) -> int:
        """Return the arrival of the call's last answer.

        If an answer is missing, return the time of the recording; if the call has no answers, its own end.
        """
        first, last, _ = call.link
        known = [self._times.get(number) for number in range(first, last + 1)] if first else []
        times = [time for time in known if time is not None]
        if len(times) < len(known) and call.end >= self._since:
            return self._asked
        return max(times, default=call.end)


# -- requests ------------------------------------------------------------------------------


async def _request_recordings(here: Address, addresses: Sequence[Address], since: int) -> list[TracedProcess]:
    """Return the recordings of these processes, by our clock; processes that do not answer are left out."""
    clocks = await _clocks(here, addresses)
    asked = [
        _control_actor(address).recording.call_one(since + clocks[host_of(address)].offset)
        for address in addresses
        if host_of(address) in clocks
    ]
    reached = [address for address in addresses if host_of(address) in clocks]
    answers: list[SpanRecording | None] = await answers_of(asked, ANSWER_SECONDS)
    return [
        TracedProcess(address.node, "", 0, shift(recording, clocks[host_of(address)].offset), clocks[host_of(address)])
        for address, recording in zip(reached, answers, strict=True)
        if recording is not None
    ]


def _control_actor(address: Address) -> Any:
    return ActorMesh(CONTROL, ControlActor, [Target(address, CONTROL)], SCALAR.region)


async def _clocks(here: Address, addresses: Sequence[Address]) -> dict[str, ClockOffset]:
    """Return the clock of each host; processes of one host share it."""
    clocks = {host_of(here): ClockOffset()}
    for address in addresses:
        if host_of(address) not in clocks and (clock := await read_clock(_control_actor(address))) is not None:
            clocks[host_of(address)] = clock
    return clocks


async def read_clock(control: Any) -> ClockOffset | None:
    """Measure another process's clock offset with a few pings, of which the quickest counts; None without an answer."""
    pings: list[tuple[int, int, int]] = []
    for _ in range(PINGS):
        sent = now()
        (there,) = await answers_of([control.clock.call_one()], ANSWER_SECONDS)
        if there is None:
            return None
        pings.append((sent, there, now()))
    return best_clock(pings)


def best_clock(pings: Sequence[tuple[int, int, int]]) -> ClockOffset:
    """Return the offset of a clock from pings (sent, their clock, received).

    Their clock was read half-way between; the error is the other half.
    """
    sent, there, received = min(pings, key=lambda ping: ping[2] - ping[0])
    return ClockOffset(there - (sent + received) // 2, (received - sent + 1) // 2)


def shift(recording: SpanRecording, offset: int) -> SpanRecording:
    """Convert a recording to a clock that is behind by `offset` nanoseconds."""
    if not offset:
        return recording
    move = msgspec.structs.replace
    return SpanRecording(
        recording.asked - offset,
        recording.since - offset,
        tuple(move(span, start=span.start - offset, end=span.end - offset) for span in recording.spans),
        tuple(CallMark(mark.time - offset, mark.node, mark.call) for mark in recording.marks),
        recording.threads,
        recording.marked_since - offset,
    )


def ranks_of(meshes: Sequence[NotebookMesh]) -> dict[str, tuple[str, int]]:
    """Map each node to mesh name and rank."""
    return {node: (mesh.name, rank) for mesh in meshes for node, rank in mesh.rank_of.items()}
