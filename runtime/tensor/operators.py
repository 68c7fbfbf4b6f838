"""What the engine knows of torch's operators, and the cache of plans: what to send and what to return for a call.

The key of a call has the operator, the metadata of its tensors, and its other arguments by value. Numbers that cannot
change the metadata of the outputs (`alpha`, the scalar of a pointwise operator) are in the key by type alone, so a
learning rate that changes makes no new plan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.templates import Template

# Kernels that keep what a backward needs only if gradients are enabled. Ranks run all operators without.
NEEDS_GRAD_MODE: Final = frozenset({torch.ops.aten.mkldnn_rnn_layer.default})
# Their numbers decide the shape of the output.
VALUES_MATTER: Final = frozenset({"arange", "range", "linspace", "logspace"})
_FREE_TYPES: Final = frozenset({"number", "float", "Tensor"})
MOST_PLANS: Final = 10_000


class Operator:
    """Facts from the schema of an operator."""

    __slots__ = (
        *("depends_on_data", "free", "func", "is_random", "is_view", "is_view_in_place", "makes_tensors"),
        *("mutated", "name", "named_free"),
    )

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        self.name: str = func.name()
        matters = schema.name.partition("::")[2] in VALUES_MATTER
        free = [not matters and _is_free(argument.type) for argument in schema.arguments]
        self.free = tuple(free)  # by position: whether numbers there leave the metadata alone
        names = [argument.name for argument in schema.arguments]
        self.named_free = dict(zip(names, free, strict=True))
        writes = [bool(each.alias_info and each.alias_info.is_write) for each in schema.arguments]
        self.mutated = frozenset(name for name, is_write in zip(names, writes, strict=True) if is_write)
        self.is_view_in_place = torch.Tag.inplace_view in func.tags
        self.is_view = any(each.alias_info for each in schema.returns)
        self.makes_tensors = any("Tensor" in str(each.type) for each in schema.returns)
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        data = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        # An index depends on data only if it is a mask; the inference finds out.
        self.depends_on_data = bool(data & set(func.tags)) and func is not torch.ops.aten.index.Tensor


def _is_free(kind: Any) -> bool:
    text = str(kind)
    return text.removeprefix("Optional[").removeprefix("List[").rstrip("]") in _FREE_TYPES and text != "List[float]"


@functools.cache
def operator_of(func: Any) -> Operator:
    """Return the facts of an operator; there are some thousands of them."""
    return Operator(func)


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply an operator to plain tensors."""
    if func in NEEDS_GRAD_MODE:
        with torch.enable_grad():
            return func(*args, **kwargs)
    return func(*args, **kwargs)


class Plan:
    """What to do for a call with a known key."""

    __slots__ = (
        *("count", "has_constants", "is_check", "is_random", "is_special", "metas", "mutated", "number", "reshaped"),
        *("restore", "returned", "single", "template"),
    )

    def __init__(
        self,
        *,
        number: int,
        template: Template,
        metas: tuple[Meta, ...],
        single: Meta | None,
        returned: int | None,
        restore: Callable[[list[Any], list[Any]], Any],
        mutated: tuple[int, ...],
        reshaped: dict[int, Meta],
        has_constants: bool,
        is_random: bool,
    ) -> None:
        self.number = number  # of the template
        self.template = template
        self.metas = metas  # of the new tensors
        self.count = len(metas)
        self.single = single  # the metadata of the result, if that is one new tensor
        self.returned = returned  # the index of the input that is the result
        self.restore = restore  # from the new tensors and the inputs to the result
        self.mutated = mutated  # indices of the inputs that are changed
        self.reshaped = reshaped  # the new metadata of inputs that change it
        self.has_constants = has_constants
        self.is_random = is_random
        self.is_check = template.is_check
        self.is_special = bool(has_constants or reshaped or mutated or is_random)


class Cache(dict[tuple[Any, ...], Plan]):
    """Plans by key. When full it is emptied: simpler than to evict, and rare in programs with steady shapes."""

    @property
    def is_full(self) -> bool:
        return len(self) >= MOST_PLANS
