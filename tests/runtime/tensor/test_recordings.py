"""Commands that are held back, recorded and replayed; backward as a generator; random numbers of the ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from meshbook.runtime.tensor import random
from meshbook.runtime.tensor.device_mesh import no_mesh
from meshbook.runtime.tensor.failures import RemoteException
from meshbook.runtime.tensor.gradients import grad_function, grad_generator
from meshbook.runtime.tensor.recordings import coalescing
from meshbook.runtime.tensor.recordings import compile as record
from meshbook.runtime.tensor.trees import fetch_shard
from tests.support import PATIENCE


def value(tree, **dims):
    return fetch_shard(tree, **dims).get(PATIENCE)


def test_commands_are_held_back(pair):
    with pair.activate():
        x = torch.ones(2)
        value(x)
        engine = pair.device_mesh.engine
        with coalescing():
            before = engine._next
            for _ in range(600):
                x = x + 1
            with pytest.raises(NotImplementedError, match="coalescing"):
                fetch_shard(x)
            assert engine._next == before
        assert value(x).tolist() == [601, 601]
    with pytest.raises(ValueError, match="no mesh is active"), coalescing():
        pass


def test_a_recording_is_one_command(pair):
    calls = []

    @record
    def work(x, y, scale=2):
        calls.append(scale)
        z = (x * scale + y).reduce("gpus")
        return {"z": z, "scale": scale}

    with pair.activate():
        rank = pair.rank_tensor("gpus")
        for number in range(4):
            x, y = torch.ones(3) * number, torch.ones(3) * rank
            pair.device_mesh.engine.wait()
            before = pair.device_mesh.engine._next
            result = work(x, y)
            pair.device_mesh.engine.wait()
            if number:
                assert pair.device_mesh.engine._next <= before + 2  # the replay, and deletes
            assert value(result["z"], gpus=1).tolist() == [4 * number + 1] * 3
        assert calls == [2]
        assert value(work(x, y, scale=1)["z"]).tolist() == [7] * 3
        assert value(work(x.double(), y)["z"]).dtype is torch.float64
    assert calls == [2, 1, 2]


def test_a_default_dtype_that_is_set_before_a_recording(pair):
    work = record(lambda x: x + torch.ones(2))
    with pair.activate():
        x = torch.zeros(2)
        torch.set_default_dtype(torch.float64)
        try:
            results = [work(x) for _ in range(2)]
        finally:
            torch.set_default_dtype(torch.float32)
        results.append(work(x))
    assert [value(result).dtype for result in results] == [torch.float64] * 2 + [torch.float32]


def test_a_view_of_a_tensor_that_is_dropped(pair):
    mesh = pair.device_mesh
    mirrored = record(lambda x: (x + 1).t())
    with mesh.activate():
        for start in (1.0, 2.0):
            result = mirrored(torch.full((2, 3), start) + mesh.rank_tensor("gpus"))
            assert value(result, gpus=1).tolist() == [[start + 2] * 2] * 3


def test_results_of_replays_are_apart(pair):
    work = record(lambda x: (x + 1, x))
    with pair.activate():
        x = torch.zeros(2)
        results = [work(x + number) for number in range(3)]
        inner, same = work(x)
    assert [value(first)[0] for first, _ in results] == [1, 2, 3]
    assert same is x
    assert value(inner).tolist() == [1, 1]


def test_inputs_and_parameters_change_in_replays(pair):
    with pair.activate():
        total = torch.zeros(2)

        @record
        def add(x):
            total.add_(x)
            x.zero_()

        for _ in range(3):
            x = torch.ones(2)
            add(x)
            assert value(x).tolist() == [0, 0]
        assert value(total).tolist() == [3, 3]


def test_inputs_that_are_the_same_are_distinguished(pair):
    work = record(lambda x, y: x.mul_(2) + y)
    with pair.activate():
        for _ in range(2):
            x, y = torch.ones(2), torch.ones(2)
            assert value(work(x, y)).tolist() == [3, 3]
            assert value(work(y, y)).tolist() == [4, 4]


def test_a_whole_training_step(pair):
    mesh = pair.device_mesh
    torch.manual_seed(0)
    local, x, y = nn.Linear(4, 2), torch.randn(8, 4), torch.randn(8, 2)
    with mesh.activate():
        model = nn.Linear(4, 2)
    model.load_state_dict({name: mesh.constant(each) for name, each in local.state_dict().items()})

    def make_step(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x, y):
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    expected = [step_loss.item() for step in [make_step(local)] for step_loss in [step(x, y) for _ in range(6)]]
    with mesh.activate():
        step = make_step(model)
        inputs = mesh.constant(x), mesh.constant(y)
        losses = [step(*inputs).item()]  # makes the optimizer's state
        recorded = record(step)
        losses += [recorded(*inputs).item() for _ in range(5)]
    assert losses == pytest.approx(expected, rel=1e-5)


def test_what_cannot_be_recorded(pair):
    kept = []
    with pair.activate():
        x = torch.ones(2)
        with pytest.raises(RuntimeError, match="does not return"):
            record(lambda x: kept.append(x + 1))(x)
        with pytest.raises(RuntimeError, match="cannot fetch values"):
            record(lambda x: x.sum().item())(x)
        with no_mesh.activate():
            local = torch.ones(2)
        with pytest.raises(RuntimeError, match="local tensor"):
            record(lambda x: (local.add_(1), x + 1)[1])(x)
        with pytest.raises(TypeError, match="requires grad"):
            record(lambda x: x)(x.clone().requires_grad_())
        with pytest.raises(NotImplementedError, match="copies between meshes"):
            record(lambda x: x.to_mesh(pair))(x)
        assert value(x + 1).tolist() == [2, 2]
    with pytest.raises(ValueError, match="active mesh"):
        record(lambda x: x)(x)


def test_a_failure_in_a_replay_has_the_line_of_its_call(pair):
    pick = record(lambda x, index: x.index_select(0, index))
    with pair.activate():
        x = torch.ones(3)
        pick(x, torch.tensor([1]))
        failed = pick(x, torch.tensor([7]))
        with pytest.raises(RemoteException, match="out of range") as caught:
            value(failed)
        assert caught.value.controller_frames[0].name == "test_a_failure_in_a_replay_has_the_line_of_its_call"
        assert value(pick(x, torch.tensor([2]))).tolist() == [1]


# -- gradients one by one -------------------------------------------------------------


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))


@pytest.mark.parametrize("order", [1, -1])
def test_gradients_come_one_by_one(pair, order):
    mesh = pair.device_mesh
    local, x = network(), torch.randn(5, 4)

    def loss_of(model, x):
        left, right = (model(x) ** 2).split(1, dim=1)
        return (left * right).sum() + model[0].weight.sum()

    expected = torch.autograd.grad(loss_of(local, x), list(local.parameters()))
    with mesh.activate():
        model = network()
        model.load_state_dict({name: mesh.constant(each) for name, each in local.state_dict().items()})
        loss = loss_of(model, mesh.constant(x))
        unused = torch.zeros(1, requires_grad=True)
        wanted = [*list(model.parameters())[::order], unused]
        gradients = list(grad_generator(loss, wanted))
    assert gradients.pop() is None
    for gradient, other in zip(gradients, expected[::order], strict=True):
        assert torch.allclose(value(gradient), other, rtol=1e-5, atol=1e-6)


def test_roots_with_gradients_of_their_own():
    x = torch.arange(3.0, requires_grad=True)
    (gradient,) = grad_generator([x * 2, x * x], [x], [torch.ones(3)])
    assert gradient.tolist() == [2, 4, 6]
    with pytest.raises(RuntimeError, match="require grad"):
        next(grad_generator(torch.ones(1), [x]))


def test_a_function_with_a_backward_of_its_own(pair):
    @grad_function
    def scale(tensors, factor):
        def backward(doubled, summed):
            assert summed is None
            return doubled * factor, torch.ones_like(tensors["y"])

        return {"doubled": tensors["x"] * factor, "sum": tensors["y"].sum(), "factor": factor}, backward

    with pair.activate():
        x, y = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
        result = scale({"x": x, "y": y}, 3)
        assert result["factor"] == 3
        result["doubled"].sum().backward()
        assert value([result["doubled"], result["sum"]])[1].item() == 3
        assert [each.tolist() for each in value([x.grad, y.grad])] == [[3, 3], [1, 1, 1]]
        (gradient,) = grad_generator(scale({"x": x, "y": y}, 4)["doubled"].sum(), [x])
        assert value(gradient).tolist() == [4, 4]


class Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, factor, x, unused, y):
        ctx.factor = factor
        return x * factor, y * factor

    @staticmethod
    def backward(ctx, to_x, to_y):
        return None, to_x * ctx.factor, None, to_y * ctx.factor


def test_gradients_through_a_function_of_autograd(pair):
    with pair.activate():
        x, y, z = (torch.ones(2, requires_grad=True) for _ in range(3))
        first, _ = Split.apply(3, x.square(), torch.ones(2), y)
        gradients = list(grad_generator(first.sum(), [x, y, z]))
        assert gradients.pop() is None
        assert [each.tolist() for each in value(gradients)] == [[6, 6], [0, 0]]


# -- random numbers -------------------------------------------------------------------


def test_a_state_brings_the_numbers_back(make_procs):
    # One rank: the ranks of these tests are threads, which share the generator of the process.
    procs = make_procs(gpus=1)
    with procs.activate():
        random.manual_seed(3)
        state = random.get_state()
        first = value(torch.rand(4))
        random.set_state(state)
        assert torch.equal(value(torch.rand(4)), first)
        random.set_state(random.new_state(3))
        assert torch.equal(value(torch.rand(4)), first)
    with pytest.raises(ValueError, match="no mesh"):
        random.manual_seed(1)
