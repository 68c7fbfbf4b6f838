"""The operations between ranks as functions of trees: mesh tensors in lists, tuples and dicts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from meshbook.runtime.tensor.streams import Stream
from meshbook.runtime.tensor.tensor import MeshTensor


def reduce(tree: Any, dims: str | Sequence[str] | None = None, reduction: str = "sum", *, scatter: bool = False) -> Any:
    """Return the tree with each tensor reduced over the ranks; see `MeshTensor.reduce`."""
    return tree_map_only(MeshTensor, lambda tensor: tensor.reduce(dims, reduction, scatter=scatter), tree)


def reduce_(
    tree: Any, dims: str | Sequence[str] | None = None, reduction: str = "sum", *, scatter: bool = False
) -> Any:
    """Reduce each tensor of a tree over the ranks, in place; see `MeshTensor.reduce`."""
    return tree_map_only(MeshTensor, lambda tensor: tensor.reduce_(dims, reduction, scatter=scatter), tree)


def slice_mesh(tree: Any, /, **dims: int | slice) -> Any:
    """Return the tree with each tensor as that of a part of the ranks; see `MeshTensor.slice_mesh`."""
    return tree_map_only(MeshTensor, lambda tensor: tensor.slice_mesh(**dims), tree)


def to_mesh(tree: Any, mesh: Any, stream: Stream | None = None) -> Any:
    """Return the tree with each tensor copied to another mesh; see `MeshTensor.to_mesh`.

    A local tensor is copied to each rank of the mesh.
    """
    return tree_map_only(torch.Tensor, functools.partial(_copy, mesh=mesh.device_mesh, stream=stream), tree)


def _copy(tensor: torch.Tensor, mesh: Any, stream: Stream | None) -> MeshTensor:
    copied: MeshTensor
    if isinstance(tensor, MeshTensor):
        copied = tensor.to_mesh(mesh, stream)
    else:
        copied = mesh.constant(tensor)
    return copied
