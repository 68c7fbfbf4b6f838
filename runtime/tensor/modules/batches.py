"""This rank's part of a batch that is sharded along its first dimension.

The batch is the first dimension of the inputs. Its entries may be sharded over dimensions of the mesh that are not
tensor parallel. Gradients of outputs are those of the whole loss, so gradients of what all ranks share are sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from meshbook.runtime.tensor.modules.outputs import OutputLayout
from meshbook.runtime.tensor.modules.plans import ModulePlan
from meshbook.runtime.tensor.sharded import placing, views

BUCKET: Final = 16 << 20  # elements of gradients that are summed in one collective


@dataclass
class Batch:
    """How the inputs of a forward are sharded."""

    dims: tuple[int, ...] = ()  # of the mesh
    own_rows: int = 0  # entries on this rank
    rows: int = 0


class BatchParts:
    """Takes this rank's part of whole tensors, and makes whole tensors of the ranks' parts."""

    def __init__(self, mesh: DeviceMesh, plan: ModulePlan) -> None:
        self._mesh = mesh
        self._plan = plan

    def take(self, tensors: Sequence[DTensor], wanted: Sequence[bool]) -> tuple[Batch, list[Tensor]]:
        """Return how the batch is sharded, and this rank's part of each tensor."""
        batch = Batch()
        taken = []
        for tensor, wants_grad in zip(tensors, wanted, strict=True):
            views.refresh(tensor)
            placements = self._placements_for(tensor)
            held = placing.redistribute(tensor, placements)
            dims = tuple(dim for dim, each in enumerate(placements) if isinstance(each, Shard))
            if dims and placing.has_empty_shard(held):
                raise ValueError(
                    f"a batch of {tensor.shape[0]} entries leaves some ranks without any: use a larger batch, or "
                    "replicate it"
                )
            if dims and batch.dims and (batch.dims, batch.rows) != (dims, tensor.shape[0]):
                raise ValueError(
                    f"the arguments are sharded differently: {batch.rows} entries over {self._names(batch.dims)}, and "
                    f"{tensor.shape[0]} over {self._names(dims)}; redistribute one of them"
                )
            local = placing.local_of(held)
            if dims:
                batch = Batch(dims, local.shape[0], tensor.shape[0])
            taken.append(local.detach().requires_grad_(wants_grad))
        return batch, taken

    def _placements_for(self, tensor: DTensor) -> list[Placement]:
        """Return the placements that the module takes: its batch may be sharded, all else is whole."""
        return [
            each if dim in self._plan.data_dims and each == Shard(0) and self._mesh.size(dim) > 1 else Replicate()
            for dim, each in enumerate(tensor.placements)
        ]

    def _names(self, dims: Iterable[int]) -> str:
        return ", ".join(self._plan.dims[dim] for dim in dims)

    def whole(self, output: Tensor, layout: OutputLayout, batch: Batch) -> DTensor:
        """Return an output as a tensor on the whole mesh."""
        if isinstance(output, DTensor):
            raise TypeError(
                f"the module returned a sharded tensor, ({', '.join(map(str, output.placements))}): let the last "
                "layer's style return a local tensor, as use_local_output=True does"
            )
        value = output.detach()
        if layout.is_mean:
            value = value * (batch.own_rows / batch.rows)
            for dim in batch.dims:
                dist.all_reduce(value, group=self._mesh.get_group(dim))
        if layout.batch_dim is None:  # without gaps, as the parts of a sharded batch are
            return placing.wrap(placing.with_order_of(value, value.stride()), self._mesh)
        shape = [*value.shape]
        shape[layout.batch_dim] = batch.rows
        stride = placing.dense_stride(shape, value.stride())
        placements = self._placements_along(layout.batch_dim, batch)
        laid_out = placing.with_order_of(value, stride)
        return DTensor.from_local(
            laid_out, self._mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
        )

    def _placements_along(self, dim: int, batch: Batch) -> list[Placement]:
        return [Shard(dim) if index in batch.dims else Replicate() for index in range(self._mesh.ndim)]

    def part_of(self, gradient: DTensor, layout: OutputLayout, batch: Batch) -> Tensor:
        """Return the gradient of this rank's output."""
        views.refresh(gradient)
        if layout.batch_dim is None:
            whole = placing.gather(gradient)
            return whole * (batch.own_rows / batch.rows) if layout.is_mean else whole
        wanted = self._placements_along(layout.batch_dim, batch)
        return placing.local_of(placing.redistribute(gradient, wanted))

    def input_gradient(self, gradient: Tensor | None, source: DTensor, batch: Batch) -> DTensor | None:
        """Return the gradient of an input on the whole mesh."""
        if gradient is None:
            return None
        held = self._placements_for(source)
        # Each rank has the part that its entries of the batch contribute.
        placements = [
            Partial() if dim in batch.dims and not isinstance(each, Shard) else each for dim, each in enumerate(held)
        ]
        layout = {"shape": source.shape, "stride": placing.dense_stride(source.shape, gradient.stride())}
        made = DTensor.from_local(gradient, self._mesh, placements, run_check=False, **layout)
        wanted = [each if isinstance(each, Shard) else Replicate() for each in source.placements]
        return placing.redistribute(made, wanted)


# -- gradients of parameters ----------------------------------------------------------


def align_gradient(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter's gradient, with the parameter's placement; zeros if it has none."""
    own = placing.local_of(parameter) if isinstance(parameter, DTensor) else parameter
    if gradient is None:
        return torch.zeros_like(own)
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        gradient = placing.local_of(gradient.redistribute(placements=parameter.placements))
    # Laid out as the parameter, which is what the controller takes for granted.
    return gradient if gradient.stride() == own.stride() else torch.empty_like(own).copy_(gradient)


def sum_over_groups(gradients: Sequence[Tensor], groups: Sequence[Any]) -> None:
    """Sum gradients in place over the ranks of each group in turn."""
    for bucket in _buckets(gradients if groups else ()):
        flat = torch.cat([each.reshape(-1) for each in bucket])
        for group in groups:
            dist.all_reduce(flat, group=group)
        for each, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
            each.copy_(part.view(each.shape))


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in groups of one dtype, of limited size."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        bucket = by_dtype.setdefault(tensor.dtype, [])
        if bucket and sum(each.numel() for each in bucket) + tensor.numel() > BUCKET:
            yield bucket
            bucket = by_dtype[tensor.dtype] = []
        bucket.append(tensor)
    yield from by_dtype.values()
