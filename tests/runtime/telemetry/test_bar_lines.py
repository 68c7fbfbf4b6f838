"""Tests of the points that progress bars carry. How bars are recognized is tested with their merging."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest

from meshbook.runtime.telemetry.bar_lines import MOST_BARS, MOST_NAMES, BarPoints, numbers_of


def bar(count: int, postfix: str, title: str = "") -> str:
    head = f"{title}: " if title else ""
    return f"{head}{count}%|███   | {count}/100 [00:07<00:05, 1.20it/s{postfix}]"


class Points:
    def __init__(self, *logged: str) -> None:
        self.found: list[tuple[str, float, Mapping[str, float]]] = []
        self.bars = BarPoints(lambda *point: self.found.append(point), logged.__contains__)

    def after(self, *texts: str) -> list[tuple[float, Mapping[str, float]]]:
        for text in texts:
            self.bars.take("cell", text)
        return [(step, values) for _, step, values in self.found]


@pytest.mark.parametrize(
    ("postfix", "numbers"),
    [
        (", loss=0.31, lr=1e-3", {"loss": 0.31, "lr": 1e-3}),
        (", acc=87.5%, name=resnet, grad/norm=-2", {"acc": 87.5, "grad/norm": -2}),
        (", loss=inf", {"loss": math.inf}),
        (", v_num=3, train_loss=.5", {"train_loss": 0.5}),
        (", what is this", {}),
        ("", {}),
    ],
    ids=str,
)
def test_numbers_of_a_postfix(postfix: str, numbers: dict[str, Any]) -> None:
    assert dict(numbers_of(postfix)) == numbers


def test_a_bar_gives_points_at_its_count() -> None:
    points = Points()
    assert points.after(bar(1, ", loss=3"), bar(7, ", loss=2")) == [(1, {"loss": 3}), (7, {"loss": 2})]
    assert points.found[0][0] == "cell"


def test_titles_are_groups_and_a_bar_that_begins_anew_continues() -> None:
    points = Points()
    texts = bar(50, ", loss=3", "Epoch 1"), bar(100, ", loss=2", "Epoch 1"), bar(10, ", loss=1", "Epoch 2")
    assert points.after(*texts) == [
        (50, {"Epoch/loss": 3}),
        (100, {"Epoch/loss": 2}),
        (110, {"Epoch/loss": 1}),
    ]


def test_the_same_state_counts_once() -> None:
    assert len(Points().after(bar(1, ", loss=3"), bar(1, ", loss=3") + "\n")) == 1


def test_several_bars_and_other_lines() -> None:
    text = "\n".join(["x=1]", bar(1, ", a=1", "outer"), f"\x1b[31m{bar(2, ', b=2', 'inner')}\x1b[0m", bar(3, "")])
    assert Points().after(text) == [(1, {"outer/a": 1}), (2, {"inner/b": 2})]


def test_bars_with_ever_new_titles_take_bounded_memory() -> None:
    points = Points()
    for letters in itertools.product("abcdefgh", repeat=3):
        points.after(bar(1, ", loss=3", "".join(letters)))
    assert len(points.found) == MOST_NAMES
    assert len(points.bars._states) == MOST_BARS


def test_what_the_program_logs_itself_is_left_out() -> None:
    assert Points("loss").after(bar(1, ", loss=3, lr=1", "train")) == [(1, {"train/lr": 1})]
