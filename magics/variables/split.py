"""Splitting of one value into pieces for several ranks along a dimension. Pure.

It splits tensors, arrays, tables, sequences and datasets. A piece is a view if the type has views, so nothing is copied
before it is sent. Not for joining pieces (`reduce`).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from meshbook.magics.variables.reduce import ReduceError, is_array, is_tensor
from meshbook.magics.variables.table_pieces import NotReadableError, as_table, slice_table
from meshbook.runtime.cells.tables import library_of

Slicer = Callable[[int, int], Any]  # (start, end) -> the piece


def split(data: Any, count: int, dim: int = 0) -> list[Any]:
    """Split the data into `count` pieces in order, as equal as possible; the first ones may have one element more.

    Raises ReduceError if the data has no such dimension.
    """
    if isinstance(data, Mapping):
        by_key = {key: split(value, count, dim) for key, value in data.items()}
        return [{key: pieces[index] for key, pieces in by_key.items()} for index in range(count)]
    try:
        data = as_table(data)
    except NotReadableError as error:
        raise ReduceError(str(error)) from None
    size = _size_along(data, dim)
    take = _slicer_of(data, dim)
    least, more = divmod(size, count)
    ends = [least * index + min(index, more) for index in range(count + 1)]
    return [take(start, end) for start, end in itertools.pairwise(ends)]


def _size_along(data: Any, dim: int) -> int:
    shape = getattr(data, "shape", None)
    try:
        if shape is not None:
            return int(shape[dim])
        if dim in (0, -1):
            return len(data)
    except (IndexError, TypeError):
        pass  # reported below
    what = f"of shape {tuple(shape)}" if shape is not None else f"of type {type(data).__name__}"
    raise ReduceError(f"data {what} has no dimension {dim} to split")


def _slicer_of(data: Any, dim: int) -> Slicer:
    if is_tensor(data):
        return lambda start, end: data.narrow(dim, start, end - start)
    if library_of(data):
        return lambda start, end: slice_table(data, dim, start, end)
    if is_array(data):
        before = (slice(None),) * (dim % data.ndim)
        return lambda start, end: data[(*before, slice(start, end))]
    return _slicer_of_dataset(data) or _slicer_of_sequence(data)


def _slicer_of_dataset(data: Any) -> Slicer | None:
    """Return a function that slices a torch dataset, or one with `select` and `shard` as in Hugging Face."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and type(data) is torch_data.TensorDataset:
        return lambda start, end: torch_data.TensorDataset(*(tensor[start:end] for tensor in data.tensors))
    if torch_data is not None and isinstance(data, torch_data.Dataset):
        return lambda start, end: [data[index] for index in range(start, end)]
    if callable(getattr(data, "shard", None)) and callable(select := getattr(data, "select", None)):
        return lambda start, end: select(range(start, end))
    return None


def _slicer_of_sequence(data: Any) -> Slicer:
    try:
        data[0:0]
        return lambda start, end: data[start:end]
    except Exception:  # classes without slices raise different errors
        if not hasattr(data, "__getitem__"):
            kind = type(data).__name__
            raise ReduceError(
                f"data of type {kind} cannot be split: it supports neither slices nor integer indexes"
            ) from None
    return lambda start, end: [data[index] for index in range(start, end)]
