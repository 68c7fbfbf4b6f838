"""Models that train on sharded tensors have the losses that they have in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.runtime.tensor.trainings import MODELS, OPTIMIZERS, compare_training

if TYPE_CHECKING:
    from tests.runtime.tensor.rank_pool import RankPool


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("mesh", "batch", "parameters"), [("2", 6, "replicated"), ("3", 7, "sharded"), ("2x2", 6, "sharded")]
)
def test_models_train_as_in_one_process(ranks: RankPool, mesh: str, batch: int, parameters: str, model: str) -> None:
    for got, expected in ranks.run(mesh, compare_training, model, "adamw foreach", batch, parameters):
        assert got == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("parameters", ["replicated", "sharded"])
def test_optimizers_step_as_in_one_process(ranks: RankPool, parameters: str, optimizer: str) -> None:
    for got, expected in ranks.run("2x2", compare_training, "mlp", optimizer, 6, parameters):
        assert got == pytest.approx(expected, rel=1e-6)
