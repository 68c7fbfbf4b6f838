"""Programs that DTensor alone gets wrong, or that need care; each is run on sharded and on plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from meshbook.runtime.tensor.sharded.operators import OperatorRefused, ShardedOperators
from tests.runtime.tensor.whole_tensor import full, shard

ROWS = 7  # uneven on all meshes with more than one rank
Trap = Callable[[Tensor, Tensor, Tensor], Tensor]


def loss(function: Callable[..., Tensor], **options: Any) -> Trap:
    return lambda x, y, index: function(x, y, **options)


def probability_loss(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    return F.binary_cross_entropy(x.sigmoid(), y.sigmoid().detach())


def write_to_row(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    z = x * 2
    z[3] = y[0]
    z[:, 1].mul_(y[:, 2])
    return (z * y).sum()


TRAPS: dict[str, Trap] = {
    "mse_loss": loss(F.mse_loss),
    "mse_loss of sums": loss(F.mse_loss, reduction="sum"),
    "smooth_l1_loss": loss(F.smooth_l1_loss),
    "huber_loss": loss(F.huber_loss, delta=0.5),
    "l1_loss": loss(F.l1_loss),
    "soft_margin_loss": lambda x, y, index: F.soft_margin_loss(x, y.sign().detach()),
    "binary_cross_entropy": probability_loss,
    "binary_cross_entropy_with_logits": lambda x, y, index: F.binary_cross_entropy_with_logits(x, y.sigmoid().detach()),
    "kl_div": lambda x, y, index: F.kl_div(x.log_softmax(1), y.softmax(1).detach(), reduction="batchmean"),
    "cross_entropy": lambda x, y, index: F.cross_entropy(x, index[:, 0], label_smoothing=0.1),
    "nll_loss with ignored rows": lambda x, y, index: F.nll_loss(x.log_softmax(1), index[:, 0], ignore_index=1),
    "cosine_embedding_loss": lambda x, y, index: F.cosine_embedding_loss(x, y, index[:, 0] % 2 * 2 - 1, margin=0.3),
    "mean": lambda x, y, index: (x * y).mean(),
    "mean of columns": lambda x, y, index: (x * y).mean(0).square().sum(),
    "sum of no listed dimensions": lambda x, y, index: (x * y).sum([]) + x.mean([]) + y.amax(()) + x.norm(-torch.inf),
    "var": lambda x, y, index: x.var() + (y.std(0) * x.var(1).sum()).sum(),
    "scatter": lambda x, y, index: (x.scatter(1, index[:, :1], y[:, :1]) * y).sum(),
    "scatter_add": lambda x, y, index: (x.scatter_add(0, index, y) * y).sum(),
    "scatter_reduce": lambda x, y, index: (x.scatter_reduce(0, index, y, "amax") * y).sum(),
    "gather": lambda x, y, index: (x.gather(0, index) * y).sum(),
    "index_add": lambda x, y, index: (x.index_add(0, index[:, 0], y) * y).sum(),
    "index_put": lambda x, y, index: (x.index_put((index[:, 0],), y, accumulate=True) * y).sum(),
    "write to a row": write_to_row,
    "cumsum": lambda x, y, index: (x.cumsum(0) * y).sum(),
    "cumsum from the end": lambda x, y, index: (x.cumsum(-1) * y).select(-1, 1).sum(),
    "cumprod": lambda x, y, index: (x.cumprod(0) * y).sum(),
    "median": lambda x, y, index: (x.median(0).values * y).sum(),
    "argmax": lambda x, y, index: x.argmax() + x.argmax(0).sum() + (x * y).sum(),
    "topk": lambda x, y, index: (x.topk(2, dim=0).values * y[:2]).sum(),
    "conv1d with sharded weights": lambda x, y, index: (
        F.conv1d(x[None], torch.ones(3, 7, 2, dtype=x.dtype) * x.mean(), y[0, :3]) ** 2
    ).sum(),
    "conv2d with sharded weights": lambda x, y, index: (F.conv2d(x[None, None], y[None, None, :3, :3]) ** 2).sum(),
    "adaptive_avg_pool2d": lambda x, y, index: (F.adaptive_avg_pool2d(x[None, None] * y, 2) ** 2).sum(),
    "norm": lambda x, y, index: torch.linalg.vector_norm(x) + torch.linalg.matrix_norm(y),
    "prod": lambda x, y, index: (x.prod(0) * y.prod(1)[:4]).sum(),
    "flatten": lambda x, y, index: (x.flatten() * y.t().flatten()).sum(),
    "embedding": lambda x, y, index: (F.embedding(index, x) * y[:, :, None]).sum(),
}


def inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(ROWS, 4, generator=generator), torch.randn(ROWS, 4, generator=generator)
    return x, y, torch.randint(0, 4, (ROWS, 4), generator=generator)


def compare_trap(mesh: DeviceMesh, name: str) -> list[str]:
    """Return the placements with which a trap's value or gradients differ from those in one process."""
    trap = TRAPS[name]
    operators = ShardedOperators(mesh)
    wrong = []
    for placements in layouts(mesh):
        x, y, index = inputs()
        plain = [x.requires_grad_(), y.requires_grad_()]
        value = trap(*plain, index)
        expected = [value.detach(), *torch.autograd.grad(value, plain, allow_unused=True)]
        x, y, index = (shard(one.detach(), placements, operators) for one in inputs())
        whole = [x.requires_grad_(), y.requires_grad_()]
        value = trap(*whole, index)
        gradients = torch.autograd.grad(value, whole, allow_unused=True)
        got = [None if one is None else full(one) for one in (value, *gradients)]
        if not all(map(is_close, got, expected)):
            wrong.append(f"{placements}: {got} instead of {expected}")
    return wrong


def is_close(got: Tensor | None, expected: Tensor | None) -> bool:
    if got is None or expected is None:
        return got is expected
    return torch.allclose(got, expected, rtol=1e-5, atol=1e-5)


def layouts(mesh: DeviceMesh) -> list[list[Placement]]:
    rows, columns, whole = Shard(0), Shard(1), Replicate()
    if mesh.ndim == 1:
        return [[rows], [columns]]
    return [[rows, columns], [rows, rows], [whole, rows]]


# -- single operators, as the engine calls them --------------------------------------------------


def backward_of_mse(mesh: DeviceMesh) -> bool:
    operators = ShardedOperators(mesh)
    x, y, _ = inputs()
    expected = torch.ops.aten.mse_loss_backward(torch.tensor(1.0), x, y, 1)
    sharded = [operators.distribute(one, [Shard(0)]) for one in (x, y)]
    got = operators.run(torch.ops.aten.mse_loss_backward.default, (torch.tensor(1.0), *sharded, 1))
    return torch.allclose(operators.full(got), expected) and got.placements == (Shard(0),)


def item_of_a_sum(mesh: DeviceMesh) -> float:
    operators = ShardedOperators(mesh)
    total = operators.run(torch.ops.aten.sum.default, (operators.distribute(torch.ones(ROWS), [Shard(0)]),))
    return float(operators.run(torch.ops.aten._local_scalar_dense.default, (total,)))


def random_values(mesh: DeviceMesh) -> bool:
    """Compare random operators with one process, after a rank drew numbers of its own."""
    torch.manual_seed(mesh.get_rank())
    aten = torch.ops.aten
    operators = ShardedOperators(mesh, seed=5)
    x = inputs()[0]
    sharded, whole = operators.distribute(x, [Shard(0)]), operators.distribute(x, [Replicate()])
    got = [
        operators.run(aten.rand_like.default, (sharded,)),
        operators.run(aten.randn.default, ([3, 4],)),
        operators.run(aten.native_dropout.default, (sharded, 0.5, True))[0],
        operators.run(aten.bernoulli_.float, (whole, 0.5)),
        operators.run(aten.normal_.default, (sharded, 1.0, 2.0)),
    ]
    torch.manual_seed(5)
    expected = [
        torch.rand_like(x),
        torch.randn(3, 4),
        torch.native_dropout(x, 0.5, True)[0],
        x.clone().bernoulli_(0.5),
        x.clone().normal_(1.0, 2.0),
    ]
    return all(torch.equal(operators.full(a), b) for a, b in zip(got, expected, strict=True))


def views_of_views(mesh: DeviceMesh) -> tuple[bool, bool, bool]:
    """Write to the base and to views of views; tell whether the others see it."""
    aten = torch.ops.aten
    operators = ShardedOperators(mesh)
    base = operators.distribute(torch.zeros(ROWS, 4), [Shard(0)])
    row = operators.run(aten.select.int, (base, 0, 2))
    entry = operators.run(aten.select.int, (row, 0, 1))
    operators.run(aten.fill_.Scalar, (entry, 3.0))
    wrote_up = float(operators.full(base)[2, 1]) == 3.0 and float(operators.full(row)[1]) == 3.0
    transposed = operators.run(aten.t.default, (base,))
    operators.run(aten.add_.Tensor, (transposed, torch.tensor(1.0)))
    wrote_down = float(operators.full(entry)) == 4.0
    stays_sharded = base.placements == (Shard(0),) and transposed.placements == (Shard(1),)
    return wrote_up, wrote_down, stays_sharded


def result_argument(mesh: DeviceMesh) -> str:
    """Write to a sharded `out=`; return how another shape is refused."""
    operators = ShardedOperators(mesh)
    x = operators.distribute(torch.ones(ROWS, 4), [Shard(0)])
    out = operators.distribute(torch.zeros(ROWS, 4), [Shard(1)])
    assert operators.run(torch.ops.aten.add.out, (x, x), {"out": out}) is out
    assert torch.equal(operators.full(out), torch.full((ROWS, 4), 2.0))
    assert out.placements == (Shard(1),)
    short = operators.distribute(torch.zeros(2), [Replicate()])
    text = refusal(mesh, "add.out", x, x, out=short)
    assert operators.full(short).shape == (2,)
    return text


def refusal(mesh: DeviceMesh, name: str, *args: Any, **kwargs: Any) -> str:
    packet, _, overload = name.partition(".")
    operators = ShardedOperators(mesh)
    args = args or (operators.distribute(torch.ones(ROWS, 4), [Shard(0)]), [2])
    try:
        operators.run(getattr(getattr(torch.ops.aten, packet), overload), args, kwargs)
    except OperatorRefused as error:
        return str(error)
    return "not refused"


def placements_of_results(mesh: DeviceMesh) -> dict[str, str]:
    """Return how the results of operators on a sharded batch are placed: what training uses stays sharded."""
    aten = torch.ops.aten
    operators = ShardedOperators(mesh)

    def batch(*shape: int) -> Any:
        return operators.distribute(torch.randn(shape), [Shard(0)])

    def whole(*shape: int) -> Any:
        return operators.distribute(torch.randn(shape), [Replicate()])

    x, images, queries = batch(8, 4), batch(8, 3, 6, 6), batch(8, 2, 5, 4)
    calls: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "addmm": (aten.addmm.default, (whole(5), x, whole(4, 5))),
        "mm for a weight's gradient": (aten.mm.default, (operators.run(aten.t.default, (x,)), x)),
        "gelu": (aten.gelu.default, (x,)),
        "softmax": (aten._softmax.default, (x, 1, False)),
        "layer_norm": (aten.native_layer_norm.default, (x, [4], whole(4), whole(4), 1e-5)),
        "conv2d": (
            aten.convolution.default,
            (images, whole(4, 3, 3, 3), whole(4), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        ),
        "batch_norm": (aten.native_batch_norm.default, (images, *[whole(3) for _ in range(4)], True, 0.1, 1e-5)),
        "max_pool2d": (aten.max_pool2d_with_indices.default, (images, [2, 2])),
        "attention": (aten._scaled_dot_product_flash_attention_for_cpu.default, (queries, queries, queries)),
        "embedding": (aten.embedding.default, (whole(4, 3), operators.distribute(torch.arange(8) % 4, [Shard(0)]))),
        "dropout": (aten.native_dropout.default, (x, 0.5, True)),
        "hardswish_backward": (aten.hardswish_backward.default, (x, x)),
        "cat": (aten.cat.default, ([x, x], 1)),
        "sort": (aten.sort.default, (x, 0)),
    }
    results = {}
    for name, (func, args) in calls.items():
        result = operators.run(func, args)
        first = result[0] if isinstance(result, (tuple, list)) else result
        results[name] = str(first.placements[0])
    return results


def empty_views(mesh: DeviceMesh) -> list[Any]:
    """Return shapes and placements of views of empty tensors, of DTensors alone and by the operators."""
    operators, results = ShardedOperators(mesh), []
    for shape, placement, wanted in EMPTY_VIEWS:
        whole = operators.distribute(torch.ones(shape), [placement])
        views = [operators.run(torch.ops.aten.view.default, (whole, list(wanted)))]
        if placement == Replicate() or shape[0] == wanted[0]:  # else torch asks for other placements
            views.append(whole.view(wanted))
        results += [(tuple(view.shape), tuple(operators.full(view).shape)) for view in views]
    return results


EMPTY_VIEWS = [
    ((0,), Replicate(), (0, 2)),
    ((0, 2), Replicate(), (0,)),
    ((4, 0), Shard(0), (2, 0, 2)),
    ((4, 0), Shard(0), (4, 2, 0)),
    ((3, 0, 2), Shard(2), (0, 5)),
    ((0, 4), Shard(0), (0, 4)),
    ((2, 0), Shard(1), (0, 7, 3)),
]
