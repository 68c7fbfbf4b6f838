"""`mesh.map` in a notebook: its items run in the cell actors, and a bar shows the progress."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from meshbook.magics.cells.rank_errors import format_dead
from meshbook.magics.errors import MeshError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.output.publisher import LiveDisplay, StreamText, publisher_for
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import CallCancelled
from meshbook.runtime.formats import format_elapsed
from meshbook.runtime.mesh.mapping import MapResult
from meshbook.runtime.mesh.tasks import BatchReply, ItemBatch
from meshbook.runtime.wire.messages import Address

QUIET = 0.5  # seconds until a bar appears; a faster map shows none
EACH = 0.25  # seconds between two states of a bar
WIDTH = 20
_serial = itertools.count(1)


class CellItemRunner:
    """Sends items to the cell actors. Items take turns with cells, on the main thread, and see the rank's variables."""

    def __init__(self, mesh: NotebookMesh, ranks: Sequence[int], name: str) -> None:
        if mesh.dead.keys() >= set(ranks):
            raise MeshError(format_dead(mesh, ranks))
        mesh.share_path()
        self.key = uuid.uuid4().hex
        self.nodes: Mapping[int, Address] = {rank: mesh.procs.nodes[rank] for rank in ranks}
        self._mesh = mesh
        self._operation = f"map of {name} {next(_serial)}"
        region = mesh.procs.region
        self._cells: dict[int, Any] = {rank: mesh.cells._with_region(region.pick([rank])) for rank in ranks}
        self._title = f"the map of {name}"
        self._open: dict[int, int] = dict.fromkeys(ranks, 0)  # rank -> requests without an answer
        self._lock = threading.Lock()  # guards `_open`: answers arrive on the I/O thread

    def send(self, rank: int, work: ItemBatch) -> Future[BatchReply]:
        with self._lock:
            self._open[rank] += 1
            self._mesh.queues.join([self.nodes[rank].node], self._operation, self._title)
        sent: Future[BatchReply] = self._cells[rank].run_items.call_one(work, self._operation)
        sent.when_done(lambda: self._note_answer(rank))
        return sent

    def _note_answer(self, rank: int) -> None:
        with self._lock:
            self._open[rank] -= 1
            if not self._open[rank]:
                self._mesh.queues.leave(self.nodes[rank].node, self._operation)

    def may_return(self, rank: int) -> bool:
        """False: only a person restarts ranks of a notebook."""
        return False

    def close(self) -> None:
        for cells in self._cells.values():
            cells.forget_map.call_each(self.key)  # a dead rank need not answer


class MapProgress:
    """The progress bar of a map, in the cell that began it; after that cell, also the failures that nothing reads."""

    def __init__(self, shell: Any, result: MapResult[Any]) -> None:
        self._publisher = publisher_for(shell)
        self._result = result
        self._events = shell.events
        self._is_cell_over = False
        self._began = time.monotonic()
        self._next = self._began + QUIET
        self._is_shown = False
        self._lock = threading.Lock()  # guards what is shown: futures resolve on several threads
        self._events.register("post_run_cell", self._end_cell)
        for future in result._futures:
            future.when_done(self._look)

    def _look(self) -> None:
        now = time.monotonic()
        with self._lock:
            is_final = self._result.done()
            if now >= self._next or (is_final and self._is_shown):
                self._publish(now, is_final=is_final)
        if is_final and self._is_cell_over:
            self._report()

    def _end_cell(self, result: Any) -> None:
        """At the end of the cell, which may have read the results."""
        self._events.unregister("post_run_cell", self._end_cell)
        self._is_cell_over = True
        if self._result.done():
            self._report()

    def _report(self) -> None:
        failures = {item: each for item, each in self._result.failures().items() if not isinstance(each, CallCancelled)}
        with self._lock:  # the cell and the last future may end at the same time
            if not failures or self._result.is_read:
                return
            self._result.is_read = True
        text = format_failures(self._result.name, failures, len(self._result))
        self._publisher.publish([StreamText("stderr", f"{text}\n")])

    def _publish(self, now: float, *, is_final: bool) -> None:
        text = format_bar(self._result.name, self._result.progress, len(self._result), now - self._began)
        self._publisher.publish([LiveDisplay({"text/plain": text}, self._is_shown, is_final)])
        self._is_shown = True
        self._next = now + EACH


def format_bar(name: str, done: int, total: int, seconds: float) -> str:
    """Return `map of f ████░░░░ 40/100 00:12`."""
    return f"map of {name} {'█' * (WIDTH * done // total):░<{WIDTH}} {done}/{total} {format_elapsed(seconds)}"


def format_failures(name: str, failures: Mapping[int, BaseException], total: int) -> str:
    """Return `map of f: 2 of 40 items failed, and no code has read that; item 3: ValueError: bad`."""
    item, error = next(iter(failures.items()))
    count = f"{len(failures)} of {total} {'item' if total == 1 else 'items'} failed"
    text = next(filter(None, str(error).splitlines()), type(error).__name__)
    return f"map of {name}: {count}, and no code has read that (get() of its result raises it); item {item}: {text}"


def show_progress(shell: Any, result: MapResult[Any]) -> None:
    """Show the progress of a map in the cell that runs now, and failures that are not read."""
    MapProgress(shell, result)
