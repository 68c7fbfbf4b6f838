"""How tensors of the global view are laid out: the mesh's shape, and the placements that a sharding spec stands for.

A spec has an entry for each dimension of the tensor: the name of the dimension of the mesh that shards it, several
names, or None. Placements are torch's, one for each dimension of the mesh. Both are checked here, on the controller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.geometry.region import UnknownDimension
from meshbook.runtime.tensor.metadata import Meta


@dataclass(frozen=True, slots=True)
class Layout:
    """The dimensions of a global mesh; its ranks are in row-major order."""

    shape: tuple[int, ...]
    dims: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """A tensor among a function's results on one rank."""

    meta: Meta
    checksum: int


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What one rank says of a call: the tree of its results, and the first sharded argument, if there is one."""

    tree: Any  # a `ShardResult` in place of each tensor
    placements: tuple[Any, ...] | None
    shape: tuple[int, ...]  # of the argument's shard


@dataclass(frozen=True, slots=True)
class Executed:
    """On a rank: the results of a function, until the controller says what tensors they are parts of."""

    report: ShardReport
    results: Any


def placements_of(spec: Any, ndim: int, dims: Sequence[str]) -> tuple[Any, ...]:
    """Return the placements of a tensor with `ndim` dimensions on a mesh with these dimensions; None: replicated.

    `spec` is a sharding spec or a list of placements. Raises UnknownDimension (a KeyError) for a name that the mesh
    lacks, ValueError for a wrong length, a dimension of the mesh or of the tensor that does not fit, and TypeError for
    anything else.
    """
    from torch.distributed.tensor import Placement, Replicate, Shard  # weight: 0.7 s

    if spec is None:
        return (Replicate(),) * len(dims)
    if isinstance(spec, (str, Placement)) or not isinstance(spec, Sequence):
        raise TypeError(f"a sharding spec is a list with an entry for each dimension of the tensor, not {spec!r}")
    if any(isinstance(entry, Placement) for entry in spec):
        return _checked(spec, ndim, dims)
    if len(spec) != ndim:
        raise ValueError(
            f"the sharding spec {list(spec)} has {len(spec)} entries, but the tensor has {ndim} dimensions"
        )
    placements: list[Any] = [Replicate()] * len(dims)
    for dim, entry in enumerate(spec):
        positions = [_position(name, dims) for name in _names_in(entry)]
        if positions != sorted(positions):
            raise ValueError(f"{entry} are not in the order of the mesh, {tuple(dims)}: torch shards in that order")
        for position in positions:
            if placements[position] != Replicate():
                raise ValueError(f"the mesh dimension {dims[position]!r} is used twice in {list(spec)}")
            placements[position] = Shard(dim)
    return tuple(placements)


def _names_in(entry: Any) -> tuple[Any, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _position(name: Any, dims: Sequence[str]) -> int:
    if name not in dims:
        raise UnknownDimension(f"the mesh has no dimension {name!r}; its dimensions: {', '.join(dims)}")
    return list(dims).index(name)


def _checked(placements: Sequence[Any], ndim: int, dims: Sequence[str]) -> tuple[Any, ...]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    if len(placements) != len(dims):
        raise ValueError(
            f"{len(placements)} placements were given, but the mesh has {len(dims)} dimensions, {tuple(dims)}"
        )
    checked = []
    for each in placements:
        if type(each) not in (Shard, Replicate, Partial):
            raise TypeError(f"a placement is Shard, Replicate or Partial, not {each!r}")
        if isinstance(each, Shard):
            if not -ndim <= each.dim < ndim:
                raise ValueError(f"{each} names a dimension that the tensor does not have: it has {ndim}")
            each = Shard(each.dim % ndim)
        if isinstance(each, Partial) and each.reduce_op != "sum":
            raise ValueError(f"{each} is not supported; Partial() is a sum")
        checked.append(each)
    return tuple(checked)


def coordinates_of(rank: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of a rank on a mesh of these sizes."""
    coordinates = []
    for size in reversed(sizes):
        coordinates.append(rank % size)
        rank //= size
    return tuple(reversed(coordinates))


def local_shape(
    shape: Sequence[int], placements: Sequence[Any], sizes: Sequence[int], coordinates: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape of the part that the rank with these coordinates has, on a mesh of these sizes."""
    local = list(shape)
    for placement, size, coordinate in zip(placements, sizes, coordinates, strict=True):
        if placement.is_shard():
            part = -(-local[placement.dim] // size)  # as torch.chunk cuts
            local[placement.dim] = min(part, max(0, local[placement.dim] - coordinate * part))
    return tuple(local)
