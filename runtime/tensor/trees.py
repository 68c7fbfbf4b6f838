"""Functions of mesh tensors in lists, tuples and dicts: values of single ranks, and operations between ranks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from meshbook.runtime.actor.future import Future
from meshbook.runtime.tensor.device_mesh import DeviceMesh, no_mesh
from meshbook.runtime.tensor.lanes import Ref
from meshbook.runtime.tensor.mesh_value import Place
from meshbook.runtime.tensor.streams import Stream
from meshbook.runtime.tensor.tensor import MeshTensor


def rank_of(mesh: DeviceMesh, shard: dict[str, int] | None, dims: dict[str, int]) -> int:
    """Return the engine's rank at these coordinates of a mesh; missing ones are 0.

    Raises KeyError for an unknown dimension and IndexError for a coordinate out of range.
    """
    wanted = {**(shard or {}), **dims}
    for name in wanted:
        if name not in mesh.extent:
            raise KeyError(f"the mesh has no dimension {name!r}; its dimensions: {', '.join(mesh.extent.labels)}")
    point = mesh.extent.point(**{name: wanted.get(name, 0) for name in mesh.extent.labels})
    return mesh.region.ranks()[point.rank]


def fetch_shard(tree: Any, /, shard: dict[str, int] | None = None, **dims: int) -> Future[Any]:
    """Return a future of the values on one rank: `fetch_shard(x, gpus=1).get()`.

    `tree` is a mesh tensor, or lists, tuples and dicts of them; anything else in it is returned as it is. Dimensions of
    the mesh that are not named are 0. The value of a tensor of the global view is the rank's shard. The future raises
    RemoteException, with the line of the controller, if an operation failed that a value depends on, and
    DeviceMeshError if a rank has died.

    Raises KeyError for an unknown dimension and IndexError for an index out of range.
    """
    leaves, spec = tree_flatten(tree)
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, MeshTensor)]
    if not places:
        return Future.completed(tree)
    tensors = [leaves[index] for index in places]
    place = tensors[0]._place
    for tensor in tensors:
        if tensor.mesh != place.mesh:
            raise TypeError(f"fetch_shard() takes tensors of one mesh, not of {place.mesh!r} and {tensor.mesh!r}")
        if tensor._place.state:
            raise TypeError(f"{tensor!r} cannot be fetched: it is {tensor._place.state}")

    def rebuild(values: list[Any]) -> Any:
        found = dict(zip(places, values, strict=True))
        return tree_unflatten([found.get(index, leaf) for index, leaf in enumerate(leaves)], spec)

    rank = rank_of(place.mesh, shard, dims)
    place.engine.check_can_wait()
    refs = [tensor._issue_for("shard") if place.is_global else _in_stream(tensor, place) for tensor in tensors]
    values = place.engine.fetch(rank, [ref.id for ref in refs], place.stream)
    fetched: Future[Any] = values.then(rebuild)
    return fetched


def _in_stream(tensor: MeshTensor, place: Place) -> Ref:
    """Return the value of a tensor in the stream of a place, which waits for it if it is of another stream."""
    return place.engine.hand_over(tensor._ref.id, tensor._place.lane, place.lane) or tensor._ref


def inspect(tree: Any, /, shard: dict[str, int] | None = None, **dims: int) -> Any:
    """Return the values on one rank, as `fetch_shard` does; waits."""
    with no_mesh.activate():
        return fetch_shard(tree, shard, **dims).get()


def show(tree: Any, /, shard: dict[str, int] | None = None, **dims: int) -> str:
    """Return the values on one rank as text; waits."""
    with no_mesh.activate():
        return repr(inspect(tree, shard, **dims))


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
