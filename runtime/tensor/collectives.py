"""Operations between ranks, as methods of a mesh tensor: `reduce`, `slice_mesh`, `to_mesh`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from meshbook.runtime.tensor.failures import format_call
from meshbook.runtime.tensor.groups import REDUCTIONS
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.templates import user_place

if TYPE_CHECKING:
    from meshbook.runtime.tensor.device_mesh import DeviceMesh

DEPTH: Final = 2
_tags = itertools.count(1)
_BITWISE = ("band", "bor", "bxor")


class Collectives:
    """Methods of `MeshTensor`. `_like` makes a tensor of the same class."""

    __slots__ = ()

    def reduce(
        self: Any,
        dims: str | Sequence[str] | None = None,
        reduction: str = "sum",
        *,
        scatter: bool = False,
        mesh: Any = None,
        out: Any = None,
    ) -> Any:
        """Reduce over the ranks along these dimensions of the mesh; None: all. All ranks get the result.

        `reduction` is "sum", "avg", "product", "min", "max", "band", "bor", "bxor", or "stack", which puts the values
        of the ranks along a new first dimension. With `scatter`, the first dimension counts the ranks, and each rank
        gets its part of the result: reduce-scatter, and all-to-all for "stack". The result goes into `out` if given.

        Raises ValueError for an unknown reduction, repeated dimensions, several dimensions with "stack" or `scatter`,
        and an `out` of another shape. KeyError: an unknown dimension. TypeError: the first dimension does not fit.
        """
        if mesh is not None:
            raise NotImplementedError(
                "reduce() does not support mesh=; call slice_mesh(...).to_mesh(mesh) on its result"
            )
        names = _check_dims(self.mesh, dims, reduction, scatter)
        _check_arguments("reduce", self, out)
        shape = _shape_of(self, names, reduction, scatter)
        if out is not None and tuple(out.shape) != shape:
            raise ValueError(f"Reduce expects the shape of `out` to be {shape}, not {tuple(out.shape)}")
        meta = Meta.make(shape, _row_major(shape), self.dtype, 0, self._meta.device)
        lane = self._place.lane
        engine = lane.engine
        group = engine.join(lane, self.mesh.groups(names))
        result = self._like(meta, lane.new_ref(engine.new_ids(1))) if out is None else out
        into = 0 if out is None else out._ref.id
        command = "reduce", result._ref.id, self._ref.id, group, reduction, scatter, into, self._meta
        if engine.recorder is not None:
            engine.recorder.hold([self, result])
        engine.issue(lane, command, user_place(DEPTH), 0)
        return result

    def reduce_(
        self: Any, dims: str | Sequence[str] | None = None, reduction: str = "sum", *, scatter: bool = False
    ) -> Any:
        """Reduce as `reduce` does, in place; the result must have the same shape."""
        return self.reduce(dims, reduction, scatter=scatter, out=self)

    def slice_mesh(self: Any, **dims: int | slice) -> Any:
        """Return the tensor of a part of the ranks. The value is the same one, not a copy.

        Raises KeyError for an unknown dimension and IndexError for an index out of range.
        """
        _check_arguments("slice_mesh", self, None)
        return self._like(self._meta, self._ref, self.mesh.slice(**dims).place(self._place.stream))

    def to_mesh(self: Any, mesh: Any, stream: Any = None) -> Any:
        """Return a copy on another mesh, or on another part of this one.

        The ranks are matched by the dimensions' names and sizes; a rank's value goes to all ranks along dimensions
        that only the target has. Raises ValueError if the target lacks a dimension, or has it in another size.
        """
        _check_arguments("to_mesh", self, None)
        target = mesh.device_mesh
        pairs = match_ranks(self.mesh, target)
        place = target.place(stream or self._place.stream)
        meta = Meta.make(self._meta.shape, self._meta.stride, self._meta.dtype, 0, self._meta.device)
        result = self._like(meta, place.lane.new_ref(place.engine.new_ids(1)), place)
        # Both ends of a transfer are in the target's stream. The own stream does not wait for it: it sends a copy.
        sending = self.mesh.place(place.stream)
        ref = self._place.engine.hand_over(self._ref.id, self._place.lane, sending.lane, as_copy=True)
        _transfer(self if ref is None else self._like(self._meta, ref, sending), result, pairs)
        return result


def _check_arguments(name: str, tensor: Any, out: Any) -> None:
    """Raise TypeError for tensors that cannot be used, or are part of a graph: these operations have no backward."""
    if tensor._place.is_global:
        raise TypeError(
            f"{name} is for tensors of the per-rank view: this one has one value for all ranks; redistribute() moves it"
        )
    given = [tensor] if out is None or out is tensor else [tensor, out]
    faults = [(each, each._place.state) for each in given if each._place.state]
    faults += [(each, "requires grad, and the operation has no backward") for each in given if _is_recorded(each)]
    faults += [(each, "on another mesh or stream") for each in given if each._place is not tensor._place]
    if out is not None and out._ref.borrows:
        faults.append((out, "borrowed, and it would be mutated"))
    if faults:
        raise TypeError(format_call(name, given, {}, faults))


def _is_recorded(tensor: Any) -> bool:
    return bool(torch.is_grad_enabled() and tensor.requires_grad)


def _check_dims(mesh: DeviceMesh, dims: str | Sequence[str] | None, reduction: str, scatter: bool) -> tuple[str, ...]:
    names = tuple(mesh.extent.labels) if dims is None else (dims,) if isinstance(dims, str) else tuple(dims)
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is not valid; it is one of {', '.join(REDUCTIONS)}")
    if len(set(names)) < len(names):
        raise ValueError(f"dimensions are repeated: {', '.join(names)}")
    for name in names:
        if name not in mesh.extent:
            raise KeyError(f"the mesh has no dimension {name!r}; its dimensions: {', '.join(mesh.extent.labels)}")
    if len(names) > 1 and (reduction == "stack" or scatter):
        what = "scatter=True" if scatter else "reduction 'stack'"
        raise ValueError(f"{what} is not valid for multiple dimensions: {', '.join(names)}")
    return names


def _shape_of(tensor: torch.Tensor, names: tuple[str, ...], reduction: str, scatter: bool) -> tuple[int, ...]:
    shape, count = tuple(tensor.shape), tensor.mesh.size(list(names))
    is_exact = not (tensor.is_floating_point() or tensor.is_complex())
    if reduction == "avg" and is_exact:
        raise TypeError(f"avg needs a floating point tensor, not {tensor.dtype}")
    if reduction in _BITWISE and not is_exact:
        raise TypeError(f"{reduction} needs a tensor of integers or booleans, not {tensor.dtype}")
    if not scatter:
        return (count, *shape) if reduction == "stack" else shape
    if not shape or shape[0] != count:
        raise TypeError(
            f"When scattering, the first dimension must have the size {count}, one part for each rank; the shape is "
            f"{shape}"
        )
    return shape if reduction == "stack" else shape[1:]


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides)) if shape else ()


def match_ranks(source: DeviceMesh, target: DeviceMesh) -> list[tuple[int, int]]:
    """Return the rank of the source, of its engine, for each rank of the target, of its own."""
    for name, size in source.sizes.items():
        if target.sizes.get(name, size if size == 1 else None) != size:
            raise ValueError(
                f"to_mesh: the tensor is on {dict(source.extent)} and the target is {dict(target.extent)}: each "
                f"dimension of the tensor's mesh must be in the target, with the same size ({name!r} is not)"
            )
    ranks = source.region.ranks()
    pairs = []
    for position, rank in enumerate(target.region.ranks()):
        point = dict(target.extent.point(position))
        index = source.extent.point(**{name: point.get(name, 0) for name in source.extent.labels}).rank
        pairs.append((ranks[index], rank))
    return pairs


def _transfer(source: Any, result: Any, pairs: list[tuple[int, int]]) -> None:
    """Send the value of each first rank to the second one."""
    here, there = source._place.lane, result._place.lane
    tag, place, meta = next(_tags), user_place(DEPTH + 1), source._meta
    if here.engine is there.engine:
        members = [tuple(range(len(here.engine.actors)))]
        whole = here.engine.lane(here.engine.actors, here.stream)
        group = here.engine.join(whole, members) if any(a != b for a, b in pairs) else ""
    else:
        group = here.engine.join_other(there.engine, here.stream)
    targets: dict[int, list[str]] = {}
    sources: dict[int, str | int] = {}
    for sender, receiver in pairs:
        if here.engine is there.engine and sender == receiver:
            sources[receiver] = source._ref.id
        else:
            targets.setdefault(sender, []).append(there.engine.member(receiver))
            sources[receiver] = here.engine.member(sender)
    if targets:
        here.engine.issue(here, ("send", source._ref.id, group, targets, tag, meta), place, 0)
    if here.engine is not there.engine:
        here.engine.flush()
    there.engine.issue(there, ("receive", result._ref.id, group, sources, tag, result._meta), place, 0)
