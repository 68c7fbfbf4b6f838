"""Whole tensors from shards, and shards from whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

# Not every backend of torch.distributed moves and adds these types, and complex numbers: they travel as another type.
CARRIERS = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,  # modulo 2 ** 64
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}


def local_of(tensor: DTensor) -> Tensor:
    """Return the local tensor itself, complete: a pending collective has ended."""
    local = tensor._local_tensor
    return local.wait() if isinstance(local, AsyncCollectiveTensor) else local


def replicated(mesh: DeviceMesh) -> tuple[Placement, ...]:
    return tuple(Replicate() for _ in range(mesh.ndim))


def is_replicated(tensor: DTensor) -> bool:
    return all(placement.is_replicate() for placement in tensor.placements)


def is_plain(placement: Placement) -> bool:
    """Tell whether a placement is one of the three that operators are run with: others are reduced first."""
    return type(placement) in (Replicate, Shard) or is_sum(placement)


def is_sum(placement: Placement) -> bool:
    return type(placement) is Partial and placement.reduce_op == "sum"


def wrap(full: Tensor, mesh: DeviceMesh) -> DTensor:
    """Return a replicated tensor with the value `full`, which is equal on all ranks."""
    # The tensor itself has neither bit, so its local tensor must not have them either.
    full = full.resolve_conj().resolve_neg()
    return DTensor.from_local(full, mesh, replicated(mesh), run_check=False, shape=full.shape, stride=full.stride())


def replicate(tensor: DTensor) -> DTensor:
    return redistribute(tensor, replicated(tensor.device_mesh))


def redistribute(tensor: DTensor, placements: Sequence[Placement]) -> DTensor:
    """Return the tensor with other placements, which do not include Partial ones that it does not have already."""
    placements = tuple(placements)
    if placements == tensor.placements:
        return tensor
    if tensor.is_complex() or tensor.dtype in CARRIERS:
        return lay_out(_redistribute_as_numbers(tensor, placements))
    return lay_out(tensor.redistribute(placements=placements))


def copy(tensor: DTensor) -> DTensor:
    """Return a copy with the same placements; DTensor's own `clone` reduces sums."""
    stride = dense_stride(tensor.shape, tensor.stride())
    local = with_order_of(local_of(tensor).clone(), stride)
    layout = {"shape": tensor.shape, "stride": stride}
    return DTensor.from_local(local, tensor.device_mesh, tensor.placements, run_check=False, **layout)


def lay_out(tensor: DTensor) -> DTensor:
    """Return the tensor with its local tensor laid out in the order that the whole tensor has.

    Some kernels take for granted that their arguments are all contiguous if the whole tensors are.
    """
    local = local_of(tensor)
    if local.is_contiguous() and tensor.is_contiguous():
        return tensor
    laid_out = with_order_of(local, tensor.stride())
    if laid_out is local:
        return tensor
    return DTensor.from_local(
        laid_out,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def _redistribute_as_numbers(tensor: DTensor, placements: tuple[Placement, ...]) -> DTensor:
    local = local_of(tensor)
    numbers = torch.view_as_real(local) if local.is_complex() else local.to(CARRIERS[local.dtype])
    shape = tensor.shape + numbers.shape[tensor.ndim :]
    stride = torch.empty(shape, device="meta").stride()
    mesh = tensor.device_mesh
    carrier = DTensor.from_local(numbers, mesh, tensor.placements, run_check=False, shape=shape, stride=stride)
    moved = local_of(carrier.redistribute(placements=placements))
    values = torch.view_as_complex(moved.contiguous()) if local.is_complex() else moved.to(tensor.dtype)
    return DTensor.from_local(
        values,
        mesh,
        placements,
        run_check=False,
        shape=tensor.shape,
        stride=dense_stride(tensor.shape, values.stride()),
    )


def gather(tensor: DTensor) -> Tensor:
    """Return the whole tensor: the local one if it is replicated, else a copy with the same order of dimensions."""
    if is_replicated(tensor):
        return local_of(tensor)
    full = with_order_of(local_of(replicate(tensor)), tensor.stride())
    for dim in expanded_dims(tensor):  # a write to one entry changes the others
        full = full.narrow(dim, 0, 1)
    return full.expand(tensor.shape)


def expanded_dims(tensor: Tensor) -> list[int]:
    """Return the dimensions along which all entries are in the same memory."""
    layout = zip(tensor.shape, tensor.stride(), strict=True)
    return [dim for dim, (size, stride) in enumerate(layout) if size > 1 and not stride]


def assign(target: Tensor, values: Tensor) -> None:
    """Write values to a tensor. Torch refuses to copy to an expanded one: it gets the first value of each dimension."""
    for dim in expanded_dims(target):
        target, values = target.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    if target.data_ptr() != values.data_ptr():  # else they are the same memory, which torch may refuse to copy as well
        target.copy_(values)


def with_order_of(full: Tensor, stride: Sequence[int]) -> Tensor:
    """Return `full` laid out densely, its dimensions in memory in the order that `stride` gives.

    The controller decides from strides whether a tensor may be viewed, so the copies on the workers keep their order.
    """
    dense = dense_stride(full.shape, stride)
    if full.stride() == dense:
        return full
    return torch.empty_strided(full.shape, dense, dtype=full.dtype, device=full.device).copy_(full)


def dense_stride(shape: Sequence[int], like: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor without gaps whose dimensions lie in memory in the order of the strides `like`."""
    stride = [1] * len(shape)
    step = 1
    for dim in sorted(range(len(shape)), key=lambda dim: (like[dim], -dim)):
        stride[dim] = step
        step *= max(shape[dim], 1)
    return tuple(stride)


def scatter(full: Tensor, like: DTensor) -> Tensor:
    """Return what this rank's local tensor is if the whole tensor is `full` and the placements are those of `like`."""
    mesh = like.device_mesh
    placements = tuple(Replicate() if placement.is_partial() else placement for placement in like.placements)
    local = local_of(distribute_tensor(full, mesh, placements, src_data_rank=None))
    for dim, placement in enumerate(like.placements):
        # A sum has the value on one rank and zeros on the others.
        if is_sum(placement) and mesh.get_local_rank(dim) != 0:
            return torch.zeros_like(local)
    return local


def restore(out: DTensor, placements: Sequence[Placement]) -> DTensor:
    """Return a replicated tensor with these placements, keeping the shard; other than Shard it stays replicated."""
    wanted = [placement if type(placement) is Shard else Replicate() for placement in placements]
    return redistribute(out, wanted)


def has_empty_shard(tensor: DTensor) -> bool:
    """Tell whether some rank of the mesh has no entry of the tensor. All ranks give the same answer."""
    return any(
        not can_shard(tensor.shape[placement.dim], tensor.device_mesh, tensor.placements, placement.dim)
        for placement in tensor.placements
        if isinstance(placement, Shard)
    )


def is_sharded_twice(tensor: DTensor) -> bool:
    """Tell whether several dimensions of the mesh shard the same dimension of the tensor."""
    dims = [placement.dim for placement in tensor.placements if isinstance(placement, Shard)]
    return len(set(dims)) < len(dims)


def can_shard(size: int, mesh: DeviceMesh, placements: Sequence[Placement], dim: int) -> bool:
    """Tell whether every rank has an entry if a dimension of this size is sharded as the placements say."""
    sizes = {size}
    for mesh_dim, placement in enumerate(placements):
        if isinstance(placement, Shard) and placement.dim == dim:
            sizes = {part for whole in sizes for part in _extreme_chunks(whole, mesh.size(mesh_dim))}
    return min(sizes) > 0


def _extreme_chunks(size: int, count: int) -> tuple[int, int]:
    """Return the sizes of the largest and the smallest of `count` chunks, as `torch.chunk` cuts them."""
    largest = -(-size // count)
    return largest, max(0, size - largest * (count - 1))


def describe(value: Any) -> str:
    """Return shape and placements of a tensor for an error's text."""
    if not isinstance(value, DTensor):
        return f"{tuple(value.shape)}"
    return f"{tuple(value.shape)} as ({', '.join(map(str, value.placements))})"
