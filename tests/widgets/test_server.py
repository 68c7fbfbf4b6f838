"""What a dashboard says to its views, with a mesh that is only described and a clock that stands still."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from meshbook.runtime.telemetry.vitals import HISTORY_SECONDS, METRICS, ProcessDetail, Vitals
from meshbook.widgets.protocol import MOST_UNACKNOWLEDGED, QUIET_AFTER
from meshbook.widgets.server import MOST_SLOW_REQUESTS, DashboardServer
from meshbook.widgets.source import BackendReply, MeshFacts, MeshSnapshot, RankConditions
from tests.support import PATIENCE

SIZE = 4


class Board:
    """A mesh of four ranks, as a test says that it is. It is its own source."""

    def __init__(self) -> None:
        self.source = self
        facts = MeshFacts("mesh", (("gpus", SIZE),), ("here",), (0,) * SIZE)
        self.now = MeshSnapshot(facts, _vitals(memory=1e6))
        self.is_watched: list[bool] = []
        self.wake: Callable[[], object] | None = None
        self.gate = threading.Semaphore(0)
        self.when_drawn: Callable[[], object] = lambda: None

    def snapshot(self) -> MeshSnapshot:
        return self.now

    def draw(self) -> dict[str, str]:
        self.when_drawn()
        return {"text/plain": f"{len(self.now.conditions.dead)} dead"}

    def series(self, ranks: Sequence[int], metrics: Sequence[str]) -> Any:
        return np.full((len(ranks), len(metrics), HISTORY_SECONDS), 0.5, np.float32)

    def details(self, ranks: Sequence[int]) -> list[ProcessDetail | None]:
        return [None for _ in ranks]

    def select(self, selector: str) -> Collection[int]:
        if not selector.isdigit():
            raise ValueError(f"there is no {selector}")
        return [int(selector)]

    def watch(self, wake: Callable[[], object] | None) -> None:
        self.is_watched.append(wake is not None)
        self.wake = wake

    def answer(self, request: Mapping[str, Any]) -> BackendReply:
        if request["kind"] == "logs":
            raise RuntimeError("no logs here")
        if request["kind"] == "timeline":
            self.gate.acquire(timeout=PATIENCE)
        return BackendReply({"text": "done"}, [b"1234"])


class Views:
    """What all views get, in order."""

    def __init__(self, board: Board) -> None:
        self.time = 1000.0
        self.told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.pictures: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.conversation = DashboardServer(board, self._take, board.draw, clock=lambda: self.time)
        self._ids = 0

    def _take(self, content: dict[str, Any], buffers: Sequence[bytes]) -> None:
        told = self.pictures if content["kind"] == "picture" else self.told
        told.put(content | {"arrays": list(buffers)})

    def say(self, **content: Any) -> None:
        self.time += 1.0  # so that there is room for what is said
        self.conversation.receive(content)

    def hear(self) -> dict[str, Any]:
        return self.told.get(timeout=PATIENCE)

    def open(self, name: str = "a") -> dict[str, Any]:
        self.say(kind="open", view=name)
        return self.hear()

    def ask(self, **content: Any) -> list[dict[str, Any]]:
        """All that is said until the reply, which is the last."""
        self._ids += 1
        self.say(**content, id=self._ids)
        heard = [self.hear()]
        while heard[-1].get("id") != self._ids:
            heard.append(self.hear())
        return heard


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def views(board: Board) -> Iterator[Views]:
    views = Views(board)
    yield views
    views.conversation.close()


def test_a_view_gets_everything_and_then_changes(board: Board, views: Views) -> None:
    first = views.open()
    assert first["full"]
    assert first["counts"] == {"idle": SIZE}
    board.now = dataclasses.replace(board.now, conditions=RankConditions(dead={2}))
    views.time += 1.0
    views.conversation.wake()
    then = views.hear()
    assert (then["full"], then["seq"], then["counts"]) == (False, first["seq"] + 1, {"idle": 3, "dead": 1})
    assert views.open("b")["full"]


def test_the_picture_comes_where_something_has_happened_and_once_a_second_at_most(board: Board, views: Views) -> None:
    views.open()
    assert views.pictures.get(timeout=PATIENCE)["data"] == {"text/plain": "0 dead"}
    board.now = dataclasses.replace(board.now, conditions=RankConditions(dead={2}))
    views.time += 0.5
    views.conversation.wake()
    views.hear()
    board.now = dataclasses.replace(board.now, conditions=RankConditions(dead={2, 3}))
    views.time += 0.5
    views.conversation.wake()
    views.hear()
    assert views.pictures.get(timeout=PATIENCE)["data"] == {"text/plain": "2 dead"}
    board.now = dataclasses.replace(board.now, vitals=_vitals(memory=9e8))
    views.time += 1.0
    views.conversation.wake()
    assert "hosts" in views.hear()  # which is only measured
    views.ask(kind="history", ranks=[0], metrics=["memory"])
    assert views.pictures.empty()


def test_a_picture_that_takes_long_to_draw_comes_seldom(board: Board, views: Views) -> None:
    def advance() -> None:
        views.time += 0.5

    board.when_drawn = advance
    views.open()
    assert views.pictures.get(timeout=PATIENCE)["data"] == {"text/plain": "0 dead"}
    for dead, seconds in ((1, 5.0), (2, 5.0)):
        board.now = dataclasses.replace(board.now, conditions=RankConditions(dead=set(range(dead))))
        assert views.pictures.empty()
        views.time += seconds
        views.conversation.wake()
        assert views.hear()["counts"]["dead"] == dead
    assert views.pictures.get(timeout=PATIENCE)["data"] == {"text/plain": "2 dead"}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"kind": "select", "sel": "3"}, {"ok": True, "ranks": "3", "count": 1}),
        ({"kind": "select", "sel": ""}, {"ok": True, "count": 0}),
        ({"kind": "select", "sel": "nobody"}, {"ok": False, "error": "there is no nobody"}),
        ({"kind": "select"}, {"ok": False, "error": "'select': 'sel' must be a string, not None"}),
        ({"kind": "history", "ranks": [1, 2], "metrics": ["memory"]}, {"ok": True, "shape": [2, 1, 300]}),
        (
            {"kind": "history", "ranks": [SIZE], "metrics": ["memory"]},
            {"error": "invalid rank 4; the mesh has 4 ranks"},
        ),
        ({"kind": "history", "ranks": [-1], "metrics": []}, {"error": "invalid rank -1; the mesh has 4 ranks"}),
        ({"kind": "channel", "name": "memory"}, {"ok": True}),
        ({"kind": "channel", "name": "mood"}, {"ok": False}),
        ({"kind": "act", "action": "heal", "sel": ""}, {"ok": True, "text": "done", "arrays": [b"1234"]}),
        ({"kind": "logs"}, {"ok": False, "error": "no logs here"}),
        ({"kind": "hello"}, {"ok": False, "error": "unknown request 'hello'"}),
        ({}, {"ok": False, "error": "unknown request 'None'"}),
    ],
)
def test_each_request_has_its_reply(views: Views, request_: dict[str, Any], expected: dict[str, Any]) -> None:
    reply = views.ask(**request_)[-1]
    assert {name: reply[name] for name in expected} == expected


def test_what_takes_long_keeps_nothing_else_waiting(board: Board, views: Views) -> None:
    views.open()
    for number in range(MOST_SLOW_REQUESTS):
        views.say(kind="timeline", id=f"long {number}")
    assert "are already running" in views.ask(kind="timeline")[-1]["error"]
    assert views.ask(kind="select", sel="1")[-1]["ok"]
    board.gate.release(MOST_SLOW_REQUESTS)
    ended = set()
    while len(ended) < MOST_SLOW_REQUESTS:
        views.time += 1.0
        views.conversation.wake()
        if (told := views.hear())["kind"] == "reply":
            ended.add(told["id"])
    assert ended == {f"long {number}" for number in range(MOST_SLOW_REQUESTS)}


def test_figures_alone_are_not_published_for_ever(board: Board, views: Views) -> None:
    views.open()
    views.ask(kind="channel", name="memory")

    def said_when_figures_change(memory: float) -> list[str]:
        board.now = dataclasses.replace(board.now, vitals=_vitals(memory))
        views.conversation.wake()
        # The second answer comes after the tick that follows the first.
        heard = views.ask(kind="history", ranks=[0], metrics=[]) + views.ask(kind="history", ranks=[0], metrics=[])
        return [told["kind"] for told in heard]

    assert "state" in said_when_figures_change(5e6)
    views.time += QUIET_AFTER
    assert "state" not in said_when_figures_change(9e6)
    heard = views.ask(kind="channel", name="cpu")  # a person comes back
    assert (heard[0]["full"], heard[0]["channel"]["name"]) == (True, "cpu")
    views.time += QUIET_AFTER
    assert "state" not in said_when_figures_change(2e7)
    board.now = dataclasses.replace(board.now, conditions=RankConditions(dead={0}))
    views.time += 1.0
    views.conversation.wake()
    assert views.hear()["full"]  # what was not sent meanwhile comes with it


def test_a_view_without_acknowledgements_gets_nothing_more(board: Board, views: Views) -> None:
    views.open()
    for number in range(MOST_UNACKNOWLEDGED):
        board.now = dataclasses.replace(board.now, conditions=RankConditions(dead={number % SIZE}))
        views.time += 1.0
        views.conversation.wake()
        views.hear()
    for thread in threading.enumerate():
        if thread.name == "meshbook dashboard":
            thread.join(PATIENCE)
    assert board.is_watched == [True, False]
    views.say(kind="ack", view="a", seq=MOST_UNACKNOWLEDGED)  # it had been asleep
    assert views.hear()["full"]


def test_it_is_silent_once_it_is_closed(board: Board, views: Views) -> None:
    views.open()
    views.conversation.close()
    views.say(kind="open", view="b")
    views.conversation.close()
    assert views.told.empty()
    assert board.is_watched == [True, False]


def test_a_fault_in_a_step_does_not_end_it(
    board: Board, views: Views, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    views.open()
    failed = threading.Event()

    def fail() -> MeshSnapshot:
        failed.set()
        raise OSError("no look")

    with monkeypatch.context() as patched:
        patched.setattr(board, "snapshot", fail)
        views.time += 1.0
        views.conversation.wake()
        assert failed.wait(PATIENCE)
    board.now = dataclasses.replace(board.now, conditions=RankConditions(dead={1}))
    views.time += 1.0
    views.conversation.wake()
    assert views.hear()["counts"] == {"idle": 3, "dead": 1}
    assert "an action of the dashboard failed" in caplog.text


def test_a_view_that_cannot_be_sent_to_is_logged_with_the_reason(
    board: Board, views: Views, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = iter(range(100))

    def fail() -> MeshSnapshot:
        raise OSError(f"no look {next(looks)}")

    with monkeypatch.context() as patched:
        patched.setattr(board, "snapshot", fail)
        for _ in range(3):
            views.say(kind="open", view="a")
            views.ask(kind="select", sel="1")  # so that it was heard
    assert caplog.text.count("an action of the dashboard failed") == 1
    assert "no look 0" in caplog.text
    assert views.open()["full"]


def test_a_request_is_refused_where_there_is_no_thread_for_it(views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    views.open()
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "meshbook dashboard request":
            raise RuntimeError("can't start new thread")
        begin(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        for _ in range(MOST_SLOW_REQUESTS + 1):
            assert "new thread" in views.ask(kind="act", action="heal", sel="")[-1]["error"]
    assert views.ask(kind="act", action="heal", sel="")[-1]["ok"]


def _vitals(memory: float) -> Vitals:
    metrics: dict[Any, Any] = {name: np.full(SIZE, np.nan, np.float32) for name in METRICS}
    metrics["memory"] = np.full(SIZE, memory, np.float32)
    return Vitals(metrics, np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.float32))
