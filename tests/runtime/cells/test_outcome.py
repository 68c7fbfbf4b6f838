"""The place of an error, in one line."""

from __future__ import annotations

import pickle

import pytest

from meshbook.runtime.cells.outcome import CellCost, CellOutcome, CellValue, Frame, RankError

CELL = Frame("<cell 9>", 14, "step")
TOP = Frame("<cell 9>", 2, "<module>")
LIBRARY = Frame("/lib/torch/nn.py", 88, "forward", is_user=False)


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ((), ""),
        ((TOP,), "cell 9:2"),
        ((TOP, CELL), "cell 9:14 in step"),
        ((TOP, CELL, LIBRARY), "cell 9:14 in step"),
        ((TOP, LIBRARY, Frame("/home/me/data.py", 7, "load")), "/home/me/data.py:7 in load"),
        ((LIBRARY,), "/lib/torch/nn.py:88 in forward"),
    ],
)
def test_the_place_is_the_innermost_of_the_users_own_lines(frames: tuple[Frame, ...], place: str) -> None:
    assert RankError("raised", "ValueError", "bad", frames).place == place


def test_an_outcome_travels_and_its_text_leaves_out_what_is_pickled() -> None:
    outcome = CellOutcome(
        CellCost(wall=0.1, cpu=0.1, peak_rss=1),
        CellValue({"text/plain": "1"}, "int", pickled=b"SECRET"),
        RankError("raised", "ValueError", "bad", (CELL,), pickled=b"SECRET"),
    )
    assert pickle.loads(pickle.dumps(outcome)) == outcome
    assert "SECRET" not in repr(outcome)
