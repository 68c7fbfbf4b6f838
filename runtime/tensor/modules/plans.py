"""Plans of modules: what each dimension of a mesh does to the module.

    "replicate"                                                  each rank has the whole module (the default)
    "fsdp"                                                       parameters are sharded over the first dimension
    ("fsdp", ["layers.*"])                                       the same; these submodules are gathered one at a time
    {"layers.*.up": "colwise", "layers.*.down": "rowwise"}       tensor parallel over the last dimension
    {"data_parallel": "fsdp", "model_parallel": {...}}           one of these for each dimension by its name

A `*` stands for one part of a name, as in torch's `parallelize_module`: "layers.*.up" is "layers.0.up" and not
"layers.0.mlp.up".
Dimensions that a plan does not mention replicate.
"""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from meshbook.runtime.geometry.region import UnknownDimension

STYLES: Final = ("colwise", "rowwise", "sequence", "replicate")
# Every rank has the same module, so none has to get it from another one. torch 2.6 sends it all the same.
_OPTIONS: Final[dict[str, Any]] = (
    {"src_data_rank": None} if "src_data_rank" in inspect.signature(parallelize_module).parameters else {}
)
Policy = Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class ModulePlan:
    """What the dimensions of a mesh do to a module. Dimensions that are not named replicate it."""

    dims: tuple[str, ...]
    fsdp: str | None = None  # the dimension that shards the parameters
    units: Sequence[str] | Policy | None = None  # submodules that FSDP gathers one at a time
    tensor_parallel: dict[str, dict[str, Any]] = field(default_factory=dict)  # by dimension: style by submodule

    @classmethod
    def of(cls, plan: Any, dims: Sequence[str]) -> ModulePlan:
        """Return the plan that a user has given. Raises ValueError, TypeError, UnknownDimension (a KeyError)."""
        dims = tuple(dims)
        if isinstance(plan, ModulePlan):
            return plan
        if isinstance(plan, Mapping) and plan and not any(name in dims for name in plan):
            by_dim: dict[str, Any] = {dims[-1]: plan}
            if any(isinstance(each, (Mapping, tuple)) or each == "fsdp" for each in plan.values()):
                raise UnknownDimension(f"the mesh has no dimension in {list(plan)}; its dimensions: {', '.join(dims)}")
        elif isinstance(plan, Mapping):
            by_dim = dict(plan)
        else:
            by_dim = {dims[0]: plan}
        return cls(dims, *_sorted_by_kind(by_dim, dims))

    @property
    def data_dims(self) -> tuple[int, ...]:
        """The dimensions that the batch may be sharded over, by position."""
        return tuple(index for index, name in enumerate(self.dims) if name not in self.tensor_parallel)

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Parallelize the module on this rank, in place. Raises ValueError for a pattern that fits no submodule."""
        for dim, styles in self.tensor_parallel.items():
            for pattern, style in styles.items():
                for name in matching_names(module, [pattern]):
                    torch_style = _style_of(style, module.get_submodule(name))
                    if torch_style is not None:
                        parallelize_module(module, mesh[dim], {name: torch_style}, **_OPTIONS)
        if self.fsdp is not None:
            shards = mesh[self.fsdp]
            for name in reversed(self._units_of(module)):  # inner ones first
                fully_shard(module.get_submodule(name), mesh=shards, reshard_after_forward=True)
            fully_shard(module, mesh=shards, reshard_after_forward=True)

    def _units_of(self, module: nn.Module) -> list[str]:
        if callable(self.units):
            return [name for name, each in module.named_modules() if name and self.units(name, each)]
        if self.units is not None:
            return matching_names(module, self.units)
        lists = [name for name, each in module.named_modules() if isinstance(each, nn.ModuleList)]
        return [f"{name}.{index}" for name in lists for index in range(len(module.get_submodule(name)))]


def _sorted_by_kind(
    by_dim: Mapping[str, Any], dims: tuple[str, ...]
) -> tuple[str | None, Any, dict[str, dict[str, Any]]]:
    fsdp, units, tensor_parallel = None, None, {}
    for dim, what in by_dim.items():
        if dim not in dims:
            raise UnknownDimension(f"the mesh has no dimension {dim!r}; its dimensions: {', '.join(dims)}")
        if isinstance(what, Mapping):
            tensor_parallel[dim] = {pattern: _checked_style(pattern, style) for pattern, style in what.items()}
        elif what == "fsdp" or (isinstance(what, tuple) and len(what) == 2 and what[0] == "fsdp"):
            if fsdp is not None:
                raise ValueError(f"{fsdp!r} and {dim!r} both have 'fsdp': torch shards over one dimension")
            fsdp, units = dim, None if what == "fsdp" else what[1]
            if units is not None and (isinstance(units, str) or not (callable(units) or isinstance(units, Sequence))):
                raise TypeError(f"('fsdp', units): units are a list of names or a function, not {units!r}")
        elif what != "replicate":
            raise ValueError(
                f"the plan of {dim!r} is 'replicate', 'fsdp', ('fsdp', submodules), or a dict from submodules to "
                f"styles, not {what!r}"
            )
    return fsdp, units, tensor_parallel


def _checked_style(pattern: str, style: Any) -> Any:
    is_placement = type(style) is Replicate or (type(style) is Shard and style.dim in (0, 1))
    if isinstance(style, ParallelStyle) or is_placement or style in STYLES:
        return style
    raise ValueError(
        f"the style of {pattern!r} is one of {', '.join(STYLES)}, a ParallelStyle of torch, or the placement of its "
        f"weight (Shard(0), Shard(1), Replicate()), not {style!r}"
    )


def matching_names(module: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Return the names of the submodules that match, outer ones first. ValueError: a pattern that matches none."""
    names = [name for name, _ in module.named_modules() if name]
    found = []
    for pattern in patterns:
        matching = [each for each in names if _fits(each, pattern)]
        if not matching:
            raise ValueError(
                f"the plan names {pattern!r}, where a * stands for one part of a name, but the module has: "
                f"{', '.join(names) or 'no submodules'}"
            )
        found += matching
    return [name for name in names if name in found]


def _fits(name: str, pattern: str) -> bool:
    """Whether a pattern fits a name part by part, as in torch's `parallelize_module`."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _style_of(style: Any, part: nn.Module) -> ParallelStyle | None:
    """Return torch's style for a word or a placement of the weight; None: the submodule stays whole on each rank."""
    if isinstance(style, ParallelStyle):
        return style
    is_embedding = isinstance(part, nn.Embedding)
    if isinstance(style, Shard):  # the weight of a linear layer has its outputs first; an embedding's, its entries
        style = "colwise" if (style.dim == 0) is not is_embedding else "rowwise"
    if style == "colwise":  # of an embedding: its outputs are gathered, as no layer with a style has to follow
        return ColwiseParallel(output_layouts=Replicate()) if is_embedding else ColwiseParallel()
    if style == "rowwise":  # an embedding gets whole indices
        return RowwiseParallel(input_layouts=Replicate()) if is_embedding else RowwiseParallel()
    return SequenceParallel() if style == "sequence" else None
