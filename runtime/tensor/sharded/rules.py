"""Which operator is run in which way. Tables only; `operators` reads them.

An operator is passed to DTensor only if a table here says that DTensor gets it right. All others run on whole tensors,
the same on every rank: slower, and right.
"""

from __future__ import annotations

import enum
import functools
import itertools
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._ops import _view_ops
from torch.distributed.tensor._ops._pointwise_ops import _register_single_dim_pointwise

from meshbook.runtime.tensor.sharded.batchwise import BATCHWISE
from meshbook.runtime.tensor.sharded.decompositions import decomposition_of


class Way(enum.Enum):
    """The way in which an operator is run."""

    DTENSOR = "passed to DTensor"
    VIEW = "passed to DTensor, which may have to copy"
    VIEW_IN_PLACE = "its counterpart that is not in-place"
    BATCHWISE = "on the local entries of the batch"
    DECOMPOSED = "as the operators that it consists of"
    RANDOM_LIKE = "on an empty tensor of the whole shape, with the shared random state"
    DROPOUT = "a mask of the whole shape, with the shared random state"
    RANDOM = "on whole tensors, with the shared random state"
    WHOLE = "on whole tensors"
    REFUSED = "refused"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# DTensor is right for these, whatever the sharding. By name without overload.
TRUSTED = _names(
    """
    mm addmm bmm baddbmm dot
    sum mean amax amin max min any all var std var_mean linalg_vector_norm logsumexp cumsum
    _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data
    native_layer_norm native_layer_norm_backward
    embedding embedding_dense_backward nll_loss_forward nll_loss_backward
    cat stack index_select index tril triu slice_backward select_backward
    clone _to_copy copy_ fill_ zero_
    zeros_like ones_like empty_like full_like new_zeros new_ones new_empty new_full new_empty_strided
    _fused_adam_ _fused_adamw_
    """
)

# DTensor takes a dimension that is counted from the end for another one. The value is the argument with the shape.
DIMS_FROM_THE_END = {"cumsum": None, "select_backward": "input_sizes", "slice_backward": "input_sizes"}

# Pointwise operators without the tag that says so: their backward kernels, above all.
POINTWISE = _names(
    """
    hardswish_backward hardsigmoid_backward log_sigmoid_forward log_sigmoid_backward softshrink_backward
    hardshrink_backward hardtanh_backward _prelu_kernel
    """
)

# Random operators without the tag that says so.
RANDOM = _names("rrelu_with_noise rrelu_with_noise_ rrelu_with_noise_functional")

# Views that DTensor gets right where it need not communicate. All others run on whole tensors.
VIEWS = _names(
    """
    alias detach view permute transpose t select slice expand squeeze unsqueeze split split_with_sizes
    unbind diagonal _unsafe_view
    """
)

# Their counterparts that return a view instead of changing the shape of their argument.
VIEWS_IN_PLACE = {
    torch.ops.aten.detach_.default: torch.ops.aten.detach.default,
    torch.ops.aten.squeeze_.default: torch.ops.aten.squeeze.default,
    torch.ops.aten.squeeze_.dim: torch.ops.aten.squeeze.dim,
    torch.ops.aten.squeeze_.dims: torch.ops.aten.squeeze.dims,
    torch.ops.aten.t_.default: torch.ops.aten.t.default,
    torch.ops.aten.transpose_.default: torch.ops.aten.transpose.int,
    torch.ops.aten.unsqueeze_.default: torch.ops.aten.unsqueeze.default,
    torch.ops.aten.as_strided_.default: torch.ops.aten.as_strided.default,
}

# A sum that is not reduced yet goes through these unchanged, beside a number or a replicated tensor of one element.
SCALING = _names("neg clone mul div mul_ div_ sum")
# And through these, if all their tensors are such sums with equal placements.
ADDING = _names("add sub add_ sub_")

# For integers, they raise an error where they meet a zero.
DIVIDING_IN_PLACE = _names("floor_divide_ div_ remainder_ fmod_")

# Operators that need nothing of their argument but its shape.
RANDOM_LIKE = _names(
    """
    rand_like randn_like randint_like uniform_ normal_ exponential_ cauchy_ log_normal_ geometric_ random_ bernoulli_
    """
)

REFUSED = {
    "resize_": "it changes the memory of the tensor; assign a new tensor instead",
    "resize_as_": "it changes the memory of the tensor; assign a new tensor instead",
    "set_": "it changes the memory of the tensor; use copy_ instead",
}


@functools.cache
def way_of(func: Any) -> Way:
    """Return the way in which the operator `func` (an overload) is run."""
    name = name_of(func)
    if name in REFUSED:
        return Way.REFUSED
    if func in VIEWS_IN_PLACE:
        return Way.VIEW_IN_PLACE
    if name == "native_dropout":
        return Way.DROPOUT
    if torch.Tag.nondeterministic_seeded in func.tags or name in RANDOM:
        return Way.RANDOM_LIKE if name in RANDOM_LIKE and _has_no_tensor_option(func) else Way.RANDOM
    if name in BATCHWISE and not has_out(func):
        return Way.BATCHWISE
    if not has_out(func) and decomposition_of(func) is not None:
        return Way.DECOMPOSED
    if func.is_view or name == "_unsafe_view":  # torch itself writes to results of that one, as in `kron`
        return Way.VIEW
    if _is_trusted(func, name):
        return Way.DTENSOR
    return Way.WHOLE


@functools.cache
def name_of(func: Any) -> str:
    """Return the name of an operator without namespace and overload: `add_` for aten.add_.Tensor."""
    name: str = func._schema.name.partition("::")[2]
    return name


def has_out(func: Any) -> bool:
    return any(argument.is_out for argument in func._schema.arguments)


@functools.cache
def written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Return position and name of the arguments that `func` writes to."""
    arguments = enumerate(func._schema.arguments)
    return tuple((at, one.name) for at, one in arguments if one.alias_info is not None and one.alias_info.is_write)


@functools.cache
def is_pointwise(func: Any) -> bool:
    name = name_of(func)
    if any(argument.name == "reduction" for argument in func._schema.arguments):
        return False
    return torch.Tag.pointwise in func.tags or name in POINTWISE or name.startswith("_foreach_")


@functools.cache
def dims_argument(func: Any) -> tuple[int, str] | None:
    """Return position and name of the argument that lists the dimensions to reduce, or None."""
    for at, one in enumerate(func._schema.arguments):
        if one.name in ("dim", "dims") and "List[int]" in str(one.type):
            return at, one.name
    return None


def _is_trusted(func: Any, name: str) -> bool:
    if has_out(func) or func.namespace != "aten":
        return False
    if name.startswith("_foreach_"):
        return has_strategy(func)
    return (is_pointwise(func) or name in TRUSTED or name in VIEWS) and has_strategy(func)


def _has_no_tensor_option(func: Any) -> bool:
    return sum("Tensor" in str(argument.type) for argument in func._schema.arguments) == 1


@functools.cache
def has_strategy(func: Any) -> bool:
    """Tell whether DTensor has a sharding strategy for `func`."""
    known = DTensor._op_dispatcher.sharding_propagator
    return func in known.op_strategy_funcs or func in known.op_single_dim_strategy_funcs or func in known.op_to_rules


def _register_pointwise() -> None:
    """Give DTensor's own strategy for pointwise operators to those that have none."""
    for name in POINTWISE:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            func = getattr(packet, overload)
            if not has_out(func) and not has_strategy(func):
                _register_single_dim_pointwise(func)


def _limit_view_rule() -> None:
    """Give DTensor a rule for views of empty tensors: its own never ends for some. Modules use it as well."""
    own = _view_ops.view_groups

    def view_groups(from_size: Any, to_size: Any) -> Any:
        if not any(type(size) is int and size == 0 for size in from_size):
            return own(from_size, to_size)
        sizes = tuple(_view_ops.infer_size(0, _view_ops.normalize_sizes(to_size)))
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(from_size, sizes, strict=False))
        same = len(list(pairs))
        return (*map(_view_ops.InputDim, range(same)), *map(_view_ops.NewDim.new, sizes[same:]))

    _view_ops.view_groups = view_groups


_register_pointwise()
_limit_view_rule()
