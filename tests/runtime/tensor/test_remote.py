"""Remote functions, process groups, the queue of each rank."""

from __future__ import annotations

import itertools
import operator
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import current_rank
from meshbook.runtime.actor.endpoint import Accumulator, endpoint
from meshbook.runtime.actor.explicit_calls import send
from meshbook.runtime.actor.ports import Channel
from meshbook.runtime.errors import ActorError, PickleError
from meshbook.runtime.tensor.failures import RemoteException
from meshbook.runtime.tensor.remote import call_on_shard_and_fetch, remote
from meshbook.runtime.tensor.trees import fetch_shard
from tests.support import PATIENCE


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

    @endpoint
    def total(self, parts, *, times=1):
        self.calls += times
        return current_rank().rank, float(sum(part.sum() for part in parts))

    @endpoint
    def count(self):
        return self.calls

    @endpoint(explicit_response_port=True)
    def answer(self, port, x):
        port.send(float(x.sum()))

    @endpoint
    def wait(self, x):
        HELD["wait"](x)


def test_an_endpoint_takes_tensors(pair, grid):
    actors = pair.spawn("scale", Scale)
    with pytest.raises(RuntimeError, match="no mesh is active"):
        actors.scale.rref(1)
    with pair.activate():
        x = torch.ones(2) * pair.rank_tensor("gpus")
    first, second = actors.scale.rref(x), actors.scale.rref(x)
    with pair.activate():
        assert value([first, second + 1], gpus=1)[1].tolist() == [3, 3]
        with pytest.raises(RemoteException, match="refuses"):
            value(actors.refuse.rref(x))
        with pytest.raises(ValueError, match="propagate"):
            actors.plain.rref(x)
    with grid.activate(), pytest.raises(ValueError, match="not on the ranks"):
        actors.scale.rref(x)


def test_each_verb_takes_tensors(grid):
    actors = grid.spawn("scale", Scale)
    with grid.activate():
        x = torch.ones(2) * grid.rank_tensor(["hosts", "gpus"])
    totals = [0, 2, 4, 6]
    called = actors.total.call([x, x / 2], times=2)
    x.add_(1)  # the values are those of the call
    assert [rank for rank, _ in called.get(PATIENCE).values()] == [0, 1, 2, 3]
    assert [total for _, total in called.get(PATIENCE).values()] == [each * 1.5 for each in totals]
    x.sub_(1)
    assert actors.slice(hosts=1, gpus=0).total.call_one([x]).get(PATIENCE) == (0, 4)
    assert [each.get(PATIENCE) for each in actors.slice(hosts=1).total.call_each([x])] == [(0, 4), (1, 6)]
    assert actors.total.choose([x]).get(PATIENCE) in list(enumerate(totals))
    assert sorted(each.get(PATIENCE) for each in actors.total.stream([x])) == list(enumerate(totals))
    assert actors.answer.call(x).get(PATIENCE).item(hosts=1, gpus=1) == 6
    assert Accumulator(actors.answer, 0.0, operator.add).accumulate(x).get(PATIENCE) == 12
    port, receiver = Channel.open_ranked()
    for called in (actors.answer, actors.plain):
        send(called, [x], {}, port)
    found = [receiver.recv().get(PATIENCE) for _ in range(8)]
    assert sorted((rank, float(torch.as_tensor(answer).sum())) for rank, answer in found) == [
        (rank, total) for rank, total in enumerate(totals) for _ in range(2)
    ]
    before = actors.count.call().get(PATIENCE).values()
    actors.total.broadcast([x], times=100)
    for hosts, gpus in itertools.product(range(2), repeat=2):
        value(x, hosts=hosts, gpus=gpus)  # this rank has passed the call on
    after = actors.count.call().get(PATIENCE).values()
    assert [now - then for then, now in zip(before, after, strict=True)] == [100] * 4


def test_a_part_of_a_mesh_has_the_values_of_its_ranks(grid):
    actors = grid.slice(hosts=1).spawn("part", Scale)
    with grid.device_mesh.slice(gpus=1).activate() as part:
        x = torch.ones(2) * part.rank_tensor("hosts")
    assert actors.slice(gpus=1).total.call_one([x]).get(PATIENCE) == (0, 2)
    with pytest.raises(TypeError, match="not on the ranks"):
        actors.total.call([x])


def test_the_errors_of_calls_with_tensors(pair, grid):
    actors = pair.spawn("scale", Scale)
    with grid.activate():
        foreign = torch.ones(2)
    with pair.activate():
        x = torch.ones(2)
        failed = torch.ones(2).index_select(0, torch.tensor([7]))
    with pytest.raises(ActorError, match="this endpoint refuses") as caught:
        actors.refuse.call(x).get(PATIENCE)
    assert caught.value.called_at.filename == __file__
    with pytest.raises(RemoteException, match="index"):
        actors.total.call([failed]).get(PATIENCE)
    assert actors.total.call([x]).get(PATIENCE).item(gpus=1) == (1, 2)
    with pytest.raises(TypeError, match="not on the ranks"):
        actors.total.call([foreign])
    with pytest.raises(TypeError, match="wrong mesh"):
        actors.total.call([x, foreign])
    with pytest.raises(TypeError, match="within an object"):
        actors.total.call(SimpleNamespace(x=x))
    with pytest.raises(PickleError, match="lock"):
        actors.total.call([x, threading.Lock()])


def test_the_ranks_go_on_while_an_endpoint_has_a_tensor(pair):
    go_on = threading.Event()
    HELD["wait"] = lambda x: go_on.wait(PATIENCE)
    with pair.activate():
        x = torch.ones(2)
    waiting = pair.spawn("scale", Scale).wait.call(x)
    assert value(x + 1).tolist() == [2, 2]
    go_on.set()
    waiting.get(PATIENCE)


def test_a_remote_function_is_an_endpoint(pair):
    function, failing = remote(f"{__name__}.square"), remote(refuse)
    with pytest.raises(ValueError, match="no mesh is active"):
        function.call(1)
    with pair.activate():
        assert list(function.call(3).get(PATIENCE).values()) == [9, 9]
        x = torch.ones(2) * pair.rank_tensor("gpus")
        with pytest.raises(ActorError, match="this function refuses"):
            failing.call(x).get(PATIENCE)
        port, receiver = Channel.open_ranked()
        send(function, [3], {}, port)
        assert sorted(receiver.recv().get(PATIENCE) for _ in range(2)) == [(0, 9), (1, 9)]
    assert [each.tolist() for each in function.call(x + 1).get(PATIENCE).values()] == [[1, 1], [4, 4]]
    with pair.slice(gpus=1).activate():
        assert function.call_one(4).get(PATIENCE) == 16
    assert value(remote(square, propagate="mocked")(x + 1), gpus=1).tolist() == [4, 4]


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


# -- arguments that cannot be sent ----------------------------------------------------


class Unreadable:
    """An object that no process can make of its pickle."""

    def __reduce__(self):
        return _raise, ("no such device",)


def _raise(text):
    raise OSError(text)


@remote(propagate=lambda x, *_: x)
def add_all(x, numbers=(), *_):
    return x + sum(numbers)


def test_what_cannot_be_pickled_is_raised_at_the_call_and_nothing_is_lost(pair):
    lock = threading.Lock()
    unsendable = remote(lambda x: (lock, x)[1], propagate=lambda x: x)
    with pair.activate():
        x = torch.ones(2)
        y = x + 1
        with pytest.raises(PickleError, match="add_all"):
            add_all(y, [1], lock)
        with pytest.raises(PickleError, match="lock"):
            unsendable(y)
        with pytest.raises(PickleError, match="lock"):
            unsendable(y)
        z = add_all(y, [1])
    assert value((y, z), gpus=1)[1].tolist() == [3, 3]


def test_an_argument_is_what_it_was_at_the_call(pair):
    numbers, array, local = [1], np.ones(2), torch.ones(())
    with pair.activate():
        results = [add_all(torch.ones(2), numbers), add_all(torch.ones(2), array), add_all(torch.ones(2), [local])]
        numbers.append(100)
        array.fill(100)
        local.fill_(100)
    assert [each.tolist() for each in value(results)] == [[2, 2], [3, 3], [2, 2]]


def test_an_argument_that_a_rank_cannot_read_fails_its_call_alone(pair):
    with pair.activate():
        x = torch.ones(2)
        failed, good = add_all(x, [1], Unreadable()), add_all(x, [1])
    assert value(good).tolist() == [2, 2]
    with pytest.raises(RemoteException, match="no such device") as caught:
        value(failed)
    assert caught.value.controller_frames[0].filename == __file__
