"""Operators that DTensor alone gets wrong are right, or refused; what training uses stays sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.runtime.tensor import known_traps

if TYPE_CHECKING:
    from tests.runtime.tensor.rank_pool import RankPool

pytestmark = pytest.mark.process


@pytest.mark.parametrize("mesh", ["2", "3", "2x2"])
@pytest.mark.parametrize("trap", known_traps.TRAPS)
def test_values_and_gradients_equal_those_of_one_process(ranks: RankPool, trap: str, mesh: str) -> None:
    assert ranks.run(mesh, known_traps.compare_trap, trap) == []


def test_a_backward_kernel_divides_by_the_whole_count(ranks: RankPool) -> None:
    assert ranks.run("3", known_traps.backward_of_mse)


def test_an_item_is_reduced_first(ranks: RankPool) -> None:
    assert ranks.run("3", known_traps.item_of_a_sum) == known_traps.ROWS


def test_random_values_are_those_of_one_process(ranks: RankPool) -> None:
    assert ranks.run("3", known_traps.random_values)


def test_views_across_shards_share_their_values(ranks: RankPool) -> None:
    assert ranks.run("3", known_traps.views_of_views) == (True, True, True)


def test_a_result_argument_keeps_its_placements_and_its_shape(ranks: RankPool) -> None:
    text = ranks.run("2", known_traps.result_argument)
    assert "aten.add.out" in text
    assert "(7, 4)" in text


def test_a_refusal_names_the_operator_and_the_placements(ranks: RankPool) -> None:
    text = ranks.run("2", known_traps.refusal, "resize_.default")
    assert "aten.resize_.default" in text
    assert "(7, 4) as (S(0))" in text


def test_what_training_uses_stays_sharded(ranks: RankPool) -> None:
    placed = ranks.run("2", known_traps.placements_of_results)
    assert placed.pop("mm for a weight's gradient") == "P(sum)"
    assert set(placed.values()) == {"S(0)"}, placed


@pytest.mark.parametrize("mesh", ["2", "3"])
def test_views_of_empty_tensors_end(ranks: RankPool, mesh: str) -> None:
    expected = [torch.empty(shape).view(wanted).shape for shape, _, wanted in known_traps.EMPTY_VIEWS]
    found = ranks.run(mesh, known_traps.empty_views)
    assert len(found) > len(expected)
    assert list(dict.fromkeys(found)) == [(shape, shape) for shape in dict.fromkeys(map(tuple, expected))]
