"""Operators on every rank: factories, views, changes in place, autograd, modules, optimizers."""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from meshbook.runtime.tensor.device_mesh import get_active_mesh, no_mesh
from meshbook.runtime.tensor.executor import Executor
from meshbook.runtime.tensor.groups import Groups
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.recordings import compile as record
from meshbook.runtime.tensor.tensor import MeshTensor
from meshbook.runtime.tensor.trees import fetch_shard, inspect, show
from tests.support import PATIENCE


def value(tree, **dims):
    return fetch_shard(tree, **dims).get(PATIENCE)


def test_each_rank_has_its_own_value(pair):
    with pair.activate():
        x = torch.ones(2, 3) * (pair.rank_tensor("gpus") + 1)
    assert isinstance(x, MeshTensor)
    assert x.shape == (2, 3)
    assert torch.equal(value(x), torch.ones(2, 3))
    assert torch.equal(value(x, gpus=1), torch.full((2, 3), 2.0))


def test_tensors_work_outside_of_the_block(pair):
    with pair.activate():
        x = torch.arange(4)
    y = x + x
    assert y.mesh is pair.device_mesh
    assert value(y).tolist() == [0, 2, 4, 6]


def test_views_share_their_memory(pair):
    with pair.activate():
        x = torch.zeros(2, 3)
    x[0].add_(1)
    x.t()[2].mul_(5)
    assert value(x).tolist() == [[1, 1, 5], [0, 0, 0]]


def test_a_view_in_place_changes_one_tensor_alone(pair):
    with pair.activate():
        x = torch.arange(6).view(2, 3)
    y = x.detach()
    y.t_()
    assert (x.shape, y.shape) == ((2, 3), (3, 2))
    assert torch.equal(value(x).t(), value(y))


def test_results_of_several_tensors(pair):
    with pair.activate():
        x = torch.tensor([[3.0, 1.0], [2.0, 5.0]])
    found, where = x.max(dim=1)
    assert (value(found).tolist(), value(where).tolist()) == ([3, 5], [0, 1])
    assert [value(part).tolist() for part in x.unbind()] == [[3, 1], [2, 5]]
    doubled = torch._foreach_mul([x, found], 2)
    assert value(doubled[1]).tolist() == [6, 10]


def test_numbers_change_without_a_new_plan(pair):
    with pair.activate():
        x = torch.zeros(3)
    x.add_(0.5)
    before = len(pair.device_mesh.engine.cache)
    for number in range(10):
        x.add_(number / 10, alpha=2)
        x = x * number if number % 2 else x + number
    assert len(pair.device_mesh.engine.cache) <= before + 3
    local = torch.zeros(3).add_(0.5)
    for number in range(10):
        local.add_(number / 10, alpha=2)
        local = local * number if number % 2 else local + number
    assert torch.equal(value(x), local)


def test_ranges_depend_on_their_numbers(pair):
    with pair.activate():
        lengths = [len(torch.arange(0, end)) for end in (2, 3.0, 4.5)]
        assert torch.arange(3.0).dtype is torch.float32
    assert lengths == [2, 3, 5]


def test_data_gives_shapes(pair):
    with pair.activate():
        x = torch.tensor([0.0, 2.0, 0.0, 4.0])
    assert x.nonzero().shape == (2, 1)
    assert value(x[x > 1]).tolist() == [2, 4]


def test_shapes_that_differ_between_ranks_are_refused(pair):
    with pair.activate():
        x = torch.arange(3) + pair.rank_tensor("gpus")
    with pytest.raises(RuntimeError, match="different shapes on different ranks"):
        x.nonzero()


def test_numbers_are_those_of_the_first_rank(pair):
    with pair.activate():
        x = torch.ones(()) * (pair.rank_tensor("gpus") + 3)
    assert x.item() == 3
    assert float(x) == 3
    assert bool(x > 2)
    assert x.tolist() == 3
    assert x.numpy() == 3


def test_the_value_of_a_number_is_known_here(pair):
    with pair.activate():
        step = torch.tensor(0.0)
    step += 1
    engine = pair.device_mesh.engine
    engine.describe = None  # asking the ranks would fail
    try:
        assert step.item() == 1
        assert (step * 2).item() == 2
    finally:
        del engine.describe


def test_a_known_number_that_ranks_change_is_asked_for(pair):
    with pair.activate():
        x = torch.tensor(1.0)
        alias = x.detach()
        other = torch.ones(()) * 4
    x.add_(other)
    assert x.item() == 5
    assert alias.item() == 5


def test_gradients_equal_local_ones(pair):
    weight = torch.arange(6.0).view(2, 3) / 6
    local = weight.clone().requires_grad_()
    (local.sin() @ local.t()).exp().sum().backward()
    with pair.activate():
        w = torch.tensor(weight.tolist(), requires_grad=True)
        (w.sin() @ w.t()).exp().sum().backward()
    assert torch.equal(value(w.grad), local.grad)


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))


@pytest.mark.parametrize(
    "options", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=["foreach", "loop", "fused"]
)
@pytest.mark.parametrize("is_active", [True, False])
def test_training_equals_local_training(pair, options, is_active):
    torch.manual_seed(1)
    local, x, y = mlp(), torch.randn(6, 4), torch.randn(6, 2)
    mesh = pair.device_mesh
    with mesh.activate():
        remote = mlp()
    state = {name: mesh.constant(parameter) for name, parameter in local.state_dict().items()}
    remote.load_state_dict(state)

    def train(model, x, y):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        losses = []
        for _ in range(4):
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            losses.append(loss.detach())
        return [loss.item() for loss in losses]

    expected = train(local, x, y)
    with mesh.activate() if is_active else no_mesh.activate():
        assert train(remote, mesh.constant(x), mesh.constant(y)) == pytest.approx(expected, rel=1e-5)
    for name, parameter in local.state_dict().items():
        assert torch.allclose(value(remote.state_dict()[name], gpus=1), parameter, rtol=1e-5)


def test_dropout_and_attention_run(pair):
    with pair.activate():
        x = torch.rand(1, 2, 4, 8)
        assert nn.functional.dropout(x, 0.5).shape == x.shape
        attention = nn.functional.scaled_dot_product_attention(x, x, x)
    local = nn.functional.scaled_dot_product_attention(*[value(x)] * 3)
    assert torch.allclose(value(attention), local)


def test_data_can_be_replaced(pair):
    with pair.activate():
        x, y = torch.zeros(2), torch.ones(2)
    x.data = y
    y.add_(1)
    assert value(x).tolist() == [2, 2]
    with pytest.raises(TypeError, match="same mesh"):
        x.data = torch.ones(2)


def test_a_deep_copy_has_its_own_value(pair):
    with pair.activate():
        model = nn.Linear(2, 2)
        twin = copy.deepcopy(model)
        with torch.no_grad():
            model.weight.zero_()
    assert value(twin.weight).any()


def test_repr_needs_no_value(pair):
    with pair.activate():
        x = torch.zeros(2, 3, requires_grad=True)
    assert repr(x) == "MeshTensor(shape=(2, 3), dtype=torch.float32, mesh=(gpus=2), requires_grad=True)"
    assert "grad_fn=<SumBackward0>" in repr(x.sum())


def test_a_tensor_cannot_be_pickled(pair):
    with pair.activate():
        x = torch.zeros(1)
    with pytest.raises(TypeError, match="fetch_shard"):
        copy.copy(x).__reduce_ex__(5)


# -- the active mesh ------------------------------------------------------------------


def test_the_innermost_mesh_is_active(pair, grid):
    with pytest.raises(ValueError, match="no mesh is active"):
        get_active_mesh()
    with pair.activate():
        with grid.activate() as inner:
            assert get_active_mesh() is inner is grid.device_mesh
            assert torch.zeros(1).mesh is inner
        assert get_active_mesh() is pair.device_mesh
        with no_mesh.activate():
            assert type(torch.zeros(1) + torch.tensor(1)) is torch.Tensor
            with pytest.raises(ValueError, match="no mesh"):
                get_active_mesh()


def test_local_tensors_stay_local(pair):
    local = torch.ones(3)
    with pair.activate():
        assert type(local * 2) is torch.Tensor
        assert type(torch.empty(3, device="meta")) is torch.Tensor


def test_a_slice_is_a_mesh(grid):
    with grid.device_mesh.slice(hosts=1).activate() as mesh:
        x = torch.zeros(2) + mesh.rank_tensor("gpus")
    assert mesh is grid.device_mesh(hosts=1)
    assert value(x, gpus=1).tolist() == [1, 1]


# -- values ---------------------------------------------------------------------------


def test_trees_are_fetched_at_once(grid):
    with grid.activate():
        tree = {"row": grid.rank_tensor("hosts"), "both": [grid.rank_tensor(["hosts", "gpus"]), 7]}
    assert value(tree, hosts=1, gpus=1) == {"row": torch.tensor(1), "both": [torch.tensor(3), 7]}
    assert fetch_shard(tree, {"hosts": 1}).result(PATIENCE)["both"][0] == 2
    assert inspect(tree["row"], hosts=1) == 1
    assert show(tree["row"]) == "tensor(0)"
    assert value("nothing of a mesh") == "nothing of a mesh"


def test_unknown_places_are_refused(pair):
    with pair.activate():
        x = torch.zeros(1)
    with pytest.raises(KeyError, match="hosts"):
        fetch_shard(x, hosts=0)
    with pytest.raises(IndexError):
        fetch_shard(x, gpus=2)


# -- lifetimes ------------------------------------------------------------------------


def count(procs):
    gc.collect()
    engine = procs.device_mesh.engine
    engine.wait()
    return [number for _, number in engine.actors.count.call().get(PATIENCE)]


def test_values_are_deleted_with_their_tensors(pair, monkeypatch):
    monkeypatch.setattr("meshbook.runtime.tensor.engine.IDLE_DELETES", 1)
    with pair.activate():
        before = count(pair)
        x = torch.zeros(3)
        y = x.detach()
        for _ in range(100):
            x = x + 1
        assert count(pair) == [n + 2 for n in before]
        del x, y
        assert count(pair) == before


def test_run_ahead_is_bounded(pair, monkeypatch):
    monkeypatch.setattr("meshbook.runtime.tensor.engine.AHEAD_COMMANDS", 500)
    engine = pair.device_mesh.engine
    most = 0
    with pair.activate():
        x = torch.zeros(3)
        for _ in range(3000):
            x = x + 1
            most = max(most, engine._ahead)
    assert 0 < most <= 500 + 2 * 257  # a batch is counted when it is sent
    assert value(x).tolist() == [3000] * 3


def test_metadata_of_ranks_with_different_gpus_is_equal():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.device("cuda:1"):
        second = torch.empty(2, 3)
    with FakeTensorMode():
        first = torch.empty(2, 3, device="cuda:0")
    assert first.device != second.device
    assert Meta.of(first) is Meta.of(second)
    assert Meta.of(first).device == torch.device("cuda")


def test_a_process_has_its_own_default_dtype_outside_of_commands():
    executor = Executor(0, Groups("other/0", timedelta(seconds=1), 0))
    executor.run(1, [("default_dtype", torch.float64)])
    torch.set_default_dtype(torch.float32)
    with executor.using_default_dtype(), executor.using_default_dtype():
        assert torch.get_default_dtype() is torch.float64
    assert torch.get_default_dtype() is torch.float32


@pytest.fixture
def strict_operator():
    """An operator whose rule for shapes refuses vectors, which its kernel accepts."""
    library = torch.library.Library("meshbook_tests", "FRAGMENT")
    library.define("double_all(Tensor x) -> (Tensor, Tensor)")

    def double_all(x):
        if x.shape[-1] == 7:
            raise ValueError("seven")
        return x * 2, x.new_zeros(x.dim(), dtype=torch.int64)

    def rule(x):
        if x.dim() == 1:
            raise RuntimeError("no vectors")
        return torch.empty_like(x), x.new_empty(x.dim(), dtype=torch.int64)

    library.impl("double_all", double_all, "CPU")
    library.impl("double_all", rule, "Meta")
    yield torch.ops.meshbook_tests.double_all
    library._destroy()


def test_a_rank_is_asked_about_shapes_that_torch_refuses(pair, strict_operator):
    with pair.activate():
        x = torch.arange(3.0)
    for _ in range(2):
        doubled, zeros = strict_operator(x)
        assert (doubled.shape, zeros.dtype) == ((3,), torch.int64)
        assert value(doubled).tolist() == [0, 2, 4]
    with pair.activate(), pytest.raises(RuntimeError, match="no vectors"):
        strict_operator(torch.arange(7.0))  # the rank refuses it as well
    with pair.activate(), pytest.raises(RuntimeError, match="reduction dim"):
        torch.ones(2, 3) @ torch.ones(2, 3)


# -- several threads ------------------------------------------------------------------


@pytest.fixture
def eager_threads():
    """Let threads take turns after a few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_in_threads(work, count=4):
    """Run `work(index)` in threads that begin together; return the results."""
    barrier = threading.Barrier(count)

    def begin(index):
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


class Yielding(Iterator[int]):
    """Counts, and lets another thread run after each number."""

    def __init__(self, start):
        self._numbers = itertools.count(start)

    def __next__(self):
        number = next(self._numbers)
        time.sleep(0)
        return number


def test_threads_share_a_mesh(make_procs, eager_threads):
    mesh = make_procs(gpus=2).device_mesh
    mesh.engine.ids = Yielding(next(mesh.engine.ids))

    def work(index):
        x = mesh.constant(torch.full((3, 1), float(index)))
        for size in range(1, 40):  # each size is another template
            x = x + 1
            parts = x.expand(3, size).contiguous().split(1)
            x = torch.cat(parts)[:, :1].add_(1)
        return value(x, gpus=1)

    for index, result in enumerate(run_in_threads(work)):
        assert result.flatten().tolist() == [index + 78.0] * 3


def test_threads_that_begin_together_have_one_engine(make_procs, eager_threads):
    procs = make_procs(gpus=1)
    first, *others = run_in_threads(lambda _: procs.device_mesh)
    assert all(each is first for each in others)


def test_a_recording_is_of_one_thread(pair):
    mesh = pair.device_mesh
    x = mesh.constant(torch.ones(2))

    def work(tensor):
        with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="records a function"):
            pool.submit(lambda: x + 5).result()
        return tensor + 1

    with mesh.activate():
        recorded = record(work)
        assert value(recorded(x)).tolist() == [2, 2]
        assert value(recorded(x)).tolist() == [2, 2]


def draw_with(generator):
    probabilities = torch.full((3, 4), 0.5)
    yield torch.rand(2, generator=generator)
    yield torch.randn(2, 3, generator=generator)
    yield torch.randperm(5, generator=generator)
    yield torch.randint(9, (4,), generator=generator)
    yield torch.empty((), dtype=torch.int64).random_(generator=generator)
    yield torch.nn.init.xavier_uniform_(torch.empty(3, 4), generator=generator)
    yield torch.bernoulli(probabilities, generator=generator)
    yield torch.multinomial(probabilities, 2, generator=generator)
    yield torch.normal(probabilities, 1.0, generator=generator)


def test_a_generator_draws_what_it_draws_locally(pair):
    local, remote = (torch.Generator().manual_seed(7) for _ in range(2))
    expected = list(draw_with(local))
    with pair.activate():
        drawn = list(draw_with(remote))
    for each, other in zip(drawn, expected, strict=True):
        assert torch.equal(value(each, gpus=1), other)
    assert torch.equal(remote.get_state(), local.get_state())
    with pair.activate():
        assert sorted(torch.randperm(5, generator=torch.default_generator).tolist()) == [0, 1, 2, 3, 4]


def test_a_data_loader_shuffles(pair):
    data = TensorDataset(torch.arange(8.0))
    orders = []
    for place in (contextlib.nullcontext(), pair.activate()):
        with place:
            generator = torch.Generator().manual_seed(1)
            batches = list(DataLoader(data, batch_size=4, shuffle=True, generator=generator))
            orders.append([each for (batch,) in batches for each in batch.tolist()])
            assert len(list(DataLoader(data, batch_size=4, shuffle=True))) == 2
            assert [len(each) for each in torch.utils.data.random_split(data, [3, 5])] == [3, 5]
    assert orders[0] == orders[1]


def test_a_view_changes_its_shape_in_place(pair):
    x = pair.device_mesh.constant(torch.arange(6.0).view(3, 2))
    row = x[1].unsqueeze_(0)
    assert row.shape == (1, 2)
    row.mul_(2)
    assert value((row, x), gpus=1)[1].tolist() == [[0, 1], [4, 6], [4, 5]]


def test_a_number_that_all_know_raises_its_error_once(pair):
    x, other = (pair.device_mesh.constant(torch.tensor(number)) for number in (3, 2))
    with pytest.raises(RuntimeError, match="ldexp"):
        x.ldexp_(other)
    assert value(x).item() == x.item() == 3
