"""The arguments of operators on a mesh: which can be sent, and which tensors cannot be used together."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import torch

from meshbook.runtime.tensor.failures import format_call
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


def can_send(operator: Operator, args: Any, kwargs: Any, place: Place) -> bool:
    """Return whether the local tensors among the arguments can be sent to the ranks: numbers, in the per-rank view.

    In the global view each of them has one value, which all ranks get. One that the operator changes stays here.
    """
    written = [value for name, value in _by_name(operator, args, kwargs) if name in operator.mutated]
    if any(map(_is_local, leaves(written, {}))):
        return False
    return place.is_global or not any(_is_local(leaf) and leaf.dim() for leaf in leaves(args, kwargs))


def _by_name(operator: Operator, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    names = [argument.name for argument in operator.func._schema.arguments]
    return [*zip(names, args, strict=False), *kwargs.items()]


def _is_local(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, MeshValue)


def refuse_foreign(operator: Operator, args: Any, kwargs: Any) -> None:
    known = (torch.Tensor, torch.Size, torch.SymInt, int, float, *PLAIN)
    for leaf in leaves(args, kwargs):
        if not isinstance(leaf, known):
            raise TypeError(f"{operator.name} cannot send {leaf!r} to the ranks of a mesh")


def refuse(operator: Operator, args: Any, kwargs: Any, place: Place | None) -> NoReturn:
    found = find_place(args, kwargs, place)
    expected = place if place is not None else found
    tensors = [leaf for leaf in leaves(args, kwargs) if isinstance(leaf, torch.Tensor)]
    faults = [(tensor, fault) for tensor in tensors for fault in find_faults(tensor, expected)]
    raise TypeError(format_call(operator.name, args, kwargs, faults))


def find_faults(tensor: torch.Tensor, expected: Place | None) -> list[str]:
    """Return why this tensor cannot be used at a place."""
    if not isinstance(tensor, MeshValue):
        return _find_local_faults(tensor, expected)
    place = tensor._place
    faults = [place.state] if place.state else []
    if expected is not None and place.is_global is not expected.is_global:
        views = {True: "global", False: "per-rank"}
        here, theirs = views[expected.is_global], views[place.is_global]
        faults.append(f"wrong mesh: it is a tensor of the {theirs} view, and a mesh of the {here} view is used here")
    elif expected is not None and place.mesh != expected.mesh:
        faults.append(f"wrong mesh: it is on {place.mesh!r}, and {expected.mesh!r} is used here")
    elif expected is not None and place.stream is not expected.stream:
        here, theirs = expected.stream.name, place.stream.name
        faults.append(f"wrong stream: it is on {theirs!r}, and {here!r} is used here; borrow it")
    return faults


def _find_local_faults(tensor: torch.Tensor, expected: Place | None) -> list[str]:
    if expected is not None and expected.is_global:
        return ["a local tensor, which the operation would change; distribute(x, mesh) puts it on the ranks"]
    return ["a local (non-distributed) tensor; to_mesh(x, mesh) copies it to the ranks"] if tensor.dim() else []
