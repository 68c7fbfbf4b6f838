"""`distribute`: local data as one tensor over the ranks of a global mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from meshbook.runtime.tensor.layouts import placements_of
from meshbook.runtime.tensor.mesh_value import MeshValue
from meshbook.runtime.tensor.sharded_mesh import Mesh
from meshbook.runtime.tensor.tensor import MeshTensor


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
    one for each dimension of the mesh. Without both the tensor is replicated. Shards may be of different sizes.

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
        made = target.constant(tensor.to(target.device_type)).redistribute(placements=wanted)
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, tensor.requires_grad)
    elif tensor.requires_grad:
        made.requires_grad_()
    result: MeshTensor = made
    return result


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
