"""The proxy of a module on a mesh behaves as the module: state, modes, gradients, randomness, errors."""

from __future__ import annotations

import copy
import logging
import os
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional

from meshbook.runtime.tensor.distributing import distribute
from meshbook.runtime.tensor.failures import RemoteException
from meshbook.runtime.tensor.modules.plans import matching_names
from meshbook.runtime.tensor.modules.proxies import module_to_mesh
from tests.runtime.tensor.modules.networks import MLP_SPLIT, Transformer, conv_net, mlp

pytestmark = pytest.mark.process
BATCH = ["data", None]


def same(actual, expected):
    torch.testing.assert_close(actual.full_tensor(), expected, rtol=1e-6, atol=1e-7)


def test_it_has_the_names_and_the_state_of_the_module(mesh):
    local = conv_net()
    model = module_to_mesh(local, mesh)
    assert [name for name, _ in model.named_modules()] == [name for name, _ in local.named_modules()]
    assert {name: each.shape for name, each in model.named_parameters()} == {
        name: each.shape for name, each in local.named_parameters()
    }
    assert all(isinstance(each, nn.Parameter) for each in model.parameters())
    assert list(model.state_dict()) == list(local.state_dict())
    for name, value in local.state_dict().items():
        same(model.state_dict()[name], value)
    assert repr(model).startswith("Sequential(\n  mesh={'data': 2, 'model': 2}, plan='replicate'\n  (0): Conv2d(1, 4,")
    other = conv_net()
    model.load_state_dict(other.state_dict())
    x = torch.randn(4, 1, 8, 8)
    same(model.eval()(x), other.eval()(x))
    assert not model[1].training


def test_shared_parameters_stay_shared(mesh):
    model = module_to_mesh(Transformer(), mesh, {"data": "fsdp"})
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.placements == (Shard(0), Replicate())


def test_a_function_makes_the_module_with_the_numbers_of_this_process(mesh):
    torch.manual_seed(3)
    local = mlp()
    torch.manual_seed(3)
    model = module_to_mesh(mlp, mesh, MLP_SPLIT)
    for parameter, other in zip(model.parameters(), local.parameters(), strict=True):
        same(parameter.detach(), other.detach())
    assert model[2].weight.placements == (Replicate(), Shard(1))
    x = torch.randn(4, 6)
    same(model(x).detach(), local(x).detach())


def test_modes_and_batch_statistics_follow_the_controller(mesh):
    local = conv_net()
    model = module_to_mesh(local, mesh)
    x = torch.randn(7, 1, 8, 8) * 3 + 1
    sharded = distribute(x, mesh, ["data", None, None, None])
    same(model(sharded).detach(), local(x).detach())
    same(model[1].running_mean, local[1].running_mean)
    same(model[1].running_var, local[1].running_var)
    assert model[1].num_batches_tracked.item() == 1
    local.eval()
    model.eval()
    with torch.no_grad():
        same(model(sharded), local(x))


def test_gradients_of_inputs_and_of_parts(mesh):
    local = mlp()
    model = module_to_mesh(local, mesh, {"data": "fsdp"})
    local[0].requires_grad_(False)
    model[0].requires_grad_(False)
    x = torch.randn(5, 6)
    sharded = distribute(x, mesh, BATCH).requires_grad_()
    x.requires_grad_()
    for _ in range(2):  # they are added up
        local(x).square().mean().backward()
        model(sharded).square().mean().backward()
    same(sharded.grad, x.grad)
    assert model[0].weight.grad is None
    same(model[2].weight.grad, local[2].weight.grad)
    found = torch.autograd.grad(model(sharded).sum(), [model[2].bias])[0]
    same(found, torch.full((3,), 5.0))
    model.zero_grad()
    assert model[2].weight.grad is None


def test_a_graph_is_used_again_only_if_it_is_retained(mesh):
    model = module_to_mesh(mlp(), mesh)
    loss = model(torch.ones(2, 6)).sum()
    loss.backward(retain_graph=True)
    first = model[2].weight.grad.full_tensor()
    loss.backward()
    torch.testing.assert_close(model[2].weight.grad.full_tensor(), 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_several_forwards_before_a_backward(mesh):
    local = mlp()
    model = module_to_mesh(local, mesh)
    one, other = torch.randn(4, 6), torch.randn(4, 6)
    (local(one) * local(other)).sum().backward()
    (model(distribute(one, mesh, BATCH)) * model(distribute(other, mesh, BATCH))).sum().backward()
    same(model[0].weight.grad, local[0].weight.grad)


def test_dropout_draws_what_one_process_draws_if_the_batch_is_whole(mesh):
    local = Transformer(dropout=0.5)
    model = module_to_mesh(local, mesh)
    x = torch.randint(0, 12, (4, 5))
    torch.manual_seed(5)
    expected = local(x), local(x)
    torch.manual_seed(5)
    got = model(x), model(x)
    same(got[0].detach(), expected[0].detach())
    same(got[1].detach(), expected[1].detach())


def test_dropout_of_a_sharded_batch_differs_between_its_parts_and_calls(mesh):
    model = module_to_mesh(nn.Dropout(0.5), mesh)
    x = distribute(torch.ones(8, 64), mesh, BATCH)
    torch.manual_seed(5)
    first, second = model(x).full_tensor(), model(x).full_tensor()
    assert not torch.equal(first[:4], first[4:])
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(model(x).full_tensor(), first)


def test_clipping_schedules_and_mixed_precision(mesh):
    torch.manual_seed(0)
    local = mlp()
    model = module_to_mesh(local, mesh, {"data": "fsdp", "model": MLP_SPLIT})
    x, y = torch.randn(8, 6), torch.randn(8, 3)

    def train(model, x, y):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        results = []
        for _ in range(3):
            loss = functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
            results += [loss.item(), norm.item()]
        return results

    sharded = [distribute(each, mesh, BATCH) for each in (x, y)]
    assert train(model, *sharded) == pytest.approx(train(local, x, y), rel=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        result, expected = model(sharded[0]), local(x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.full_tensor(), expected, rtol=2e-2, atol=2e-2)


def test_conversion_and_calls_of_parts(mesh):
    local = mlp()
    model = module_to_mesh(local, mesh).double()
    local.double()
    assert model[0].weight.dtype == torch.float64
    x = distribute(torch.randn(4, 6, dtype=torch.float64), mesh, BATCH)
    same(model[2](model[1](model[0](x))).detach(), local(x.full_tensor()).detach())
    assert model.float() is model
    same(model(x.float()).detach(), local.float()(x.full_tensor().float()).detach())
    with pytest.raises(RuntimeError, match="stays on its ranks"):
        model.to("meta")


class Several(nn.Module):
    def forward(self, x, *, scale=1.0, index=None):
        return {"rows": x * scale, "list": [x.argmax(1), None, "word"], "index": index}


def test_arguments_and_results_are_trees(mesh):
    model = module_to_mesh(Several(), mesh)
    x = torch.randn(5, 3)
    for given in (x, distribute(x, mesh, BATCH), distribute(x, mesh, [None, "data"])):
        result = model(given, scale=2.0)
        same(result["rows"], x * 2)
        assert result["list"][0].tolist() == x.argmax(1).tolist()
        assert result["list"][1:] == [None, "word"]
    assert model(x)["rows"].placements == (Replicate(), Replicate())
    assert model(distribute(x, mesh, BATCH))["rows"].placements == (Shard(0), Replicate())


class MeanLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x, y):
        return functional.mse_loss(self.linear(x), y)


def test_a_mean_over_the_batch_is_refused_or_weighted(mesh):
    local, x, y = MeanLoss(), torch.randn(5, 3), torch.randn(5, 2)
    sharded = [distribute(each, mesh, BATCH) for each in (x, y)]
    with pytest.raises(RemoteException, match="outputs='mean'"):
        module_to_mesh(local, mesh)(*sharded)
    model = module_to_mesh(local, mesh, outputs="mean")
    loss, expected = model(*sharded), local(x, y)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    expected.backward()
    same(model.linear.weight.grad, local.linear.weight.grad)


class Unlucky(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        if x.shape[0] == 2 and os.environ["RANK"] == "3":
            raise ValueError("this rank has bad luck")
        return self.linear(x)


def test_an_error_on_one_rank_is_raised_with_the_line_and_the_module_stays_usable(mesh):
    model = module_to_mesh(Unlucky(), mesh)
    with pytest.raises(RemoteException, match="bad luck") as caught:
        model(torch.ones(2, 2))
    assert caught.value.rank == 3
    assert caught.value.controller_frames[-1].filename == __file__
    model(torch.ones(3, 2)).sum().backward()
    assert model.linear.bias.grad.tolist() == [3.0, 3.0]


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x, self.calls


def test_results_that_change_are_refused_or_asked_for(mesh):
    model = module_to_mesh(Growing(), mesh)
    x = torch.ones(2)
    assert model(x)[1] == 1
    with pytest.raises(RemoteException, match="propagate='inspect'"):
        model(x)[0].full_tensor()
    model = module_to_mesh(Growing(), mesh, propagate="inspect")
    assert [model(x)[1] for _ in range(3)] == [1, 2, 3]


def test_assignments_reach_the_ranks_or_are_refused(mesh):
    local = conv_net()
    model = module_to_mesh(local, mesh)
    local[0].weight.data = local[0].weight.data * 2
    model[0].weight.data = model[0].weight.data * 2
    x = torch.randn(4, 1, 8, 8)
    same(model.eval()(x).detach(), local.eval()(x).detach())
    with pytest.raises(TypeError, match="the same shape and dtype"):
        model[0].weight.data = model[0].weight.data.double()
    with pytest.raises(RuntimeError, match="running_mean cannot be replaced"):
        model[1].running_mean = model[1].running_var


def test_a_part_is_called_before_the_whole_module(mesh):
    local = mlp()
    model = module_to_mesh(local, mesh, {"data": ("fsdp", ["0", "2"])})
    x = torch.randn(4, 6)
    same(model[0](x).detach(), local[0](x).detach())
    same(model(x).detach(), local(x).detach())


class Last(nn.Module):
    def forward(self, x):
        return x[:, -1]


def test_a_slice_of_the_output_with_changing_placements(mesh):
    model = module_to_mesh(nn.Sequential(nn.Linear(3, 3), Last()), mesh)
    x = torch.randn(4, 2, 3)
    expected = model(x).detach().full_tensor()
    same(model(distribute(x, mesh, ["data", None, None])).detach(), expected)


@pytest.mark.parametrize(
    ("plan", "error", "text"),
    [
        ("ddp", ValueError, "'replicate', 'fsdp'"),
        ({"date": "fsdp"}, KeyError, "no dimension"),
        ({"data": "fsdp", "model": "fsdp"}, ValueError, "one dimension"),
        ({"data": ("fsdp", "layers.*")}, TypeError, "list of names"),
        ({"0": "columns"}, ValueError, "colwise"),
        ({"first": "colwise"}, RemoteException, "the module has: 0, 1, 2"),
    ],
)
def test_plans_that_do_not_fit(mesh, plan, error, text):
    with pytest.raises(error, match=text):
        module_to_mesh(mlp(), mesh, plan)


def test_what_cannot_work_says_so(mesh):
    model = module_to_mesh(mlp(), mesh)
    with pytest.raises(RuntimeError, match="hooks of '0'"):
        model[0].register_forward_hook(print)
    with pytest.raises(RuntimeError, match="cannot be replaced"):
        model[0].weight = nn.Parameter(torch.ones(1))
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(model)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(model)
    with pytest.raises(TypeError, match="requires grad"):
        model(torch.ones(2, 6, requires_grad=True))
    with pytest.raises(TypeError, match="on a mesh already"):
        module_to_mesh(model, mesh)
    with pytest.raises(TypeError, match="takes a module"):
        module_to_mesh(3, mesh)
    with pytest.raises(RemoteException, match="leaves some ranks without any"):
        model(distribute(torch.ones(1, 6), mesh, BATCH))
    with pytest.raises(RemoteException, match="leaves an output sharded"):
        module_to_mesh(mlp(), mesh, {"2": "colwise"})(torch.ones(2, 6))


class CausalEncoder(nn.Module):
    """Its layers read a value of the mask."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        factor = self.scale.item()
        assert factor
        return self.body(x, mask=mask).transpose(0, 1) * factor


def test_a_module_that_reads_values_is_run_on_a_rank_to_find_the_batch(mesh):
    local, x = CausalEncoder(), torch.randn(5, 3, 8)
    for plan in ("replicate", {"data": "fsdp"}):
        model = module_to_mesh(local, mesh, plan)
        output = model(distribute(x, mesh, ["data", None, None]))
        assert output.placements == (Shard(1), Replicate())
        torch.testing.assert_close(output.full_tensor().detach(), local(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_module_with_parametrizations_trains(mesh):
    local = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    model = module_to_mesh(local, mesh)
    assert list(model.state_dict()) == list(local.state_dict())
    x = torch.randn(5, 3)
    model(distribute(x, mesh, BATCH)).square().mean().backward()
    local(x).square().mean().backward()
    for parameter, other in zip(model.parameters(), local.parameters(), strict=True):
        same(parameter.grad, other.grad)


def test_a_star_of_a_plan_stands_for_one_part_of_a_name():
    module = nn.ModuleDict({"layer": nn.ModuleList([nn.ModuleDict({"a": nn.ModuleDict({"up": nn.Linear(1, 1)})})])})
    module.layer[0]["up"] = nn.Linear(1, 1)
    assert matching_names(module, ["layer.*.up"]) == ["layer.0.up"]
    assert matching_names(module, ["layer.*.*.u?", "layer.*.up"]) == ["layer.0.a.up", "layer.0.up"]
    with pytest.raises(ValueError, match="one part of a name"):
        matching_names(module, ["*.up"])


def fake_log_level():
    return logging.getLogger("torch._subclasses.fake_tensor").getEffectiveLevel()


def test_ranks_do_not_log_what_fake_tensors_raise(mesh):
    model = module_to_mesh(mlp(), mesh, {"model": MLP_SPLIT})
    with pytest.raises(RemoteException):
        model(torch.randn(4, 5))
    assert mesh.execute(fake_log_level) > logging.ERROR
