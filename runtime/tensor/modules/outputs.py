"""Which dimension of a module's outputs is the batch, if its inputs are sharded along the batch.

A twin of the module, with fake parameters that have shapes and no values, is run on fake inputs: on the whole batch and
on this rank's part. The dimension of an output whose size changes from the one batch to the other is the batch. Outputs
without one depend on the whole batch in a way that the shapes do not tell, so they are refused, or taken as means.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

RULES = ("auto", "batch", "mean")


@dataclass(frozen=True)
class OutputLayout:
    """How the output of a rank is a part of the whole output."""

    batch_dim: int | None  # None: all ranks have the whole output, or its mean is over `is_mean`
    is_mean: bool = False  # the whole output is the mean of the ranks', weighted by their entries of the batch


class Twin:
    """A module of the same structure, with fake parameters: it computes shapes."""

    def __init__(self, module: nn.Module) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        memo: dict[int, Any] = {}
        for parameter in module.parameters():
            memo[id(parameter)] = nn.Parameter(self._mode.from_tensor(parameter.detach()), parameter.requires_grad)
        for buffer in module.buffers():
            memo[id(buffer)] = self._mode.from_tensor(buffer)
        self.module = copy.deepcopy(module, memo)

    def convert(self, dtype: torch.dtype) -> None:
        """Convert floating-point parameters and buffers. `Module.to` cannot: fake tensors are referred to weakly."""
        with self._mode:
            for part in self.module.modules():
                for name, each in [*part._parameters.items(), *part._buffers.items()]:
                    if each is not None and each.is_floating_point():
                        into = part._parameters if name in part._parameters else part._buffers
                        made = each.detach().to(dtype)
                        into[name] = nn.Parameter(made, each.requires_grad) if into is part._parameters else made

    def shapes_of(self, path: str, given: tuple[Any, Any], shapes: Sequence[torch.Size]) -> list[torch.Size]:
        """Return the shapes of the outputs for arguments like these, with tensors of these shapes."""
        sizes = iter(shapes)

        def fake(tensor: Tensor) -> Tensor:
            return torch.empty(next(sizes), dtype=tensor.dtype, device=tensor.device)

        with torch.no_grad(), self._mode:
            args, kwargs = tree_map_only(Tensor, fake, given)
            result = self.module.get_submodule(path)(*args, **kwargs)
        return [leaf.shape for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def find_layouts(
    twin: Twin,
    path: str,
    given: tuple[Any, Any],
    whole_shapes: Sequence[torch.Size],
    own: Sequence[torch.Size],
    rows: tuple[int, int],
    rule: str,
) -> list[OutputLayout]:
    """Return the layouts of outputs that have the shapes `own` on this rank.

    `given` are this rank's arguments, and `whole_shapes` are the shapes of the whole tensors among them. `rows` are the
    entries of the batch on this rank and of all; equal ones if it is not sharded.
    """
    try:
        parts = [each.shape for each in tree_leaves(given) if isinstance(each, Tensor)]
        expected = twin.shapes_of(path, given, parts)
        whole = twin.shapes_of(path, given, whole_shapes)
    except Exception as error:
        raise RuntimeError(
            "the module cannot be run on fake tensors, which tells where the batch is in its outputs: pass "
            "outputs='batch' to module_to_mesh() if it is the first dimension of each"
        ) from error
    if expected != list(own):
        raise ValueError(
            f"the module returned the shapes {[tuple(each) for each in own]} instead of "
            f"{[tuple(each) for each in expected]}: its plan leaves an output sharded, such as that of a 'colwise' "
            "layer without a 'rowwise' one behind it"
        )
    return [OutputLayout(None)] * len(own) if rows[0] == rows[1] else layouts_of(own, whole, rows, rule)


def layouts_of(
    own: Sequence[torch.Size], whole: Sequence[torch.Size], rows: tuple[int, int], rule: str
) -> list[OutputLayout]:
    """Return the layouts of outputs with these shapes on this rank, and for the whole batch.

    `rows` are the entries of the batch on this rank, and of all. Raises ValueError for outputs without a clear batch.
    """
    return [_layout_of(index, *shapes, rows, rule) for index, shapes in enumerate(zip(own, whole, strict=True))]


def _layout_of(index: int, own: torch.Size, whole: torch.Size, rows: tuple[int, int], rule: str) -> OutputLayout:
    if len(own) == len(whole):
        changed = [dim for dim, sizes in enumerate(zip(own, whole, strict=True)) if sizes[0] != sizes[1]]
        if len(changed) == 1 and (own[changed[0]], whole[changed[0]]) == rows:
            return OutputLayout(changed[0])
        if not changed and rule == "mean":
            return OutputLayout(None, is_mean=True)
        if not changed:
            raise ValueError(
                f"output {index} of the module, of shape {tuple(own)}, has no dimension for the batch, which is "
                "sharded: return values for each entry and reduce them outside of the module, or pass outputs='mean' "
                "to module_to_mesh() if it is a mean over the batch"
            )
    raise ValueError(
        f"output {index} of the module has the shape {tuple(own)} for {rows[0]} entries of the batch, and "
        f"{tuple(whole)} for {rows[1]}: the batch must be one dimension of it, so reshape it outside of the module"
    )


def trusted_layouts(own: Sequence[torch.Size], own_rows: int) -> list[OutputLayout]:
    """Return the layouts of outputs whose first dimension is the batch. Raises ValueError for another size."""
    for index, shape in enumerate(own):
        if not shape or shape[0] != own_rows:
            raise ValueError(
                f"output {index} of the module has the shape {tuple(shape)}, and its first dimension should be the "
                f"batch of {own_rows} entries on this rank"
            )
    return [OutputLayout(0)] * len(own)
