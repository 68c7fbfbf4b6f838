"""Reduction of the values of several ranks to one: mean, cat, stack. Pure. Not for splitting one value (`split`).

It reduces tensors, arrays, numbers, sequences and tables. `mean`, `cat` and `stack` descend into dicts, `mean` also
into lists and tuples. A mean is computed in double precision: of floating and complex numbers it has their type, of
integers and truth values it is float64, as in NumPy. torch, numpy and the table libraries are used only if already
imported, except that `stack` imports numpy for numbers.
"""

from __future__ import annotations

import functools
import itertools
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from meshbook.magics.variables.table_pieces import concat_tables
from meshbook.runtime.cells.tables import library_of

Reduction: TypeAlias = Literal["mean", "cat", "stack", "first"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)


class ReduceError(ValueError):
    """Values that cannot be combined; the message gives the reason."""


def reduce_values(values: Sequence[Any], how: Reduction, dim: int = 0) -> Any:
    """Reduce values in rank order to one; `cat` and `stack` along `dim`. Raises ReduceError if impossible."""
    match how:
        case "first":
            return values[0]
        case "mean":
            return _mean(values)
        case "cat":
            return _cat(values, dim)
        case "stack":
            return _stack(values, dim)


def _mean(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return _by_key(values, _mean)
    if isinstance(first, list | tuple):
        return _by_position(values, _mean)
    try:
        if is_tensor(first):
            return _mean_of_tensors(_check_alike(values))
        if is_array(first) and {*map(type, values)} == {type(first)}:
            return _mean_of_arrays(_check_alike(values))
        if all(isinstance(value, numbers.Number) for value in values):
            # Scalars of NumPy that meet other numbers: their sum would have their type, and wrap.
            return sum(value.item() if is_array(value) else value for value in values) / len(values)
    except (RuntimeError, TypeError, ArithmeticError) as error:
        raise ReduceError(f"cannot compute the mean of {_kinds(values)}: {error}") from error
    raise ReduceError(f"cannot compute the mean of {_kinds(values)}")


def _mean_of_tensors(tensors: Sequence[Any]) -> Any:
    torch = sys.modules["torch"]
    tensors = [tensor.dequantize() if tensor.is_quantized else tensor.detach() for tensor in tensors]
    dtypes = {tensor.dtype for tensor in tensors}
    wide = torch.complex128 if any(dtype.is_complex for dtype in dtypes) else torch.float64
    first, *others = (tensor.to(wide) for tensor in tensors)
    mean = sum(others, first) / len(tensors)
    # Types of 8 bits have no promotion, not even to themselves.
    dtype = functools.reduce(torch.promote_types, dtypes) if len(dtypes) > 1 else tensors[0].dtype
    return mean.to(dtype) if dtype.is_floating_point or dtype.is_complex else mean


def _mean_of_arrays(arrays: Sequence[Any]) -> Any:
    numpy = sys.modules["numpy"]
    dtype = numpy.result_type(*(array.dtype for array in arrays))
    if dtype.kind not in "OmM":  # these have their own arithmetic: Python objects, durations, dates
        arrays = [array.astype(numpy.promote_types(dtype, "float64")) for array in arrays]
    first, *others = arrays
    mean = sum(others, first) / len(arrays)
    return mean.astype(dtype) if dtype.kind in "fc" else mean


def _cat(values: Sequence[Any], dim: int) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return _by_key(values, lambda each: _cat(each, dim))
    if is_tensor(first) or is_array(first):
        return _cat_arrays(values, dim)
    if library_of(first):
        return _cat_tables(values, dim)
    if isinstance(first, list | tuple | str | bytes | range) and dim == 0 and {*map(type, values)} == {type(first)}:
        return _cat_sequences(values)
    if all(isinstance(value, numbers.Number) for value in values) and dim == 0:
        return list(values)  # one number per rank, the inverse of `scatter`
    raise ReduceError(f"cannot concatenate {_kinds(values)}" + (f" along dimension {dim}" if dim else ""))


def _cat_arrays(values: Sequence[Any], dim: int) -> Any:
    try:
        if is_tensor(values[0]):
            tensors = [value.detach() for value in values]
            return sys.modules["torch"].cat([each if each.dim() else each.reshape(1) for each in tensors], dim)
        numpy = sys.modules["numpy"]
        return numpy.concatenate([numpy.atleast_1d(value) for value in values], dim)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise ReduceError(f"cannot concatenate {_kinds(values)}: {error}") from error


def _cat_tables(values: Sequence[Any], dim: int) -> Any:
    if len({*map(library_of, values)}) > 1:
        raise ReduceError(f"cannot concatenate {_kinds(values)}")
    try:
        return concat_tables(values, dim)
    except Exception as error:  # each library raises different errors for columns that do not match
        raise ReduceError(f"cannot concatenate {_kinds(values)}: {error}") from error


def _cat_sequences(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, str | bytes):
        return type(first)().join(values)
    make = list if isinstance(first, range) else type(first)
    return make(itertools.chain.from_iterable(values))


def _stack(values: Sequence[Any], dim: int) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return _by_key(values, lambda each: _stack(each, dim))
    try:
        if is_tensor(first):
            return sys.modules["torch"].stack([value.detach() for value in values], dim)
        import numpy  # weight: only stacking numbers needs it

        stacked = numpy.stack(values, dim)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise ReduceError(f"cannot stack {_kinds(values)}: {error}") from error
    if stacked.dtype == object:
        raise ReduceError(f"cannot stack {_kinds(values)}: not numbers")
    return stacked


def _check_alike(values: Sequence[Any]) -> Sequence[Any]:
    if len({tuple(getattr(value, "shape", ())) for value in values}) > 1 or len({*map(type, values)}) > 1:
        raise ReduceError(f"cannot compute the mean of {_kinds(values)}")
    return values


def _by_key(values: Sequence[Any], combine: Callable[[list[Any]], Any]) -> dict[Any, Any]:
    if any(not isinstance(value, Mapping) or value.keys() != values[0].keys() for value in values):
        raise ReduceError("the dicts have different keys")
    return {key: combine([value[key] for value in values]) for key in values[0]}


def _by_position(values: Sequence[Any], combine: Callable[[list[Any]], Any]) -> Any:
    if any(type(value) is not type(values[0]) or len(value) != len(values[0]) for value in values):
        raise ReduceError(f"{_kinds(values)} differ in type or length")
    make = getattr(type(values[0]), "_make", type(values[0]))  # named tuples need it
    return make(combine(list(each)) for each in zip(*values, strict=True))


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)


def _kinds(values: Sequence[Any]) -> str:
    """Describe the kinds of the values, each once: `Tensor (2, 3) and Tensor (2, 4)`, `str`."""
    kinds: dict[str, None] = {}  # an ordered set
    for value in values:
        shape = getattr(value, "shape", None)
        name = f"{library_of(value)} {type(value).__name__}".lstrip()
        kinds[f"values of type {name}" if shape is None else f"a {name} of shape {tuple(shape)}"] = None
    return " and ".join(list(kinds)[:3]) + (" and others" if len(kinds) > 3 else "")
