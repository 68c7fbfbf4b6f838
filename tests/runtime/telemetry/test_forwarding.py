"""Forwarding in a script: a thread that shows, a screen that may fail, and nothing lost at the end."""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Iterator, Sequence

import pytest

from meshbook.runtime.telemetry.forwarding import Forwarder, ScriptScreen
from meshbook.runtime.telemetry.lines import CompleteLines, Shown
from meshbook.runtime.telemetry.output import SHOWN, DisplayChunk, LogOptions, OutputChunk, StreamName
from tests.support import PATIENCE


def chunk(text: str, options: LogOptions = SHOWN) -> OutputChunk:
    return OutputChunk("", "trainers-0a1b", 0, "stdout", text, options)


class Watched:
    """A screen that a test looks at: each time that something is shown, in a queue. It may hold, or fail."""

    def __init__(self) -> None:
        self.times: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self.is_open = threading.Event()
        self.is_open.set()
        self.failures: list[Exception] = []

    def show(self, shown: Sequence[Shown]) -> None:
        self.times.put([each.text for each in shown if isinstance(each, CompleteLines)])
        assert self.is_open.wait(PATIENCE)
        if self.failures:
            raise self.failures.pop()

    def next(self) -> list[str]:
        return self.times.get(timeout=PATIENCE)


@pytest.fixture
def screen() -> Watched:
    return Watched()


@pytest.fixture
def forwarder(screen: Watched) -> Iterator[Forwarder]:
    forwarder = Forwarder(screen)
    yield forwarder
    forwarder.close()


def test_what_comes_is_shown_unasked(screen: Watched, forwarder: Forwarder) -> None:
    for text in ("one\n", "two\n"):
        forwarder.take(chunk(text))
        assert screen.next() == [text]


def test_what_comes_at_the_same_time_is_shown_at_once(
    screen: Watched, forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshbook.runtime.telemetry.forwarding.GATHER", PATIENCE)
    for text in ("of rank 2\n", "of rank 0\n"):
        forwarder.take(chunk(text))
    forwarder.close()
    assert screen.next() == ["of rank 2\n", "of rank 0\n"], "a notebook puts them into the order of ranks"
    assert screen.times.empty()


def test_what_is_not_to_be_shown_is_not(screen: Watched, forwarder: Forwarder) -> None:
    forwarder.take(chunk("hidden\n", LogOptions(shown=False)))
    forwarder.take(DisplayChunk("", "trainers-0a1b", 0, {}, {}, LogOptions(shown=False)))
    forwarder.take(chunk("shown\n"))
    forwarder.close()
    assert screen.next() == ["shown\n"]
    assert screen.times.empty()


def test_a_line_without_an_end_is_shown_though_nothing_follows(
    screen: Watched, forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshbook.runtime.telemetry.lines.UNFINISHED_SECONDS", 0.01)
    forwarder.take(chunk("prompt"))
    assert screen.next() == ["prompt\n"]


def test_the_receiving_thread_does_not_wait_for_the_screen(screen: Watched, forwarder: Forwarder) -> None:
    screen.is_open.clear()
    forwarder.take(chunk("slow\n"))
    assert screen.next() == ["slow\n"]
    for number in range(1000):
        forwarder.take(chunk(f"{number}\n"))
    screen.is_open.set()
    assert screen.next() == [f"{number}\n" for number in range(1000)]


def test_the_end_shows_everything(screen: Watched, forwarder: Forwarder) -> None:
    forwarder.take(chunk("gathered\n", LogOptions(window=3600.0)))
    forwarder.take(chunk("begun"))
    forwarder.close()
    forwarder.close()
    shown = []
    while not screen.times.empty():
        shown += screen.next()
    assert shown == ["begun\n", "gathered\n"]


def test_one_that_nothing_came_to_ends_too(screen: Watched) -> None:
    Forwarder(screen).close()
    assert screen.times.empty()


def test_a_screen_that_fails_costs_only_what_it_was_to_show(
    screen: Watched, forwarder: Forwarder, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once: a closed pipe stays closed."""
    screen.failures += [OSError("closed"), OSError("closed")]
    for text in ("lost\n", "lost as well\n", "kept\n"):
        forwarder.take(chunk(text))
        assert screen.next() == [text]
    assert caplog.messages == ["output of ranks could not be shown: OSError: closed"]


def test_a_script_shows_lines_with_mesh_and_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    def said(stream: StreamName, text: str, *ranks: int) -> CompleteLines:
        return CompleteLines("", "the-trainers-0a1b", ranks, stream, text)

    figure = DisplayChunk("", "the-trainers-0a1b", 2, {"text/plain": "<Figure>\nof two lines"}, {})
    ScriptScreen().show(
        [said("stdout", "one\n\ntwo\n", 3), said("stderr", "careful\n", 0), figure, said("stdout", "all\n", 0, 1, 2, 5)]
    )
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "[the-trainers 3] one",
        "[the-trainers 3] ",
        "[the-trainers 3] two",
        "[the-trainers 2] <Figure>",
        "[the-trainers 2] of two lines",
        "[the-trainers 0-2,5] all",
    ]
    assert err == "[the-trainers 0] careful\n"


def test_a_stream_that_is_ascii_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(data, encoding="ascii"))
    ScriptScreen().show([CompleteLines("", "m-1", (0,), "stdout", "caf\xe9 \ud800\n")])
    assert data.getvalue() == rb"[m 0] caf\xe9 \ud800" + b"\n"


def test_a_script_without_streams_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    ScriptScreen().show([CompleteLines("", "m-1", (0,), "stdout", "unseen\n")])


def test_what_a_screen_does_not_take_for_long_is_shown_whole(
    screen: Watched, forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in a file meanwhile, and lines that began in one piece of it and end in another are still lines."""
    monkeypatch.setattr("meshbook.runtime.telemetry.overflow.MEMORY_CHARACTERS", 100)
    monkeypatch.setattr("meshbook.runtime.telemetry.lines.UNFINISHED_SECONDS", 1e-5)
    held = Forwarder(screen)
    screen.is_open.clear()
    held.take(chunk("first\n"))
    assert screen.next() == ["first\n"]
    for number in range(1000):
        held.take(chunk(f" to line {number}\n{number} goes on"))
    screen.is_open.set()
    held.close()
    shown = "".join(text for _ in range(screen.times.qsize()) for text in screen.next())
    assert shown == " to line 0\n" + "".join(f"{n} goes on to line {n + 1}\n" for n in range(999)) + "999 goes on\n"
