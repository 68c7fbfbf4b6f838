"""Values of single ranks: `fetch_shard`, `inspect`, `show`."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_flatten, tree_unflatten

from meshbook.runtime.actor.future import Future
from meshbook.runtime.tensor.device_mesh import DeviceMesh, no_mesh
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
    refs = [tensor._issue_for("shard") if place.is_global else tensor._ref for tensor in tensors]
    values = place.engine.fetch(rank, [ref.id for ref in refs])
    fetched: Future[Any] = values.then(rebuild)
    return fetched


def inspect(tree: Any, /, shard: dict[str, int] | None = None, **dims: int) -> Any:
    """Return the values on one rank, as `fetch_shard` does; waits."""
    with no_mesh.activate():
        return fetch_shard(tree, shard, **dims).get()


def show(tree: Any, /, shard: dict[str, int] | None = None, **dims: int) -> str:
    """Return the values on one rank as text; waits."""
    with no_mesh.activate():
        return repr(inspect(tree, shard, **dims))
