"""Grouping of the text of many ranks: what is joined, what is aligned, and that nothing is dropped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.magics.output.grouping import Block, group_blocks, group_texts, split_lines
from meshbook.magics.output.render import render_text


def shown(texts, mode="auto"):
    """The plain text of a grouping, as a list of lines."""
    return render_text(group_texts(texts, mode)).splitlines()


def on(count, make):
    return {rank: make(rank) for rank in range(count)}


LOSSES = ["2.31", "2.35", "2.33", "2.34", "2.32"]


AUTO = {
    "nothing": ({0: "", 1: ""}, []),
    "one rank": ({2: "hello\n"}, ["[2] hello"]),
    "identical": (on(8, lambda rank: "loaded 1.2 GB\n"), ["[0-7] loaded 1.2 GB"]),
    "a missing newline at the end is no difference": ({0: "a", 1: "a\n"}, ["[0-1] a"]),
    "several lines": (on(2, lambda rank: "a\nb\n"), ["[0-1] a", "[0-1] b"]),
    "an empty line": (on(2, lambda rank: "a\n\nb\n"), ["[0-1] a", "[0-1]", "[0-1] b"]),
    "one differs": ({0: "a\n", 1: "a\n", 2: "b\n", 3: "a\n"}, ["[0-1,3] a", "[2] b"]),
    "in order of the lowest rank": ({3: "x\n", 0: "z\n", 1: "y\n"}, ["[0] z", "[1] y", "[3] x"]),
    "numbers on four ranks are all shown": (
        on(4, lambda rank: f"loss {LOSSES[rank]}\n"),
        ["[0] loss 2.31", "[1] loss 2.35", "[2] loss 2.33", "[3] loss 2.34"],
    ),
    "eight ranks with four different lines show all four": (
        on(8, lambda rank: f"loss {rank % 4}\n"),
        ["[0,4] loss 0", "[1,5] loss 1", "[2,6] loss 2", "[3,7] loss 3"],
    ),
    "five different numbers are a range": (
        on(5, lambda rank: f"loss {LOSSES[rank]}\n"),
        ["[0-4] loss 2.31 … 2.35 (max r1)"],
    ),
    "the number of the rank needs no marker": (
        on(8, lambda rank: f"rank {rank} of 8\n"),
        ["[0-7] rank 0 … 7 of 8"],
    ),
    "two numbers": (
        on(5, lambda rank: f"rank {rank} loss {LOSSES[rank]}\n"),
        ["[0-4] rank 0 … 4 loss 2.31 … 2.35 (max r1)"],
    ),
    "numbers are compared as numbers": (
        on(6, lambda rank: f"n={10**rank}\n"),
        ["[0-5] n=1 … 100000 (max r5)"],
    ),
    "a sign belongs to its number": (on(5, lambda rank: f"x={rank - 2}\n"), ["[0-4] x=-2 … 2 (max r4)"]),
    "a few ranks with a long loop": (
        on(2, lambda rank: "".join(f"step {step} loss {rank}.{step}\n" for step in range(11))),
        [f"[0-1] step {step} loss 0.{step} … 1.{step} (max r1)" for step in range(11)],
    ),
    "a few ranks with a short one": (
        on(2, lambda rank: "".join(f"step {step} loss {rank}.{step}\n" for step in range(2))),
        [f"[{rank}] step {step} loss {rank}.{step}" for rank in range(2) for step in range(2)],
    ),
    "a hyphen does not": (on(5, lambda rank: f"node-{rank}\n"), ["[0-4] node-0 … 4"]),
    "an exponent": (on(5, lambda rank: f"lr {rank + 1}e-05\n"), ["[0-4] lr 1e-05 … 5e-05 (max r4)"]),
    "an address": (on(5, lambda rank: f"<at 0x7f{rank}a>\n"), ["[0-4] <at 0x7f0a … 0x7f4a> (max r4)"]),
    "common lines within a range stay": (
        on(5, lambda rank: f"start\nloss {LOSSES[rank]}\nend\n"),
        ["[0-4] start", "[0-4] loss 2.31 … 2.35 (max r1)", "[0-4] end"],
    ),
    "common lines around differing ones appear once": (
        on(2, lambda rank: f"start\nrow {rank}\nrow {rank + 5}\nend\n"),
        ["[0-1] start", "[0] row 0", "[0] row 5", "[1] row 1", "[1] row 6", "[0-1] end"],
    ),
    "other words are another group": (
        {**on(6, lambda rank: f"loss {rank + 1}\n"), 6: "loss nan\n"},
        ["[0-5] loss 1 … 6 (max r5)", "[6] loss nan"],
    ),
    "another number of lines is another group": (
        {**on(5, lambda rank: f"loss {rank + 1}\n"), 5: "loss 1\nloss 2\n"},
        ["[0-4] loss 1 … 5 (max r4)", "[5] loss 1", "[5] loss 2"],
    ),
    "colours do not keep numbers apart": (
        on(5, lambda rank: f"\x1b[3{rank}mloss {rank + 1}\x1b[0m\n"),
        ["[0-4] loss 1 … 5 (max r4)"],
    ),
}


@pytest.mark.parametrize(("texts", "expected"), AUTO.values(), ids=AUTO)
def test_auto(texts, expected):
    assert shown(texts) == expected


MODES = {
    "same joins what is equal": ("same", {0: "a 1\n", 1: "a 2\n", 2: "a 1\n"}, ["[0,2] a 1", "[1] a 2"]),
    "same makes no ranges": (
        "same",
        on(5, lambda rank: f"{rank}\n"),
        [f"[{rank}] {rank}" for rank in range(5)],
    ),
    "rank joins nothing": ("rank", {0: "a\n", 1: "a\n"}, ["[0] a", "[1] a"]),
    "order has no order in a mapping": ("order", {0: "a\n", 1: "a\n"}, ["[0] a", "[1] a"]),
}


@pytest.mark.parametrize(("mode", "texts", "expected"), MODES.values(), ids=MODES)
def test_modes(mode, texts, expected):
    assert shown(texts, mode) == expected


words = st.sampled_from(["a", "1", "2.5", "-3", "0x1f", "\0", "\x1b[31m", "\x1b]", "é", "x", ".", "e5", " ", "\n"])


texts_of_ranks = st.dictionaries(st.integers(0, 9), st.lists(words, max_size=6).map("".join), max_size=10)


@given(texts_of_ranks)
def test_grouping_is_lossless(texts):
    recovered: dict[int, list[str]] = {}
    for group in group_texts(texts):
        for part in group.members or (group,):
            for rank in part.ranks:
                recovered.setdefault(rank, []).extend(part.lines)

    assert recovered == {rank: list(split_lines(text)) for rank, text in texts.items() if text}


def test_blocks_with_a_cut_are_equal_only_if_the_whole_was():
    cut = Block(("first", "last"), hidden=10, cut=1, identity=b"1")
    other = Block(("first", "last"), hidden=10, cut=1, identity=b"2")

    assert [group.ranks for group in group_blocks({0: cut, 1: cut, 2: other})] == [(0, 1), (2,)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("\n", ("",)),
        ("a\n\n", ("a", "")),
        ("10%\r50%\r100%\n", ("100%",)),
        ("50%\r", ("50%",)),
        ("dos\r\nlines\r\n", ("dos", "lines")),
        ("one\u2028line\x0c", ("one\u2028line\x0c",)),
    ],
)
def test_lines(text, expected):
    assert split_lines(text) == expected
