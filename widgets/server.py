"""The messages between a dashboard and its views: one thread handles them; slow requests get a thread each.

    a view -> receive -> mail ─> the dashboard's thread ─> send -> all views
                          ^            │ act, logs, timeline, curves
                          └── answer ──┘ on a thread per request

The thread runs while a view is open. `UpdateScheduler` decides when it sends, the model decides what.
"""

from __future__ import annotations

import functools
import logging
import math
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from meshbook.runtime.formats import format_ranks
from meshbook.runtime.telemetry.vitals import HISTORY_SECONDS, METRICS
from meshbook.runtime.threads import get_within
from meshbook.widgets.dashboard_model import DashboardModel, ModelUpdate
from meshbook.widgets.protocol import ReplyMessage
from meshbook.widgets.source import BackendReply, DashboardBackend
from meshbook.widgets.update_scheduler import SendBudget, UpdateScheduler

logger = logging.getLogger(__name__)
Draw: TypeAlias = Callable[[], Mapping[str, str]]
Send: TypeAlias = Callable[[Mapping[str, object], Sequence[bytes]], object]
SLOW_REQUESTS: Final = frozenset({"act", "logs", "timeline", "curves"})  # requests that may block
MOST_SLOW_REQUESTS = 8  # such requests at once
ACTIVE_FOR = 2.0  # seconds after a change
MOST_IN_HISTORY = 64  # ranks of one request
PICTURE_BYTES = 10_000  # of pictures, per second
PICTURE_SHARE = 0.05  # of the thread's time that it draws pictures: curves of thousands of ranks take half a second


class DashboardServer:
    """The server of one dashboard, with all of its views.

    `send` takes messages for the views, from any thread; `draw` makes the picture for the saved notebook.
    """

    def __init__(
        self, backend: DashboardBackend, send: Send, draw: Draw, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backend = backend
        self._send = send
        self._draw = draw
        self._clock = clock
        self._model = DashboardModel(backend.source, backend.select)
        self._scheduler = UpdateScheduler(clock())
        self._budget = SendBudget()
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._outbox: deque[tuple[Mapping[str, object], Sequence[bytes], int]] = deque()
        self._lock = threading.Lock()  # guards the start and end of the thread
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._slow_requests = 0  # slow requests in progress
        self._seq = 0
        self._last_event_at = -math.inf
        self._is_picture_old = False
        self._picture_due_at = -math.inf
        self._faults: set[tuple[str, int]] = set()  # source lines whose errors were already logged

    # -- from any thread ---------------------------------------------------------

    def receive(self, content: Mapping[str, Any]) -> None:
        """Queue a message of a view; the reply follows later."""
        self._post(functools.partial(self._take, dict(content)))

    def wake(self) -> None:
        """Bring the next update forward, if there are views."""
        if self._thread is not None:
            self._inbox.put(self._scheduler.hurry)

    def close(self) -> None:
        """Stop sending, and end the thread."""
        with self._lock:
            self._is_closed, thread = True, self._thread
        if thread is not None and thread is not threading.current_thread():
            self._inbox.put(lambda: None)
            thread.join(timeout=1.0)

    def _post(self, work: Callable[[], object]) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._inbox.put(work)
            if self._thread is None:
                self._thread = _thread("meshbook dashboard", self._run)
                self._thread.start()

    # -- the thread --------------------------------------------------------------

    def _run(self) -> None:
        self._watch(self.wake)
        while not self._ends():
            self._drain_inbox()
            self._guard(self._tick)
            self._guard(self._put_picture)
            self._guard(self._send_due)

    def _ends(self) -> bool:
        with self._lock:
            idle = not (self._scheduler.has_views or self._outbox or self._slow_requests) and self._inbox.empty()
            if idle or self._is_closed:
                self._watch(None)  # before another thread may start and watch
                self._thread = None
        return self._thread is not threading.current_thread()

    def _drain_inbox(self) -> None:
        """Handle mail until the next tick or send is due."""
        seconds = max(0.0, self._next_at() - self._clock())
        try:
            self._guard(get_within(self._inbox, seconds) if seconds < math.inf else self._inbox.get())
            while True:
                self._guard(self._inbox.get_nowait())
        except queue.Empty:
            return

    def _guard(self, work: Callable[[], object]) -> None:
        """Run a step; log an error, once for each source line, and go on."""
        try:
            work()
        except Exception as error:
            # By its place: its text may differ each time.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = frame.filename, frame.lineno or 0
            if place not in self._faults:
                self._faults.add(place)
                logger.exception("an action of the dashboard failed")

    def _next_at(self) -> float:
        now = self._clock()
        send_at = self._budget.room_at(self._outbox[0][2], now) if self._outbox else math.inf
        # No tick while a message waits in the outbox: the limit has no room for another state.
        tick_at = math.inf if self._outbox else self._scheduler.next_tick(is_active=self._is_active(now))
        return min(send_at, tick_at)

    def _is_active(self, now: float) -> bool:
        return self._model.busy or now - self._last_event_at < ACTIVE_FOR

    def _watch(self, wake: Callable[[], object] | None) -> None:
        self._guard(lambda: self._backend.watch(wake))

    # -- states ------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._clock()
        if self._outbox or now < self._scheduler.next_tick(is_active=self._is_active(now)):
            return None
        self._scheduler.ticked(now)
        if (update := self._model.tick(now)) is None:
            return None
        if update.eventful:
            self._last_event_at = now
        if self._scheduler.is_quiet(now):
            return self._publish_now() if update.eventful else None
        if update.eventful:
            self._scheduler.happened(now)
        return self._publish(update)

    def _publish(self, update: ModelUpdate) -> None:
        self._seq = int(update.content["seq"])
        self._put(update.content, update.buffers)
        self._scheduler.published(self._seq)
        self._is_picture_old |= update.eventful

    def _put_picture(self) -> None:
        """Queue a picture if something has happened since the last one."""
        now = self._clock()
        if self._is_picture_old and now >= self._picture_due_at:
            self._is_picture_old = False
            data = dict(self._draw())
            self._put({"kind": "picture", "data": data})
            drawn_at = self._clock()
            pause = max(1.0, sum(map(len, data.values())) / PICTURE_BYTES, (drawn_at - now) / PICTURE_SHARE)
            self._picture_due_at = drawn_at + pause

    def _put(self, content: Mapping[str, object], buffers: Sequence[bytes] = ()) -> None:
        size = len(msgspec.json.encode(content, enc_hook=str)) + sum(map(len, buffers))
        self._outbox.append((content, buffers, size))

    def _send_due(self) -> None:
        now = self._clock()
        while self._outbox and self._budget.room_at(self._outbox[0][2], now) <= now and not self._is_closed:
            content, buffers, size = self._outbox.popleft()
            self._budget.spend(size, now)
            self._send(content, buffers)

    # -- messages of views -------------------------------------------------------

    def _take(self, content: dict[str, Any]) -> None:
        kind = content.get("kind")
        if kind in SLOW_REQUESTS:
            return self._start_slow_request(content)
        try:
            answer = self._handle(str(kind), content)
        except Exception as error:
            return self._refuse(content, error)
        if content.get("id") is not None:
            self._reply(content, answer)
        return None

    def _handle(self, kind: str, content: dict[str, Any]) -> BackendReply:
        match kind:
            case "open":
                self._open(_text(content, "view"))
            case "close":
                self._scheduler.closed(_text(content, "view"))
            case "ack":
                view = _text(content, "view")
                if not self._scheduler.acknowledged(view, int(content.get("seq", 0)), self._seq):
                    self._open(view)  # the view was dropped, for example because its browser tab slept
            case "channel":
                self._model.show(_text(content, "name"))
                self._publish_now()
            case "select":
                return self._select(_text(content, "sel"))
            case "history":
                return self._history(content)
            case _:
                raise ValueError(f"unknown request {kind!r}")
        return BackendReply()

    def _open(self, view: str) -> None:
        now = self._clock()
        update = self._model.full(now)
        self._scheduler.opened(view, int(update.content["seq"]), now)
        self._publish(update)
        self._scheduler.ticked(now)

    def _select(self, selector: str) -> BackendReply:
        try:
            selected = self._model.select(selector)
        finally:
            self._publish_now()
        return BackendReply({"ranks": format_ranks(selected.ranks), "count": len(selected.ranks)})

    def _publish_now(self) -> None:
        """Publish at once after a user's request, and end the quiet period."""
        now = self._clock()
        was_quiet = self._scheduler.is_quiet(now)
        self._scheduler.happened(now)
        if was_quiet:  # views have missed the measurements of the quiet period
            self._publish(self._model.full(now))
        self._scheduler.hurry()

    def _history(self, content: dict[str, Any]) -> BackendReply:
        source = self._backend.source
        size = source.snapshot().mesh.size
        ranks = [int(rank) for rank in content.get("ranks", ())][:MOST_IN_HISTORY]
        metrics = list(content.get("metrics", ()))
        if wrong := [rank for rank in ranks if not 0 <= rank < size]:
            raise ValueError(f"invalid rank {wrong[0]}; the mesh has {size} ranks")
        if unknown := [name for name in metrics if name not in METRICS]:
            raise ValueError(f"unknown metric {unknown[0]!r}; choose from {', '.join(METRICS)}")
        series = source.series(ranks, metrics)
        return BackendReply({"seconds": HISTORY_SECONDS, "shape": list(series.shape)}, [series.astype("<f4").tobytes()])

    # -- replies -----------------------------------------------------------------

    def _reply(self, request: dict[str, Any], answer: BackendReply) -> None:
        head: ReplyMessage = {"kind": "reply", "id": request.get("id"), "ok": True}
        self._put({**answer.content, **head}, answer.buffers)

    def _refuse(self, request: dict[str, Any], error: BaseException) -> None:
        if request.get("id") is None:
            raise error  # no reply was requested: log it as an error of the dashboard
        text = str(error) or type(error).__name__
        reply: ReplyMessage = {"kind": "reply", "id": request["id"], "ok": False, "error": text}
        self._put(reply)

    def _start_slow_request(self, request: dict[str, Any]) -> None:
        if self._slow_requests >= MOST_SLOW_REQUESTS:
            return self._refuse(
                request, RuntimeError(f"{MOST_SLOW_REQUESTS} requests are already running; wait for one of them")
            )
        try:
            _thread("meshbook dashboard request", functools.partial(self._answer, request)).start()
        except RuntimeError as error:  # the process cannot start another thread
            return self._refuse(request, error)
        self._slow_requests += 1
        return None

    def _answer(self, request: dict[str, Any]) -> None:
        """Answer a request; runs on a thread of its own."""
        try:
            answer = self._backend.answer(request)
        except BaseException as error:  # every request gets a reply
            self._post(functools.partial(self._end_slow_request, functools.partial(self._refuse, request, error)))
        else:
            self._post(functools.partial(self._end_slow_request, functools.partial(self._reply, request, answer)))

    def _end_slow_request(self, ended: Callable[[], object]) -> None:
        self._slow_requests -= 1
        self._scheduler.hurry()  # show the effect at once
        ended()


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{content.get('kind')!r}: {name!r} must be a string, not {value!r}")
    return value


def _thread(name: str, run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]  # breakpoints must not stop it
    return thread
