"""Curves of metrics that ranks log, in the controller: an excerpt in memory for charts, and all points in files.

    meshbook.log on a rank -> LoggedPoints -> CurveStore.add -> queue -> thread -> CurveTable, CurveFiles
                                             the receiving thread

The receiving thread only queues messages. numpy and pyarrow are imported by the thread of the store, at the first
point: a script that logs none does not load them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from meshbook.runtime.formats import mesh_name
from meshbook.runtime.telemetry.curve_media import MediaKey, MediaTable, Medium, MetricHistogram, MetricImage
from meshbook.runtime.telemetry.points import NOTEBOOK, HistoryError, Logged, LoggedPoints, name_run

if TYPE_CHECKING:  # weight: numpy
    from meshbook.runtime.telemetry.curve_files import CurveFiles, Saved
    from meshbook.runtime.telemetry.curve_table import Curve, CurvePiece, CurveTable, Series

__all__ = ["NOTEBOOK", "CurveStore", "HistoryError", "MetricHistogram", "MetricImage"]

logger = logging.getLogger(__name__)
BATCH_SECONDS = 0.05  # for which messages are collected before they are handled together
PART_POINTS = 100_000  # in a part of the history's file
MOST_WAITING_BYTES = 256 << 20  # of messages that the thread has not handled; more are dropped and counted
QUIET_SECONDS = 2.0  # without new points, after which a part is written
# A part is written after this time, or after this fraction of the time since the first point: the number of parts of a
# long run stays small.
PART_SECONDS, LONGEST_PART_SECONDS, PART_FRACTION = 2.0, 60.0, 0.005


class CurveStore:
    """The curves of a session; safe to read from any thread.

    `folder` is where the history is written; None keeps no history. `incarnation` returns how many controllers this run
    has had before. `when_changed` holds listeners, which are called after each change, on any thread: they may only
    record the call.
    """

    def __init__(self, folder: Path | None = None, incarnation: Callable[[], int] = lambda: 0) -> None:
        self.version = 0  # grows with each change
        self.when_changed: list[Callable[[], object]] = []
        self.dropped: dict[tuple[str, int], int] = {}  # by mesh and rank: points for which there was no room
        self._folder = folder
        self._incarnation = incarnation
        self._lock = threading.Lock()  # guards the table and the media; held for moments
        self._handling = threading.RLock()  # guards the files, and the order of messages; acquired before `_lock`
        self._arrived: deque[Logged] = deque()
        self._waiting_bytes = 0  # of `_arrived`, about: two threads may add at the same time
        self._news = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meshbook curves", daemon=True)
        self._unstarted = [self._thread]  # `pop` gives it to one of the threads that would start it
        self._table: CurveTable | None = None
        self._files: CurveFiles | None = None
        self._media = MediaTable()
        self._meshes: dict[str, str] = {}  # by run: its mesh; not of runs of the notebook alone
        self._began = self._part_began = 0.0
        self._overflow = ""  # why points were dropped
        self._warnings: set[str] = set()

    # -- for readers -------------------------------------------------------------------------

    def metrics(self) -> list[str]:
        """Return the names of metrics with points, in the order of their first appearance."""
        with self._lock:
            return list(self._table.curves) if self._table is not None else []

    def runs(self, metric: str) -> list[str]:
        """Return the runs of a metric, such as `cell 12`, the oldest first."""
        with self._lock:
            return list(self._table.curves.get(metric, ())) if self._table is not None else []

    def ranks(self, metric: str, run: str) -> list[int]:
        """Return the ranks with points; `NOTEBOOK` stands for points that were logged in the notebook itself."""
        with self._lock:
            return sorted(self._curves(metric, run))

    def series(self, metric: str, run: str, rank: int) -> Series:
        """Return steps, times (in seconds since 1970) and values, float64 arrays of one length; empty if unknown.

        Long curves are down-sampled: of each group of neighbours, the lowest and the highest point are kept.
        """
        import numpy

        with self._lock:
            curve = self._curves(metric, run).get(rank)
            return curve.series() if curve is not None else (numpy.empty(0), numpy.empty(0), numpy.empty(0))

    def all_series(self, metric: str, run: str) -> dict[int, Series]:
        """Return the `series` of all ranks, taken at one moment."""
        with self._lock:
            return {rank: curve.series() for rank, curve in sorted(self._curves(metric, run).items())}

    def version_of(self, metric: str, run: str) -> int:
        """Return a number that grows with each change of these curves; 0 if there are none."""
        with self._lock:
            return self._table.versions.get((metric, run), 0) if self._table is not None else 0

    def count(self, metric: str, run: str, rank: int) -> int:
        """Return how many points a rank has logged."""
        with self._lock:
            curve = self._curves(metric, run).get(rank)
            return curve.count if curve is not None else 0

    def last_values(self) -> list[tuple[str, int, float]]:
        """Return metric, rank and last value of all curves of the newest run of each metric."""
        with self._lock:
            return [
                (metric, rank, curve.last)
                for metric, by_run in (self._table.curves.items() if self._table is not None else ())
                for rank, curve in sorted(by_run[next(reversed(by_run))].items())
            ]

    def media(self) -> list[MediaKey]:
        """Return metric, run and rank of all histograms and images, in the order of their last change."""
        with self._lock:
            return self._media.keys()

    def histogram(self, metric: str, run: str, rank: int) -> MetricHistogram | None:
        """Return the last histogram that a rank logged under this name, or None."""
        with self._lock:
            found = self._media.get((metric, run, rank))
        return found if isinstance(found, MetricHistogram) else None

    def image(self, metric: str, run: str, rank: int) -> MetricImage | None:
        """Return the last image that a rank logged under this name, or None."""
        with self._lock:
            found = self._media.get((metric, run, rank))
        return found if isinstance(found, MetricImage) else None

    def _curves(self, metric: str, run: str) -> dict[int, Curve]:
        return self._table.curves.get(metric, {}).get(run, {}) if self._table is not None else {}

    def check_logged(self, metrics: Collection[str]) -> None:
        """Raise HistoryError for a metric without points."""
        known = self.metrics()
        with self._lock:
            if self._table is not None and (self._table.refused or self._table.has_dropped_runs):
                return  # the files have metrics that memory does not have
        if unknown := [name for name in metrics if name not in known]:
            there = f"there are {', '.join(known)}" if known else "no metric was logged; call meshbook.log(loss=...)"
            raise HistoryError(f"no metric {unknown[0]!r} was logged: {there}")

    def meshes(self) -> dict[str, str]:
        """Return the name of each run's mesh; runs in which only the notebook has logged are left out."""
        return {run: mesh_name(mesh) for run, mesh in dict(self._meshes).items()}

    # -- input ---------------------------------------------------------------------------------

    def add(self, logged: Logged) -> None:
        """Add what a rank logged. Never waits; readers see it after a moment, or after `flush`."""
        if self._waiting_bytes > MOST_WAITING_BYTES:  # points arrive faster than they are handled
            count = sum(len(points.values) // 8 for points in logged.points) if isinstance(logged, LoggedPoints) else 1
            writer = logged.mesh, logged.rank
            self.dropped[writer] = self.dropped.get(writer, 0) + count
            self._overflow = "points arrive faster than curves can take them in, and some are dropped; log less often"
            return
        self._waiting_bytes += logged.size
        self._arrived.append(logged)
        if not self._news.is_set():
            self._news.set()
            if self._unstarted and not self._closing.is_set():
                with contextlib.suppress(IndexError):  # another thread starts it
                    self._unstarted.pop().start()

    def flush(self) -> None:
        """Handle all messages that have arrived."""
        with self._handling:
            if self._arrived:
                self._take_in()
                self._note_change()

    def restore(self) -> None:
        """Continue the curves that an earlier controller of this run has left in the folder."""
        if self._folder is None or not self._folder.exists():
            return
        with self._handling:
            table, files = self._open()
            assert files is not None
            self._meshes |= files.read_meshes()
            with self._lock:
                for piece in files.restore():
                    table.add(*piece)
                for key, medium in files.read_media():
                    self._media.keep(key, medium)
            self._warn(files.trouble)
            self._note_change()

    def close(self) -> None:
        """Handle all messages that have arrived, and write the rest of the history. Idempotent."""
        self._end_thread()
        self.flush()
        self.write_part()
        if self._files is not None:
            self._files.close()

    def discard(self) -> None:
        """End without writing more: the folder is about to be removed. Readers still see the curves."""
        self._end_thread()
        self.flush()
        with self._handling:
            if self._files is not None:
                self._files.close()
            self._folder = self._files = None

    def _end_thread(self) -> None:
        self._closing.set()
        self._news.set()
        if self._thread.ident is not None:
            self._thread.join()

    # -- the history ---------------------------------------------------------------------------

    def write_part(self) -> None:
        """Write the points that are in no part yet as a part of the history."""
        with self._handling:
            if (files := self._files) is not None and files.can_write_part:
                files.write_part()
                self._part_began = monotonic()
                self._warn(files.trouble)

    def saved(self) -> Saved:
        """Return the whole history, with all points that have arrived by now. HistoryError if none is kept."""
        from meshbook.runtime.telemetry.curve_files import Saved

        if self._folder is None:
            raise HistoryError("there is no history of curves: it ends with its run; export it before")
        self.flush()
        with self._handling:
            return self._files.saved() if self._files is not None else Saved((), ())

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            files = self._files
            has_pending = files is not None and files.can_write_part
            has_news = self._news.wait(QUIET_SECONDS if has_pending else None)
            self._closing.wait(BATCH_SECONDS)  # for more messages, which are handled together
            self._news.clear()
            try:
                self.flush()
                # At the end of a script pyarrow cannot be imported any more, and the folder is about to be removed.
                if (not has_news or self._is_part_due()) and threading.main_thread().is_alive():
                    self.write_part()
            except Exception as error:  # keep running, so that later points are still shown
                self._warn(f"curves could not be updated: {error!r}")

    def _is_part_due(self) -> bool:
        if self._files is None:
            return False
        now = monotonic()
        interval = min(LONGEST_PART_SECONDS, max(PART_SECONDS, (now - self._began) * PART_FRACTION))
        return self._files.pending >= PART_POINTS or now - self._part_began >= interval

    def _take_in(self) -> None:
        table, files = self._open()
        pieces: list[CurvePiece] = []
        media: dict[MediaKey, Medium] = {}
        dropped_media: list[MediaKey] = []
        meshes = len(self._meshes)
        self._waiting_bytes = 0
        for _ in range(len(self._arrived)):  # and not what arrives in the meantime, which might never end
            logged = self._arrived.popleft()
            try:
                run = self._run_of(logged)
                with self._lock:
                    if isinstance(logged, LoggedPoints):
                        pieces += table.take(run, logged)
                    else:
                        key, medium = self._media.read(run, logged)
                        dropped_media += self._media.keep(key, medium)
                        media[key] = medium
            except Exception as error:  # the other messages, and the end of a session, do not depend on this one
                self._warn(f"points that rank {logged.rank} has logged could not be read: {error!r}")
            if isinstance(logged, LoggedPoints) and logged.dropped:
                writer = logged.mesh, logged.rank
                self.dropped[writer] = self.dropped.get(writer, 0) + logged.dropped
        if files is not None:
            if len(self._meshes) > meshes:
                files.write_meshes(self._meshes)
            for key in dropped_media:
                if self._media.get(key) is None:  # and has not come again
                    media.pop(key, None)
                    files.remove_media(key)
            for key, medium in media.items():
                files.write_media(key, medium)
            if pieces:
                files.append(pieces)
            self._warn(files.trouble)
        self._warn(self._overflow)
        if table.refused:
            self._warn("there are more curves than are shown; log fewer names, and put numbers into steps instead")

    def _run_of(self, logged: Logged) -> str:
        """Return the name of the run; that of a second mesh in the same cell names its mesh."""
        run = name_run(logged.origin, self._incarnation())
        if logged.rank == NOTEBOOK or self._meshes.setdefault(run, logged.mesh) == logged.mesh:
            return run
        named = f"{run}, {mesh_name(logged.mesh)}"
        if self._meshes.setdefault(named, logged.mesh) == logged.mesh:
            return named
        unique = f"{run}, {logged.mesh}"  # a third mesh, with the name of the second
        self._meshes[unique] = logged.mesh
        return unique

    def _open(self) -> tuple[CurveTable, CurveFiles | None]:
        """Return the table and the files, which are made at the first point. Call it with `_handling`."""
        from meshbook.runtime.telemetry.curve_files import CurveFiles
        from meshbook.runtime.telemetry.curve_table import CurveTable

        if self._table is None:
            self._began = self._part_began = monotonic()
            self._table = CurveTable()
        if self._files is None and self._folder is not None:
            self._files = CurveFiles(self._folder)
        return self._table, self._files

    def _note_change(self) -> None:
        self.version += 1
        for listener in list(self.when_changed):
            listener()

    def _warn(self, trouble: str) -> None:
        """Log a problem, once."""
        if trouble and trouble not in self._warnings:
            self._warnings.add(trouble)
            logger.warning("%s", trouble)
