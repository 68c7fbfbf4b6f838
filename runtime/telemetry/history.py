"""What is known of the processes of a run: how they are, and how they were in the last five minutes.

The agents of all hosts send what they have measured, a batch a tick; whoever shows it asks here. Ages go by the clock
of this process, from when a batch came: clocks of other hosts are never compared with it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

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
    ProcessWords,
    Vitals,
    VitalsBatch,
)

if TYPE_CHECKING:
    from meshbook.runtime.telemetry.vitals_table import VitalsTable

REMEMBERED_ENDS = 64  # processes that have ended, whose numbers are still there
REMEMBERED_LIVES = 8192  # processes of which it is known which life has ended, for batches that were on their way


class History:
    """The vitals of all processes of a run. For any thread.

    `when_sampled` are called when something has come in, on whichever thread that was: they may only note it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all of these, and the table
        self._table: VitalsTable | None = None
        self._came: deque[tuple[float, VitalsBatch]] = deque()  # before there was a table
        self._words: dict[str, tuple[str, bytes]] = {}  # by node: its host, and what it says
        self._ended: OrderedDict[str, None] = OrderedDict()  # nodes that have, and are not forgotten
        self._lives: OrderedDict[str, int] = OrderedDict()  # by node: which of its lives has ended
        self._watchers = 0
        self.when_sampled: list[Callable[[], object]] = []

    # -- for who looks -----------------------------------------------------------------------

    def vitals(self, nodes: Sequence[str]) -> Vitals:
        """How these processes are, in this order; NaN and an infinite age of those that nothing is known of."""
        table = self._opened()
        with self._lock:
            return table.vitals(nodes, self._clock())

    def series(self, nodes: Sequence[str], metrics: Sequence[Metric]) -> Any:
        """How they were: float32[nodes, metrics, 300], a value a second, the newest last; NaN where not known."""
        table = self._opened()
        with self._lock:
            return table.series(nodes, metrics, self._clock())

    def detail(self, node: str) -> ProcessDetail | None:
        """What one of them says of itself; None where it has not."""
        with self._lock:
            host, said = self._words.get(node, ("", b""))
        if not said:
            return None
        words = msgspec.msgpack.decode(said, type=ProcessWords)
        loads = tuple(ActorLoad(*load) for load in words.actors)
        return ProcessDetail(node, words.pid, host, loads, words.collective, words.pause)

    def watch(self, on: bool) -> None:
        """Count one dashboard more, or one less; while any is open, answers ask for four batches a second."""
        with self._lock:
            self._watchers = max(0, self._watchers + (1 if on else -1))

    @property
    def interval(self) -> float:
        """Seconds until an agent should send the next batch."""
        return WATCHED_SECONDS if self._watchers else SECONDS

    # -- what comes in -------------------------------------------------------------------------

    def add(self, batch: VitalsBatch) -> None:
        """Take in a batch. Never waits: until somebody looks, batches are kept as they came."""
        with self._lock:
            now = self._clock()
            self._came.append((now, batch))
            self._note_words(batch)
            if self._table is not None:
                self._take_in(self._table)
            while self._came and self._came[0][0] < now - HISTORY_SECONDS:
                self._came.popleft()
        self._tell()

    def ended(self, report: ExitReport) -> None:
        """A process has ended. Its past is kept for a while, or until its mesh is forgotten."""
        with self._lock:
            self._words.pop(report.node, None)
            self._note_end(report)
            if self._table is not None:
                self._table.end(report.node)
            while len(self._ended) > REMEMBERED_ENDS:
                self._drop([next(iter(self._ended))])

    def forget(self, mesh: str) -> None:
        """Drop what is known of the processes of a mesh (`ProcMesh.name`)."""
        with self._lock:
            known = {*self._words, *self._ended, *(self._table.nodes() if self._table is not None else ())}
            self._drop([node for node in known if node.rpartition(".")[0] == mesh])

    def _note_end(self, report: ExitReport) -> None:
        self._ended[report.node] = None
        self._ended.move_to_end(report.node)
        self._lives[report.node] = report.incarnation
        self._lives.move_to_end(report.node)
        if len(self._lives) > REMEMBERED_LIVES:
            self._lives.popitem(last=False)

    def _tell(self) -> None:
        for listener in list(self.when_sampled):
            listener()

    # -- the table -----------------------------------------------------------------------------

    def _opened(self) -> VitalsTable:
        """The table; without the lock, for whoever receives takes that."""
        if (table := self._table) is None:
            # Only here: numpy takes a tenth of a second, which a script that nobody watches need not wait for. Nor may
            # it be imported in the background: where that falls into the end of a script, its exit status is another.
            from meshbook.runtime.telemetry.vitals_table import VitalsTable

            with self._lock:
                if (table := self._table) is None:
                    table = self._table = VitalsTable()
                    self._take_in(table)
        return table

    def _take_in(self, table: VitalsTable) -> None:
        while self._came:
            at, batch = self._came.popleft()
            table.add(batch, at, self._late(batch))

    def _note_words(self, batch: VitalsBatch) -> None:
        there = set(batch.nodes) - self._late(batch)
        for node in self._ended.keys() & there:  # it was started again
            del self._ended[node]
        self._words |= {node: (batch.host, said) for node, said in batch.words.items() if node in there}

    def _late(self, batch: VitalsBatch) -> set[str]:
        """Those of a batch whose end was told before it came. Nobody would drop what it says of them."""
        if not self._lives:
            return set()
        incarnations = zip(batch.nodes, batch.incarnations, strict=True)
        return {node for node, incarnation in incarnations if incarnation <= self._lives.get(node, -1)}

    def _drop(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            self._words.pop(node, None)
            self._ended.pop(node, None)
        if self._table is not None:
            self._table.forget(nodes)


class VitalsActor(Actor):
    """Takes the batches of agents in; hosted inline. Answers how many seconds they may wait until the next."""

    def __init__(self, history: History) -> None:
        self._history = history

    @endpoint
    def measured(self, batch: VitalsBatch) -> float:
        """Note what was measured."""
        self._history.add(batch)
        return self._history.interval
