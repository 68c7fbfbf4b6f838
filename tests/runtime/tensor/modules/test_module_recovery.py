"""Modules go on after ranks have died or failed: from the other ranks' values, or from the last checkpoint."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn import functional

from meshbook.runtime.hosts.session import close_session, current_session
from meshbook.runtime.mesh.tensors import heal_mesh
from meshbook.runtime.tensor.checkpoints import save_checkpoint
from meshbook.runtime.tensor.distributing import distribute
from meshbook.runtime.tensor.failures import DeviceMeshError, RemoteException
from meshbook.runtime.tensor.modules.proxies import module_to_mesh
from meshbook.runtime.tensor.sharded_mesh import Mesh
from tests.runtime.tensor.modules.networks import MLP_SPLIT, mlp
from tests.support import PATIENCE

pytestmark = pytest.mark.process


def make_step(model, x, y):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return optimizer, step


class Unlucky(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, fails=False):
        if fails and os.environ["RANK"] == "3":
            raise ValueError("this rank has bad luck")
        return self.network(x)


@pytest.fixture(scope="module")
def session():
    """The agent and the fork server are there from now on, so that the test is not blamed for them."""
    warm = current_session().host.spawn_procs()
    warm.initialized.get(PATIENCE)
    warm.stop().get(PATIENCE)
    yield
    close_session()


@pytest.fixture
def mortal(session):
    with Mesh(shape=(2, 2), dims=("data", "model")) as made:
        yield made


def test_modules_survive_a_failure_on_one_rank_and_the_death_of_another(mortal, tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(8, 6), torch.randn(8, 3)
    sharded = [distribute(each, mortal, ["data", None]) for each in (x, y)]
    local = mlp()
    plan = {"data": "fsdp", "model": {f"network.{name}": style for name, style in MLP_SPLIT.items()}}
    split = module_to_mesh(Unlucky(local), mortal, plan)  # each rank has parts of its own
    replicated = module_to_mesh(local, mortal)
    optimizer, step = make_step(split, *sharded)
    unsaved = module_to_mesh(local, mortal, {"data": "fsdp"})
    lost = module_to_mesh(Unlucky(local), mortal, plan)
    converted = module_to_mesh(local, mortal).to(torch.bfloat16)
    _, step_replicated = make_step(replicated, *sharded)
    _, step_local = make_step(local, x, y)
    losses = [step_local() for _ in range(3)]

    assert [step(), step_replicated()] == pytest.approx([losses[0]] * 2, rel=1e-5)
    with pytest.raises(RemoteException, match="bad luck"):
        split(sharded[0], fails=True)
    save_checkpoint(tmp_path, model=split, optimizer=optimizer)
    assert [step(), step_replicated()] == pytest.approx([losses[1]] * 2, rel=1e-5)

    loss = functional.mse_loss(replicated(sharded[0]), sharded[1])
    mortal.procs.slice(ranks=2).kill().get(PATIENCE)
    with pytest.raises(DeviceMeshError):
        step()
    heal_mesh(mortal)
    assert step_replicated() == pytest.approx(losses[2], rel=1e-5)
    assert [step(), step()] == pytest.approx(losses[1:], rel=1e-5)  # from the checkpoint on
    assert converted(sharded[0].to(torch.bfloat16)).dtype == torch.bfloat16
    assert converted(sharded[0].to(torch.bfloat16)).detach().full_tensor().isfinite().all()
    assert unsaved(sharded[0]).detach().full_tensor().isfinite().all()  # ranks along "model" have the same shards
    with pytest.raises(DeviceMeshError, match="lost"):
        lost(sharded[0]).detach().full_tensor()
    loss.backward()
    with pytest.raises(DeviceMeshError, match="lost"):
        replicated[0].weight.grad.full_tensor()
