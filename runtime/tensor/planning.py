"""Plans of operator calls: what to send to the ranks, and what the call returns on the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map, tree_map_only

from meshbook.runtime.tensor.metadata import META, Meta, ShapeRefused, Unknown, infer, target_device
from meshbook.runtime.tensor.operators import Operator, Plan
from meshbook.runtime.tensor.templates import FIRST_SLOT, Slot, Template, flatten_result

# Returns what an operator, by its name, returns on a rank, with metadata in place of tensors; None if it raises.
Ask = Callable[[str, Any, Any], Any]


class _Call:
    """The arguments of a call in the order of `dispatch`: tensors, and numbers that every command brings."""

    def __init__(self, operator: Operator, args: Any, kwargs: dict[str, Any], tensor_class: type) -> None:
        self.tensors: list[Any] = []
        self.names: list[str] = []  # of the argument of each tensor
        self._numbers = 0
        self._class = tensor_class
        schema = operator.func._schema.arguments
        self.args = tuple(
            self._mark(value, operator.free[index], schema[index].name) for index, value in enumerate(args)
        )
        self.kwargs = {name: self._mark(value, operator.named_free[name], name) for name, value in kwargs.items()}
        count = len(self.tensors)
        # Numbers follow the tensors, whose count is known now.
        self.args, self.kwargs = tree_map(
            lambda each: Slot(FIRST_SLOT + count - each.index - 1, False) if _is_number(each) else each,
            (self.args, self.kwargs),
        )

    def _mark(self, value: Any, is_free: bool, name: str) -> Any:
        if type(value) is self._class:
            self.tensors.append(value)
            self.names.append(name)
            return Slot(FIRST_SLOT + len(self.tensors) - 1, True)
        if type(value) in (int, float) and is_free:
            self._numbers += 1
            return Slot(-self._numbers, False)  # counted from -1 on, until the tensors are counted
        if type(value) in (list, tuple):
            return type(value)(self._mark(part, is_free, name) for part in value)
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, Slot) and not value.is_value


def make_template(
    operator: Operator, args: Any, kwargs: dict[str, Any], tensor_class: type, outputs: tuple[int, ...] | None
) -> Template:
    """Return the template of a call."""
    return _template_of(operator, _Call(operator, args, kwargs, tensor_class), outputs)


def _template_of(operator: Operator, call: _Call, outputs: tuple[int, ...] | None) -> Template:
    mutated = tuple(FIRST_SLOT + index for index, name in enumerate(call.names) if name in operator.mutated)
    return Template(operator.name, call.args, call.kwargs, len(call.tensors), outputs, mutated)


def make_plan(
    operator: Operator, args: Any, kwargs: dict[str, Any], tensor_class: type, numbers: Iterator[int], ask: Ask
) -> Plan:
    """Infer the outputs of a call and return its plan. Raises Unknown, and torch's errors for unfit arguments.

    `ask` asks a rank about the arguments that torch's rule refuses.
    """
    if operator.depends_on_data:
        raise Unknown
    call = _Call(operator, args, kwargs, tensor_class)
    inputs = [tensor._meta for tensor in call.tensors]
    metas: dict[int, torch.Tensor] = {id(tensor): tensor._meta.make_tensor() for tensor in call.tensors}
    stand_ins = [metas[id(tensor)] for tensor in call.tensors]
    meta_args, meta_kwargs = tree_map(
        lambda each: metas[id(each)] if type(each) is tensor_class else each, (tuple(args), kwargs)
    )
    if "generator" in meta_kwargs:  # its state is a tensor, and the ranks make a generator of it
        meta_kwargs["generator"] = None
    given = [tensor._meta for tensor, name in zip(call.tensors, call.names, strict=True) if name != "generator"]
    if not given and "device" in operator.named_free:
        meta_kwargs["device"] = META
    device = target_device(operator.func, args, kwargs, given)
    try:
        result = infer(operator.func, meta_args, meta_kwargs)
    except ShapeRefused as refused:
        result = _ask_rank(ask, operator, args, kwargs, tensor_class)
        if result is None:
            raise refused.error from None
    leaves = flatten_result(result)
    returned = {id(stand_in): index for index, stand_in in enumerate(stand_ins)}
    new = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and id(leaf) not in returned]
    new_metas = tuple(Meta.of(leaves[index], device) for index in new)
    reshaped = {
        index: after
        for index, (before, stand_in) in enumerate(zip(inputs, stand_ins, strict=True))
        if (after := Meta.of(stand_in, before.device)) != before.as_constant(False)
    }
    if reshaped and not operator.is_view_in_place:
        raise NotImplementedError(
            f"{operator.name} would resize a tensor of a mesh, which is not supported: pass a tensor of the right shape"
        )
    is_single = isinstance(result, torch.Tensor) and len(new) == 1
    return Plan(
        number=next(numbers),
        template=_template_of(operator, call, tuple(new)),
        metas=new_metas,
        single=new_metas[0] if is_single else None,
        returned=returned.get(id(result)) if isinstance(result, torch.Tensor) else None,
        restore=_restorer(result, returned),
        mutated=tuple(index for index, name in enumerate(call.names) if name in operator.mutated),
        reshaped=reshaped,
        has_constants=any(meta.is_constant for meta in inputs),
        is_random=operator.is_random,
    )


def _ask_rank(ask: Ask, operator: Operator, args: Any, kwargs: Any, tensor_class: Any) -> Any:
    """Return the result of an operator as meta tensors; None if its kernel refuses the arguments, too."""
    if operator.mutated:
        return None
    given = tree_map(lambda each: each._meta if type(each) is tensor_class else each, (tuple(args), kwargs))
    return tree_map_only(Meta, Meta.make_tensor, ask(operator.name, *given))


def _restorer(result: Any, returned: dict[int, int]) -> Callable[[list[Any], list[Any]], Any]:
    """Return a function from the new tensors and the inputs of a call to its result."""
    counter = iter(range(len(flatten_result(result))))

    def shape_of(part: Any) -> Any:
        if isinstance(part, (list, tuple)):
            return [shape_of(each) for each in part], type(part) is list
        if isinstance(part, torch.Tensor):
            return (0, returned[id(part)]) if id(part) in returned else (1, next(counter))
        return 2, part

    def restore(shape: Any, new: list[Any], tensors: list[Any]) -> Any:
        kind, index = shape
        if isinstance(kind, list):
            parts = [restore(each, new, tensors) for each in kind]
            return parts if index else tuple(parts)
        return index if kind == 2 else (tensors, new)[kind][index]

    shape = shape_of(result)
    return lambda new, tensors: restore(shape, new, tensors)
