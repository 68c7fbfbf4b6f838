"""`%mesh diff`: compares a variable between ranks, first by digests, then number by number where the digests differ.

So equal data is never moved. Of different data only the differing blocks are moved, from one rank per variant, up to a
limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshbook.magics.errors import VariableError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.variables.differences import (
    MOST_SHOWN,
    Difference,
    MeasuredPart,
    find_differences,
    find_largest_difference,
    format_differences,
    format_same,
)
from meshbook.magics.variables.requests import RankRequest, Steps
from meshbook.runtime.cells.digests import BLOCK, DigestRequest, FetchBlocks, NumberDigests
from meshbook.runtime.formats import name_ranks

MOST_BYTES = 64 << 20  # bytes of one part in all its variants; four times that for all parts together


def compare(mesh: NotebookMesh, ranks: Sequence[int], name: str) -> Steps[str]:
    """Return the report of the differences. Raises VariableError if no rank has such a variable."""
    digests = yield RankRequest(mesh, dict.fromkeys(ranks, DigestRequest(name)), f"compare {name}")
    if all(digest is None for digest in digests.values()):
        raise VariableError(f"cannot compare {name}: it is not defined on {name_ranks(ranks)}")
    differences = find_differences(digests)
    if not differences:
        return format_same(name, digests)
    gaps = yield from _measure(mesh, name, plan_comparisons(differences))
    return format_differences(name, digests, differences, gaps)


@dataclass(frozen=True)
class NumberComparison:
    """A part to compare number by number in these blocks; `is_whole`: these are all blocks that differ."""

    difference: Difference
    numbers: NumberDigests
    blocks: tuple[int, ...]
    is_whole: bool

    @property
    def representatives(self) -> list[int]:
        """One rank of each variant."""
        return [variant.ranks[0] for variant in self.difference.compared]

    def place_of(self, index: int) -> tuple[int, ...]:
        """Convert an index into the fetched numbers to a position in the part."""
        block, offset = divmod(index, self.numbers.block_length)
        rest, place = self.blocks[block] * self.numbers.block_length + offset, []
        for size in reversed(self.numbers.shape):
            rest, at = divmod(rest, size)
            place.append(at)
        return tuple(reversed(place))


def plan_comparisons(differences: Sequence[Difference]) -> list[NumberComparison]:
    """Choose what to compare number by number: the shown parts, as far as the limit on moved bytes permits."""
    probes: list[NumberComparison] = []
    room = 4 * MOST_BYTES
    for difference in differences[:MOST_SHOWN]:
        compared, blocks = difference.compared, difference.blocks
        numbers = compared[0].part.numbers if compared and compared[0].part is not None else None
        if numbers is None:
            continue
        cost = min(math.prod(numbers.shape) * numbers.item_size, BLOCK) * len(compared)
        chosen = tuple(blocks[: min(MOST_BYTES, room) // max(cost, 1)])
        room -= cost * len(chosen)
        is_whole = len(chosen) == len(blocks) and len(compared) == len(difference.variants)
        if chosen:
            probes.append(NumberComparison(difference, numbers, chosen, is_whole))
    return probes


def _measure(
    mesh: NotebookMesh, name: str, probes: Sequence[NumberComparison]
) -> Steps[dict[Difference, MeasuredPart]]:
    if not probes:
        return {}
    blocks: dict[int, dict[str, tuple[int, ...]]] = {}
    for probe in probes:
        for rank in probe.representatives:
            blocks.setdefault(rank, {})[probe.difference.path] = probe.blocks
    parcels = yield RankRequest(
        mesh, {rank: FetchBlocks(name, wanted) for rank, wanted in blocks.items()}, f"compare {name}"
    )
    values = {rank: parcel.open() for rank, parcel in parcels.items()}
    measured = ((probe, _measure_one(probe, values)) for probe in probes)
    return {probe.difference: found for probe, found in measured if found is not None}


def _measure_one(probe: NumberComparison, values: Mapping[int, Mapping[str, Any]]) -> MeasuredPart | None:
    arrays = [values[rank].get(probe.difference.path, ()) for rank in probe.representatives]
    if len({*map(len, arrays)}) > 1 or not len(arrays[0]):
        return None  # the variable was changed in between
    gap = find_largest_difference(arrays)
    place = probe.place_of(gap.index) if gap is not None else ()
    return MeasuredPart(gap, place, math.prod(probe.numbers.shape), probe.is_whole)
