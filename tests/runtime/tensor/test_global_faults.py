"""Functions on shards, operations that fail on some ranks, and ranks that die, in the global view."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Partial, Replicate, Shard

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.hosts.session import close_session
from meshbook.runtime.mesh.tensors import heal_mesh
from meshbook.runtime.tensor.distributing import distribute
from meshbook.runtime.tensor.failures import DeviceMeshError, Failed, RemoteException
from meshbook.runtime.tensor.recovery import Opaque, Spread, plan_recovery
from meshbook.runtime.tensor.sharded_mesh import Mesh
from meshbook.runtime.tensor.trees import fetch_shard
from tests.runtime.tensor.test_failures import WRITES
from tests.support import PATIENCE

process = pytest.mark.process


@pytest.fixture(scope="module")
def mesh():
    made = Mesh(shape=(2, 2), dims=("data", "model"))
    yield made
    made.stop().get(PATIENCE)
    close_session()


@pytest.fixture
def mortal(mesh):
    """A mesh of its own for a test that kills ranks."""
    with Mesh(shape=(2, 2), dims=("data", "model")) as made:
        yield made


@process
def test_a_function_gets_shards_and_gives_tensors(mesh):
    local = torch.randn(5, 4)
    batch = distribute(local, mesh, ["data", None])
    doubled = mesh.execute(lambda t: t * 2, batch)
    assert doubled.placements == batch.placements
    assert torch.equal(doubled.full_tensor(), local * 2)
    result = mesh.execute(lambda t, scale: {"scaled": t.mul_(scale), "columns": t.shape[1]}, batch, scale=3)
    assert torch.equal(result["scaled"].full_tensor(), local * 3)
    assert result["columns"] == 4
    assert torch.equal(batch.full_tensor(), local)


class Rows(Actor):
    @endpoint
    def total(self, x):
        return type(x), x.sum(1).tolist()


@process
def test_an_actor_gets_the_shard_of_its_rank(mesh):
    local = torch.arange(8).reshape(4, 2)
    batch = distribute(local, mesh, ["data", None])
    found = mesh.procs.spawn("rows", Rows).total.call(batch).get(PATIENCE)
    assert list(found.values()) == [(torch.Tensor, rows) for rows in ([1, 5], [1, 5], [9, 13], [9, 13])]


@process
def test_a_function_of_replicated_tensors_gives_replicated_ones(mesh):
    local = torch.randn(3)
    assert torch.equal(mesh.execute(lambda t: t * 2, local).full_tensor(), local * 2)
    assert mesh.execute(torch.sum, distribute(local, mesh)).placements == (Replicate(), Replicate())
    with pytest.raises(ValueError, match="not the same on all ranks"):
        mesh.execute(lambda: torch.tensor(dist.get_rank()))


@process
@pytest.mark.parametrize(
    ("function", "values"),
    [
        pytest.param(os.getpid, None, id="pids"),
        pytest.param(lambda: [1, dist.get_rank() // 2], ["ranks 0-1: 0", "ranks 2-3: 1"], id="a part"),
        pytest.param(lambda: [7] * max(dist.get_rank(), 1), ["ranks 0-1: [7]", "rank 2: [7, 7]"], id="lengths"),
        pytest.param(lambda: np.arange(2) + dist.get_rank(), ["rank 0: array([0, 1])"], id="arrays"),
    ],
)
def test_values_that_differ_are_listed_by_rank(mesh, function, values):
    with pytest.raises(ValueError, match="differ between the ranks") as caught:
        mesh.execute(function)
    if values is None:
        values = [f"rank {rank}: {pid}" for rank, pid in enumerate(mesh.execute(_pids, sharding_spec=[BOTH]).tolist())]
    for value in values:
        assert value in str(caught.value)
    with pytest.raises(ValueError, match="rank 0"):
        mesh.execute(len, distribute(torch.ones(5), mesh, [BOTH]))


BOTH = ("data", "model")


def _pids():
    return torch.tensor([os.getpid()])


@process
def test_values_that_are_equal_are_returned(mesh):
    assert math.isnan(mesh.execute(lambda: math.nan))
    assert mesh.execute(lambda: {"array": np.arange(3), "text": "a"})["array"].tolist() == [0, 1, 2]
    assert mesh.execute(len, distribute(torch.ones(8), mesh, [BOTH])) == 2


@process
def test_a_sharding_spec_says_which_parts_were_returned(mesh):
    ranks = mesh.execute(lambda: torch.tensor([dist.get_rank()]), sharding_spec=[("data", "model")])
    assert ranks.tolist() == [0, 1, 2, 3]
    x = distribute(torch.ones(4, 4), mesh, ["data", None])
    sums = mesh.execute(lambda t: t.sum(1), x, sharding_spec=["data"])
    assert sums.tolist() == [4, 4, 4, 4]
    with pytest.raises(ValueError, match="sharding_spec="):
        mesh.execute(torch.sum, x)
    with pytest.raises(ValueError, match="no shards of one tensor"):
        mesh.execute(lambda: torch.ones(1 + dist.get_rank() % 2), sharding_spec=["model"])


@process
def test_replicated_results_must_be_equal(mesh):
    x = distribute(torch.arange(8.0), mesh, ["data"])
    with pytest.raises(ValueError, match="not the same on the ranks"):
        mesh.execute(lambda shard: shard.sum(), x, sharding_spec=[])
    parts = mesh.execute(lambda shard: shard.sum(), x, sharding_spec=[Partial(), Replicate()])
    assert parts.item() == 28


@process
def test_a_function_that_fails_names_its_call(mesh):
    x = distribute(torch.ones(4), mesh)
    with pytest.raises(RemoteException) as caught:
        mesh.execute(lambda t: t / t.nothing, x)
    assert "nothing" in str(caught.value)
    assert "test_a_function_that_fails" in str(caught.value)
    assert x.sum().item() == 4


def _fail_on_one_rank(tensor):
    if dist.get_rank() == 1:
        raise ValueError("rank 1 does not take part")
    dist.all_reduce(tensor)
    return tensor


@process
def test_a_function_that_fails_on_one_rank_frees_the_others(mesh):
    with pytest.raises(RemoteException, match="does not take part") as caught:
        mesh.execute(_fail_on_one_rank, torch.ones(2))
    assert caught.value.rank == 1
    total = mesh.execute(lambda t: (dist.all_reduce(t), t)[1], torch.ones(2))
    assert total.tolist() == [4, 4]


@process
def test_a_failure_on_one_rank_leaves_no_rank_waiting(mesh):
    table = distribute(torch.randn(10, 4), mesh)
    x = distribute(torch.ones(4), mesh, ["data"])
    for indices in ([0, 1, 2, 99], [99, 1, 2, 3]):
        failed = torch.nn.functional.embedding(distribute(torch.tensor(indices), mesh, ["data"]), table)
        assert x.sum().item() == 4
        with pytest.raises(RemoteException) as caught:
            (failed * 2).full_tensor()
        assert "IndexError" in str(caught.value)
        assert caught.value.rank in (0, 2)
    assert x.sum().item() == 4


@process
@pytest.mark.parametrize("spec", [["data", None], [None, None], ["data", "model"]], ids=["rows", "whole", "parts"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_that_fails_keeps_the_tensor(mesh, write, spec):
    local = torch.arange(15.0).view(5, 3)
    with pytest.raises((IndexError, RuntimeError)):
        write(local, torch.tensor([99]))
    x = distribute(torch.arange(15.0).view(5, 3), mesh, spec)
    bad, row, column = distribute(torch.tensor([99]), mesh), x[0], x[:, 1]
    write(x, bad)
    x.add_(1)  # has no effect: in one process it does not run
    for each in (column, x, row):
        with pytest.raises(RemoteException):
            each.full_tensor()
        assert torch.equal(x.full_tensor(), local)
        assert torch.equal(row.full_tensor(), local[0])
        assert torch.equal(column.full_tensor(), local[:, 1])
        write(x, bad)
    with pytest.raises(RemoteException):
        x.full_tensor()
    row.zero_()
    assert x.full_tensor()[0].tolist() == [0, 0, 0]


@process
def test_a_write_that_all_ranks_refuse_keeps_the_tensor(mesh):
    numbers = distribute(torch.arange(4), mesh, ["data"])
    numbers.logit_()
    with pytest.raises(RemoteException, match="can't be cast"):
        numbers.full_tensor()
    assert numbers.tolist() == [0, 1, 2, 3]
    numbers.floor_divide_(distribute(torch.tensor([1, 1, 0, 1]), mesh, ["data"]))
    with pytest.raises(RemoteException, match="ZeroDivisionError"):
        numbers.full_tensor()
    assert numbers.tolist() == [0, 1, 2, 3]


@process
@pytest.mark.parametrize("spec", [["data", None], [None, None]], ids=["rows", "whole"])
def test_the_next_fetch_raises_a_failed_check(mesh, spec):
    good, x = distribute(torch.ones(4), mesh, ["data"]), distribute(torch.full((4, 4), -1.0), mesh, spec)
    checks = {
        "singular": lambda: torch.linalg.inv(x),
        "linalg": lambda: torch.linalg.cholesky(x),
        "the assertion": lambda: torch._assert_async((x > 0).all(), "the assertion"),
        "between 0 and 1": lambda: torch.nn.functional.binary_cross_entropy(x, x.detach()),
    }
    for text, check in checks.items():
        result = check()
        with pytest.raises(RemoteException, match=text):
            (good if result is None else result).full_tensor()
        assert good.full_tensor().tolist() == [1, 1, 1, 1]


@process
def test_a_healed_mesh_has_the_tensors_that_other_ranks_had(mortal):
    local = torch.randn(6, 4)
    replicated, by_rows = distribute(local, mortal), distribute(local, mortal, ["data", None])
    everywhere = distribute(local, mortal, ["data", "model"])
    rows = replicated[2:4]
    torch.manual_seed(5)
    with mortal.activate():
        torch.rand(3)
    mortal.procs.slice(ranks=3).kill().get(PATIENCE)
    with pytest.raises(DeviceMeshError):
        mortal.execute(_work_until_the_end, local)
    with pytest.raises(DeviceMeshError):
        replicated + 1
    assert heal_mesh(mortal) is mortal
    for tensor in (replicated, by_rows):
        assert torch.equal(tensor.full_tensor(), local)
        assert torch.equal(mortal.execute(lambda t: t * 2, tensor).full_tensor(), local * 2)
    assert torch.equal(mortal.execute(lambda t: t * 2, local).full_tensor(), local * 2)
    with pytest.raises(DeviceMeshError, match="lost"):
        everywhere.full_tensor()
    with pytest.raises(DeviceMeshError, match="lost"):
        (everywhere * 2).sum().item()
    # The memory of the view is that of the tensor, on the new rank as well.
    rows.zero_()
    assert fetch_shard(replicated, data=1, model=1).get(PATIENCE)[2:4].tolist() == [[0] * 4] * 2
    with mortal.activate():
        drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(6)[3:], fetch_shard(drawn, data=1, model=1).get(PATIENCE))


def _work_until_the_end(tensor):
    while True:
        dist.all_reduce(tensor)


@process
def test_processes_that_were_healed_by_themselves(mortal):
    x = distribute(torch.ones(4), mortal)
    mortal.procs.slice(ranks=0).kill().get(PATIENCE)
    with pytest.raises(DeviceMeshError):
        mortal.execute(_work_until_the_end, x)
    mortal.procs.heal().get(PATIENCE)
    with pytest.raises(DeviceMeshError, match=r"mesh\.heal\(\)"):
        x.sum()
    assert mortal.heal() == [0]
    assert x.sum().item() == 4
    assert mortal.heal() == []
    assert x.sum().item() == 4


def spread(*placements, **changes):
    given = {"shape": (4,), "stride": (1,), "dtype": torch.float32, "local_shape": (2,), "local_stride": (1,)}
    given |= {"offset": 0, "storage": 1, "nbytes": 16, "is_detached": False}
    return Spread(placements=placements, **(given | changes))


PEER = Failed(2, 0, "", "", is_of_peer=True)
OWN = Failed(1, 0, "", "")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([spread(Replicate(), Replicate())] * 3 + [None], {3: 0}, id="replicated"),
        pytest.param([spread(Shard(0), Replicate())] * 3 + [None], {3: 2}, id="replica of a shard"),
        pytest.param([spread(Shard(0), Shard(0))] * 3 + [None], "lost", id="sharded"),
        pytest.param([None] * 4, None, id="all new"),
        pytest.param([spread(Replicate(), Replicate()), PEER, PEER, None], {1: 0, 2: 0, 3: 0}, id="failed on the way"),
        pytest.param([PEER, PEER, PEER, None], "lost", id="failed everywhere"),
        pytest.param([spread(Shard(0), Replicate())] * 3 + [OWN], OWN, id="failed by itself"),
        pytest.param([PEER, OWN, PEER, PEER], OWN, id="its failure is the reason"),
        pytest.param([OWN] * 4, OWN, id="all fail alike"),
        pytest.param([PEER] * 4, PEER, id="all wait for another failure"),
        pytest.param([spread(Replicate(), Replicate(), is_detached=True)] * 3 + [None], "lost", id="a view"),
        pytest.param([spread(Shard(0), Replicate())] * 4, None, id="nothing to do"),
        pytest.param([Opaque()] * 3 + [None], "lost", id="a module"),
        pytest.param([Opaque()] * 4, None, id="a module that all have"),
    ],
)
def test_the_plan_of_a_recovery(found, expected):
    plan = plan_recovery([None if each is None else {7: each} for each in found], (2, 2))
    assert plan.kept == (frozenset({7}) if all(each is OWN for each in found) else frozenset())
    moves = {receiver: move.sender for receiver, move in plan.moves.get(7, {}).items()}
    failed = plan.failed.get(7)
    if isinstance(expected, dict):
        assert (moves, failed) == (expected, None)
    elif expected == "lost":
        assert failed.is_lost
    else:
        assert (moves, failed) == ({}, expected)
    assert plan.new == {rank for rank, each in enumerate(found) if each is None}
