"""The arguments of operators on a mesh: which can be sent, and which tensors cannot be used together."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import torch

from meshbook.runtime.tensor.checks import format_call
from meshbook.runtime.tensor.mesh_value import MeshValue, Place
from meshbook.runtime.tensor.operators import Operator

# Types of arguments that are sent as they are, and are part of a plan's key.
PLAIN: Final = frozenset({bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format, complex})


def leaves(args: Any, kwargs: Any) -> list[Any]:
    found: list[Any] = []
    for value in (*args, *kwargs.values()):
        found += value if isinstance(value, (list, tuple)) else [value]
    return found


def find_place(args: Any, kwargs: Any, place: Place | None) -> Place | None:
    return next((leaf._place for leaf in leaves(args, kwargs) if isinstance(leaf, MeshValue)), place)


def plain_tensors(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors that are on no mesh, and more than a number."""
    tensors = [leaf for leaf in leaves(args, kwargs) if isinstance(leaf, torch.Tensor)]
    return [tensor for tensor in tensors if not isinstance(tensor, MeshValue) and tensor.dim()]


def refuse_foreign(operator: Operator, args: Any, kwargs: Any) -> None:
    known = (torch.Tensor, torch.Size, torch.SymInt, int, float, *PLAIN)
    for leaf in leaves(args, kwargs):
        if not isinstance(leaf, known):
            what = (
                "generators stay in their process; seed the ranks instead" if isinstance(leaf, torch.Generator) else ""
            )
            raise TypeError(f"{operator.name} cannot send {leaf!r} to the ranks of a mesh{what and ': '}{what}")


def refuse(operator: Operator, args: Any, kwargs: Any, place: Place | None) -> NoReturn:
    found = find_place(args, kwargs, place)
    expected = place if place is not None else found
    tensors = [leaf for leaf in leaves(args, kwargs) if isinstance(leaf, torch.Tensor)]
    faults = [(tensor, fault) for tensor in tensors for fault in find_faults(tensor, expected)]
    raise TypeError(format_call(operator.name, args, kwargs, faults))


def find_faults(tensor: torch.Tensor, expected: Place | None) -> list[str]:
    """Return why this tensor cannot be used at a place."""
    if not isinstance(tensor, MeshValue):
        return ["a local (non-distributed) tensor; to_mesh(x, mesh) copies it to the ranks"] if tensor.dim() else []
    place = tensor._place
    faults = [place.state] if place.state else []
    if expected is not None and place.mesh != expected.mesh:
        faults.append(f"wrong mesh: it is on {place.mesh!r}, and {expected.mesh!r} is used here")
    elif expected is not None and place.stream is not expected.stream:
        here, theirs = expected.stream.name, place.stream.name
        faults.append(f"wrong stream: it is on {theirs!r}, and {here!r} is used here; borrow it")
    return faults
