"""Modules on a mesh of processes train as in one process: losses, gradients, and the state in the end."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional

from meshbook.runtime.tensor.distributing import distribute
from meshbook.runtime.tensor.modules.proxies import module_to_mesh
from tests.runtime.tensor.modules.networks import MLP_SPLIT, MODELS, OPTIMIZERS, TRANSFORMER_SPLIT, Transformer

pytestmark = pytest.mark.process
STEPS = 20


def train(model, loss_fn, make_optimizer, x, y, steps=STEPS):
    optimizer = make_optimizer(model.parameters())
    losses = []
    for _ in range(steps):
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def on_batch(mesh, *tensors):
    return [distribute(each, mesh, ["data", *[None] * (each.dim() - 1)]) for each in tensors]


@pytest.mark.parametrize(
    ("name", "optimizer", "plan", "batch"),
    [
        ("mlp", "foreach", "replicate", 7),
        ("mlp", "loop", {"data": "fsdp"}, 8),
        ("mlp", "fused", MLP_SPLIT, 7),
        ("mlp", "foreach", {"data": "fsdp", "model": MLP_SPLIT}, 5),
        ("conv net", "fused", "replicate", 6),
        ("conv net", "foreach", "fsdp", 5),
        ("transformer", "loop", "replicate", 4),
        ("transformer", "fused", {"data": ("fsdp", ["layers.*"])}, 3),
        ("transformer", "foreach", {"model": TRANSFORMER_SPLIT}, 4),
    ],
)
def test_training_equals_that_of_one_process(mesh, name, optimizer, plan, batch):
    build, draw, loss_fn = MODELS[name]
    torch.manual_seed(0)
    local = build()
    model = module_to_mesh(local, mesh, plan)
    torch.manual_seed(1)
    x, y = draw(batch)
    losses = train(model, loss_fn, OPTIMIZERS[optimizer], *on_batch(mesh, x, y))
    expected = train(local, loss_fn, OPTIMIZERS[optimizer], x, y)
    assert losses == pytest.approx(expected, rel=1e-6)
    assert losses[-1] < losses[0]
    for (key, parameter), other in zip(model.named_parameters(), local.parameters(), strict=True):
        assert parameter.grad.placements == parameter.placements, key
