"""Remote functions, process groups, the queue of each rank."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import ActorError
from meshbook.runtime.tensor.failures import RemoteException
from meshbook.runtime.tensor.remote import call_on_shard_and_fetch, remote
from meshbook.runtime.tensor.trees import fetch_shard

PATIENCE = 20.0


def value(tree, **dims):
    return fetch_shard(tree, **dims).get(PATIENCE)


HELD = {}


def call_held(number):
    HELD["wait"](number)


def combine(parts, *, scale):
    return {"sum": sum(parts) * scale, "count": len(parts)}


def square(x):
    return x * x


def refuse(x):
    raise ValueError("this function refuses")


@pytest.mark.parametrize(
    "propagate", ["cached", "mocked", "inspect", combine], ids=["cached", "mocked", "inspect", "function"]
)
def test_a_function_runs_on_each_rank(pair, propagate):
    function = remote(combine, propagate=propagate)
    with pair.activate():
        x = torch.ones(3) * pair.rank_tensor("gpus")
        for _ in range(2):
            result = function([x, x + 1], scale=2)
    assert result["count"] == 2
    assert result["sum"].shape == (3,)
    assert value(result["sum"], gpus=1).tolist() == [6, 6, 6]


def test_a_function_by_name(pair):
    function = remote("operator.neg", propagate=lambda x: x)
    with pair.activate():
        assert value(function(torch.ones(2))).tolist() == [-1, -1]
    with pytest.raises(ValueError, match="module"):
        remote("neg")


def test_a_decorated_function(pair):
    @remote(propagate="cached")
    def add_one(x):
        return x + 1

    with pair.activate():
        assert value(add_one(torch.ones(2))).tolist() == [2, 2]


def test_wrong_uses(pair):
    with pytest.raises(ValueError, match="no mesh is active"):
        remote(square, propagate="cached")(1)
    with pytest.raises(ValueError, match="guess"):
        remote(square, propagate="guess")
    with pair.activate():
        x = torch.ones(2, requires_grad=True)
        with pytest.raises(ValueError, match="propagate="):
            remote(square)(x)
        with pytest.raises(TypeError, match="requires grad"):
            remote(square, propagate="cached")(x)


def test_what_a_function_raises_is_raised_at_the_fetch(pair):
    with pair.activate():
        x = torch.ones(2)
        y = remote(refuse, propagate=lambda x: x)(x)
        with pytest.raises(RemoteException, match="refuses") as caught:
            value(y + 1)
        assert caught.value.controller_frames[0].name == "test_what_a_function_raises_is_raised_at_the_fetch"
        assert value(x + 1).tolist() == [2, 2]
        with pytest.raises(RemoteException, match="refuses"):
            remote(refuse, propagate="inspect")(x)


def test_a_wrong_rule_is_an_error(pair):
    with pair.activate():
        y = remote(square, propagate=lambda x: (x, x))(torch.ones(2))
        with pytest.raises(RemoteException, match="returned 1 tensors"):
            value(y)


def test_one_rank_alone(pair):
    with pair.activate():
        x = torch.ones(2) * pair.rank_tensor("gpus")
        assert call_on_shard_and_fetch(remote(square), x + 1, shard={"gpus": 1}).get(PATIENCE).tolist() == [4, 4]
    assert call_on_shard_and_fetch(square, x).get(PATIENCE).tolist() == [0, 0]
    with pytest.raises(ActorError, match="refuses"):
        call_on_shard_and_fetch(refuse, x).get(PATIENCE)


def sum_over(x, group):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x + group.size()


def test_a_function_gets_a_process_group(grid):
    group = grid.device_mesh.process_group("gpus")
    assert group.size() == 2
    function = remote(sum_over, propagate=lambda x, group: x)
    with grid.activate():
        x = torch.ones(2) * grid.rank_tensor(["hosts", "gpus"])
        assert value(function(x, group), hosts=1).tolist() == [7, 7]
    with pytest.raises(KeyError):
        grid.device_mesh.process_group("cores")


# -- endpoints ------------------------------------------------------------------------


class Scale(Actor):
    def __init__(self) -> None:
        self.calls = 0

    @endpoint(propagate=lambda x: x)
    def scale(self, x):
        self.calls += 1
        return x * self.calls

    @endpoint(propagate=lambda x: x)
    def refuse(self, x):
        raise ValueError("this endpoint refuses")

    @endpoint
    def plain(self, x):
        return x


def test_an_endpoint_takes_tensors(pair, grid):
    actors = pair.spawn("scale", Scale)
    with pytest.raises(RuntimeError, match="no mesh is active"):
        actors.scale.rref(1)
    with pair.activate():
        x = torch.ones(2) * pair.rank_tensor("gpus")
        first, second = actors.scale.rref(x), actors.scale.rref(x)
        assert value([first, second + 1], gpus=1)[1].tolist() == [3, 3]
        with pytest.raises(RemoteException, match="refuses"):
            value(actors.refuse.rref(x))
        with pytest.raises(ValueError, match="propagate"):
            actors.plain.rref(x)
    with grid.activate(), pytest.raises(ValueError, match="not on the ranks"):
        actors.scale.rref(x)


# -- the queue ------------------------------------------------------------------------


def test_the_queue_of_each_rank_is_counted(pair):
    began, go_on = threading.Event(), threading.Event()

    def wait(number):
        if int(number) == 1:
            began.set()
            assert go_on.wait(PATIENCE)

    HELD["wait"] = wait
    engine = pair.device_mesh.engine
    engine.wait()
    assert engine in pair.tensor_engines
    assert engine in pair.slice(gpus=0).tensor_engines
    try:
        with pair.activate():
            remote(f"{__name__}.call_held", propagate=lambda number: None)(pair.rank_tensor("gpus"))
        engine.flush()
        assert began.wait(PATIENCE)
        value(pair.rank_tensor("gpus"), gpus=0)  # the first rank has run all before it
        first, second = engine.queued().values()
        assert second > first == 0
    finally:
        go_on.set()
    engine.wait()
    assert set(engine.queued().values()) == {0}
