"""What is kept of a text in chunks. Floods, and what is shown of them, are in `test_output`."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.magics.output.grouping import Block, split_lines
from meshbook.magics.output.text_buffer import TextBuffer


def capture(*chunks: str, limit: int = 1000) -> TextBuffer:
    kept = TextBuffer(limit)
    for chunk in chunks:
        kept.add(chunk)
    return kept


@pytest.mark.parametrize(
    ("chunks", "count", "lines"),
    [
        ([], 0, ()),
        ([""], 0, ()),
        (["\n"], 1, ("",)),
        (["a"], 1, ("a",)),
        (["a\n"], 1, ("a",)),
        (["a", "b\nc"], 2, ("ab", "c")),
        (["a\n", "\n", "b\n"], 3, ("a", "", "b")),
        (["10%\r", "20%\n"], 1, ("20%",)),
    ],
)
def test_a_short_text_is_kept_whole(chunks: list[str], count: int, lines: tuple[str, ...]) -> None:
    kept = capture(*chunks)
    assert (kept.line_count, kept.block()) == (count, Block(lines))
    assert kept.last_lines(100) == lines


@pytest.mark.parametrize(
    ("text", "limit", "lines", "hidden"),
    [
        ("aa\nbb\ncc\ndd\nee\n", 15, ("aa", "bb", "dd", "ee"), 1),
        ("aa\nbb\ncc\ndd\n", 12, ("aa", "bb", "cc", "dd"), 0),
        ("aa\nbb\ncc\ndd\n", 6, ("aa", "dd"), 2),
        ("aa\nbb\ncc\ndd", 6, ("aa", "dd"), 2),
        ("aaaaaaaaaa\nb\n", 4, ("aa … (+9 characters)", "b"), 0),
        ("aaaaaaaaaa\nbbbbbbbb\n", 8, ("aaaa … (+12 characters)", "… bbb"), 0),
        ("aaaaaaaaaa\nb\ncccccccc\n", 8, ("aaaa …", "… ccc"), 1),
        ("aaaaaaaaaa", 4, ("aa … (+6 characters) … aa",), 0),
    ],
)
def test_a_long_text_keeps_whole_lines_of_both_ends(text: str, limit: int, lines: tuple[str, ...], hidden: int) -> None:
    block = capture(text, limit=limit).block()
    assert (block.lines, block.hidden) == (lines, hidden)


TEXTS = st.text(alphabet="ab\n\ré", max_size=60)


@given(st.lists(TEXTS, max_size=8), st.integers(1, 80))
def test_what_is_kept_does_not_depend_on_the_chunks(chunks: list[str], limit: int) -> None:
    by_chunks, at_once = capture(*chunks, limit=limit), capture("".join(chunks), limit=limit)
    assert by_chunks.block() == at_once.block()
    assert by_chunks.line_count == at_once.line_count


@given(TEXTS, st.integers(1, 80))
def test_kept_and_hidden_lines_are_all_there_were(text: str, limit: int) -> None:
    block, lines = capture(text, limit=limit).block(), split_lines(text)
    assert len(block.lines) + block.hidden == len(lines)
    at = [index + block.hidden * (index >= block.cut) for index in range(len(block.lines))]
    assert all(lines[index] == line or "…" in line for index, line in zip(at, block.lines, strict=True))
    kept = re.sub(r" ?… ?(\(.*?\))?", "", "\n".join(block.lines)).replace("\n", "")
    assert len(kept) <= max(limit, 2)


@given(st.lists(st.sampled_from(["a\n", "bb\n", "\n", "c"]), max_size=30), st.integers(1, 5))
def test_the_last_lines_are_those_of_the_text(chunks: list[str], count: int) -> None:
    assert capture(*chunks).last_lines(count) == split_lines("".join(chunks))[-count:]


def test_halves_of_characters_do_no_harm() -> None:
    assert capture("\ud83d", "\n").block().lines == ("\ud83d",)


@pytest.mark.parametrize("limit", [6, 1000])
def test_rows_that_may_still_change_are_at_the_end(limit: int) -> None:
    kept = capture("aa\nbb\ncc\n", limit=limit)
    kept.live = "10%"
    first = kept.block()
    kept.live = "one\n20%"
    assert kept.last_lines(3) == ("cc", "one", "20%")
    assert kept.line_count == 5
    assert kept.block().lines[-1] == "20%"
    assert kept.block() != first
    kept.live = ""
    assert kept.block() == capture("aa\nbb\ncc\n", limit=limit).block()
