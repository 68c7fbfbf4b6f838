"""What is left of the tensors of a global mesh after ranks have failed, and which rank gets which value from which.

    stock of each rank -> plan_recovery -> Recovery -> every rank: join new process groups, send, receive

A value that a rank lacks comes from another rank that has the same part of the tensor: any one if it is replicated, its
replicas if it is sharded along other dimensions of the mesh. A value that no rank has is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from meshbook.runtime.tensor.failures import Failed
from meshbook.runtime.tensor.layouts import coordinates_of
from meshbook.runtime.tensor.templates import Template

LOST = (
    "this tensor was lost with a rank that died: no other rank had its values. Distribute it again, or load it from a "
    "checkpoint"
)

LOST_RUN = "this forward of a module was lost with a rank that died, or had to be dropped: call the module again"
LOST_VIEW = "this tensor was a view of another one when a rank died: make it again from that"


@dataclass(frozen=True, slots=True)
class Spread:
    """A whole tensor, how it is spread over the mesh, and where one rank has its part of it in memory."""

    placements: tuple[Any, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    local_shape: tuple[int, ...]
    local_stride: tuple[int, ...]
    offset: int  # in the storage, in elements
    storage: int  # values with the same one share memory
    nbytes: int  # of the storage
    is_detached: bool  # a view that does not share the memory of its base: see `sharded.views`


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that is no tensor, such as a module: it cannot be copied to another rank."""


Stock: TypeAlias = Mapping[int, Failed | Spread | Opaque]


@dataclass(frozen=True, slots=True)
class Definitions:
    """What a rank knows beside its values, for one that begins anew."""

    templates: dict[int, Template]
    recordings: dict[int, Any]
    functions: dict[int, Any]
    random_state: torch.Tensor
    dtype: torch.dtype  # the default one


@dataclass(frozen=True, slots=True)
class Move:
    """The sender of a value, and its part, which is that of the receiver as well."""

    sender: int
    spread: Spread


@dataclass(frozen=True, slots=True)
class Recovery:
    """What the ranks do so that all of them have the same values again."""

    new: frozenset[int]  # ranks in new processes
    failed: Mapping[int, Failed]  # values that have failed on all ranks from now on
    moves: Mapping[int, Mapping[int, Move]]  # by value and receiving rank
    definitions: Definitions | None = None
    kept: frozenset[int] = frozenset()  # failed values that no rank has changed: all have failed at the same command


def plan_recovery(stocks: Sequence[Stock | None], shape: Sequence[int]) -> Recovery:
    """Return the plan for a mesh of this shape. The stocks are those of its ranks; None: a new process."""
    new = frozenset(rank for rank, stock in enumerate(stocks) if stock is None)
    failed: dict[int, Failed] = {}
    moves: dict[int, Mapping[int, Move]] = {}
    kept: set[int] = set()
    for value in sorted({each for stock in stocks if stock is not None for each in stock}):
        found = [None if stock is None else stock.get(value) for stock in stocks]
        failures = [each for each in found if isinstance(each, Failed)]
        own = [each for each in failures if not each.is_of_peer]
        senders = _find_senders(found, shape)
        if own or (senders is None and failures and not new):
            failed[value] = min(own or failures, key=lambda each: each.command)
            if len(own) == len(found) and len({each.command for each in own}) == 1:
                kept.add(value)
        elif any(isinstance(each, Opaque) for each in found):
            if new:
                failed[value] = Failed(0, min(new), "", LOST_RUN, is_lost=True)
        elif senders is None:
            failed[value] = Failed(0, min(new, default=0), "", LOST, is_lost=True)
        elif senders and any(isinstance(each, Spread) and each.is_detached for each in found):
            failed[value] = Failed(0, min(new, default=0), "", LOST_VIEW, is_lost=True)
        elif senders:
            moves[value] = senders
    return Recovery(new, failed, moves, kept=frozenset(kept))


def _find_senders(found: Sequence[Any], shape: Sequence[int]) -> dict[int, Move] | None:
    """Return a sender for each rank that lacks its part of a tensor, or None if a part is nowhere."""
    holding = {rank: each for rank, each in enumerate(found) if isinstance(each, Spread)}
    if not holding:
        return None
    spread = next(iter(holding.values()))
    holders: dict[Any, int] = {}
    for rank in holding:
        holders.setdefault(_part_of(rank, spread, shape), rank)
    lacking = {rank: _part_of(rank, spread, shape) for rank in range(len(found)) if rank not in holding}
    if not holders.keys() >= set(lacking.values()):
        return None
    return {rank: Move(holders[part], holding[holders[part]]) for rank, part in lacking.items()}


def _part_of(rank: int, spread: Spread, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of a rank along the dimensions of the mesh in which parts differ."""
    pairs = zip(coordinates_of(rank, shape), spread.placements, strict=True)
    return tuple(0 if placement.is_replicate() else coordinate for coordinate, placement in pairs)
