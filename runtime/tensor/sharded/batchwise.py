"""Operators that treat the entries of a batch separately: each rank runs them on its local entries.

Convolutions, pooling, interpolation, attention. The batch is dimension 0, or more dimensions where the table says so.
Arguments without a batch, such as weights, are replicated; their gradients are sums over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from meshbook.runtime.tensor.sharded.placing import can_shard, dense_stride, local_of, redistribute


@dataclass(frozen=True)
class Batchwise:
    """How the arguments and results of one operator relate to the batch."""

    arguments: tuple[str, ...]  # the names of the arguments that have the batch; the first one decides
    results: tuple[str, ...] = ("batch",)  # of each result: "batch", or "sum" over the batch
    inner: int = 0  # so many last dimensions are no batch; 0: the batch is dimension 0 alone
    sizes: str = ""  # the name of an argument that is the shape of a result
    count: str = ""  # the name of an argument that is the size of the batch

    def batch_dims(self, ndim: int) -> int:
        return ndim - self.inner if self.inner else 1


def _pool(inner: int, results: int = 1) -> Batchwise:
    return Batchwise(("self",), ("batch",) * results, inner)


def _pool_backward(inner: int, *others: str) -> Batchwise:
    return Batchwise(("grad_output", "self", *others), inner=inner)


def _resize_backward(inner: int) -> Batchwise:
    return Batchwise(("grad_output",), inner=inner, sizes="input_size")


_ATTENTION = ("query", "key", "value", "attn_mask")

BATCHWISE: dict[str, Batchwise] = {
    "convolution": Batchwise(("input",)),
    "convolution_backward": Batchwise(("grad_output", "input"), ("batch", "sum", "sum")),
    "native_group_norm": Batchwise(("input",), ("batch", "batch", "batch"), count="N"),
    "native_group_norm_backward": Batchwise(("grad_out", "input", "mean", "rstd"), ("batch", "sum", "sum"), count="N"),
    "_scaled_dot_product_flash_attention_for_cpu": Batchwise(_ATTENTION, ("batch", "batch"), inner=2),
    "_scaled_dot_product_flash_attention_for_cpu_backward": Batchwise(
        ("grad_out", "query", "key", "value", "out", "logsumexp", "attn_mask"), ("batch", "batch", "batch"), inner=2
    ),
    "avg_pool2d": _pool(2),
    "avg_pool3d": _pool(3),
    "avg_pool2d_backward": _pool_backward(2),
    "avg_pool3d_backward": _pool_backward(3),
    "_adaptive_avg_pool2d": _pool(2),
    "_adaptive_avg_pool3d": _pool(3),
    "_adaptive_avg_pool2d_backward": _pool_backward(2),
    "_adaptive_avg_pool3d_backward": _pool_backward(3),
    "adaptive_max_pool2d": _pool(2, results=2),
    "adaptive_max_pool3d": _pool(3, results=2),
    "adaptive_max_pool2d_backward": _pool_backward(2, "indices"),
    "adaptive_max_pool3d_backward": _pool_backward(3, "indices"),
    "max_pool2d_with_indices": _pool(2, results=2),
    "max_pool3d_with_indices": _pool(3, results=2),
    "max_pool2d_with_indices_backward": _pool_backward(2, "indices"),
    "max_pool3d_with_indices_backward": _pool_backward(3, "indices"),
    "upsample_nearest1d": _pool(1),
    "upsample_nearest2d": _pool(2),
    "upsample_nearest3d": _pool(3),
    "upsample_bilinear2d": _pool(2),
    "upsample_bicubic2d": _pool(2),
    "upsample_linear1d": _pool(1),
    "upsample_trilinear3d": _pool(3),
    "upsample_nearest1d_backward": _resize_backward(1),
    "upsample_nearest2d_backward": _resize_backward(2),
    "upsample_nearest3d_backward": _resize_backward(3),
    "upsample_bilinear2d_backward": _resize_backward(2),
    "upsample_bicubic2d_backward": _resize_backward(2),
    "upsample_linear1d_backward": _resize_backward(1),
    "upsample_trilinear3d_backward": _resize_backward(3),
}


def batch_placements(rule: Batchwise, arguments: dict[str, Any]) -> tuple[Placement, ...] | None:
    """Return the placements that the arguments with a batch get, or None if no argument is sharded along the batch."""
    batched = [arguments[name] for name in rule.arguments if arguments.get(name) is not None]
    first = batched[0]
    batch_dims = rule.batch_dims(first.ndim)
    chosen: list[Placement] = []
    for mesh_dim in range(first.device_mesh.ndim):
        sharded = [one.placements[mesh_dim] for one in batched if isinstance(one.placements[mesh_dim], Shard)]
        chosen.append(next((one for one in sharded if type(one) is Shard and one.dim < batch_dims), Replicate()))
    dims = {placement.dim for placement in chosen if isinstance(placement, Shard)}
    if not dims:
        return None
    for dim in dims:
        sizes = {one.shape[dim] for one in batched if one.ndim > dim and one.shape[dim] != 1}
        if len(sizes) != 1 or not can_shard(first.shape[dim], first.device_mesh, chosen, dim):
            return None
    # A mask with fewer dimensions would be aligned at the last ones.
    if len({one.ndim for one in batched}) != 1 and not rule.sizes and rule.inner:
        return None
    return tuple(chosen)


def run_batchwise(func: Any, rule: Batchwise, arguments: dict[str, Any], batch: Sequence[Placement]) -> Any:
    """Run `func` on the local entries, its batched arguments placed as `batch` says."""
    first: DTensor = arguments[rule.arguments[0]]
    whole = tuple(Replicate() for _ in batch)
    locals_: dict[str, Any] = {}
    for name, value in arguments.items():
        if not isinstance(value, DTensor):
            locals_[name] = value
        elif name in rule.arguments:
            locals_[name] = local_of(redistribute(value, _fitting(value, first, batch)))
        else:
            locals_[name] = local_of(redistribute(value, whole))
    first_local: Tensor = locals_[rule.arguments[0]]
    if rule.sizes:
        sizes = list(arguments[rule.sizes])
        batch_dims = rule.batch_dims(first.ndim)
        sizes[:batch_dims] = first_local.shape[:batch_dims]
        locals_[rule.sizes] = sizes
    if rule.count:
        locals_[rule.count] = first_local.shape[0]
    results = call_by_name(func, locals_)
    several = isinstance(results, tuple)
    made = [
        _join(result, kind, first, batch)
        for result, kind in zip(results if several else (results,), rule.results, strict=False)
    ]
    if several:
        made += [None] * (len(results) - len(made))
        return tuple(made)
    return made[0]


def call_by_name(func: Any, arguments: dict[str, Any]) -> Any:
    """Call an operator with all its arguments by name; some kernels take them only by position."""
    positional = [arguments[one.name] for one in func._schema.arguments if not one.kwarg_only]
    named = {one.name: arguments[one.name] for one in func._schema.arguments if one.kwarg_only}
    return func(*positional, **named)


def _fitting(value: DTensor, first: DTensor, batch: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return the placements of one batched argument: a mask with one entry for all of the batch is replicated."""
    return tuple(
        placement
        if isinstance(placement, Shard)
        and value.ndim > placement.dim
        and value.shape[placement.dim] == first.shape[placement.dim]
        else Replicate()
        for placement in batch
    )


def _join(result: Any, kind: str, first: DTensor, batch: Sequence[Placement]) -> Any:
    if not isinstance(result, Tensor):
        return result
    placements: tuple[Placement, ...]
    shape = list(result.shape)
    if kind == "sum":
        placements = tuple(Partial() if isinstance(placement, Shard) else placement for placement in batch)
    else:
        placements = tuple(batch)
        for placement in batch:
            if isinstance(placement, Shard):
                shape[placement.dim] = first.shape[placement.dim]
    stride = dense_stride(shape, result.stride())
    return DTensor.from_local(result, first.device_mesh, placements, run_check=False, shape=tuple(shape), stride=stride)
