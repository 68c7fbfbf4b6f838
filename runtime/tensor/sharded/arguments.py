"""The tensors among the arguments and results of operators.

These are tensors, or lists of tensors; torch's general trees would take longer than the operators themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors in arguments or results, in order."""
    found: list[Any] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[Any]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _collect(one, found)
    elif isinstance(value, dict):
        for one in value.values():
            _collect(one, found)


def map_tensors(change: Callable[[Any], Any], value: Any) -> Any:
    """Return arguments or results with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: map_tensors(change, one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)([map_tensors(change, one) for one in value])
    if isinstance(value, tuple):
        # A named tuple, such as the results of `torch.sort`.
        return tuple(map_tensors(change, one) for one in value)
    return value
