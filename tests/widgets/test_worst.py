"""For whom the others wait."""

from __future__ import annotations

import numpy as np
import pytest

from meshbook.widgets.protocol import RankState
from meshbook.widgets.worst import StragglerDetector

R, C, D = RankState.RUNNING, RankState.IN_COLLECTIVE, RankState.DEAD


def stragglers(*seen: tuple[float, list[RankState]]) -> dict[int, str]:
    awaited = StragglerDetector(len(seen[0][1]))
    for now, states in seen:
        awaited.follow(np.array(states, np.uint8), now)
    return {each.rank: each.text for each in awaited.stragglers()}


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([(0, [C, C, R]), (1, [C, C, R])], {}),
        ([(0, [C, C, R]), (3, [C, C, R])], {2: "others have waited 3 s for it"}),
        ([(0, [C, C, R]), (3, [C, C, R]), (3.5, [C, C, C])], {}),
        ([(0, [R, R, C]), (3, [R, R, C])], {}),  # one is early, and nobody late
        ([(0, [R, R, R]), (3, [R, R, R])], {}),
        ([(0, [C, C, D]), (9, [C, C, D])], {}),  # that it is dead is told anyway
        ([(0, [C, R]), (4, [C, R])], {1: "others have waited 4 s for it"}),
        ([(0, [C, C, R, R]), (4, [C, C, C, R])], {3: "others have waited 4 s for it"}),
    ],
)
def test_late_ranks(seen: list[tuple[float, list[RankState]]], said: dict[int, str]) -> None:
    assert stragglers(*seen) == said


def test_late_ranks_of_each_step() -> None:
    steps = [(step + part, [C, C, C, R] if part else [R, R, R, R]) for step in range(60) for part in (0.0, 0.6)]
    assert stragglers(*steps) == {3: "others wait for it 52% of the time"}
    assert stragglers(*steps, *((60.0 + second, [R, R, R, R]) for second in range(90))) == {}
    assert stragglers(*steps, (60.0, [RankState.IDLE] * 4)) == {}
