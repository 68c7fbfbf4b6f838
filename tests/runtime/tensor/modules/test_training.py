"""Modules on a mesh of processes train as in one process: losses, gradients, and the state in the end."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard

from meshbook.checkpoint import CheckpointError
from meshbook.runtime.tensor.checkpoints import load_checkpoint, save_checkpoint
from meshbook.runtime.tensor.distributing import distribute
from meshbook.runtime.tensor.failures import RemoteException
from meshbook.runtime.tensor.modules.proxies import module_to_mesh
from tests.runtime.tensor.modules.networks import MLP_SPLIT, MODELS, OPTIMIZERS, TRANSFORMER_SPLIT
from tests.support import few

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
    few(
        [
            ("mlp", "foreach", {"data": "fsdp", "model": MLP_SPLIT}, 5),
            ("mlp", "foreach", "replicate", 7),
            ("mlp", "loop", {"data": "fsdp"}, 8),
            ("mlp", "fused", MLP_SPLIT, 7),
            ("conv net", "fused", "replicate", 6),
            ("conv net", "foreach", "fsdp", 5),
            ("transformer", "loop", "replicate", 4),
            ("transformer", "fused", {"data": ("fsdp", ["layers.*"])}, 3),
            ("transformer", "foreach", {"model": TRANSFORMER_SPLIT}, 4),
        ]
    ),
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
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0]
    for key, parameter in model.named_parameters():
        assert parameter.grad.placements == parameter.placements, key


def test_training_goes_on_from_a_checkpoint_on_a_mesh_of_another_shape(mesh, tmp_path):
    build, draw, loss_fn = MODELS["mlp"]
    torch.manual_seed(0)
    local = build()
    x, y = draw(8)
    expected = train(local, loss_fn, OPTIMIZERS["foreach"], x, y, steps=6)
    torch.manual_seed(0)
    model = module_to_mesh(build(), mesh, {"data": "fsdp", "model": MLP_SPLIT})
    optimizer = OPTIMIZERS["foreach"](model.parameters())
    train(model, loss_fn, lambda _: optimizer, *on_batch(mesh, x, y), steps=3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    written = save_checkpoint(tmp_path, model=model, optimizer=optimizer, schedule=schedule, extra=model[0].bias)
    assert written == tmp_path / "step-0"
    assert save_checkpoint(tmp_path, keep=1, model=model, optimizer=optimizer) == tmp_path / "step-1"

    line = mesh.procs.as_device_mesh(dims=("all",), shape=(4,))
    model = module_to_mesh(build, line, "fsdp")
    optimizer = OPTIMIZERS["foreach"](model.parameters())
    assert load_checkpoint(tmp_path, model=model, optimizer=optimizer) == 1
    assert optimizer.state[model[0].weight]["exp_avg"].placements == (Shard(0),)
    sharded = [distribute(each, line, ["all", None]) for each in (x, y)]
    assert train(model, loss_fn, lambda _: optimizer, *sharded, steps=3) == pytest.approx(expected[3:], rel=1e-5)
    # In a module of one process, too.
    local.load_state_dict({name: each.full_tensor() for name, each in model.state_dict().items()})


def test_a_checkpoint_of_a_module_on_a_mesh_and_one_of_this_process(mesh, tmp_path):
    model, helper = module_to_mesh(MODELS["mlp"][0](), mesh), nn.Linear(2, 2)
    saved = helper.weight.detach().clone()
    save_checkpoint(tmp_path, model=model, helper=helper)
    nn.init.zeros_(helper.weight)
    load_checkpoint(tmp_path, model=model, helper=helper)
    assert torch.equal(helper.weight, saved)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_checkpoint(tmp_path, model=model, helper=nn.Linear(2, 3))


def test_checkpoints_that_do_not_fit(mesh, tmp_path):
    model = module_to_mesh(MODELS["mlp"][0](), mesh)
    with pytest.raises(RemoteException, match="no checkpoint in"):
        load_checkpoint(tmp_path, model=model)
    save_checkpoint(tmp_path, model=model)
    with pytest.raises(CheckpointError, match="has no optimizer; it has: model"):
        load_checkpoint(tmp_path, model=model, optimizer=OPTIMIZERS["sgd"](model.parameters()))
    with pytest.raises(CheckpointError, match="has the shape"):
        load_checkpoint(tmp_path, model=module_to_mesh(nn.Sequential(nn.Linear(2, 2)), mesh))
    with pytest.raises(TypeError, match="one mesh of the global view"):
        save_checkpoint(tmp_path, model=nn.Linear(2, 2))
