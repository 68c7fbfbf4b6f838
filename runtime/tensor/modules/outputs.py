"""Which dimension of a module's outputs is the batch, if its inputs are sharded along the batch.

A twin of the module, with fake parameters that have shapes and no values, is run on fake inputs: on the whole batch and
on this rank's part. A module that reads values, such as those of a mask, is run on real inputs instead, with parameters
of no meaning: on this rank's part, and on one entry more. The dimension of an output whose size changes from the one
batch to the other is the batch. Outputs without one depend on the whole batch in a way that the shapes do not tell, so
they are refused, or taken as means.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
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
        self._source = module  # for the values of buffers
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

        with self._mode:
            return _shapes_of(self.module.get_submodule(path), tree_map_only(Tensor, fake, given))

    def shapes_with_one_more(
        self, path: str, given: tuple[Any, Any], is_batch: Callable[[Tensor], bool]
    ) -> tuple[list[torch.Size], list[torch.Size]]:
        """Return the shapes of the outputs for these arguments, and for one entry more of the batch; computes them."""
        module = self._with_values().get_submodule(path)
        more = tree_map_only(Tensor, lambda each: torch.cat([each, each[:1]]) if is_batch(each) else each, given)
        devices = {each.device for each in tree_leaves(given) if isinstance(each, Tensor) and each.is_cuda}
        with torch.random.fork_rng(devices):
            return _shapes_of(module, given), _shapes_of(module, more)

    def _with_values(self) -> nn.Module:
        """Return a copy with the values of the buffers, and with parameters of no meaning."""
        buffers = dict(self._source.named_buffers(remove_duplicate=False))
        memo: dict[int, Any] = {}
        for name, fake in self.module.named_buffers(remove_duplicate=False):
            is_whole = type(buffers[name]) is Tensor  # not sharded by the plan
            memo[id(fake)] = buffers[name].detach().clone() if is_whole else _zeros_like(fake)
        for parameter in self.module.parameters():
            memo[id(parameter)] = nn.Parameter(_zeros_like(parameter), parameter.requires_grad)
        return copy.deepcopy(self.module, memo)


def _zeros_like(fake: Tensor) -> Tensor:
    return torch.zeros(fake.shape, dtype=fake.dtype, device=fake.device)


def _shapes_of(module: nn.Module, given: tuple[Any, Any]) -> list[torch.Size]:
    args, kwargs = given
    with torch.no_grad():
        return [leaf.shape for leaf in tree_leaves(module(*args, **kwargs)) if isinstance(leaf, Tensor)]


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
    is_sharded = rows[0] != rows[1]
    parts = [each for each in tree_leaves(given) if isinstance(each, Tensor)]
    try:
        expected = twin.shapes_of(path, given, [each.shape for each in parts])
        whole = twin.shapes_of(path, given, whole_shapes)
    except Exception:  # it depends on values, or torch's rule for fake tensors refuses what its kernel accepts
        batch = {id(each) for each, shape in zip(parts, whole_shapes, strict=True) if each.shape != shape}
        try:
            expected, whole = twin.shapes_with_one_more(path, given, lambda each: id(each) in batch)
        except Exception as error:
            raise RuntimeError(
                "the module cannot be run on a batch with another entry, which tells where the batch is in its "
                "outputs: pass outputs='batch' to module_to_mesh() if it is the first dimension of each"
            ) from error
        rows = rows[0], rows[0] + 1
    if expected != list(own):
        raise ValueError(
            f"the module returned the shapes {[tuple(each) for each in own]} instead of "
            f"{[tuple(each) for each in expected]}: its plan leaves an output sharded, such as that of a 'colwise' "
            "layer without a 'rowwise' one behind it"
        )
    return layouts_of(own, whole, rows, rule) if is_sharded else [OutputLayout(None)] * len(own)


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
