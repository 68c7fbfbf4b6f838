"""Models that train operator by operator on a mesh have the losses that they have in one process."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from meshbook.runtime.hosts.session import close_session
from meshbook.runtime.tensor.distributing import distribute
from meshbook.runtime.tensor.recordings import compile as record
from meshbook.runtime.tensor.sharded_mesh import Mesh
from tests.runtime.tensor.trainings import MODELS, OPTIMIZERS
from tests.support import PATIENCE, few

STEPS = 20
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def mesh():
    made = Mesh(shape=(2, 2), dims=("data", "model"))
    yield made
    made.stop().get(PATIENCE)
    close_session()


def move(model: nn.Module, mesh: Mesh) -> None:
    """Replace the parameters and buffers of a model by those on a mesh; matrices are sharded."""
    for module in model.modules():
        for name, each in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            spec = ["model", *[None] * (each.dim() - 1)] if each.dim() == 2 else None
            setattr(module, name, distribute(each, mesh, spec))


def train(model, optimizer, loss_of, x, y):
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


@pytest.mark.parametrize(
    ("name", "optimizer", "batch"),
    few(
        [
            ("mlp", "adamw foreach", 6),
            ("mlp", "adamw loop", 5),
            ("mlp", "adamw fused", 6),
            ("conv net", "adamw foreach", 5),
            ("transformer", "adamw foreach", 4),
        ]
    ),
)
def test_training_equals_that_of_one_process(mesh, name, optimizer, batch):
    build, draw, loss_of = MODELS[name]
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(build())
    x, y = draw(batch)
    torch.manual_seed(2)
    expected = train(models[0], OPTIMIZERS[optimizer](models[0].parameters()), loss_of, x, y)
    move(models[1], mesh)
    rows = [distribute(each, mesh, ["data", *[None] * (each.dim() - 1)]) for each in (x, y)]
    torch.manual_seed(2)
    losses = train(models[1], OPTIMIZERS[optimizer](models[1].parameters()), loss_of, *rows)
    assert losses == pytest.approx(expected, rel=1e-5)  # sums in another order, twenty steps of float32


def test_a_recorded_step_trains_as_the_function_itself(mesh):
    torch.manual_seed(0)
    local, x, y = nn.Linear(4, 2), torch.randn(6, 4), torch.randn(6, 2)
    model = nn.Linear(4, 2)
    model.load_state_dict(local.state_dict())
    move(model, mesh)
    rows = [distribute(each, mesh, ["data", None]) for each in (x, y)]

    def make_step(module, inputs, targets):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

        def step():
            loss = nn.functional.mse_loss(nn.functional.dropout(module(inputs), 0.1), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    torch.manual_seed(3)
    expected = [step().item() for step in [make_step(local, x, y)] * 5]
    torch.manual_seed(3)
    step = make_step(model, *rows)
    with mesh.activate():
        recorded = record(step)
        losses = [recorded() for _ in range(5)]
    assert [loss.item() for loss in losses] == pytest.approx(expected, rel=1e-5)
