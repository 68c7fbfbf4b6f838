"""`distribute`: local data as one tensor over the ranks of a global mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from meshbook.runtime.tensor.engine import LOCALLY
from meshbook.runtime.tensor.layouts import coordinates_of, local_part, placements_of
from meshbook.runtime.tensor.mesh_value import MeshValue
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.sharded_mesh import Mesh
from meshbook.runtime.tensor.templates import user_place
from meshbook.runtime.tensor.tensor import MeshTensor, make_tensor

SMALL_BYTES: Final = 1 << 16  # up to here, one message with the whole tensor for all ranks costs less than one for each


def distribute(
    data: Any,
    mesh: Any,
    sharding_spec: Sequence[Any] | None = None,
    *,
    placements: Sequence[Any] | None = None,
    columns: str | Sequence[str] | None = None,
) -> MeshTensor:
    """Return local data as one tensor on the ranks of a mesh; changes of the data afterwards do not reach it.

        x = distribute(torch.randn(1024, 1024), mesh, sharding_spec=["data", None])

    `sharding_spec` has an entry for each dimension of the tensor: the dimension of the mesh that shards it, a tuple of
    several, or None. `placements`, also as the third argument, are torch's `Shard(0)`, `Replicate()` and `Partial()`,
    one for each dimension of the mesh. Without both the tensor is replicated. Shards may be of different sizes. Of a
    tensor with more than 64 KiB, each rank is sent its shard only.

    `data` is a tensor, an array of numpy, or a frame: of Polars, pandas, Arrow, a relation of DuckDB. Of a frame,
    `columns` chooses: a name gives one dimension, the rows; a list two, rows and columns; None all columns. A parameter
    becomes a parameter, and a leaf that requires grad a leaf. A tensor that is on this mesh already gets other
    placements. `mesh` may be a process mesh, in its own shape.

    Raises KeyError for an unknown dimension or column, ValueError for a spec that does not fit and for missing values,
    and TypeError for other data and meshes.
    """
    target = mesh if isinstance(mesh, Mesh) else _as_mesh(mesh)
    tensor = _tensor_of(data, columns)
    wanted = placements_of(sharding_spec if placements is None else placements, tensor.dim(), target.dims)
    if isinstance(tensor, MeshValue):
        if tensor.mesh != target:
            raise TypeError(f"the tensor is on {tensor.mesh!r}: distribute its full_tensor() on {target!r}")
        moved: MeshTensor = tensor.redistribute(placements=wanted)
        return moved
    if tensor.requires_grad and not tensor.is_leaf:
        raise ValueError("the tensor is the result of recorded operations: call detach() on it first")
    made: Any
    with torch.no_grad():
        if tensor.nbytes > SMALL_BYTES and _is_scattered(target, wanted):
            made = _scatter(tensor, target, wanted)
        else:
            made = target.constant(tensor).redistribute(placements=wanted)
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, tensor.requires_grad)
    elif tensor.requires_grad:
        made.requires_grad_()
    result: MeshTensor = made
    return result


def _is_scattered(mesh: Mesh, placements: Sequence[Any]) -> bool:
    """Return whether the ranks have parts of a tensor; a recording has one command for all ranks."""
    is_cut = any(each.is_shard() for each in placements) and not any(each.is_partial() for each in placements)
    return is_cut and mesh.engine.recorder is None


def _scatter(tensor: torch.Tensor, mesh: Mesh, placements: Sequence[Any]) -> MeshTensor:
    """Return a tensor on the ranks; each of them is sent its part."""
    place, engine = mesh.place(), mesh.engine
    with LOCALLY():
        whole = tensor.detach().resolve_conj().resolve_neg()
        strides = torch.empty_like(whole, device="meta").stride()  # dense, in the order of the tensor's dimensions
        device = torch.device(mesh.device_type)
        meta = Meta.make(tuple(whole.shape), tuple(strides), whole.dtype, 0, device)
        number, line = engine.new_ids(1), user_place(2)
        ref = place.lane.new_ref(number)
        for rank in range(math.prod(mesh.shape)):
            cut = local_part(whole.shape, placements, mesh.shape, coordinates_of(rank, mesh.shape))
            # A copy: the command is sent later.
            part = whole[tuple(slice(*each) for each in cut)].to("cpu").clone()
            lane = engine.lane(engine.actors.slice(**dict(engine.actors.extent.point(rank))))
            engine.issue(lane, ("part", number, part, meta, tuple(placements)), line, part.nbytes)
    return make_tensor(meta, ref, place)


def _as_mesh(mesh: Any) -> Mesh:
    if not hasattr(mesh, "as_device_mesh"):
        raise TypeError(f"distribute() needs a Mesh, or a process mesh, not {mesh!r}; procs.as_device_mesh() makes one")
    made: Mesh = mesh.as_device_mesh()
    return made


def _tensor_of(data: Any, columns: str | Sequence[str] | None) -> torch.Tensor:
    is_array = hasattr(data, "__array_interface__")
    if columns is not None and (isinstance(data, torch.Tensor) or is_array):
        raise TypeError("columns= chooses the columns of a frame; index a tensor or an array instead")
    if isinstance(data, torch.Tensor):
        return data
    if is_array:
        return torch.from_numpy(data).clone() if data.flags.writeable else torch.from_numpy(data.copy())
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "to_arrow_table"):
        return _tensor_of_frame(data, columns)
    raise TypeError(f"distribute() takes tensors, arrays of numpy and frames, not {type(data).__name__}")


def _tensor_of_frame(frame: Any, columns: str | Sequence[str] | None) -> torch.Tensor:
    """Return columns of a frame, through Arrow."""
    import pyarrow as pa  # optional: frames are

    table = pa.table(frame) if hasattr(frame, "__arrow_c_stream__") else frame.to_arrow_table()
    names = table.column_names if columns is None else [columns] if isinstance(columns, str) else list(columns)
    if unknown := [name for name in names if name not in table.column_names]:
        raise KeyError(f"the frame has no column {unknown[0]!r}; its columns: {', '.join(table.column_names)}")
    if not names:
        raise ValueError("no columns were chosen")
    found = [_tensor_of_column(name, table.column(name)) for name in names]
    if isinstance(columns, str):
        return found[0]
    dtype = found[0].dtype
    for each in found[1:]:
        dtype = torch.promote_types(dtype, each.dtype)
    return torch.stack([each.to(dtype) for each in found], 1)


def _tensor_of_column(name: str, column: Any) -> torch.Tensor:
    if column.null_count:
        raise ValueError(f"the column {name!r} has {column.null_count} missing values: fill or drop them first")
    values = column.to_numpy()
    try:
        return torch.from_numpy(values.copy())
    except TypeError:
        raise TypeError(f"the column {name!r} has the type {column.type}, which tensors do not have") from None
