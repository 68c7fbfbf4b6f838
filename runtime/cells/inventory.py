"""The variables of a rank in a line each: name, type, size in bytes, and a short text of the value.

The cost is bounded for any value, since all variables are listed at once. `values` shows a single one.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import reprlib
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.cells.tables import summarize_table
from meshbook.runtime.cells.variables import Namespace, VariableRequest

MOST_CHARACTERS = 80
MOST_ELEMENTS = 6  # of a tensor whose values are shown
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # an address differs from rank to rank and is of no use
_COUNTED = (str, bytes, list, tuple, dict, set, frozenset)
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Entry:
    """A variable; `size` is in bytes, None if the type does not provide it."""

    name: str
    type_name: str
    size: int | None
    text: str


@dataclass(frozen=True)
class Inventory(VariableRequest):
    """List the user's variables."""

    def handle(self, namespace: Namespace) -> list[Entry]:
        names = sorted(namespace.names())
        return [entry_of(name, namespace.values[name]) for name in names if name in namespace.values]


def find_largest_on_gpu(values: Mapping[str, Any], names: Iterable[str], count: int) -> list[Entry]:
    """Return the tensors and modules of these names that take most memory of a GPU, the largest first."""
    entries = []
    for name in names:
        with contextlib.suppress(Exception):  # of the user's own classes
            if _is_on_gpu(values[name]):
                entries.append(entry_of(name, values[name]))
    return sorted(entries, key=lambda entry: entry.size or 0, reverse=True)[:count]


def _is_on_gpu(value: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor | torch.nn.Module):
        return False
    tensors = [value] if isinstance(value, torch.Tensor) else value.parameters()
    return any(tensor.device.type not in ("cpu", "meta") for tensor in tensors)


def entry_of(name: str, value: Any) -> Entry:
    """Describe a variable in a line."""
    try:
        size, text = _size_and_text(value)
    except Exception as error:  # of the user's own code
        size, text = None, f"cannot be shown: {type(error).__name__}: {error}"
    line = " ".join(text.split())
    line = line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"
    # A library may replace the class of its module, as meshbook does.
    type_name = "module" if isinstance(value, types.ModuleType) else type(value).__name__
    return Entry(name, type_name, size, line)


def _size_and_text(value: Any) -> tuple[int | None, str]:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        text = f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} {value.device}"
        # To read a distributed tensor takes all its ranks.
        is_here = value.device.type != "meta" and not hasattr(value, "to_local")
        return value.numel() * value.element_size(), text + _elements(value, value.numel() if is_here else 0)
    if torch is not None and isinstance(value, torch.nn.Module):
        return _of_module(value)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value.nbytes, f"{value.shape} {value.dtype}{_elements(value, value.size)}"
    if (table := summarize_table(value)) is not None:
        return table.size, f"{table.shape} {table.kinds}"
    return None, _of_object(value)


def _elements(values: Any, count: int) -> str:
    return f" {reprlib.repr(values.tolist())}" if 0 < count <= MOST_ELEMENTS else ""


def _of_module(module: Any) -> tuple[int, str]:
    parameters = list(module.parameters())
    held = [*parameters, *module.buffers()]
    count = sum(parameter.numel() for parameter in parameters)
    kinds = dict.fromkeys(f"{str(each.dtype).removeprefix('torch.')} {each.device}" for each in held)
    short = next((f"{count / scale:.3g}{letter}" for scale, letter in _SCALES if count >= scale), str(count))
    text = " ".join([f"{short} parameters", *list(kinds)[:2]])
    return sum(each.numel() * each.element_size() for each in held), text


def _of_object(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return f"{value.__name__} {getattr(value, '__version__', '')}".rstrip()
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.FunctionType):
        return f"{value.__name__}{inspect.signature(value)}"
    if isinstance(value, _COUNTED) and len(value) > 6:
        return f"n={len(value):,}: {_repr(value)}"
    return _ADDRESS.sub("", _repr(value))


def _repr(value: Any) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = MOST_CHARACTERS - len("n=1,000,000: ")
    return short.repr(value)
