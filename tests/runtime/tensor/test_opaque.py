"""Python objects of the ranks as handles, and modules and functions whose backward runs there."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import mse_loss

from meshbook.runtime.tensor.lanes import OpaqueRef
from meshbook.runtime.tensor.opaque import (
    OpaqueModule,
    OpaqueObject,
    cached_remote_function,
    opaque_method,
    remote_autograd_function,
)
from meshbook.runtime.tensor.remote import function_resolvers, remote
from meshbook.runtime.tensor.trees import fetch_shard
from tests.support import PATIENCE


def value(tree, **dims):
    return fetch_shard(tree, **dims).get(PATIENCE)


class Total:
    """An object of a rank."""

    def __init__(self, start):
        self.total = start

    def add(self, x):
        self.total = self.total + x
        return self.total


class RemoteTotal(OpaqueObject):
    @opaque_method
    def add(self, x):
        return x


class Net(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        self.unused = torch.nn.Parameter(torch.ones(2))
        with torch.no_grad():  # the ranks of this process share one generator, so nothing is drawn
            for parameter in self.layers.parameters():
                parameter.copy_(torch.linspace(-scale, scale, parameter.numel()).view_as(parameter))

    def forward(self, x):
        return {"y": self.layers(x), "count": len(x)}


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3 * ctx.saved_tensors[0] ** 2 * ctx.scale, None


@pytest.mark.parametrize("propagate", ["inspect", lambda x: (OpaqueRef(), x)])
def test_a_reference_goes_from_one_function_to_another(pair, propagate):
    keep = remote(lambda x: (OpaqueRef({"x": x}), x + 1), propagate=propagate)
    with pair.activate():
        ref, y = keep(torch.ones(2) * pair.rank_tensor("gpus"))
        x = remote(lambda ref, y: ref.value["x"] + y, propagate=lambda ref, y: y)(ref, y)
    assert value(x, gpus=1).tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="on the ranks"):
        _ = ref.value


def test_the_ranks_drop_an_object_with_its_reference(pair):
    with pair.activate():
        ref = remote(lambda: OpaqueRef([1]), propagate=lambda: OpaqueRef())()
    engine = pair.device_mesh.engine
    engine.wait()
    before = engine.actors.count.call().get(PATIENCE)
    del ref
    with pair.activate():
        kept = torch.ones(1)  # its command takes the deletion along
    engine.wait()
    after = engine.actors.count.call().get(PATIENCE)
    assert kept.shape == (1,)
    assert list(before.values()) == list(after.values())


def test_a_reference_of_another_mesh_is_refused(pair, grid):
    with pair.activate():
        ref = remote(lambda: OpaqueRef(1), propagate=lambda: OpaqueRef())()
    for wrong in (ref, OpaqueRef(1)):
        with grid.activate(), pytest.raises(TypeError, match="no object of the ranks"):
            remote(lambda ref: None, propagate=lambda ref: None)(wrong)


def test_an_object_keeps_its_state(pair):
    with pair.activate():
        total = RemoteTotal(Total, 10)
        total.add(torch.ones(2))
        found = total.add(pair.rank_tensor("gpus") * torch.ones(2))
        again = total.call_method("add", lambda x: x, torch.zeros(2))
    assert value(found, gpus=1).tolist() == value(again, gpus=1).tolist() == [12, 12]
    with pair.activate(), pytest.raises(ValueError, match="no rule"):
        total.call_method("add", None, torch.zeros(2))


@pytest.mark.parametrize("propagate", ["inspect", lambda x: {"y": x[:, :1], "count": 5}])
def test_a_module_trains_on_the_ranks(pair, propagate):
    torch.manual_seed(1)
    x, y = torch.randn(5, 3), torch.randn(5, 1)
    local = Net(0.5)
    expected, gradients = [], []
    optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        first = x.clone().requires_grad_()
        loss = mse_loss(local(first)["y"], y)
        loss.backward()
        optimizer.step()
        expected.append((loss.item(), first.grad))
    with pair.activate():
        model = OpaqueModule(Net, 0.5)
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in local.named_parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, targets = pair.device_mesh.constant(x), pair.device_mesh.constant(y)
        for loss, gradient in expected:
            optimizer.zero_grad()
            first = inputs.clone().detach().requires_grad_()
            result = model(first, propagate=propagate)
            assert result["count"] == 5
            found = mse_loss(result["y"], targets)
            found.backward()
            optimizer.step()
            assert value(found, gpus=1).item() == pytest.approx(loss, rel=1e-5)
            gradients.append((first.grad, gradient))
        with torch.no_grad():
            assert not model(inputs)["y"].requires_grad
    for found, gradient in gradients:
        torch.testing.assert_close(value(found), gradient)
    torch.testing.assert_close(value(list(model.parameters())), [each.detach() for each in local.parameters()])


def test_an_autograd_function_runs_on_the_ranks(pair):
    cube = remote_autograd_function(Cube, propagate=lambda x, scale: x)
    with pair.activate():
        x = torch.arange(3.0).requires_grad_()
        cube.apply(x, 2.0).sum().backward()
    assert value(x.grad).tolist() == [0, 6, 24]


def test_functions_are_resolved(pair):
    function_resolvers.append(lambda function: "torch.sin" if function == "sine" or function is abs else None)
    try:
        with pair.activate():
            y = cached_remote_function(abs)(torch.ones(1))
    finally:
        function_resolvers.pop()
    assert value(y).item() == pytest.approx(torch.ones(1).sin().item())


def test_a_result_of_another_shape_fails(pair):
    with pair.activate():
        x = remote(lambda x: x[:1], propagate=lambda x: x)(torch.ones(3))
    with pytest.raises(Exception, match="propagation rule"):
        value(x)
