"""The global view over real processes: one tensor, sharded over the ranks, that looks local."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

import meshbook
from meshbook.runtime.actor.future import Future
from meshbook.runtime.hosts.session import close_session
from meshbook.runtime.tensor import random
from meshbook.runtime.tensor.distributing import distribute
from meshbook.runtime.tensor.failures import RemoteException
from meshbook.runtime.tensor.modules.proxies import module_to_mesh
from meshbook.runtime.tensor.sharded_mesh import Mesh
from meshbook.runtime.tensor.trees import fetch_shard, inspect, show
from tests.support import PATIENCE

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def mesh():
    made = Mesh(shape=(2, 2), dims=("data", "model"))
    yield made
    made.stop().get(PATIENCE)
    close_session()


@pytest.mark.parametrize(
    ("spec", "placements"),
    [
        (None, (Replicate(), Replicate())),
        (["data", None], (Shard(0), Replicate())),
        ([None, "data"], (Shard(1), Replicate())),
        (["model", "data"], (Shard(1), Shard(0))),
        ([("data", "model"), None], (Shard(0), Shard(0))),
        ([Partial(), Shard(-1)], (Partial(), Shard(1))),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(8, 4), (5, 3), (1, 2)], ids=str)
def test_a_distributed_tensor_has_its_value_and_placements(mesh, spec, placements, shape):
    local = torch.randn(shape)
    x = distribute(local, mesh, spec)
    local_copy = local.clone()
    local.zero_()
    assert x.placements == placements
    assert tuple(x.shape) == shape
    assert torch.equal(x.full_tensor(), local_copy)
    assert (x * 2).tolist() == (local_copy * 2).tolist()


@pytest.mark.parametrize(
    "placements",
    [[Shard(0), Replicate()], [Shard(1), Shard(0)], [Shard(0), Shard(0)], [Replicate(), Shard(1)]],
    ids=str,
)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_each_rank_is_sent_its_shard_only(mesh, monkeypatch, placements, is_transposed):
    local = (torch.arange(301 * 200) % 7).float().view(301, 200)
    local = local.t() if is_transposed else local
    sent: dict[int, int] = {}
    issue = mesh.engine.issue

    def count(lane, command, *rest):
        for rank in lane.ranks:
            nbytes = sum(each.nbytes for each in command if isinstance(each, torch.Tensor))
            sent[rank] = sent.get(rank, 0) + nbytes
        issue(lane, command, *rest)

    monkeypatch.setattr(mesh.engine, "issue", count)
    x = distribute(local, mesh, placements)
    monkeypatch.undo()
    shards = [fetch_shard(x, data=rank // 2, model=rank % 2).get(PATIENCE) for rank in range(4)]
    assert sent == {rank: shard.nbytes for rank, shard in enumerate(shards)}
    assert x.placements == tuple(placements)
    assert torch.equal(x.full_tensor(), local)
    assert x.stride() == local.stride()
    changed = x.add_(1)
    assert torch.equal((changed.t() @ x).full_tensor(), (local + 1).t() @ (local + 1))


def test_operations_look_local(mesh):
    local = torch.randn(7, 5)
    x = distribute(local, mesh, ["data", "model"])
    torch.testing.assert_close((x @ x.T).full_tensor(), local @ local.T)
    assert x.sum().item() == pytest.approx(local.sum().item(), rel=1e-5)
    assert np.array_equal(x.numpy(), local.numpy())
    assert x[3].tolist() == local[3].tolist()
    assert x.nonzero().shape == local.nonzero().shape
    x[1:3] += 1
    local[1:3] += 1
    assert torch.equal(x.full_tensor(), local)
    assert torch.equal(x.t_().full_tensor(), local.t())


def test_shards_of_ranks(mesh):
    x = distribute(torch.arange(10).view(5, 2), mesh, ["model", None])
    assert fetch_shard(x, data=1, model=0).get(PATIENCE).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert inspect(x, model=1).tolist() == [[6, 7], [8, 9]]
    assert show(x, model=1) == "tensor([[6, 7],\n        [8, 9]])"


def test_redistribute_changes_placements_alone(mesh):
    local = torch.randn(6, 4)
    x = distribute(local, mesh, ["data", None])
    y = x.redistribute([None, "model"])
    assert y.placements == (Replicate(), Shard(1))
    y.zero_()
    assert torch.equal(x.full_tensor(), local)
    assert x.redistribute().placements == (Replicate(), Replicate())
    assert distribute(x, mesh, [None, "data"]).placements == (Shard(1), Replicate())


def test_moves_between_sums(mesh):
    placements = list(itertools.product([Replicate(), Partial()], repeat=2))
    x = distribute(torch.tensor(3.0), mesh)
    for before, after in itertools.product(placements, placements):
        y = x.redistribute(before).redistribute(after)
        assert (y.item(), y.placements) == (3, after)


def test_data_of_other_kinds(mesh):
    assert distribute(np.arange(6).reshape(3, 2), mesh, ["data", None]).tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(TypeError, match="not list"):
        distribute([1, 2], mesh)
    with pytest.raises(TypeError, match="columns="):
        distribute(torch.ones(2), mesh, columns="a")


@pytest.fixture(params=["polars", "pandas", "pyarrow", "duckdb"])
def frame(request):
    module = pytest.importorskip(request.param)
    data = {"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "name": ["x", "y", "z"], "gap": [1.0, None, 2.0]}
    if request.param == "pyarrow":
        return module.table(data)
    if request.param == "duckdb":
        table = pytest.importorskip("pyarrow").table(data)
        return module.connect().from_arrow(table)
    return module.DataFrame(data)


def test_frames(mesh, frame):
    x = distribute(frame, mesh, ["data", None], columns=["a", "b"])
    assert x.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert distribute(frame, mesh, ["data"], columns="a").tolist() == [1, 2, 3]
    with pytest.raises(KeyError, match="no column 'c'"):
        distribute(frame, mesh, columns="c")
    with pytest.raises(TypeError, match="'name'"):
        distribute(frame, mesh, columns=["a", "name"])


def test_missing_values_are_refused(mesh):
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="1 missing"):
        distribute(pa.table({"a": [1, None]}), mesh)


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        (["rows", None], KeyError, "no dimension 'rows'"),
        (["data"], ValueError, "1 entries"),
        (["data", "data"], ValueError, "twice"),
        ([("model", "data"), None], ValueError, "order"),
        ("data", TypeError, "a list"),
        ([Shard(0)], ValueError, "1 placements"),
        ([Shard(2), Replicate()], ValueError, "does not have"),
        ([Partial("max"), Replicate()], ValueError, "not supported"),
        ([Shard(0), None], TypeError, "a placement is"),
    ],
    ids=str,
)
def test_bad_specs_raise_at_once(mesh, spec, error, text):
    with pytest.raises(error, match=text):
        distribute(torch.ones(4, 4), mesh, spec)


@pytest.mark.parametrize(
    ("shape", "dims", "text"),
    [((), (), "such as"), ((2, 2), ("a",), "2 different"), ((2, 2), ("a", "a"), "2 different"), ((0,), ("a",), "such")],
)
def test_bad_shapes_raise_before_processes_start(shape, dims, text):
    with pytest.raises(ValueError, match=text):
        Mesh(shape=shape, dims=dims)


def test_existing_processes_as_a_mesh(mesh):
    procs = mesh.procs
    flat = procs.as_device_mesh(dims=("all",), shape=(4,))
    assert procs.as_device_mesh(("all",), (4,)) is flat
    x = distribute(torch.arange(6.0), flat, ["all"])
    assert x.sum().item() == 15
    assert distribute(torch.arange(3), procs).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="4 processes"):
        procs.as_device_mesh(shape=(3,))
    with pytest.raises(TypeError, match="Incorrect arguments"):
        x + distribute(torch.arange(6.0), mesh)
    flat.exit()
    assert distribute(torch.ones(2), mesh).tolist() == [1, 1]


def test_views_cannot_be_mixed(mesh):
    with mesh.procs.activate():
        own = torch.ones(2)
    x = distribute(torch.ones(2), mesh)
    with pytest.raises(TypeError, match=r"(?s)Incorrect arguments.*per-rank view"):
        x + own
    with pytest.raises(TypeError, match=r"(?s)Incorrect arguments.*global view"):
        own + x
    with pytest.raises(TypeError, match="global view"):
        own.placements  # noqa: B018
    mesh.procs.device_mesh.exit()
    for collective in (lambda: x.reduce("data"), lambda: x.slice_mesh(data=0), lambda: x.to_mesh(mesh)):
        with pytest.raises(TypeError, match="per-rank view"):
            collective()
    with pytest.raises(NotImplementedError, match="whole mesh"):
        mesh.slice(data=0)
    with mesh.activate(), pytest.raises(TypeError, match="per-rank view"):
        random.get_state()


def test_local_tensors_are_treated_as_replicated_where_that_is_safe(mesh):
    local = torch.randn(4, 3)
    x = distribute(torch.ones(4, 3), mesh, ["data", None])
    assert torch.equal((x + local).full_tensor(), local + 1)
    assert torch.equal((local * x).full_tensor(), local)
    with pytest.raises(TypeError, match="would change"):
        local.add_(x)


def test_created_tensors_are_replicated_and_draw_what_one_process_draws(mesh):
    def draw():
        return [
            torch.rand(3, 4),
            torch.randn(20),
            torch.randperm(9),
            torch.zeros(5).bernoulli_(0.5),
            nn.Linear(2, 3).weight,
        ]

    for seed in (0, 0, 7):
        torch.manual_seed(seed)
        expected = draw()
        with mesh.activate():
            random.manual_seed(seed)
            drawn = draw()
        for one, other in zip(drawn, expected, strict=True):
            assert torch.equal(one.full_tensor(), other)
        assert drawn[0].placements == (Replicate(), Replicate())
    torch.manual_seed(3)
    x = distribute(torch.ones(6, 2), mesh, ["data", None])
    dropped = nn.functional.dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropped.full_tensor(), nn.functional.dropout(torch.ones(6, 2)))


def test_gradients_end_at_the_placements_of_their_parameters(mesh):
    local = nn.Linear(4, 2)
    inputs, targets = torch.randn(6, 4), torch.randn(6, 2)
    model = nn.Linear(4, 2)
    model.weight = distribute(local.weight, mesh, [None, "model"])
    model.bias = distribute(local.bias, mesh)
    assert isinstance(model.weight, nn.Parameter)
    x = distribute(inputs, mesh, ["data", None])
    nn.functional.mse_loss(local(inputs), targets).backward()
    nn.functional.mse_loss(model(x), targets).backward()
    for one, other in zip(model.parameters(), local.parameters(), strict=True):
        assert one.grad.placements == one.placements
        torch.testing.assert_close(one.grad.full_tensor(), other.grad)


def test_leaves_with_equal_gradients_do_not_share_them(mesh):
    def train(a, b):
        for _ in range(2):
            ((a + b) ** 2).sum().backward()
            nn.utils.clip_grad_norm_([a, b], 1.0)
        return a.grad, b.grad

    first, second = torch.randn(4, 2), torch.randn(4, 2)
    found = train(*(distribute(each, mesh, ["data", None]).requires_grad_() for each in (first, second)))
    for actual, expected in zip(found, train(first.requires_grad_(), second.requires_grad_()), strict=True):
        torch.testing.assert_close(actual.full_tensor(), expected)


def test_gradients_pass_through_moves(mesh):
    x = distribute(torch.arange(6.0, requires_grad=True), mesh, ["data"])
    whole = (x.redistribute(["model"]) * 2).full_tensor()
    (whole * torch.arange(6.0)).sum().backward()
    assert x.grad.tolist() == [0, 2, 4, 6, 8, 10]


def test_an_operation_that_fails_raises_at_the_fetch_and_spares_others(mesh):
    x = distribute(torch.eye(4), mesh, ["data", None])
    failed = x.index_select(0, torch.tensor([9]))
    with pytest.raises(RemoteException) as caught:
        failed.full_tensor()
    assert "test_an_operation_that_fails" in str(caught.value)
    assert x.sum().item() == 4


def test_the_facade_has_the_names():
    assert meshbook.Mesh is Mesh
    assert meshbook.distribute is distribute


def test_the_repr_summarizes_the_shards(mesh):
    x = distribute(torch.arange(10.0).view(5, 2), mesh, ["model", None])
    first, *lines = repr(x).splitlines()
    assert first == "MeshTensor(shape=(5, 2), dtype=torch.float32, mesh=(data=2, model=2))"
    assert [line.strip() for line in lines] == [
        "placements=(Replicate(), Shard(dim=0))",
        "ranks 0,2: [0:3, 0:2] mean 2.5, min 0, max 5",
        "ranks 1,3: [3:5, 0:2] mean 7.5, min 6, max 9",
    ]
    assert "2 of 4 are True" in repr(distribute(torch.tensor([True, False, True, False]), mesh))
    assert "ranks 2-3: [1:1, 0:2] empty" in repr(distribute(torch.ones(1, 2), mesh, ["data", None]))
    assert "failed: IndexError" in repr(x.index_select(0, torch.tensor([9])))
    assert str(x) == str(torch.arange(10.0).view(5, 2))
    assert f"{x.sum():.1f}" == "45.0"


def test_the_repr_does_not_wait_for_busy_ranks(mesh, monkeypatch):
    x = distribute(torch.ones(2), mesh)
    assert "placements" in repr(x)

    def time_out(future, timeout=None):
        assert timeout == 1.0
        raise TimeoutError

    monkeypatch.setattr(Future, "wait_here", time_out)
    assert "busy" in repr(x)


def test_a_heat_map_shows_the_shards(mesh):
    pytest.importorskip("matplotlib")
    picture = distribute(torch.randn(600, 3), mesh, ["data", "model"]).show()
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert [text.get_text() for text in picture.figure.axes[0].texts] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert distribute(torch.arange(5), mesh, ["model"]).show().figure.axes[0].images[0].get_array().shape == (1, 5)
    with pytest.raises(ValueError, match="1 or 2 dimensions"):
        distribute(torch.tensor(1.0), mesh).show()
    with mesh.procs.activate():
        ranks = torch.ones(2, 2) * mesh.procs.rank_tensor("ranks")
    titles = [axes.get_title() for axes in ranks.show().figure.axes]
    assert titles[:4] == ["ranks=0", "ranks=1", "ranks=2", "ranks=3"]
    mesh.procs.device_mesh.exit()


def gradient_of_lstm():
    torch.manual_seed(0)
    module = nn.LSTM(4, 4)
    module(torch.ones(3, 2, 4))[0].sum().backward()
    return module.weight_ih_l0.grad


def test_an_lstm_has_the_gradients_of_one_process(mesh):
    with mesh.activate():
        gradient = gradient_of_lstm()
    torch.testing.assert_close(gradient.full_tensor(), gradient_of_lstm())


def test_the_default_dtype_of_the_controller_holds_on_ranks(mesh):
    x = distribute(torch.ones(4, 2), mesh, ["data", None])
    before = [mesh.execute(torch.get_default_dtype), torch.rand(2).dtype]
    try:
        torch.set_default_dtype(torch.float64)
        with mesh.activate():
            made = [torch.full((2,), 0.1), torch.rand(2), torch.arange(3) / 7, nn.Linear(2, 2).weight.detach()]
        assert [(each.dtype, each.full_tensor().dtype) for each in made] == [(torch.float64, torch.float64)] * 4
        assert mesh.execute(lambda part: part * torch.ones(2), x).full_tensor().dtype is torch.float64
        assert module_to_mesh(lambda: nn.Linear(2, 2), mesh).weight.full_tensor().dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert [mesh.execute(torch.get_default_dtype), torch.rand(2).dtype] == before


def draw_with(generator, probabilities):
    yield torch.rand(5, generator=generator)
    yield torch.randperm(5, generator=generator)
    yield torch.zeros_like(probabilities).normal_(generator=generator)
    yield torch.bernoulli(probabilities, generator=generator)


def test_a_generator_draws_what_it_draws_locally(mesh):
    local, remote = (torch.Generator().manual_seed(7) for _ in range(2))
    probabilities = torch.full((5, 3), 0.5)
    expected = list(draw_with(local, probabilities))
    with mesh.activate():
        drawn = list(draw_with(remote, distribute(probabilities, mesh, ["data", None])))
    assert drawn[2].placements == (Shard(0), Replicate())
    for each, other in zip(drawn, expected, strict=True):
        assert torch.equal(each.full_tensor(), other)
