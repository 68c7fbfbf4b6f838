"""The variables of many ranks as text, with equal ones shown once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from meshbook.magics.variables.listing import format_names, format_table
from meshbook.runtime.cells.inventory import Entry


def entries(**texts: str) -> list[Entry]:
    return [Entry(name, "float", None, text) for name, text in texts.items()]


@pytest.mark.parametrize(
    ("by_rank", "text"),
    [
        ({0: entries(), 1: entries()}, "no variables on ranks 0-1"),
        ({0: entries(b="1", a="2"), 1: entries(a="3", b="1")}, "[0-1] a  b"),
        ({0: entries(a="1"), 1: entries(a="1", c="2"), 2: entries(a="1", b="1")}, "[0-2] a\n[1] c\n[2] b"),
    ],
)
def test_names(by_rank: Mapping[int, Sequence[Entry]], text: str) -> None:
    assert format_names(by_rank) == text


def test_many_names_are_wrapped() -> None:
    lines = format_names({0: entries(**{f"variable_{index}": "1" for index in range(20)})}).splitlines()
    assert len(lines) == 3
    assert {line[:4] for line in lines} == {"[0] ", "    "}


def table(by_rank: Mapping[int, Sequence[Entry]]) -> list[list[str]]:
    """The rows, cut at the columns."""
    heading, _, *rows = format_table(by_rank).splitlines()
    starts = [heading.index(title) for title in heading.split()]
    return [[row[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)] for row in rows]


def test_the_same_value_is_one_row_and_others_are_more() -> None:
    by_rank = {
        rank: [Entry("lr", "float", None, "0.1"), Entry("x", "Tensor", 4 << rank, f"({rank},)")] for rank in (0, 1)
    }
    by_rank[1].append(Entry("y", "int", None, "5"))
    assert table(by_rank) == [
        ["lr", "float", "", "0-1", "0.1"],
        ["x", "Tensor", "4 B", "0", "(0,)"],
        ["x", "Tensor", "8 B", "1", "(1,)"],
        ["y", "int", "", "1", "5"],
    ]


def test_many_values_that_differ_in_numbers_are_a_range() -> None:
    by_rank = {rank: [Entry("x", "Tensor", 4 * rank + 4, f"({rank + 1},) float32")] for rank in range(9)}
    assert table(by_rank) == [["x", "Tensor", "4 B … 36 B", "0-8", "(1 … 9,) float32 (max r8)"]]


def test_ranks_with_another_type_are_rows_of_their_own() -> None:
    by_rank = {0: [Entry("x", "int", None, "1")], 1: [Entry("x", "str", None, "'1'")], 2: [Entry("x", "int", None, "")]}
    assert table(by_rank) == [["x", "int", "", "0", "1"], ["x", "int", "", "2", ""], ["x", "str", "", "1", "'1'"]]


def test_no_variables() -> None:
    assert format_table({0: [], 1: []}) == "no variables on ranks 0-1"
