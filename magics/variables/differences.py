"""The differences of a variable between ranks: the parts that differ, the ranks that agree, the size of the difference.

Digests and arrays in, text out. Pure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.cells.digests import DigestPart, Shard, VariableDigest
from meshbook.runtime.formats import format_label, name_ranks


@dataclass(frozen=True, slots=True)
class LargestDifference:
    """The largest difference between arrays: its index, the two values, and the arrays they are in.

    `differing` counts the elements that are not the same in all arrays. If only some arrays have a NaN, the index is
    that of the NaN.
    """

    index: int
    least: Any
    most: Any
    least_in: int
    most_in: int
    differing: int

    @property
    def size(self) -> float:
        """The largest absolute difference; NaN if one of the two values is NaN."""
        return float(abs(self.most - self.least))


def find_largest_difference(arrays: Sequence[Any]) -> LargestDifference | None:
    """Find the largest difference between flat arrays of equal length; None if all numbers are the same."""
    import numpy  # weight: only comparisons need it

    rows = numpy.stack([_as_numpy(array) for array in arrays])
    unlike = ((rows != rows[0]) & ~(numpy.isnan(rows) & numpy.isnan(rows[0]))).any(axis=0)
    if not unlike.any():
        return None
    index = _index_of_largest(rows, unlike)
    values = rows[:, index]
    least_in, most_in = _extremes(values)
    ends = values[least_in].item(), values[most_in].item()
    return LargestDifference(index, *ends, least_in, most_in, int(unlike.sum()))


def _index_of_largest(rows: Any, unlike: Any) -> int:
    """Return the index of the largest difference, or the first at which only some values are NaN."""
    import numpy

    mixed = numpy.isnan(rows).any(axis=0) & unlike
    if mixed.any():
        return int(mixed.argmax())
    if rows.dtype.kind == "c":
        return int(abs(rows - rows[0]).max(axis=0).argmax())
    most, least = rows.max(axis=0), rows.min(axis=0)
    if rows.dtype.kind == "i":  # a difference may exceed the signed type, but not the unsigned one
        most, least = (each.astype(f"u{rows.itemsize}") for each in (most, least))
    with numpy.errstate(invalid="ignore"):  # the difference of two infinities of one sign is NaN
        gaps = most - least
    return int(gaps.argmax() if gaps.dtype.kind == "u" else numpy.where(unlike, gaps, -math.inf).argmax())


def _extremes(values: Any) -> tuple[int, int]:
    import numpy

    is_nan = numpy.isnan(values)
    if is_nan.any():
        return int((~is_nan).argmax()), int(is_nan.argmax())
    if values.dtype.kind == "c":
        return 0, int(abs(values - values[0]).argmax())
    return int(values.argmin()), int(values.argmax())


def _as_numpy(values: Any) -> Any:
    import numpy

    if hasattr(values, "detach"):
        values = values.detach()
        if values.is_complex() or values.is_floating_point():  # NumPy has no bfloat16, and no complex32
            values = values.cdouble() if values.is_complex() else values.double()
        values = values.numpy()
    array = numpy.asarray(values)
    match array.dtype.kind:
        case "b":
            return array.astype("uint8")
        case "i" | "u" | "c":
            return array
        case "f":
            return array.astype(numpy.promote_types(array.dtype, "float64"))
    return array.astype("float64")  # a list of large integers and floats


MOST_SHOWN = 20  # parts; all parts of a diverged model differ
MOST_VARIANTS = 8  # of one part


@dataclass(frozen=True)
class MeasuredPart:
    """A compared part: its largest difference and where it is. `gap` is None if only bits differ.

    `is_whole`: all blocks that differ were compared.
    """

    gap: LargestDifference | None
    place: tuple[int, ...]
    total: int
    is_whole: bool


@dataclass(frozen=True)
class Variant:
    """The ranks that have the same content in a part; `part` is None if they have no such part."""

    ranks: tuple[int, ...]
    part: DigestPart | None


@dataclass(frozen=True)
class Difference:
    """A part that is not the same on all ranks; of a distributed tensor, a shard whose replicas are not the same."""

    path: str
    variants: tuple[Variant, ...]
    shard: Shard | None = None

    @property
    def label(self) -> str:
        """The path, with the position of the shard if there are several."""
        if self.shard is None or self.shard.count == 1 or not self.shard.position:
            return self.path
        return f"{self.path} (shard {', '.join(map(str, self.shard.position))} of {self.shard.count})"

    @property
    def compared(self) -> tuple[Variant, ...]:
        """The variants whose numbers can be compared one by one; empty if they are not comparable."""
        parts = [variant.part for variant in self.variants]
        kinds = {
            (part.kind, _layout_of(part)) if part is not None and part.numbers is not None else None for part in parts
        }
        return self.variants[:MOST_VARIANTS] if len(kinds) == 1 and None not in kinds else ()

    @property
    def blocks(self) -> list[int]:
        """The indices of the blocks of numbers that are not the same in all variants."""
        digests = [variant.part.numbers.blocks for variant in self.compared if variant.part and variant.part.numbers]
        return [index for index, column in enumerate(zip(*digests, strict=True)) if len(set(column)) > 1]


def find_differences(by_rank: Mapping[int, VariableDigest | None]) -> list[Difference]:
    """Return the parts that differ, in the order of the ranks' parts. None marks a rank without the variable."""
    types = {rank: digest.type_name if digest is not None else None for rank, digest in by_rank.items()}
    if len(set(types.values())) > 1:  # their parts would not correspond
        wholes = {rank: _whole(digest) if digest is not None else None for rank, digest in by_rank.items()}
        return [Difference("", _variants(wholes, lambda part: part.digest))]
    parts = {rank: {part.path: part for part in digest.parts} for rank, digest in by_rank.items() if digest}
    paths = dict.fromkeys(path for known in parts.values() for path in known)
    compared = (_compare(path, {rank: known.get(path) for rank, known in parts.items()}) for path in paths)
    return list(itertools.chain.from_iterable(compared))


def _compare(path: str, parts: Mapping[int, DigestPart | None]) -> Iterator[Difference]:
    """Yield the differences of a part: between all ranks, or between those that have the same shard of it."""
    known = [part for part in parts.values() if part is not None]
    if len({*map(_layout_of, known)}) > 1:
        yield Difference(path, _variants(parts, lambda part: part.digest if part.shard is None else _layout_of(part)))
        return
    groups: dict[tuple[int, ...] | None, dict[int, DigestPart | None]] = {}
    for rank, part in parts.items():
        # A rank without this part differs from each group, and is named in one.
        of = part if part is not None else known[0]
        groups.setdefault(of.shard.position if of.shard is not None else None, {})[rank] = part
    for group in groups.values():
        if len(variants := _variants(group, lambda part: part.digest)) > 1:
            yield Difference(path, variants, next(part.shard for part in group.values() if part is not None))


def _layout_of(part: DigestPart) -> str:
    return part.shard.layout if part.shard is not None else ""


def _whole(digest: VariableDigest) -> DigestPart:
    if len(digest.parts) == 1 and not digest.parts[0].path:
        return digest.parts[0]
    text = f"{len(digest.parts)} parts"
    return DigestPart("", digest.type_name, text, b"".join(part.digest for part in digest.parts))


def _variants(parts: Mapping[int, DigestPart | None], key: Callable[[DigestPart], Any]) -> tuple[Variant, ...]:
    """Group ranks by a key of the part, the most common first."""
    ranks_of: dict[Any, list[int]] = {}
    for rank, part in sorted(parts.items()):
        ranks_of.setdefault(key(part) if part is not None else None, []).append(rank)
    found = [Variant(tuple(ranks), parts[ranks[0]]) for ranks in ranks_of.values()]
    return tuple(sorted(found, key=lambda variant: -len(variant.ranks)))


def format_same(name: str, by_rank: Mapping[int, VariableDigest | None]) -> str:
    """Return `x is the same on ranks 0-3: …`."""
    digests = [digest for digest in by_rank.values() if digest is not None]
    shards = _Shards.of(digests)
    verb = "has no replicas" if shards.alone == len(digests[0].parts) else "is the same"
    return f"{name} {verb} on {name_ranks(by_rank)}: {_format_content(_whole(digests[0]))}{shards.format_note()}"


def format_differences(
    name: str,
    by_rank: Mapping[int, VariableDigest | None],
    differences: Sequence[Difference],
    gaps: Mapping[Difference, MeasuredPart],
) -> str:
    """Render which parts differ, which ranks agree, and the numeric differences of the parts in `gaps`."""
    digests = [digest for digest in by_rank.values() if digest is not None]
    differing = len({difference.path for difference in differences})
    count = max(differing, *(len(digest.parts) for digest in digests))
    where = f" in {differing} of {count} parts" if differences[0].path else ""
    note = _Shards.of(digests).format_note()
    lines = [f"{name} differs{where}: {_format_agreement(_group_agreeing(by_rank, differences))}{note}"]
    for difference in differences[:MOST_SHOWN]:
        lines += _format_part(difference, gaps)
    if (rest := len(differences) - MOST_SHOWN) > 0:
        lines.append(f"… {rest:,} more parts differ")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Shards:
    """The parts that are sharded, over how many ranks, and how many of these parts have no replicas."""

    parts: int
    counts: tuple[int, ...]
    alone: int

    @classmethod
    def of(cls, digests: Sequence[VariableDigest]) -> _Shards:
        """Count the shards of these ranks."""
        positions: dict[str, list[tuple[int, ...] | None]] = {}
        counts: set[int] = set()
        for part in (part for digest in digests for part in digest.parts):
            if part.shard is not None and part.shard.count > 1:
                positions.setdefault(part.path, []).append(part.shard.position)
                counts.add(part.shard.count)
        alone = sum(len(set(of)) == len(of) for of in positions.values())
        return cls(len(positions), tuple(sorted(counts)), alone)

    def format_note(self) -> str:
        """Return `; 4 parts are sharded over 2 ranks, without replicas`, or nothing."""
        if not self.parts:
            return ""
        over = " or ".join(map(str, self.counts))
        what = "part is" if self.parts == 1 else "parts are"
        replicas = {0: "of which replicas are compared", self.parts: "without replicas to compare"}
        found = replicas.get(self.alone, f"{self.alone} of them without replicas to compare")
        return f"; {self.parts} {what} sharded over {over} ranks, {found}"


def _group_agreeing(by_rank: Mapping[int, VariableDigest | None], differences: Sequence[Difference]) -> list[list[int]]:
    """Group the ranks that agree in all parts that they share. Where a shard has no replica, a rank differs in none."""
    keys: dict[int, list[int]] = {rank: [] for rank in sorted(by_rank)}
    for difference in differences:
        variant_of = {rank: index for index, variant in enumerate(difference.variants) for rank in variant.ranks}
        for rank, key in keys.items():
            key.append(variant_of.get(rank, 0))
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, key in keys.items():
        groups.setdefault(tuple(key), []).append(rank)
    return sorted(groups.values(), key=lambda ranks: -len(ranks))


def _format_agreement(groups: Sequence[Sequence[int]]) -> str:
    """Return `ranks 0-2 agree, rank 3 differs`."""
    agreeing = [f"{name_ranks(ranks)} agree" for ranks in groups if len(ranks) > 1]
    alone = [rank for ranks in groups if len(ranks) == 1 for rank in ranks]
    if not agreeing:
        return "no two ranks agree"
    parts = [*agreeing, f"{name_ranks(alone)} {'differs' if len(alone) == 1 else 'differ from all others'}"]
    return ", ".join(parts if alone else agreeing)


def _format_part(difference: Difference, gaps: Mapping[Difference, MeasuredPart]) -> Iterator[str]:
    margin = "    " if difference.path else ""
    if difference.path:
        yield difference.label
    for variant in difference.variants[:MOST_VARIANTS]:
        yield f"{margin}{format_label(variant.ranks)} {_format_content(variant.part)}"
    if (rest := len(difference.variants) - MOST_VARIANTS) > 0:
        yield f"{margin}… {rest:,} more variants"
    if difference in gaps:
        yield f"{margin}{_format_difference(gaps[difference], difference.variants)}"
    elif difference.compared:
        yield f"{margin}too many differences for an element-wise comparison"


def _format_content(part: DigestPart | None) -> str:
    if part is None:
        return "not defined"
    shard = f"  shard {part.shard.layout}" if part.shard is not None else ""
    return f"{part.kind}  {part.text}".rstrip() + shard


def _format_difference(measured: MeasuredPart, variants: Sequence[Variant]) -> str:
    gap = measured.gap
    if gap is None:
        return "equal numbers with different bits (-0.0, or different NaNs)"
    # Of large parts only the first differing blocks were compared.
    seen, least = ("", "") if measured.is_whole else (" seen", "at least ")
    place = f" at {list(measured.place)}" if measured.place else ""
    ends = ((gap.least, gap.least_in), (gap.most, gap.most_in))
    values = ", ".join(f"{_format_number(value)} on {name_ranks(variants[index].ranks)}" for value, index in ends)
    what = "NaN" if math.isnan(gap.size) else f"largest difference{seen} {gap.size:.6g}"
    return f"{what}{place}: {values}; {least}{gap.differing:,} of {measured.total:,} numbers differ"


def _format_number(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"
