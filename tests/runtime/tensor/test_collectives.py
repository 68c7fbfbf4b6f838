"""Operations between ranks: reduce, slices, copies to other meshes, coordinates."""

from __future__ import annotations

import functools

import pytest
import torch

from meshbook.runtime.tensor.failures import RemoteException
from meshbook.runtime.tensor.trees import fetch_shard
from tests.support import PATIENCE

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool]


def value(tree, **dims):
    return fetch_shard(tree, **dims).get(PATIENCE)


def own(procs, *dims):
    """Return a different tensor on each rank, and what the ranks have, as a function of their number."""

    def local(number):
        return (torch.arange(6).view(2, 3) * 7 + number * 3) % 11

    with procs.activate():
        number = procs.rank_tensor(dims)
        return (torch.arange(6).view(2, 3) * 7 + number * 3) % 11, local


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", ["sum", "product", "min", "max"])
def test_reductions(pair, reduction, dtype):
    x, local = own(pair, "gpus")
    parts = torch.stack([local(0), local(1)]).to(dtype)
    expected = {
        "sum": lambda: parts.sum(0, dtype=dtype),
        "product": lambda: parts.prod(0, dtype=dtype),
        "min": lambda: parts.amin(0),
        "max": lambda: parts.amax(0),
    }[reduction]()
    result = x.to(dtype).reduce("gpus", reduction)
    assert result.dtype is dtype
    for rank in range(2):
        assert torch.equal(value(result, gpus=rank), expected)


@pytest.mark.parametrize(
    ("reduction", "combine"),
    [("band", torch.bitwise_and), ("bor", torch.bitwise_or), ("bxor", torch.bitwise_xor)],
)
def test_bitwise_reductions(pair, reduction, combine):
    x, local = own(pair, "gpus")
    expected = functools.reduce(combine, [local(0), local(1)])
    assert torch.equal(value(x.reduce("gpus", reduction), gpus=1), expected)
    with pytest.raises(TypeError, match="integers"):
        x.float().reduce("gpus", reduction)


def test_averages_need_floating_point(pair):
    x, local = own(pair, "gpus")
    assert torch.equal(value(x.float().reduce("gpus", "avg")), (local(0) + local(1)) / 2)
    with pytest.raises(TypeError, match="floating point"):
        x.reduce("gpus", "avg")


def test_stacks(pair):
    x, local = own(pair, "gpus")
    gathered = x.reduce("gpus", "stack")
    assert torch.equal(value(gathered, gpus=1), torch.stack([local(0), local(1)]))
    exchanged = x.reduce("gpus", "stack", scatter=True)
    assert torch.equal(value(exchanged, gpus=1), torch.stack([local(0)[1], local(1)[1]]))


@pytest.mark.parametrize("reduction", ["sum", "avg"])
def test_scattered_reductions(pair, reduction):
    x, local = own(pair, "gpus")
    part = x.float().reduce("gpus", reduction, scatter=True)
    total = (local(0) + local(1)).float() / (2 if reduction == "avg" else 1)
    assert [value(part, gpus=rank).tolist() for rank in range(2)] == total.tolist()


def test_reductions_along_some_dimensions(grid):
    x, local = own(grid, "hosts", "gpus")
    assert torch.equal(value(x.reduce("gpus"), hosts=1, gpus=1), local(2) + local(3))
    assert torch.equal(value(x.reduce("hosts"), hosts=1, gpus=0), local(0) + local(2))
    everything = sum(map(local, range(4)))
    assert torch.equal(value(x.reduce(["hosts", "gpus"]), hosts=1, gpus=0), everything)
    assert torch.equal(value(x.reduce(), hosts=1, gpus=1), everything)


def test_reductions_into_a_tensor(pair):
    x, local = own(pair, "gpus")
    total = local(0) + local(1)
    out = torch.zeros_like(x)
    assert x.reduce("gpus", out=out) is out
    assert torch.equal(value(out), total)
    assert x.reduce_("gpus") is x
    assert torch.equal(value(x, gpus=1), total)


def test_a_view_is_reduced_in_place(pair):
    with pair.activate():
        x = torch.ones(2, 2)
    x[0].reduce_("gpus")
    assert value(x).tolist() == [[2, 2], [1, 1]]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("gpus", "median"), ValueError, "'median' is not valid"),
        ((["gpus", "hosts"], "stack"), ValueError, "is not valid for multiple dimensions"),
        ((["gpus", "gpus"],), ValueError, "repeated"),
        (("cores",), KeyError, "cores"),
    ],
)
def test_wrong_arguments(grid, arguments, error, text):
    x, _ = own(grid, "hosts")
    with pytest.raises(error, match=text):
        x.reduce(*arguments)


def test_more_wrong_arguments(grid):
    x, _ = own(grid, "hosts")
    with pytest.raises(ValueError, match="is not valid for multiple dimensions"):
        x.reduce(["gpus", "hosts"], scatter=True)
    with pytest.raises(ValueError, match="Reduce expects the shape"):
        x.reduce("gpus", out=x[0])
    with pytest.raises(TypeError, match="When scattering"):
        x.t().reduce("gpus", scatter=True)
    with pytest.raises(NotImplementedError, match="to_mesh"):
        x.reduce("gpus", mesh=grid)
    with pytest.raises(TypeError, match="requires grad"):
        x.float().requires_grad_().reduce("gpus")


def fail_on_rank_one(pair):
    """Return a tensor whose computation fails on the second rank alone."""
    with pair.activate():
        return torch.zeros(2).index_select(0, pair.rank_tensor("gpus").view(1) * 5)


@pytest.mark.parametrize("options", [{}, {"reduction": "stack"}, {"reduction": "bor"}])
def test_a_rank_that_has_failed_does_not_stop_the_others(pair, options):
    failed = fail_on_rank_one(pair).long().expand(2)
    assert value(failed).tolist() == [0, 0]
    for rank in range(2):
        with pytest.raises(RemoteException, match=r"out of (bounds|range)") as caught:
            value(failed.reduce("gpus", **options), gpus=rank)
        assert caught.value.rank == 1
        assert caught.value.controller_frames[0].name == "fail_on_rank_one"


# -- slices and copies ----------------------------------------------------------------


def test_a_slice_has_the_same_value(grid):
    x, local = own(grid, "hosts", "gpus")
    part = x.slice_mesh(hosts=1)
    assert part.mesh is grid.device_mesh(hosts=1)
    part.add_(1)
    assert torch.equal(value(part, gpus=1), local(3) + 1)
    assert torch.equal(value(x, hosts=1, gpus=1), local(3) + 1)
    assert torch.equal(value(x, hosts=0, gpus=1), local(1))
    with pytest.raises(KeyError):
        x.slice_mesh(cores=1)
    with pytest.raises(IndexError):
        x.slice_mesh(gpus=2)


def test_a_copy_goes_to_other_ranks(grid):
    x, local = own(grid, "hosts", "gpus")
    there = x.slice_mesh(hosts=0).to_mesh(grid.device_mesh(hosts=1))
    assert [torch.equal(value(there, gpus=rank), local(rank)) for rank in range(2)] == [True, True]
    everywhere = x.slice_mesh(gpus=1).to_mesh(grid)
    places = [(host, gpu) for host in range(2) for gpu in range(2)]
    assert all(torch.equal(value(everywhere, hosts=h, gpus=g), local(2 * h + 1)) for h, g in places)
    there.zero_()
    assert torch.equal(value(x), local(0))


def test_ranks_can_pass_values_around(grid):
    x, local = own(grid, "hosts", "gpus")
    upper, lower = x.slice_mesh(hosts=0), x.slice_mesh(hosts=1)
    for _ in range(3):
        upper, lower = lower.to_mesh(upper.mesh), upper.to_mesh(lower.mesh)
    assert torch.equal(value(upper, gpus=1), local(3))
    assert torch.equal(value(lower, gpus=0), local(0))


def test_a_copy_goes_to_another_process_mesh(pair, make_procs):
    x, local = own(pair, "gpus")
    others = make_procs(gpus=2)
    there = x.t().to_mesh(others)
    assert there.stride() == (1, 3)
    back = (there + 1).to_mesh(pair)
    assert torch.equal(value(back, gpus=1), local(1).t() + 1)


def test_a_failure_goes_along(grid):
    with grid.activate():
        x = torch.zeros(2).index_select(0, grid.rank_tensor("hosts").view(1) * 5)
    there = x.slice_mesh(hosts=1).to_mesh(grid.device_mesh(hosts=0))
    with pytest.raises(RemoteException, match=r"out of (bounds|range)"):
        value(there)


def test_shapes_that_do_not_fit(grid, pair):
    x, _ = own(grid, "hosts")
    with pytest.raises(ValueError, match="'hosts'"):
        x.to_mesh(pair)
    with pytest.raises(ValueError, match="'hosts'"):
        x.to_mesh(grid.device_mesh(hosts=0))


def test_coordinates(grid):
    assert value(grid.rank_tensors(), hosts=1) == {"hosts": torch.tensor(1), "gpus": torch.tensor(0)}
    assert value(grid.rank_tensor(["gpus", "hosts"]), hosts=0, gpus=1) == 2
    with pytest.raises(KeyError):
        grid.rank_tensor("cores")
    assert "hosts" in grid.device_mesh.to_table()
