"""Models that train on sharded tensors have the losses that they have in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.runtime.tensor.trainings import OPTIMIZERS, compare_training
from tests.support import few

if TYPE_CHECKING:
    from tests.runtime.tensor.rank_pool import RankPool

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("model", "mesh", "batch", "parameters"),
    few(
        [
            ("mlp", "2x2", 6, "sharded"),
            ("mlp, smooth", "3", 7, "replicated"),
            ("conv net", "2", 5, "replicated"),
            ("transformer", "2", 3, "sharded"),
            ("transformer", "2x2", 4, "sharded"),
        ]
    ),
)
def test_models_train_as_in_one_process(ranks: RankPool, model: str, mesh: str, batch: int, parameters: str) -> None:
    for got, expected in ranks.run(mesh, compare_training, model, "adamw foreach", batch, parameters):
        assert got == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_step_as_in_one_process(ranks: RankPool, optimizer: str) -> None:
    for got, expected in ranks.run("2x2", compare_training, "mlp", optimizer, 6, "sharded"):
        assert got == pytest.approx(expected, rel=1e-5)
