"""The vitals of the processes of a run: current values, and those of the last five minutes.

The agents of all hosts send their measurements, a batch a tick; the dashboard reads them here. Ages are by this
process's clock, from the arrival of a batch: it is never compared with the clocks of other hosts.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.telemetry.vitals import (
    HISTORY_SECONDS,
    SECONDS,
    WATCHED_SECONDS,
    ActorLoad,
    Metric,
    ProcessDetail,
    Vitals,
    VitalsBatch,
    decode_process_report,
)

if TYPE_CHECKING:
    from meshbook.runtime.telemetry.vitals_table import VitalsTable

REMEMBERED_ENDS = 64  # ended processes whose numbers are still kept
REMEMBERED_INCARNATIONS = 8192  # processes whose ended incarnation is remembered, for late batches


class History:
    """The vitals of all processes of a run. For any thread.

    `when_sampled` holds listeners. `add` calls them on its own thread: they may only record the call.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all fields below, and the table
        self._table: VitalsTable | None = None
        self._early_batches: deque[tuple[float, VitalsBatch]] = deque()  # batches that arrived before there was a table
        self._reports: dict[str, tuple[str, bytes]] = {}  # by node: its host, and its encoded ProcessReport
        self._ended: OrderedDict[str, None] = OrderedDict()  # nodes that have ended and are not forgotten
        self._ended_incarnations: OrderedDict[str, int] = OrderedDict()  # by node: its last incarnation that ended
        self._watchers = 0
        self.when_sampled: list[Callable[[], object]] = []

    # -- for readers -------------------------------------------------------------------------

    def vitals(self, nodes: Sequence[str]) -> Vitals:
        """Return the current vitals of these processes, in this order; NaN and an infinite age for unknown ones."""
        table = self._opened()
        with self._lock:
            return table.vitals(nodes, self._clock())

    def series(self, nodes: Sequence[str], metrics: Sequence[Metric]) -> Any:
        """Return past values as float32[nodes, metrics, 300], one a second, the newest last; NaN where unknown."""
        table = self._opened()
        with self._lock:
            return table.series(nodes, metrics, self._clock())

    def detail(self, node: str) -> ProcessDetail | None:
        """Return what a process reported of itself; None if it has reported nothing."""
        with self._lock:
            host, encoded = self._reports.get(node, ("", b""))
        if not encoded:
            return None
        report = decode_process_report(encoded)
        loads = tuple(ActorLoad(*load) for load in report.actors)
        return ProcessDetail(node, report.pid, host, loads, report.collective, report.pause)

    def watch(self, on: bool) -> None:
        """Count a dashboard that opens or closes. While any is open, agents are asked for four batches a second."""
        with self._lock:
            self._watchers = max(0, self._watchers + (1 if on else -1))

    @property
    def interval(self) -> float:
        """Seconds until an agent should send the next batch."""
        return WATCHED_SECONDS if self._watchers else SECONDS

    # -- input ---------------------------------------------------------------------------------

    def add(self, batch: VitalsBatch) -> None:
        """Add a batch. Never waits: until the first reader comes, batches are stored as they arrived."""
        with self._lock:
            now = self._clock()
            self._early_batches.append((now, batch))
            there = set(batch.nodes) - self._late(batch)
            for node in self._ended.keys() & there:  # it was restarted
                del self._ended[node]
            self._reports |= {node: (batch.host, encoded) for node, encoded in batch.words.items() if node in there}
            if self._table is not None:
                self._take_in(self._table)
            while self._early_batches and self._early_batches[0][0] < now - HISTORY_SECONDS:
                self._early_batches.popleft()
        for listener in list(self.when_sampled):
            listener()

    def ended(self, report: ExitReport) -> None:
        """Record the end of a process. Its past is kept for a while, or until its mesh is forgotten."""
        with self._lock:
            self._reports.pop(report.node, None)
            self._ended[report.node] = None
            self._ended.move_to_end(report.node)
            self._ended_incarnations[report.node] = report.incarnation
            self._ended_incarnations.move_to_end(report.node)
            if len(self._ended_incarnations) > REMEMBERED_INCARNATIONS:
                self._ended_incarnations.popitem(last=False)
            if self._table is not None:
                self._table.end(report.node)
            while len(self._ended) > REMEMBERED_ENDS:
                self._drop([next(iter(self._ended))])

    def forget(self, mesh: str) -> None:
        """Drop everything about the processes of a mesh (`ProcMesh.name`)."""
        with self._lock:
            known = {*self._reports, *self._ended, *(self._table.nodes() if self._table is not None else ())}
            self._drop([node for node in known if node.rpartition(".")[0] == mesh])

    # -- the table -----------------------------------------------------------------------------

    def _opened(self) -> VitalsTable:
        """Return the table, creating it on first use. Call it without the lock, which it takes."""
        if (table := self._table) is None:
            # Imported only here: numpy takes a tenth of a second, which a script without a dashboard need not spend. An
            # import in the background will not do: if it coincides with the end of a script, it changes the exit
            # status.
            from meshbook.runtime.telemetry.vitals_table import VitalsTable

            with self._lock:
                if (table := self._table) is None:
                    table = self._table = VitalsTable()
                    self._take_in(table)
        return table

    def _take_in(self, table: VitalsTable) -> None:
        while self._early_batches:
            at, batch = self._early_batches.popleft()
            table.add(batch, at, self._late(batch))

    def _late(self, batch: VitalsBatch) -> set[str]:
        """Return the nodes of a batch that ended before it arrived; their entries would never be dropped."""
        if not self._ended_incarnations:
            return set()
        incarnations = zip(batch.nodes, batch.incarnations, strict=True)
        return {node for node, incarnation in incarnations if incarnation <= self._ended_incarnations.get(node, -1)}

    def _drop(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            self._reports.pop(node, None)
            self._ended.pop(node, None)
        if self._table is not None:
            self._table.forget(nodes)


class VitalsActor(Actor):
    """Receives the batches of agents; hosted inline. Its reply is the number of seconds until the next batch."""

    def __init__(self, history: History) -> None:
        self._history = history

    @endpoint
    def measured(self, batch: VitalsBatch) -> float:
        """Add a batch, and return the seconds until the next."""
        self._history.add(batch)
        return self._history.interval
