"""The error for arguments that cannot be used together: every tensor is listed, with what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

HEADLINE = "Incorrect arguments to monarch operation"


def format_call(name: str, args: Any, kwargs: Mapping[str, Any], faults: Sequence[tuple[torch.Tensor, str]]) -> str:
    """Return the text of the error: the call with its tensors numbered, and a line for each tensor with a fault."""
    tensors: list[torch.Tensor] = []

    def number(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        index = next((index for index, tensor in enumerate(tensors) if tensor is value), len(tensors))
        if index == len(tensors):
            tensors.append(value)
        return _Numbered(index)

    shown = [repr(tree_map(number, arg)) for arg in args]
    shown += [f"{key}={tree_map(number, value)!r}" for key, value in kwargs.items()]
    lines = [f"{HEADLINE}:", "", f"    {name}({', '.join(shown)})", ""]
    for index, tensor in enumerate(tensors):
        tags = [fault for faulty, fault in faults if faulty is tensor]
        kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        lines.append(f"    %{index} {kind}: {', '.join(tags) or 'ok'}")
    return "\n".join(lines)


class _Numbered:
    def __init__(self, index: int) -> None:
        self._index = index

    def __repr__(self) -> str:
        return f"%{self._index}"
