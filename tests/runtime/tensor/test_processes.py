"""The engine over real processes: values, collectives, training, a killed rank, and nothing left behind."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from meshbook.runtime.hosts.session import close_session, current_session
from meshbook.runtime.tensor.failures import DeviceMeshError
from meshbook.runtime.tensor.remote import call_on_shard_and_fetch, remote
from meshbook.runtime.tensor.streams import Stream
from meshbook.runtime.tensor.trees import fetch_shard
from tests.support import PATIENCE

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def host():
    host = current_session().host
    # The agent and the fork server are there from now on, so that no test is blamed for them.
    warm = host.spawn_procs()
    warm.initialized.get(PATIENCE)
    warm.stop().get(PATIENCE)
    yield host
    close_session()


@pytest.fixture
def procs(host):
    mesh = host.spawn_procs(per_host={"gpus": 2})
    yield mesh
    mesh.stop().get(PATIENCE)


def value(tree, **dims):
    return fetch_shard(tree, **dims).get(PATIENCE)


def test_data_parallel_training_equals_local_training(procs):
    torch.manual_seed(0)
    local, x, y = nn.Linear(4, 2), torch.randn(8, 4), torch.randn(8, 2)
    mesh = procs.device_mesh
    with mesh.activate():
        model = nn.Linear(4, 2)
    model.load_state_dict({name: mesh.constant(each) for name, each in local.state_dict().items()})
    parts = [mesh.constant(each) for each in (x, y)]
    with mesh.activate():
        rows = torch.arange(4) + 4 * procs.rank_tensor("gpus")
        inputs, targets = (part.index_select(0, rows) for part in parts)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (local, model)]
    for _ in range(5):
        nn.functional.mse_loss(local(x), y).backward()
        nn.functional.mse_loss(model(inputs), targets).backward()
        for parameter in model.parameters():
            parameter.grad.reduce_("gpus", "avg")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for parameter, other in zip(model.parameters(), local.parameters(), strict=True):
        for rank in range(2):
            torch.testing.assert_close(value(parameter.detach(), gpus=rank), other.detach(), rtol=1e-6, atol=1e-6)


def pid_at(x):
    return os.getpid()


def test_the_ranks_are_processes(procs):
    with procs.activate():
        x = torch.zeros(1)
    pids = [call_on_shard_and_fetch(pid_at, x, shard={"gpus": rank}).get(PATIENCE) for rank in range(2)]
    assert len({*pids, os.getpid()}) == 3


def reduce_repeatedly(x):
    for _ in range(1000):
        x = (x + 1).reduce("gpus")
        value(x)


def test_a_killed_rank_frees_the_others(procs):
    with procs.activate():
        x = torch.ones(2).reduce("gpus")
        assert value(x).tolist() == [2, 2]
        procs.slice(gpus=1).kill().get(PATIENCE)
        with pytest.raises(DeviceMeshError):
            reduce_repeatedly(x)
    procs.heal().get(PATIENCE)
    with procs.activate():
        assert value(torch.ones(2).reduce("gpus"), gpus=1).tolist() == [2, 2]


@pytest.fixture
def default_dtype():
    yield torch.set_default_dtype
    torch.set_default_dtype(torch.float32)


MADE = {
    "factory": lambda: torch.full((2,), 0.1),
    "random": lambda: torch.rand(2),
    "division of integers": lambda: torch.arange(3) / 7,
    "parameter": lambda: nn.Linear(2, 2).weight.detach(),
    "remote function": remote(lambda: torch.ones(2), propagate="cached"),
}


def dtypes_of_made():
    """What the controller says, and what a rank has."""
    return {name: (each.dtype, value(each, gpus=1).dtype) for name, each in ((n, make()) for n, make in MADE.items())}


def test_the_default_dtype_of_the_controller_holds_on_ranks(procs, default_dtype):
    mesh, stream = procs.device_mesh, Stream("other")
    for dtype in (torch.float32, torch.float64, torch.float32):
        default_dtype(dtype)
        with mesh.activate():
            assert dtypes_of_made() == dict.fromkeys(MADE, (dtype, dtype))
            with stream.activate():  # it is new after the first change
                assert dtypes_of_made() == dict.fromkeys(MADE, (dtype, dtype))
    default_dtype(torch.float64)
    other = procs.slice(gpus=1).device_mesh
    with other.activate():
        assert fetch_shard(torch.ones(2)).get(PATIENCE).dtype is torch.float64
