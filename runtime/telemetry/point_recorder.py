"""`meshbook.log` on a rank: calls append to a queue, and a thread sends what has been logged.

    log -> rows -> thread, 20 times a second -> LoggedPoints -> the controller's TelemetryActor

The thread sleeps while nothing is logged. A call takes no lock and does no I/O, so it may also run in a signal handler.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import sys
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from time import time
from typing import Any

from meshbook.runtime.actor.context import CURRENT, Context, context, process_run
from meshbook.runtime.telemetry.loggable import Picture, loggable, to_float
from meshbook.runtime.telemetry.points import Logged, LoggedMedia, LoggedPoints, MediaKind, MetricPoints
from meshbook.runtime.threads import may_block

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.05  # between two messages: a killed process loses less than a tenth of a second
MOST_ROWS = 200_000  # that wait; more are dropped and counted
ROWS_AT_ONCE = 2000  # in a message
MOST_IMAGE_BYTES = 64 << 20  # of images that wait; more are dropped and counted
IN_CHILD = (
    "meshbook.log() does nothing in a child process of a rank, a script or a notebook, such as a DataLoader's worker; "
    "log in the process that started it"
)

# A call of `log`: execution, step (NaN: the next one), seconds since 1970, and the values by name.
LogRow = tuple[str, float, float, Mapping[str, Any]]
Place = tuple[str, int]  # mesh and rank


class _OwnValues(dict[str, float]):
    """Values that the runtime has found, such as those in progress bars."""


class PointRecorder:
    """The queue of one process, and the thread that sends it. `place` returns the process's mesh and rank."""

    def __init__(self, send: Callable[[Logged], None], place: Callable[[], Place]) -> None:
        self.send = send
        self._place = place
        self._rows: deque[LogRow] = deque()
        self._image_bytes: deque[int] = deque()  # of each row with images
        self._pid = os.getpid()
        self._dropped = 0  # since the last message
        self._all_dropped = 0
        self._names: set[str] = set()  # that the program has logged, and that were sent
        self._has_reported = False  # that points were dropped
        self._has_failed = False  # a message could not be sent
        self._is_asleep = False
        self._wake = threading.Lock()  # acquired: nothing was logged. A lock, since a signal handler may release it
        self._wake.acquire()
        self._closing = threading.Event()
        self._sending = threading.Lock()  # guards the order of messages
        self._thread = threading.Thread(target=self._run, name="meshbook curves", daemon=True)
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self._unstarted = [self._thread]  # `pop` gives it to one of the threads that would start it

    def add(self, origin: str, step: float, values: Mapping[str, Any]) -> None:
        """Queue values; `values` must not change any more. TypeError, ValueError if one cannot be logged."""
        image_bytes = 0
        for name, value in values.items():
            if value.__class__ is not float:
                values = {name: _number(name, value) for name, value in values.items()}
                image_bytes = sum(len(value) for value in values.values() if value.__class__ is Picture)
                break
        # More than that: the controller does not receive, or not as fast.
        if len(self._rows) >= MOST_ROWS or (image_bytes and sum(self._image_bytes) > MOST_IMAGE_BYTES):
            self._dropped += len(values)
            return
        if image_bytes:
            self._image_bytes.append(image_bytes)
        self._rows.append((origin, step, time(), values))
        if self._is_asleep:
            with contextlib.suppress(RuntimeError):  # another thread woke it
                self._wake.release()
        elif self._unstarted:
            with contextlib.suppress(IndexError):  # another thread starts it
                self._start(self._unstarted.pop())

    def add_own(self, origin: str, step: float, values: Mapping[str, float]) -> None:
        """Queue values that the program has not logged itself."""
        self.add(origin, step, _OwnValues(values))

    def is_logged(self, name: str) -> bool:
        """Whether the program has logged values of this name itself, as far as they were sent."""
        return name in self._names

    def flush(self, *, wait: bool = False) -> None:
        """Send what has been logged, but not from the first value on that is still on a GPU, unless with `wait`.

        Never raises. On an I/O thread, which may not wait for room in the controller's queue, it does nothing.
        """
        if not (self._rows or self._dropped) or not may_block():
            return
        with self._sending:
            try:
                while rows := list(self._take(wait)):
                    for logged in self._messages(rows):
                        self.send(logged)
                self._report_dropped()
            except Exception:  # a later message may succeed, and a reply that waits for this must leave
                if not self._has_failed:
                    self._has_failed = True
                    logger.exception("points of curves could not be sent")

    def close(self) -> None:
        """Send everything and end the thread. Idempotent."""
        self._closing.set()
        with contextlib.suppress(RuntimeError):
            self._wake.release()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.flush(wait=True)

    # -- the thread ------------------------------------------------------------------

    def _start(self, thread: threading.Thread) -> None:
        if os.getpid() != self._pid:
            self.drop_all()
            warn_in_child()
            return
        thread.start()
        recorder = weakref.ref(self)  # a hook cannot be removed, and must not keep a closed node

        def leave_child() -> None:
            if (forked := recorder()) is not None:
                forked.drop_all()

        os.register_at_fork(after_in_child=leave_child)

    def drop_all(self) -> None:
        """Drop what is logged here from now on: this is a child process, which has no place of its own in the run."""
        self._rows = deque(maxlen=0)
        self._dropped = 0
        self._is_asleep = False
        # In place of a check, which each call of the parent would pay for.
        self.add = self._drop  # type: ignore[method-assign]

    def _drop(self, origin: str, step: float, values: Mapping[str, Any]) -> None:
        warn_in_child()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._is_asleep = True
            if not (self._rows or self._closing.is_set()):
                self._wake.acquire()
            self._is_asleep = False
            self._closing.wait(FLUSH_SECONDS)
            self.flush()

    def _report_dropped(self) -> None:
        if self._all_dropped and not self._has_reported:
            self._has_reported = True
            logger.warning(
                "meshbook.log() has dropped %d points: the controller does not receive them as fast; log less often",
                self._all_dropped,
            )

    def _take(self, wait: bool) -> Iterator[LogRow]:
        """Take rows for one message; stop before a row with a value that is still on its way."""
        rows = self._rows
        for _ in range(ROWS_AT_ONCE):
            if not rows:
                return
            others = [value for value in rows[0][3].values() if value.__class__ is not float]
            if not wait and not all(value.has_arrived() for value in others):
                return
            if any(value.__class__ is Picture for value in others):
                self._image_bytes.popleft()
            yield rows.popleft()

    def _messages(self, rows: list[LogRow]) -> Iterator[Logged]:
        mesh, rank = self._place()
        by_origin: dict[str, dict[str, tuple[array[float], array[float], array[float]]]] = {}
        media: list[Logged] = []
        for origin, step, at, values in rows:
            curves = by_origin.setdefault(origin, {})
            if values.__class__ is not _OwnValues:
                self._names.update(values)
            for name, value in values.items():
                if value.__class__ is not float and isinstance(data := value.read(), bytes):
                    kind: MediaKind = "image" if isinstance(data, Picture) else "histogram"
                    media.append(LoggedMedia(origin, mesh, rank, _plain(name), kind, step, at, bytes(data)))
                    continue
                number = value if value.__class__ is float else data
                if (curve := curves.get(name)) is None:
                    curve = curves[name] = array("d"), array("d"), array("d")
                curve[0].append(step)
                curve[1].append(at)
                curve[2].append(number)
        dropped, self._dropped = self._dropped, 0
        self._all_dropped += dropped
        if dropped and not any(by_origin.values()):
            yield LoggedPoints(rows[0][0], mesh, rank, (), dropped)
        for origin, curves in by_origin.items():
            if points := tuple(_pack(_plain(name), *columns) for name, columns in curves.items()):
                yield LoggedPoints(origin, mesh, rank, points, dropped)
                dropped = 0
        yield from media


def _number(name: str, value: Any) -> Any:
    kind = value.__class__
    return value if kind is float else to_float(name, value) if kind is int else loggable(name, value)


def _plain(name: str) -> str:
    """Return a name that is a str itself, and not of a class such as StrEnum, and that has an encoding."""
    return str.__str__(name).encode("utf-8", "replace").decode()


def _pack(name: str, steps: array[float], times: array[float], values: array[float]) -> MetricPoints:
    has_steps = not all(map(math.isnan, steps))
    return MetricPoints(name, steps.tobytes() if has_steps else b"", times.tobytes(), values.tobytes())


def log(values: Mapping[str, Any] | None = None, /, *, step: float | None = None, **named: Any) -> None:
    """Add points to curves: `meshbook.log(step=i, loss=loss, lr=lr, **{"grad/norm": norm})`.

    Works in cells, actors, their threads, scripts and the notebook itself. `%mesh curves` and the dashboard show the
    curves of all ranks, `mesh.history("loss")` returns them. Names may have groups, such as `train/loss`; a mapping may
    be passed instead of keywords. `step` is by default the one after the previous step of each curve.

    A value is a number (NaN and infinity included), a tensor or an array with one element, a `meshbook.Histogram`, or
    an image: of PIL, a figure of matplotlib, or an array of uint8 of shape [height, width] or [height, width, channels]
    with 1, 3 or 4 channels. The call takes microseconds, blocks nothing, and never waits for a GPU: its values are
    copied in the background. Raises TypeError for other values, with the name; ValueError for a number that is too
    large for a float, such as 10**400, or a step that is not finite; RuntimeError for a value on a GPU while the thread
    captures a CUDA graph. In a child process, such as a worker of a DataLoader, the call does nothing but log a
    warning, once.
    """
    if values is not None:
        if not isinstance(values, Mapping):
            raise TypeError(
                f"meshbook.log() takes a mapping of names to values, not {type(values).__name__}; "
                "pass a step as step=..., and values by name"
            )
        if wrong := [name for name in values if not isinstance(name, str)]:
            raise TypeError(f"names of metrics are strings, not {wrong[0]!r}")
        named = {**values, **named}
    number = math.nan
    if step is not None:
        number = to_float("step", step) if step.__class__ in (int, float) else _checked_step(step)
        if not math.isfinite(number):
            raise ValueError(f"a step is a finite number, not {number}")
    if (here := CURRENT.get() or _client()) is None:
        warn_in_child()
        return
    node = here.actor_instance.node
    # Without an origin: a thread that was started before the cell.
    origin = here.origin or (node.capture.main_origin() if node.capture is not None else "")
    node.points.add(origin, number, named)


def flush() -> None:
    """Send what this process has logged; for code that does not wait for the background."""
    if (here := CURRENT.get() or _client()) is not None:
        here.actor_instance.node.points.flush()


def _client() -> Context | None:
    """Return the context of this process; None in a child of multiprocessing that has no run of its own."""
    processes = sys.modules.get("multiprocessing.process")
    # A worker of a DataLoader must not start a run, with an agent, for its first point.
    if processes is not None and processes.parent_process() is not None and not process_run():
        return None
    return context()


@functools.cache
def warn_in_child() -> None:
    """Log a warning, once in a process."""
    logger.warning("%s", IN_CHILD)


def _checked_step(step: Any) -> float:
    found = loggable("step", step)
    if not isinstance(found, float):
        raise TypeError(f"a step is a number on the CPU, not {type(step).__name__}")
    return found
