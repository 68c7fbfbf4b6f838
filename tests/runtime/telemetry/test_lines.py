"""Lines on their way to be shown: whole, in order, and what is alike once. The time is passed in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest

from meshbook.runtime.telemetry.lines import (
    LINE_CHARACTERS,
    UNFINISHED_SECONDS,
    CompleteLines,
    DrawnText,
    LogLines,
    skeleton,
)
from meshbook.runtime.telemetry.output import DisplayChunk, LogOptions, OutputChunk, StreamName


def chunk(
    text: str,
    rank: int = 0,
    stream: StreamName = "stdout",
    *,
    origin: str = "",
    mesh: str = "m-1",
    window: float | None = None,
) -> OutputChunk:
    return OutputChunk(origin, mesh, rank, stream, text, LogOptions(window=window))


def texts(lines: LogLines, now: float = 0.0) -> list[str]:
    """What is to be shown by now, without its origin."""
    return [shown.text for shown in lines.take(now) if isinstance(shown, CompleteLines)]


def test_what_is_drawn_passes_as_it_is() -> None:
    lines = LogLines()
    lines.add(chunk("begun: "), 0.0)
    lines.add(msgspec.structs.replace(chunk("\r"), live="begun: 1%"), 0.1)
    lines.add(msgspec.structs.replace(chunk("begun: 2%\n"), live=""), 0.2)
    assert lines.take(9.0) == [
        DrawnText("", "m-1", 0, "stdout", "begun: \r", "begun: 1%"),
        DrawnText("", "m-1", 0, "stdout", "begun: 2%\n", ""),
    ]


# -- whole lines ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunks", "shown"),
    [
        ([""], []),
        (["one\n"], ["one\n"]),
        (["one\ntwo\n"], ["one\ntwo\n"]),
        (["o", "ne", "\n"], ["one\n"]),
        (["one\ntw", "o\nthr"], ["one\n", "two\n"]),
        (["\n", "\n"], ["\n", "\n"]),
        (["a\u2028b\x0cc\n"], ["a\u2028b\x0cc\n"]),
        # What a carriage return overwrote is not shown; one at the end may be half of the line's end.
        (["one\r\n"], ["one\n"]),
        (["one\r", "\ntwo\n"], ["one\ntwo\n"]),
        ([" 1%\r 2%\r", " 3%\r100%\n"], ["100%\n"]),
        (["a\rb\nc\r\nd\r\r\n"], ["b\nc\nd\n"]),
    ],
)
def test_only_whole_lines_are_shown(chunks: Sequence[str], shown: list[str]) -> None:
    lines = LogLines()
    for text in chunks:
        lines.add(chunk(text), 0.0)
    assert texts(lines) == shown
    assert texts(lines) == []


def test_each_writer_has_lines_of_its_own() -> None:
    lines = LogLines()
    writers: list[tuple[int, StreamName, str, str]] = [
        (0, "stdout", "", "m-1"),
        (1, "stdout", "", "m-1"),
        (0, "stderr", "", "m-1"),
        (0, "stdout", "cell 1", "m-1"),
        (0, "stdout", "", "n-2"),
    ]
    for half in ("be", "gun\n"):
        for rank, stream, origin, mesh in writers:
            lines.add(chunk(half, rank, stream, origin=origin, mesh=mesh), 0.0)
    assert lines.take(0.0) == [
        CompleteLines(origin, mesh, (rank,), stream, "begun\n") for rank, stream, origin, mesh in writers
    ]


def test_a_line_without_an_end_is_shown_after_a_while() -> None:
    lines = LogLines()
    assert lines.next_at() == math.inf
    lines.add(chunk("password: "), 10.0)
    lines.add(chunk("?"), 10.0 + UNFINISHED_SECONDS / 2)  # a progress bar never ends a line
    assert lines.next_at() == 10.0 + UNFINISHED_SECONDS
    assert texts(lines, 10.0 + UNFINISHED_SECONDS / 2) == []
    assert texts(lines, 10.0 + UNFINISHED_SECONDS) == ["password: ?\n"]
    assert lines.next_at() == math.inf
    lines.add(chunk(" rest\n"), 20.0)
    assert texts(lines, 20.0) == [" rest\n"]


def test_a_progress_bar_shows_its_last_state_and_no_trace_when_it_is_wiped_out() -> None:
    lines = LogLines()
    for percent in range(0, 50, 10):
        lines.add(chunk(f"\r{percent}%"), 0.0)
    assert texts(lines, UNFINISHED_SECONDS) == ["40%\n"]
    lines.add(chunk("\r50%\r   \r"), UNFINISHED_SECONDS)
    assert texts(lines, 2 * UNFINISHED_SECONDS) == []


def test_an_endless_line_is_shown_in_pieces() -> None:
    lines = LogLines()
    for _ in range(4):
        lines.add(chunk("x" * (LINE_CHARACTERS // 2)), 0.0)
    assert texts(lines) == ["x" * LINE_CHARACTERS + "\n"] * 2


def test_nothing_is_kept_back_at_the_end() -> None:
    lines = LogLines()
    lines.add(chunk("unfinished"), 0.0)
    lines.add(chunk("gathered\nand unfinished", 1, window=60.0), 0.0)
    assert texts(lines) == []
    assert [shown.text for shown in lines.take_all() if isinstance(shown, CompleteLines)] == [
        "unfinished\n",
        "gathered\n",
        "and unfinished\n",
    ]
    assert (lines.take_all(), lines.next_at()) == ([], math.inf)


def test_nothing_of_an_execution_is_kept_back_after_its_end() -> None:
    lines = LogLines()
    lines.add(chunk("unfinished", origin="local 1"), 0.0)
    lines.add(chunk("gathered\n", 1, origin="local 1", window=60.0), 0.0)
    lines.add(chunk("of another", origin="local 2"), 0.0)
    lines.end("local 1", 0.0)
    assert texts(lines) == ["unfinished\n", "gathered\n"]
    assert lines.next_at() == UNFINISHED_SECONDS


def test_displays_are_shown_in_their_place() -> None:
    lines, figure = LogLines(), DisplayChunk("", "m-1", 0, {"text/plain": "figure"}, {})
    for each in (chunk("before\n"), figure, chunk("after\n")):
        lines.add(each, 0.0)
    before, shown, after = lines.take(0.0)
    assert (shown, before, after) == (
        figure,
        *(CompleteLines("", "m-1", (0,), "stdout", text) for text in ("before\n", "after\n")),
    )


# -- what is alike -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("step 1", "step 20", True),
        ("loss 0.25", "loss 1e-05", True),
        ("x=-1", "x=3", True),
        ("at 0x7f00", "at 0xdeadBEEF", True),
        ("[rank 0] ready", "[rank 15] ready", True),
        ("procs-0", "procs-1", True),
        ("ready", "ready", True),
        ("step 1", "step", False),
        ("step 1", "Step 1", False),
        ("a 1", "a  1", False),
        ("1 2", "1", False),
    ],
)
def test_lines_are_alike_that_differ_in_numbers_alone(one: str, other: str, alike: bool) -> None:
    assert (skeleton(one) == skeleton(other)) is alike


def test_lines_that_are_alike_are_shown_once_when_the_window_ends() -> None:
    lines = LogLines()
    for rank, at in ((2, 10.0), (0, 10.5), (1, 11.9)):
        lines.add(chunk(f"step 1 of {rank}\nonly of rank {'ABC'[rank]}\n", rank, window=2.0), at)
    assert lines.next_at() == 12.0
    assert lines.take(11.99) == []
    shown = lines.take(12.0)
    assert [(each.ranks, each.text) for each in shown if isinstance(each, CompleteLines)] == [
        ((0, 1, 2), "step 1 of 2 (3 similar lines)\n"),
        ((2,), "only of rank C\n"),
        ((0,), "only of rank A\n"),
        ((1,), "only of rank B\n"),
    ]
    lines.add(chunk("step 2 of 0\n", window=2.0), 12.0)
    assert lines.next_at() == 14.0
    assert texts(lines, 14.0) == ["step 2 of 0\n"]


def test_one_rank_that_repeats_itself_is_counted_too() -> None:
    lines = LogLines()
    for count in range(100):
        lines.add(chunk(f"retry {count}\n", 3, window=1.0), 0.0)
    assert lines.take(1.0) == [CompleteLines("", "m-1", (3,), "stdout", "retry 0 (100 similar lines)\n")]


def test_only_what_comes_by_one_channel_is_gathered() -> None:
    lines = LogLines()
    lines.add(chunk("1\n", window=1.0), 0.0)
    lines.add(chunk("2\n", 1, "stderr", window=1.0), 0.0)
    lines.add(chunk("3\n", 1, origin="cell 1", window=1.0), 0.0)
    lines.add(chunk("4\n", mesh="n-2", window=1.0), 0.0)
    lines.add(chunk("5\n", 2), 0.0)  # of a rank that is not gathered
    assert texts(lines) == ["5\n"]
    assert texts(lines, 1.0) == ["1\n", "2\n", "3\n", "4\n"]


def test_other_options_do_not_lose_what_was_being_gathered() -> None:
    lines = LogLines()
    for text, window in (("gathered 1\n", 5.0), ("gathered 2\n", 1.0), ("at once\n", None)):
        lines.add(chunk(text, window=window), 0.0)
    assert [texts(lines, at) for at in (0.0, 1.0, 5.0)] == [["at once\n"], ["gathered 2\n"], ["gathered 1\n"]]
