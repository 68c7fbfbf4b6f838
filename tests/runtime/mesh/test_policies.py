"""How often a policy respawns, and what it takes for an answer."""

from __future__ import annotations

import pytest

from meshbook.runtime.mesh.policies import RestartBudget, Restarts, policy_of


@pytest.mark.parametrize(
    ("limit", "times", "allowed"),
    [
        (Restarts(1, 10.0), [0, 1, 9.9], [True, False, False]),
        (Restarts(1, 10.0), [0, 10, 19, 20], [True, True, False, True]),
        (Restarts(2, 10.0), [0, 9, 9.5, 10, 10.1, 19], [True, True, False, True, False, True]),
        (Restarts(), [0, 0, 0, 0, 59, 60, 60, 60, 60], [True] * 3 + [False] * 2 + [True] * 3 + [False]),
    ],
)
def test_so_many_within_so_long(limit: Restarts, times: list[float], allowed: list[bool]) -> None:
    budget = RestartBudget(limit)
    assert [budget.take("mesh", 0, now) for now in times] == allowed


def test_each_rank_of_each_mesh_has_its_own() -> None:
    budget = RestartBudget(Restarts(1))
    places = [("a", 0), ("a", 1), ("b", 0)]
    assert [budget.take(*place, 0.0) for place in places] == [True] * 3
    assert [budget.take(*place, 1.0) for place in places] == [False] * 3


@pytest.mark.parametrize(("most", "within"), [(0, 60.0), (-1, 60.0), (3, 0.0), (3, float("nan"))])
def test_a_limit_that_allows_none(most: int, within: float) -> None:
    with pytest.raises(ValueError, match="use on_failure='raise' instead"):
        Restarts(most, within)


@pytest.mark.parametrize("word", ["Respawn", "", None, 3])
def test_a_word_that_says_nothing(word: object) -> None:
    with pytest.raises(ValueError, match='on_failure must be "raise", "respawn" or a function'):
        policy_of(word, None)  # type: ignore[arg-type]
    assert policy_of("raise", Restarts()) is None
