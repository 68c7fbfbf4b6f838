"""Ranks that are apart: when a cell looks for them, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from meshbook.magics.cells.divergence import DivergenceWatch
from meshbook.magics.meshes.whereabouts import RankWhereabouts
from tests.magics.meshes.test_whereabouts import COMPUTES, LOADS, REDUCES, STOPPED

# --- ranks that are apart ---

Look = tuple[float, Mapping[int, RankWhereabouts], Sequence[int]]  # when, the ranks that run, those that are done


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        ([(5, {0: COMPUTES, 1: COMPUTES}, [])], [""]),
        ([(5, {0: REDUCES, 1: REDUCES}, []), (10, {0: REDUCES, 1: REDUCES}, [])], ["", ""]),
        ([(5, {1: COMPUTES}, [0])], ["rank 0 done, rank 1 at cell 9:3 in step"]),
        ([(5, {0: COMPUTES, 1: STOPPED}, [])], [f"rank 0 {COMPUTES}, rank 1 {STOPPED}"]),
        # For a moment that happens in any training; a second later it is a rank that keeps the others waiting.
        (
            [(5, {0: REDUCES, 1: LOADS}, []), (6, {0: REDUCES, 1: COMPUTES}, [])],
            ["", "rank 0 in all_reduce (cell 9:14), rank 1 at cell 9:3 in step"],
        ),
        ([(5, {0: REDUCES, 1: LOADS}, []), (6, {0: COMPUTES, 1: REDUCES}, [])], ["", ""]),
        ([(5, {}, [0, 1])], [""]),
    ],
)
def test_what_is_said_of_ranks_that_are_apart(looks: list[Look], said: list[str]) -> None:
    watch = DivergenceWatch(0.0)
    told = []
    for at, whereabouts, done in looks:
        assert watch.is_due(at)
        told.append(watch.take(whereabouts, done, at))
    assert told == said


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        (
            [(4, {0: REDUCES}, []), (5, {0: REDUCES}, [])],
            ["", "rank 0 in all_reduce (cell 9:14), ranks 2-3 are not in this cell"],
        ),
        ([(4, {0: REDUCES}, []), (5, {0: COMPUTES}, [])], ["", ""]),
        ([(4, {0: COMPUTES}, [])], [""]),
        ([(4, {0: REDUCES}, [1])], ["rank 1 done, rank 0 in all_reduce (cell 9:14), ranks 2-3 are not in this cell"]),
    ],
)
def test_what_is_said_of_ranks_that_wait_for_others_than_the_cells(looks: list[Look], said: list[str]) -> None:
    watch = DivergenceWatch(0.0, absent=[2, 3])
    told = []
    for at, whereabouts, done in looks:
        assert watch.is_due(at)
        told.append(watch.take(whereabouts, done, at))
    assert told == said


def test_it_looks_after_five_seconds_without_an_answer_and_then_as_often() -> None:
    watch = DivergenceWatch(0.0)
    assert [watch.is_due(at) for at in (4.9, 5.0, 60.0)] == [False, True, False], "one look at a time"
    watch.take({0: COMPUTES}, [], 5.5)
    watch.answered(6.0)
    assert [watch.is_due(at) for at in (10.9, 11.0)] == [False, True]
    watch.take({0: COMPUTES}, [1], 11.0)
    watch.answered(12.0)
    assert [watch.is_due(at) for at in (12.9, 13.0)] == [False, True], "what is on show is not true any more"


def test_after_an_interrupt_it_looks_soon() -> None:
    watch = DivergenceWatch(0.0)
    watch.hurry(1.0)
    watch.answered(1.5)
    assert [watch.is_due(at) for at in (2.4, 2.5)] == [False, True]
