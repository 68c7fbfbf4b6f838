"""Runs one PyTorch operator on sharded tensors, on every rank of a mesh alike."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.tensor.operators import call
from meshbook.runtime.tensor.sharded import placing, rules, views
from meshbook.runtime.tensor.sharded.arguments import map_tensors, tensors_in
from meshbook.runtime.tensor.sharded.batchwise import BATCHWISE, batch_placements, run_batchwise
from meshbook.runtime.tensor.sharded.decompositions import decomposition_of
from meshbook.runtime.tensor.sharded.random import SharedRandom
from meshbook.runtime.tensor.sharded.rules import Way

aten = torch.ops.aten
Arguments = tuple[Any, ...]


class OperatorRefused(MeshbookError):
    """An operator cannot be run on sharded tensors; names the operator, the placements and the remedy."""

    page = "operatorrefused"


class ShardedOperators:
    """Applies operators to the sharded tensors of one device mesh.

    Every rank of the mesh calls the same methods with the same operators in the same order. Tensors are DTensors. A
    plain tensor among the arguments must be equal on all ranks: it is treated as replicated.
    """

    def __init__(self, mesh: DeviceMesh, seed: int = 0) -> None:
        self.mesh = mesh
        self.random = SharedRandom(mesh.device_type, seed)

    def run(self, func: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Apply the operator `func`, an overload such as `torch.ops.aten.mm.default`, and return its results.

        Tensors among the results are DTensors, in-place operators return their argument, and views share the memory of
        their base or are kept equal to it. In-place operators that change the shape of their argument, such as `t_`,
        return a view of it in its place. Raises `OperatorRefused`, or what the operator itself raises.
        """
        args, kwargs = tuple(args), dict(kwargs) if kwargs else {}
        with torch.no_grad():
            tensors = tensors_in((args, kwargs))
            if not tensors:
                return self._create(func, args, kwargs)
            admitted = {id(one): self._admit(one) for one in tensors}
            if any(admitted[id(one)] is not one for one in tensors):
                args, kwargs = map_tensors(lambda one: admitted[id(one)], (args, kwargs))
                tensors = tensors_in((args, kwargs))
            return self._ways[rules.way_of(func)](self, func, args, kwargs, tensors)

    def full(self, tensor: DTensor) -> Tensor:
        """Return the whole tensor on every rank. Do not write to it: it may be the local tensor itself."""
        with torch.no_grad():
            views.refresh(tensor)
            return placing.gather(tensor)

    def redistribute(self, tensor: DTensor, placements: Sequence[Placement]) -> DTensor:
        """Return a copy of the tensor with other placements."""
        with torch.no_grad():
            views.refresh(tensor)
            moved = placing.redistribute(tensor, placements)
            return placing.copy(tensor) if moved is tensor else moved

    def distribute(self, full: Tensor, placements: Sequence[Placement]) -> DTensor:
        """Return a sharded tensor with the value `full`, which every rank has."""
        with torch.no_grad():
            # A clone: the sharded tensor must not share the memory of the caller's.
            return placing.restore(placing.wrap(full.detach().clone(), self.mesh), placements)

    def _admit(self, tensor: Tensor) -> DTensor:
        if not isinstance(tensor, DTensor):
            return placing.wrap(tensor, self.mesh)
        views.refresh(tensor)
        return tensor

    # -- the ways to run an operator; each gets the operator, its arguments, and the tensors among these -----------

    def _pass_to_dtensor(self, func: Any, args: Arguments, kwargs: dict[str, Any], tensors: list[DTensor]) -> Any:
        if _reduces_no_dims(func, args, kwargs) or _may_fail_within(func, tensors):
            return self._run_whole(func, args, kwargs, tensors)
        pointwise = rules.is_pointwise(func)
        keep_sums = _passes_sums(func, args, kwargs, tensors)
        ready = {id(one): self._prepare(one, pointwise=pointwise, keep_sums=keep_sums) for one in tensors}
        written = _written(func, args, kwargs)
        if any(ready[id(one)] is not one for one in written):
            return self._run_whole(func, args, kwargs, tensors)
        if rules.name_of(func) in rules.DIMS_FROM_THE_END:
            args, kwargs = _count_dim_from_the_start(func, args, kwargs)
        ready_args, ready_kwargs = args, kwargs
        if any(ready[id(one)] is not one for one in tensors):
            ready_args, ready_kwargs = map_tensors(lambda one: ready[id(one)], (args, kwargs))
        try:
            results = func(*ready_args, **ready_kwargs)
        except (RuntimeError, NotImplementedError) as error:
            # Raised alike on all ranks, before anything is computed. Other errors are the operator's own.
            if not _is_from_propagation(error):
                if all(map(placing.is_replicated, tensors)):  # the other ranks fail alike
                    _write_through(written)
                raise
            return self._run_whole(func, args, kwargs, tensors)
        _write_through(written)
        return results if written else map_tensors(_settle, results)

    def _prepare(self, tensor: DTensor, *, pointwise: bool, keep_sums: bool) -> DTensor:
        """Return the argument with placements that DTensor handles right."""
        if not all(type(placement) in (Replicate, Shard) for placement in tensor.placements):
            wanted = [_handled(placement, keep_sums=keep_sums) for placement in tensor.placements]
            tensor = placing.redistribute(tensor, wanted)
        if not pointwise and (placing.has_empty_shard(tensor) or placing.is_sharded_twice(tensor)):
            return placing.replicate(tensor)
        return tensor

    def _run_view(self, func: Any, args: Arguments, kwargs: dict[str, Any], tensors: list[DTensor]) -> Any:
        source = tensors[0]
        results = None
        can_view = not placing.has_empty_shard(source) and not placing.is_sharded_twice(source)
        if can_view and rules.name_of(func) in rules.VIEWS and rules.has_strategy(func):
            try:
                results = func(*args, **kwargs)
            except (RuntimeError, NotImplementedError) as error:
                if not _is_from_propagation(error):
                    raise
        shares = results is not None
        if results is None or not all(map(placing.is_plain, _first(results).placements)):
            shares = False
            made = _call(func, _viewed(func, source), args, kwargs)
            results = map_tensors(lambda one: placing.wrap(one, source.device_mesh), made)
        several = isinstance(results, (list, tuple))
        outs = [
            one
            if shares and _shares_memory(one, source)
            else views.detach_view(
                one, source, functools.partial(_make_view, func, args, kwargs, at if several else None)
            )
            for at, one in enumerate(results if several else [results])
        ]
        return type(results)(outs) if several else outs[0]

    def _run_view_in_place(self, func: Any, args: Arguments, kwargs: dict[str, Any], tensors: list[DTensor]) -> Any:
        return self.run(rules.VIEWS_IN_PLACE[func], args, kwargs)

    def _run_batchwise(self, func: Any, args: Arguments, kwargs: dict[str, Any], tensors: list[DTensor]) -> Any:
        rule = BATCHWISE[rules.name_of(func)]
        arguments = _by_name(func, args, kwargs)
        batch = batch_placements(rule, arguments)
        if batch is None:
            return self._run_whole(func, args, kwargs, tensors)
        return map_tensors(_settle, run_batchwise(func, rule, arguments, batch))

    def _decompose(self, func: Any, args: Arguments, kwargs: dict[str, Any], tensors: list[DTensor]) -> Any:
        decomposition = decomposition_of(func)
        assert decomposition is not None  # or the way would be another
        with _Redispatch(self):
            return decomposition(*args, **kwargs)

    def _run_random_like(self, func: Any, args: Arguments, kwargs: dict[str, Any], tensors: list[DTensor]) -> Any:
        source = tensors[0]
        stride = placing.dense_stride(source.shape, source.stride())
        full = torch.empty_strided(source.shape, stride, dtype=source.dtype, device=placing.local_of(source).device)
        with self.random.active():
            drawn = _call(func, full, args, kwargs)
        if _written(func, args, kwargs):
            views.store(drawn, source)
            views.write_through(source)
            return source
        return placing.restore(placing.wrap(drawn, source.device_mesh), source.placements)

    def _drop_out(self, func: Any, args: Arguments, kwargs: dict[str, Any], tensors: list[DTensor]) -> Any:
        # Without the mask of the whole tensor every rank would need the values of the whole tensor.
        source = tensors[0]
        ones = torch.ones(source.shape, dtype=source.dtype, device=placing.local_of(source).device)
        with self.random.active():
            scale, mask = _call(func, ones, args, kwargs)
        scale, mask = (
            placing.restore(placing.wrap(one, source.device_mesh), source.placements) for one in (scale, mask)
        )
        return self.run(aten.mul.Tensor, (source, scale)), mask

    def _run_random(self, func: Any, args: Arguments, kwargs: dict[str, Any], tensors: list[DTensor]) -> Any:
        with self.random.active():
            return self._run_whole(func, args, kwargs, tensors)

    def _refuse(self, func: Any, args: Arguments, kwargs: dict[str, Any], tensors: list[DTensor]) -> Any:
        raise _refusal(func, tensors, rules.REFUSED[rules.name_of(func)])

    def _run_whole(self, func: Any, args: Arguments, kwargs: dict[str, Any], tensors: list[DTensor]) -> Any:
        """Run the operator on whole tensors, the same on every rank, and keep the shards of the results."""
        wholes = {id(one): placing.gather(one) for one in tensors}
        written = _written(func, args, kwargs)
        if rules.has_out(func):
            # The operator may change the shape of its out= before that can be refused.
            wholes |= {id(one): wholes[id(one)].clone() for one in written}
        full_args, full_kwargs = map_tensors(lambda one: wholes[id(one)], (args, kwargs))
        try:
            results = call(func, full_args, full_kwargs)
        except Exception:
            kept = [one for one in written if wholes[id(one)].shape == one.shape]
            for one in kept:
                views.store(wholes[id(one)], one)
            _write_through(kept)
            raise
        originals = {id(wholes[id(one)]): one for one in tensors}
        for one in written:
            whole = wholes[id(one)]
            if whole.shape != one.shape:
                raise _refusal(func, tensors, f"its result has the shape {tuple(whole.shape)}; pass out= of that shape")
            views.store(whole, one)
        _write_through(written)

        def keep(result: Tensor) -> DTensor:
            original = originals.get(id(result))
            if original is not None:
                return original
            mesh = tensors[0].device_mesh
            like = next((one for one in tensors if one.shape == result.shape and not placing.is_replicated(one)), None)
            out = placing.wrap(result, mesh)
            return out if like is None else placing.restore(out, like.placements)

        return map_tensors(keep, results)

    def _create(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            with self.random.active():
                results = func(*args, **kwargs)
        else:
            results = func(*args, **kwargs)
        return map_tensors(lambda one: placing.wrap(one, self.mesh), results)

    _ways: dict[Way, Callable[..., Any]] = {
        Way.DTENSOR: _pass_to_dtensor,
        Way.VIEW: _run_view,
        Way.VIEW_IN_PLACE: _run_view_in_place,
        Way.BATCHWISE: _run_batchwise,
        Way.DECOMPOSED: _decompose,
        Way.RANDOM_LIKE: _run_random_like,
        Way.DROPOUT: _drop_out,
        Way.RANDOM: _run_random,
        Way.WHOLE: _run_whole,
        Way.REFUSED: _refuse,
    }


class _Redispatch(TorchDispatchMode):
    """Sends the operators that a decomposition consists of back to `run`."""

    def __init__(self, operators: ShardedOperators) -> None:
        super().__init__()
        self._operators = operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._operators.run(func, args, kwargs)


def _passes_sums(func: Any, args: Arguments, kwargs: dict[str, Any], tensors: list[DTensor]) -> bool:
    """Tell whether the operator may run on sums that are not reduced yet, since it maps sums to sums."""
    if not any(placement.is_partial() for one in tensors for placement in one.placements):
        return False
    name = rules.name_of(func)
    if name in rules.SCALING:
        # One tensor, the first argument, beside numbers. A rounding mode is no scaling, nor is another dtype.
        return len(tensors) == 1 and bool(args) and args[0] is tensors[0] and not _has_options(kwargs)
    if name in rules.ADDING:
        same = {one.placements for one in tensors}
        return len(tensors) == 2 and len(same) == 1 and tensors[0].dtype == tensors[1].dtype
    return False


def _has_options(kwargs: dict[str, Any]) -> bool:
    return any(value is not None for name, value in kwargs.items() if name in ("dtype", "rounding_mode"))


def _handled(placement: Placement, *, keep_sums: bool) -> Placement:
    if placing.is_sum(placement):
        return placement if keep_sums else Replicate()
    return placement if placing.is_plain(placement) else Replicate()


def _settle(out: DTensor) -> DTensor:
    """Reduce what is not a plain sum, and lay the local tensor out in the order that the whole tensor has."""
    if not all(map(placing.is_plain, out.placements)):
        wanted = [one if placing.is_plain(one) else Replicate() for one in out.placements]
        out = placing.redistribute(out, wanted)
    return placing.lay_out(out)


def _shares_memory(out: DTensor, source: DTensor) -> bool:
    """Tell whether `out`, which DTensor returned as a view of `source`, shares its memory and its version counter."""
    if views.detached(source) is not None or out._version != source._version:
        return False
    return bool(placing.local_of(out).untyped_storage()._cdata == placing.local_of(source).untyped_storage()._cdata)


def _first(results: Any) -> DTensor:
    return tensors_in(results)[0]


def _call(func: Any, first: Tensor, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Call `func` with `first` in the place of its first argument."""
    if args:
        return func(first, *args[1:], **kwargs)
    name = func._schema.arguments[0].name
    return func(**{**kwargs, name: first})


def _make_view(func: Any, args: Arguments, kwargs: dict[str, Any], at: int | None, base: Tensor) -> Tensor:
    result = _call(func, base, args, kwargs)
    made: Tensor = result if at is None else result[at]
    return made


def _written(func: Any, args: Arguments, kwargs: dict[str, Any]) -> list[DTensor]:
    """Return the tensors that `func` writes to."""
    if not rules.written_arguments(func):
        return []
    values = [
        kwargs[name] if name in kwargs else args[at]
        for at, name in rules.written_arguments(func)
        if at < len(args) or name in kwargs
    ]
    return tensors_in(values)


def _write_through(written: list[DTensor]) -> None:
    """Write to the bases of views, also what an operator has written before it failed."""
    for one in written:
        views.write_through(one)


def _may_fail_within(func: Any, tensors: list[DTensor]) -> bool:
    """Tell whether the operator changes integers and fails at a zero, which one shard may have and others not.

    On whole tensors it fails on all ranks, and the values that it leaves are those of one process.
    """
    return rules.name_of(func) in rules.DIVIDING_IN_PLACE and not tensors[0].is_floating_point()


def _by_name(func: Any, args: Arguments, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name, with the defaults of those that are missing."""
    arguments = {one.name: one.default_value for one in func._schema.arguments}
    arguments.update(zip(arguments, args, strict=False))
    arguments.update(kwargs)
    return arguments


def _reduces_no_dims(func: Any, args: Arguments, kwargs: dict[str, Any]) -> bool:
    """Tell whether the list of dimensions is empty: torch reduces all then, DTensor none."""
    listed = rules.dims_argument(func)
    if listed is None:
        return False
    at, name = listed
    dims = args[at] if at < len(args) else kwargs.get(name)
    return isinstance(dims, (list, tuple)) and not dims


def _count_dim_from_the_start(func: Any, args: Arguments, kwargs: dict[str, Any]) -> tuple[Arguments, dict[str, Any]]:
    arguments = _by_name(func, args, kwargs)
    shape_name = rules.DIMS_FROM_THE_END[rules.name_of(func)]
    ndim = len(arguments[shape_name]) if shape_name else arguments["self"].ndim
    if arguments["dim"] < 0:
        arguments["dim"] += max(ndim, 1)
    schema = func._schema.arguments
    positional = tuple(arguments[one.name] for one in schema if not one.kwarg_only)
    return positional, {one.name: arguments[one.name] for one in schema if one.kwarg_only}


def _is_from_propagation(error: Exception) -> bool:
    # gloo does not move some types: all ranks find that out before anything is sent.
    texts = "Sharding propagation failed", "Invalid scalar type"
    return isinstance(error, NotImplementedError) or any(text in str(error) for text in texts)


def _viewed(func: Any, source: DTensor) -> Tensor:
    """Return the whole tensor of which the operator makes a view. Raises if `func` needs memory that is elsewhere."""
    if rules.name_of(func) != "as_strided":
        return placing.gather(source)
    view = views.detached(source)
    base = source if view is None else view.base
    root = base._base if base._is_view() else base
    if _lies_alike(root):
        full = placing.gather(root)
        full = base._view_func_unsafe(full) if base._is_view() else full
        return full if view is None else view.make(full)
    raise _refusal(
        func, [source], "its strides do not match the layout of its shards in memory; clone the tensor first"
    )


def _lies_alike(root: DTensor) -> bool:
    """Tell whether the whole tensor lies in memory as the strides of `root` say."""
    if placing.is_replicated(root):
        local = placing.local_of(root)
        return bool(local.stride() == root.stride() and local.storage_offset() == 0)
    return tuple(root.stride()) == placing.dense_stride(root.shape, root.stride())


def _refusal(func: Any, tensors: list[DTensor], reason: str) -> OperatorRefused:
    described = ", ".join(map(placing.describe, tensors))
    return OperatorRefused(f"{func} cannot run on the sharded tensors {described}: {reason}")
