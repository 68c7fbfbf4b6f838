"""`MeshTensor`: a tensor of which every rank of a mesh has its own value, and the controller only the metadata.

It is a wrapper subclass below autograd: `dispatch` gets each operator that torch runs on it, with forward and backward
alike, and makes a command of it. `dispatch` is the path whose time counts: 5 to 10 µs an operator.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from meshbook.runtime.tensor.arguments import PLAIN, can_send, find_place, refuse, refuse_foreign
from meshbook.runtime.tensor.engine import LOCALLY, Engine
from meshbook.runtime.tensor.failures import Failed, format_call
from meshbook.runtime.tensor.lanes import Ref
from meshbook.runtime.tensor.mesh_value import Constant, MeshValue, Place
from meshbook.runtime.tensor.metadata import Meta, Unknown, device_on_ranks, names_here
from meshbook.runtime.tensor.operators import Cache, Operator, Plan, operator_of
from meshbook.runtime.tensor.planning import make_plan, make_template
from meshbook.runtime.tensor.templates import user_place

aten = torch.ops.aten
_make = torch.Tensor._make_wrapper_subclass
_ALIASES: Final = frozenset({aten.detach.default, aten.alias.default})
DEPTH: Final = 2  # frames above `dispatch` that may be the user's


class MeshTensor(MeshValue):
    """A tensor on a mesh, in the per-rank view. Made by torch under `with mesh.activate():`, and by its operations.

    `fetch_shard(x, gpus=1)` gets the value of a rank. `x.item()`, `x.tolist()`, `x.numpy()` and conditions get that of
    the first rank. All other operations return at once.
    """

    __slots__ = ()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {}, None)

    def _like(self, meta: Meta, ref: Ref, place: Place | None = None) -> MeshTensor:
        return make_tensor(meta, ref, place or self._place)


def make_tensor(meta: Meta, ref: Ref, place: Place) -> MeshTensor:
    """Return the tensor of a value on the ranks."""
    tensor: MeshTensor = _make(
        MeshTensor, meta.shape, meta.stride, meta.offset, None, meta.dtype, torch.strided, meta.here
    )
    tensor._ref = ref
    tensor._meta = meta
    tensor._place = place
    tensor._constant = None
    if meta.has_bits:
        meta.set_bits(tensor)
    return tensor


def make_constant(value: torch.Tensor, place: Place) -> MeshTensor:
    """Return a tensor with the same value on all ranks. The controller keeps the value of a number."""
    with LOCALLY():
        # A copy, as the command is sent later. It has the strides of the original, except where elements overlap.
        value = value.detach().resolve_conj().resolve_neg().clone()
        # In the global view, the ranks put it on their own device.
        meta = Meta.of(value, torch.device(place.engine.device) if place.is_global else None)
        meta = meta.as_constant(value.dim() == 0)
    engine = place.engine
    number = engine.new_ids(1)
    ref = place.lane.new_ref(number)
    engine.issue(place.lane, ("constant", number, value, meta), user_place(DEPTH), value.nbytes)
    tensor = make_tensor(meta, ref, place)
    if meta.is_constant:
        with LOCALLY():
            tensor._constant = Constant(value.clone(), [True])
    return tensor


def make_numbers(numbers: dict[int, int], place: Place) -> MeshTensor:
    """Return a tensor without dimensions, with a number for each rank of the engine."""
    meta = Meta.make((), (), torch.int64, 0, torch.device("cpu"))
    number = place.engine.new_ids(1)
    ref = place.lane.new_ref(number)
    place.engine.issue(place.lane, ("numbers", number, numbers), user_place(DEPTH))
    return make_tensor(meta, ref, place)


def dispatch(func: Any, args: Sequence[Any], kwargs: dict[str, Any], place: Place | None) -> Any:
    """Run an operator on the ranks. `place` is the active one, None without; else that of the tensors counts."""
    operator = operator_of(func)
    free = operator.free
    key: list[Any] = [func, torch.get_default_dtype()]
    tensors: list[MeshTensor] = []
    numbers: list[Any] = []
    for position, value in enumerate(args):
        kind = type(value)
        if kind is MeshTensor:
            key.append(value._meta)
            tensors.append(value)
        elif kind is int or kind is float:
            if free[position]:
                key.append(kind)
                numbers.append(value)
            else:
                key.append(kind)
                key.append(value)
        elif kind is list or kind is tuple:
            key.append(_fold(value, free[position], tensors, numbers))
        elif kind in PLAIN:
            key.append(value)
        else:
            return _dispatch_converted(operator, args, kwargs, place)
    for name, value in kwargs.items():
        kind = type(value)
        key.append(name)
        if kind is MeshTensor:
            key.append(value._meta)
            tensors.append(value)
        elif kind is int or kind is float:
            key.append(kind)
            if operator.named_free[name]:
                numbers.append(value)
            else:
                key.append(value)
        elif kind is list or kind is tuple:
            key.append(_fold(value, operator.named_free[name], tensors, numbers))
        elif kind in PLAIN:
            key.append(value)
        else:
            return _dispatch_converted(operator, args, kwargs, place)

    if tensors:
        own = tensors[0]._place
        if (place is not None and own is not place) or own.state:
            refuse(operator, args, kwargs, place)
        for tensor in tensors:
            if tensor._place is not own:
                refuse(operator, args, kwargs, place)
        place = own
    assert place is not None, func
    if func in _ALIASES:
        alias = make_tensor(tensors[0]._meta, tensors[0]._ref, place)
        alias._constant = tensors[0]._constant
        return alias

    engine = place.engine
    cached: tuple[Any, ...] = tuple(key)
    try:
        plan = engine.cache.get(cached)
    except RuntimeError:  # `_fold` has met something that cannot be in a key
        return _dispatch_converted(operator, args, kwargs, place)
    if plan is None:
        plan = _plan(engine, cached, operator, args, kwargs)
        if plan is None:
            return _ask_ranks(operator, args, kwargs, tensors, numbers, place)
    if plan.is_special:
        return _run_special(plan, operator, args, kwargs, tensors, numbers, place)
    return _run(plan, tensors, numbers, place)


def _run(plan: Plan, tensors: list[MeshTensor], numbers: list[Any], place: Place) -> Any:
    lane = place.lane
    engine = lane.engine
    where = user_place(DEPTH)
    with engine.lock:  # the ranks get a template before the first command with it, of whichever thread
        if plan.number not in lane.known:
            engine.issue(lane, ("template", plan.number, plan.template), None, 0)
            lane.known.add(plan.number)
        if engine.recorder is not None:
            engine.recorder.hold(tensors)
        if plan.single is not None:
            number = next(engine.ids)
            engine.issue(lane, (plan.number, number, *[tensor._ref.id for tensor in tensors], *numbers), where)
            return make_tensor(plan.single, Ref(number, lane.delete), place)
        number = engine.new_ids(plan.count) if plan.count else 0
        guarded = tuple(each for tensor in tensors for each in tensor._ref.siblings) if plan.is_check else ()
        first = guarded if plan.is_check else number
        engine.issue(lane, (plan.number, first, *[tensor._ref.id for tensor in tensors], *numbers), where)
    if plan.returned is not None:
        return tensors[plan.returned]
    siblings = range(number, number + plan.count)
    refs = [Ref(each, lane.delete, siblings) for each in siblings]
    new = [make_tensor(meta, ref, place) for ref, meta in zip(refs, plan.metas, strict=True)]
    return plan.restore(new, tensors)


def _fold(values: Sequence[Any], is_free: bool, tensors: list[MeshTensor], numbers: list[Any]) -> tuple[Any, ...]:
    """Return the part of a key for a list of arguments."""
    key: list[Any] = [len(values)]
    for value in values:
        kind = type(value)
        if kind is MeshTensor:
            key.append(value._meta)
            tensors.append(value)
        elif kind is int or kind is float:
            key.append(kind)
            if is_free:
                numbers.append(value)
            else:
                key.append(value)
        elif kind in PLAIN:
            key.append(value)
        else:
            key.append(_Foreign())
    return tuple(key)


class _Foreign:
    """Part of a key for something that has to be converted first."""

    def __hash__(self) -> int:
        raise RuntimeError("cannot be part of a key")


def _plan(engine: Engine, key: tuple[Any, ...], operator: Operator, args: Any, kwargs: Any) -> Plan | None:
    """Make the plan of a key; None if the outputs depend on data."""
    args, kwargs = tree_map_only(torch.device, device_on_ranks, (tuple(args), kwargs))
    cache: Cache = engine.cache
    if cache.is_full:
        cache.clear()
        engine.forget_templates()
    try:
        plan = make_plan(operator, args, kwargs, MeshTensor, engine.templates, engine.infer)
    except Unknown:
        return None
    cache[key] = plan
    return plan


# -- the rarer ways -------------------------------------------------------------------


def _dispatch_converted(operator: Operator, args: Any, kwargs: Any, place: Place | None) -> Any:
    """Dispatch a call again, with numbers in place of plain tensors without dimensions, and sizes as tuples."""
    found = find_place(args, kwargs, place)
    if found is None or not can_send(operator, args, kwargs, found):
        refuse(operator, args, kwargs, place)
    if isinstance(generator := kwargs.get("generator"), torch.Generator):
        state = _state_for_ranks(operator, args, kwargs, generator, found)
        return dispatch(operator.func, args, {**kwargs, "generator": state}, place)
    refuse_foreign(operator, args, kwargs)
    args, kwargs = tree_map_only(
        torch.Size, tuple, (tuple(args), kwargs), is_leaf=lambda each: type(each) is torch.Size
    )
    args, kwargs = tree_map_only(
        torch.Tensor, lambda each: each if isinstance(each, MeshTensor) else make_constant(each, found), (args, kwargs)
    )
    args, kwargs = tree_map_only(torch.SymInt, int, (args, kwargs))
    return dispatch(operator.func, args, kwargs, place)


def _state_for_ranks(
    operator: Operator, args: Any, kwargs: Any, generator: torch.Generator, place: Place
) -> MeshTensor | None:
    """Return the state of a generator on the ranks, which draw with it. This process draws as many numbers from it.

    None for the default generator, as the ranks have one.
    """
    if generator is torch.default_generator:
        return None
    if place.engine.recorder is not None:
        raise RuntimeError("compile() cannot record draws from a generator, since replays would draw the same numbers")
    with LOCALLY(), torch.no_grad():
        state = generator.get_state()
        args, kwargs = tree_map_only(
            MeshTensor,
            lambda each: torch.ones(each.shape, dtype=each.dtype, device=generator.device),
            (tuple(args), kwargs),
        )
        operator.func(*args, **kwargs)
    return make_constant(state, place)


def _run_special(
    plan: Plan, operator: Operator, args: Any, kwargs: Any, tensors: list[MeshTensor], numbers: list[Any], place: Place
) -> Any:
    """Run a call that draws, changes its inputs' metadata or borrowed values, or has constants among its inputs."""
    if plan.is_random and place.is_global:
        place.engine.share_random()
    borrowed = [tensors[index] for index in plan.mutated if tensors[index]._ref.borrows]
    if borrowed:
        faults = [(tensor, "borrowed for reading, and it would be mutated") for tensor in borrowed]
        raise TypeError(format_call(operator.name, args, kwargs, faults))
    if plan.reshaped:
        for index in plan.reshaped:
            _give_own_id(tensors[index])
        result = _run(plan, tensors, numbers, place)
        with torch._C._DisableTorchDispatch():
            operator.func(*args, **kwargs)
        for index, meta in plan.reshaped.items():
            tensors[index]._meta = meta
        return result
    # First: what raises an error here would raise another one on the ranks.
    value = _follow_constants(operator, args, kwargs, tensors, plan) if plan.has_constants else None
    result = _run(plan, tensors, numbers, place)
    if value is not None and isinstance(result, MeshTensor) and result._constant is None:
        first = tensors[0]._constant
        valid = first.valid if operator.is_view and first is not None else [True]
        result._constant = Constant(value, valid)
        result._meta = result._meta.as_constant(True)
    return result


def _give_own_id(tensor: MeshTensor) -> None:
    """Give a tensor that changes its shape an id of its own; detached copies share one."""
    engine, lane = tensor._place.engine, tensor._place.lane
    number = engine.new_ids(1)
    engine.issue(lane, ("alias", number, tensor._ref.id), None)
    tensor._ref = lane.new_ref(number)


def _follow_constants(
    operator: Operator, args: Any, kwargs: Any, tensors: list[MeshTensor], plan: Plan
) -> torch.Tensor | None:
    """Compute numbers here as well, where all inputs are known here. So `item()` of an optimizer's step never waits.

    Returns the result if that is a number.
    """
    known = [tensor._constant for tensor in tensors]
    is_recorded = tensors[0]._place.engine.recorder is not None  # replays do not run here
    if is_recorded or operator.is_random or not all(each is not None and each.valid[0] for each in known):
        for index in plan.mutated:
            if (constant := known[index]) is not None:
                constant.valid[0] = False
        return None
    local = tree_map_only(MeshTensor, lambda tensor: tensor._constant.value, names_here(args, kwargs))
    with torch._C._DisableTorchDispatch():
        value = operator.func(*local[0], **local[1])
    return value if isinstance(value, torch.Tensor) and not value.dim() else None


def _ask_ranks(
    operator: Operator, args: Any, kwargs: Any, tensors: list[MeshTensor], numbers: list[Any], place: Place
) -> Any:
    """Run an operator whose output depends on data: wait for the ranks, and ask for the shapes or the value."""
    place.engine.check_can_wait()
    constant = tensors[0]._constant if tensors else None
    if operator.func is aten._local_scalar_dense.default and constant is not None and constant.valid[0]:
        return constant.value.item()
    if operator.func is aten._local_scalar_dense.default and place.is_global:
        return tensors[0].fetch_first().item()
    engine, lane = place.engine, place.lane
    number = engine.new_ids(1)
    template = next(engine.templates)
    ids, where = [tensor._ref.id for tensor in tensors], user_place(DEPTH)
    made = make_template(operator, args, kwargs, MeshTensor, None)
    with engine.lock:  # another thread may let the ranks forget all templates
        engine.issue(lane, ("template", template, made), None, 0)
        engine.issue(lane, (template, number, *ids, *numbers), where)
    ref = lane.new_ref(number)
    leaves = tree_leaves(unite(engine, operator.name, engine.describe(lane, number)))
    metas = [leaf for leaf in leaves if isinstance(leaf, Meta)]
    if metas:
        first = engine.new_ids(len(metas))
        engine.issue(lane, ("unpack", ref.id, list(range(first, first + len(metas)))), None)
        new = iter([make_tensor(meta, lane.new_ref(first + index), place) for index, meta in enumerate(metas)])
        leaves = [next(new) if isinstance(leaf, Meta) else leaf for leaf in leaves]
    returns = operator.func._schema.returns
    if len(returns) == 1 and str(returns[0].type).startswith("List"):
        return leaves
    return leaves[0] if len(returns) == 1 else tuple(leaves)


def unite(engine: Engine, name: str, by_rank: list[Any]) -> Any:
    """Return the result that all ranks have described; what is no tensor in it is that of the first rank."""
    flat = [tree_leaves(described) for described in by_rank]
    for leaf in itertools.chain.from_iterable(flat):
        if type(leaf) is Failed:
            raise engine.explain(leaf)
    metas = [[leaf for leaf in leaves if isinstance(leaf, Meta)] for leaves in flat]
    if any(each != metas[0] for each in metas):
        listed = "; ".join(f"rank {rank}: {each}" for rank, each in enumerate(metas))
        raise RuntimeError(
            f"the result of {name} has different shapes on different ranks ({listed}): call it in a remote function "
            "that returns tensors of the same shape on all ranks"
        )
    return by_rank[0]
