"""The logs of ranks by lines: whole ones with their numbers, within limits, and found by what they say."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.runtime.telemetry.logbook import Logbook, level_of
from meshbook.runtime.telemetry.logsearch import LogPage, LogQuery, find_lines
from meshbook.runtime.telemetry.patterns import QueryError
from meshbook.runtime.telemetry.ranklog import MOST_OPEN, PIECE_CHARACTERS, RankLog

ALL = LogQuery()
RANKS = {"mesh.0": 0, "mesh.1": 1}
RED = "\x1b[31mred\x1b[0m"


def a_logbook(**limits: int) -> Logbook:
    return Logbook(clock=itertools.count(100).__next__, **limits)


def find(logbook: Logbook, query: LogQuery = ALL, after: int = 0, **how: Any) -> LogPage:
    return find_lines(logbook.extract(RANKS, after), RANKS, query, after=after, **how)


def texts(page: LogPage) -> list[str]:
    return [line.text for line in page.lines]


# -- what is kept -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunks", "lines", "live"),
    [
        ([("a\nb\n", None)], ["a", "b"], []),
        ([("a", None), ("b\nc", None)], ["ab"], ["c"]),
        ([("a\r\nb\rcc\n\n", None)], ["a", "cc", ""], []),
        ([("x\u2028y\x0cz\n", None)], ["x\u2028y\x0cz"], []),
        ([("a\n", "10%\n20%"), ("", "30%")], ["a"], ["30%"]),
        ([("", "10%"), ("100%\n", "")], ["100%"], []),
        ([("it: ", None), ("\r", "it: 10%")], [], ["it: 10%"]),  # as a terminal sends a row that had begun as a line
        ([("x" * 40_000, None), ("x" * 40_000, None)], ["x" * 16384 + " [meshbook: 63616 more characters]"], []),
    ],
)
def test_lines_are_whole(chunks: list[tuple[str, str | None]], lines: list[str], live: list[str]) -> None:
    logbook = a_logbook()
    for text, rows in chunks:
        logbook.take("mesh.0", "9.0.1", "stdout", text, rows)
    page = find(logbook)
    assert (texts(page), [row.text for row in page.live]) == (lines, live)
    assert [line.serial for line in page.lines] == list(range(1, len(lines) + 1))


def test_lines_of_ranks_and_streams_are_in_the_order_in_which_they_ended() -> None:
    logbook = a_logbook()
    logbook.take("mesh.0", "9.0.1", "stdout", "begun ")
    logbook.take("mesh.1", "local 8", "stderr", "one\ntwo\n")
    logbook.take("mesh.0", "", "stderr", "between\n")
    logbook.take("mesh.0", "9.0.1", "stdout", "ended\n")
    assert [tuple(line) for line in find(logbook).lines] == [
        (1, 101, 1, "stderr", 8, "one"),
        (2, 101, 1, "stderr", 8, "two"),
        (3, 102, 0, "stderr", None, "between"),
        (4, 103, 0, "stdout", 9, "begun ended"),
    ]


def test_a_line_without_an_end_is_one_when_nothing_more_can_come() -> None:
    logbook = a_logbook()
    logbook.take("mesh.0", "9.0.1", "stdout", "loss")
    logbook.take("mesh.0", "10.0.2", "stdout", "other")
    logbook.take("mesh.1", "10.0.2", "stdout", "dies", "60%")
    logbook.end_execution("9.0.1")
    page = find(logbook)
    assert (texts(page), [row.text for row in page.live]) == (["loss"], ["other", "dies60%"])
    logbook.end_process("mesh.1")
    assert texts(find(logbook)) == ["loss", "dies60%"]
    logbook.take("mesh.0", "10.0.2", "stdout", "!\n")
    assert texts(find(logbook)) == ["loss", "dies60%", "other!"]
    for number in range(MOST_OPEN + 1):  # of cells that never end
        logbook.take("mesh.0", f"local {number}", "stdout", f"open {number}")
    page = find(logbook)
    assert (texts(page)[-1], len(page.live)) == ("open 0", MOST_OPEN)


@pytest.mark.parametrize(
    ("size", "kept", "dropped"),
    [(21, "dddddddddd\n", 3), (22, "cccccccccc\ndddddddddd\n", 2), (32, "cccccccccc\ndddddddddd\n", 2)],
)
def test_a_long_piece_loses_its_first_lines(size: int, kept: str, dropped: int) -> None:
    log = RankLog()
    log.take("", "stdout", "".join(f"{letter * 10}\n" for letter in "abcd"), None, 1, 0.0)
    log.shrink(PIECE_CHARACTERS + size)
    assert (log.text(), log.dropped, log.first) == (kept, dropped, dropped + 1)


def test_a_line_longer_than_the_limit_keeps_its_end() -> None:
    log = RankLog(1000)
    assert log.take("", "stdout", "a" * 5000 + "end\n", None, 1, 0.0) == 1
    assert len(log.text()) <= 1000
    assert log.text().endswith("aend\n")


@given(st.lists(st.tuples(st.sampled_from(["mesh.0", "mesh.1"]), st.text("ab\n", max_size=300)), max_size=40))
def test_limits_hold_and_lines_keep_their_numbers(written: list[tuple[str, str]]) -> None:
    whole, bounded = a_logbook(), a_logbook(limit=1500, limit_in_all=2000)
    for node, text in written:
        whole.take(node, "", "stdout", text)
        bounded.take(node, "", "stdout", text)
    everything = {line.serial: line for line in find(whole, limit=5000).lines}
    page = find(bounded, limit=5000)
    assert page.end == len(everything) + 1
    assert page.dropped + len(page.lines) == len(everything)
    for line in page.lines:
        assert everything[line.serial].text.endswith(line.text)  # of a long one the end may be left
    for node in RANKS:
        assert len(bounded.text(node)) <= 1500 + 300


@pytest.mark.parametrize(
    ("sizes", "room", "level"),
    [([], 10, 0), ([1, 2, 3], 10, 3), ([100, 2, 3], 10, 5), ([9, 9, 9], 9, 3), ([0, 0, 50], 20, 20)],
)
def test_the_longest_give_first(sizes: list[int], room: int, level: int) -> None:
    assert level_of(sizes, room) == level


def test_another_controller_goes_on_where_this_one_ended() -> None:
    logbook, other = a_logbook(), a_logbook()
    logbook.take("mesh.0", "9.0.1", "stdout", "one\ntwo\nthr", "10%")
    logbook.take("mesh.1", "9.0.1", "stderr", "four\n")
    other.restore(logbook.log_states())
    other.take("mesh.0", "9.0.1", "stdout", "ee\n", "")
    assert [(line.serial, line.text) for line in find(other).lines] == [
        (1, "one"),
        (2, "two"),
        (3, "four"),
        (4, "three"),
    ]
    other.take("mesh.1", "9.0.1", "stdout", "left")
    other.end_execution("9.0.1")
    assert texts(find(other))[-1] == "left"
    other.forget(["mesh.0"])
    assert texts(find(other)) == ["four", "left"]


def test_taking_output_in_is_cheap() -> None:
    """A chunk of a megabyte, as a flood has them, is not looked at line by line."""
    logbook, text = Logbook(), "x" * 99 + "\n"
    chunk = text * 10_000
    began = time.thread_time()
    for _ in range(20):
        logbook.take("mesh.0", "9.0.1", "stdout", chunk)
    assert time.thread_time() - began < 1.0  # 2 ms each here; split it would be 40 ms


# -- what is found ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written() -> Logbook:
    logbook = a_logbook()
    for step in range(1, 11):
        logbook.take(f"mesh.{step % 2}", f"{step}.0.1", "stdout", f"step {step}\nLoss {step / 10} {RED}\n")
    logbook.take("mesh.0", "11.0.1", "stderr", "Straße: a.b <script>\n")
    logbook.take("mesh.1", "11.0.1", "stdout", "so far", "loss 60%")
    return logbook


@pytest.mark.parametrize(
    ("query", "serials"),
    [
        (LogQuery("step 1"), [1, 19]),
        (LogQuery("loss 0.3"), [6]),
        (LogQuery("loss 0.3", case=True), []),
        (LogQuery("0.3 red"), [6]),  # colours are no part of it
        (LogQuery("a.b"), [21]),
        (LogQuery("STRASSE"), [21]),
        (LogQuery("<script>"), [21]),
        (LogQuery(r"^loss \d\.[12] red$", regex=True), [2, 4]),
        (LogQuery(r"^loss \d\.[12]", regex=True, case=True), []),
        (LogQuery(r"\Astep [12]\Z", regex=True), [1, 3]),
        (LogQuery(r"step\s\S*\s*1(?!\n)", regex=True), [1, 19]),
        (LogQuery(r"[^x]*+$", regex=True, cell=2), [3, 4]),
        (LogQuery(stream="stderr"), [21]),
        (LogQuery(cell=3), [5, 6]),
        (LogQuery("loss", cell=3, stream="stdout"), [6]),
        (LogQuery("nowhere"), []),
    ],
)
def test_lines_are_found(written: Logbook, query: LogQuery, serials: list[int]) -> None:
    page = find(written, query)
    assert ([line.serial for line in page.lines], page.matches, page.partial) == (serials, len(serials), False)
    forwards = find(written, query, after=1)
    assert (forwards.lines, forwards.next) == (page.lines, 22)


@given(
    pattern=st.sampled_from(["^b+$", "a[^b]*b", r"a\s*c", "(a|b)+c?$", r"\bc", "^$", "^a|c$", "b{2}"]),
    lines=st.lists(st.text("abc ", max_size=4), max_size=8),
)
def test_a_pattern_finds_the_lines_that_it_matches_alone(pattern: str, lines: list[str]) -> None:
    logbook = a_logbook()
    logbook.take("mesh.0", "", "stdout", "".join(f"{line}\n" for line in lines))
    assert texts(find(logbook, LogQuery(pattern, regex=True))) == [line for line in lines if re.search(pattern, line)]


def test_rows_that_may_still_change_are_found_too(written: Logbook) -> None:
    assert [tuple(row) for row in find(written, LogQuery("60")).live] == [(1, "stdout", 11, "so farloss 60%")]
    assert find(written, LogQuery("70")).live == []
    assert find(written, before=5).live == []


def test_a_log_is_read_page_by_page(written: Logbook) -> None:
    newest = find(written, limit=4)
    assert ([line.serial for line in newest.lines], newest.next, newest.matches) == ([18, 19, 20, 21], 22, 21)
    back = find(written, before=18, limit=4)
    assert [line.serial for line in back.lines] == [14, 15, 16, 17]
    forwards, after = [], 1
    while (page := find(written, LogQuery("loss"), after=after, limit=3)).lines:
        forwards.append([line.serial for line in page.lines])
        after = page.next
    assert forwards == [[2, 4, 6], [8, 10, 12], [14, 16, 18], [20]]
    assert (page.first, page.next, page.end, page.lines) == (1, 22, 22, [])


def test_matches_are_counted_beyond_the_page(written: Logbook) -> None:
    page = find(written, LogQuery("loss"), limit=3)
    assert ([line.serial for line in page.lines], page.matches) == ([16, 18, 20], 10)


def test_only_the_ranks_that_are_meant(written: Logbook) -> None:
    ranks = {"mesh.1": 7, "mesh.9": 9}
    page = find_lines(written.extract(ranks), ranks, LogQuery("step"))
    assert [(line.rank, line.text) for line in page.lines] == [(7, f"step {step}") for step in (1, 3, 5, 7, 9)]


def test_a_page_is_bounded_in_characters() -> None:
    logbook = a_logbook()
    logbook.take("mesh.0", "", "stdout", ("x" * 10_000 + "\n") * 50)
    page = find(logbook)
    assert (len(page.lines), page.matches) == (27, 50)


@pytest.mark.parametrize(
    ("query", "how", "says"),
    [
        (LogQuery("(", regex=True), {}, "regular expression: missing )"),
        (LogQuery("((a{1000}){1000}){1000}", regex=True), {}, "repeats too often"),
        (LogQuery("(?x) (a{0,9}) {40000} ", regex=True), {}, "repeats too often"),
        (LogQuery("[a-z]" * 1000, regex=True), {}, "5000 characters"),
        (LogQuery(), {"limit": 0}, "1 and 5000 lines"),
        (LogQuery(), {"limit": 10**9}, "1 and 5000 lines"),
    ],
)
def test_a_query_that_cannot_be_read_says_why(
    written: Logbook, query: LogQuery, how: dict[str, int], says: str
) -> None:
    with pytest.raises(QueryError, match=says.replace("(", r"\(").replace(")", r"\)")):
        find(written, query, **how)


def test_a_pattern_that_would_take_for_ever_is_given_up() -> None:
    logbook = a_logbook()
    logbook.take("mesh.0", "", "stdout", "first\n" + "a" * 60 + "b\nlast\n")
    catastrophe = LogQuery(r"(a|aa)+$|last|first", regex=True)
    back = find(logbook, catastrophe, seconds=0.05)
    assert (texts(back), back.partial) == (["last"], True)
    on = find(logbook, catastrophe, after=1, seconds=0.05)
    assert (texts(on), on.partial, on.next) == (["first"], True, 3)  # past the line that took so long
    assert texts(find(logbook, catastrophe, after=on.next)) == ["last"]


def test_a_search_reports_its_progress() -> None:
    logbook = a_logbook()
    for _ in range(10):
        logbook.take("mesh.0", "", "stdout", "line\n")
    page = find(logbook, LogQuery("nowhere"), after=1, seconds=5, clock=itertools.count().__next__)
    assert page.partial
    assert 1 < page.next < page.end
