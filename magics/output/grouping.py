"""Grouping of the text of many ranks: equal text appears once, different text beside its ranks.

Text in, groups out. Not for rendering (`render`) or for limits on size (`truncation`).

A group is lossless: its lines are the text of its ranks. Where the blocks of many ranks differ only in numbers, its
lines show the numbers as ranges, and `members` are the groups that keep every rank's own lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from meshbook.magics.output.ansi import strip_colours
from meshbook.magics.output.progress_bars import merge_bars
from meshbook.runtime.formats import format_label
from meshbook.runtime.telemetry.bar_lines import BarLine, parse_bar

GroupMode = Literal["auto", "same", "rank", "order", "none"]
StreamName = Literal["stdout", "stderr"]

# Up to this many different blocks are all shown, so that the losses of four ranks can be read; more become a range.
MOST_DISTINCT = 4
MOST_DISTINCT_LINES = 20  # of them together; a longer loop of two ranks becomes ranges as well

# A sign is part of a number only where it cannot be a minus or a hyphen: `x=-1`, but not `3-1` or `rank-1`.
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|(?:(?<![\w.)\]])[-+])?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Block:
    """The kept part of one rank's stream. `hidden` lines were left out before `lines[cut]`.

    `identity` represents the whole text if a part is missing: blocks are equal only if the whole texts were.
    """

    lines: tuple[str, ...]
    hidden: int = 0
    cut: int = 0
    identity: bytes = b""


@dataclass(frozen=True, slots=True)
class OutputGroup:
    """Ranks with the same text or, with `members`, text that differs only in numbers. No ranks: no label.

    `is_bar` marks a progress bar, which goes to stderr without being an error.
    """

    ranks: tuple[int, ...]
    block: Block
    members: tuple[OutputGroup, ...] = ()
    is_bar: bool = False
    mesh: str = ""  # name of the ranks' mesh, if labels show it

    @property
    def lines(self) -> tuple[str, ...]:
        return self.block.lines

    @property
    def prefix(self) -> str:
        return f"{self.mesh}{format_label(self.ranks)} " if self.ranks else ""

    def of_mesh(self, mesh: str) -> OutputGroup:
        """Return this group with the name of its mesh in the labels."""
        return replace(self, mesh=mesh, members=tuple(each.of_mesh(mesh) for each in self.members)) if mesh else self


def group_texts(texts: Mapping[int, str], mode: GroupMode = "auto") -> list[OutputGroup]:
    """Group one stream's text by rank, in order of the lowest rank; ranks without text are in no group."""
    return group_blocks({rank: Block(split_lines(text)) for rank, text in texts.items()}, mode)


def group_blocks(blocks: Mapping[int, Block], mode: GroupMode = "auto") -> list[OutputGroup]:
    """Group like `group_texts`, for text that was only partly kept.

    `rank` gives each rank a group. `same` joins equal blocks. `auto` also aligns blocks that differ only in numbers,
    and merges progress bars with the same title. `order` and `none` need the order of arrival, which a mapping does not
    have: they group like `rank`.
    """
    singles = [OutputGroup((rank,), blocks[rank]) for rank in sorted(blocks) if blocks[rank].lines]
    if mode in ("rank", "order", "none"):
        return singles
    return _join_same(singles) if mode == "same" else _align(singles)


def split_lines(text: str) -> tuple[str, ...]:
    """Return the lines of a text without line ends. Only a newline ends a line: U+2028 and form feed are content.

    A worker collapses carriage returns chunk by chunk, so two states of one line from two chunks are collapsed here.
    """
    if not text:
        return ()
    lines = text.removesuffix("\n").split("\n")
    return tuple(line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line for line in lines)


def _align(singles: Sequence[OutputGroup]) -> list[OutputGroup]:
    """Keep bars in place if they are at the same places on all ranks; otherwise put them below the text."""
    parts = {single.ranks[0]: _split_at_bars(single.block.lines) for single in singles}
    places = {
        rank: tuple(f"bar {part.key}" if isinstance(part, BarLine) else "" for part in each)
        for rank, each in parts.items()
    }
    if not any(any(each) for each in places.values()):
        return _align_families(_join_same(singles))
    if len(set(places.values())) > 1 or any(single.block.hidden for single in singles):
        return [*_align_families(_join_same(list(_without_bars(singles)))), *_merge_all_bars(parts)]
    return [group for index in range(len(places[singles[0].ranks[0]])) for group in _align_part(parts, index)]


def _split_at_bars(lines: Sequence[str]) -> list[BarLine | tuple[str, ...]]:
    """Return the bars, and the lines between them."""
    parts: list[BarLine | tuple[str, ...]] = []
    start = 0
    for index, line in enumerate(lines):
        if (bar := _bar_of(line)) is not None:
            parts += [tuple(lines[start:index]), bar] if index > start else [bar]
            start = index + 1
    return [*parts, tuple(lines[start:])] if start < len(lines) else parts


def _bar_of(line: str) -> BarLine | None:
    return parse_bar(strip_colours(line)) if line.endswith("]") else None


def _without_bars(singles: Iterable[OutputGroup]) -> Iterator[OutputGroup]:
    for single in singles:
        block = single.block
        lines = tuple(line for line in block.lines if _bar_of(line) is None)
        cut = sum(_bar_of(line) is None for line in block.lines[: block.cut])
        if lines or block.hidden:
            yield replace(single, block=replace(block, lines=lines, cut=cut))


def _align_part(parts: Mapping[int, Sequence[BarLine | tuple[str, ...]]], index: int) -> list[OutputGroup]:
    bars, texts = {}, []
    for rank, each in parts.items():
        part = each[index]
        if isinstance(part, BarLine):
            bars[rank] = part
        else:
            texts.append(OutputGroup((rank,), Block(part)))
    return [_merge_bars(bars)] if bars else _align_families(_join_same(texts))


def _merge_all_bars(parts: Mapping[int, Sequence[BarLine | tuple[str, ...]]]) -> list[OutputGroup]:
    """Merge the n-th bars of all ranks that have the same title."""
    alike: dict[tuple[str, int], dict[int, BarLine]] = {}
    for rank, each in parts.items():
        counts: Counter[str] = Counter()
        for bar in each:
            if isinstance(bar, BarLine):
                alike.setdefault((bar.key, counts[bar.key]), {})[rank] = bar
                counts[bar.key] += 1
    return [_merge_bars(bars) for bars in alike.values()]


def _merge_bars(bars: Mapping[int, BarLine]) -> OutputGroup:
    same = _join_same([OutputGroup((rank,), Block((bar.line,)), is_bar=True) for rank, bar in bars.items()])
    members = tuple(replace(group, is_bar=True) for group in same)
    if len(members) == 1:
        return members[0]
    return OutputGroup(tuple(bars), Block((merge_bars(bars),)), members, is_bar=True)


def _join_same(singles: Sequence[OutputGroup]) -> list[OutputGroup]:
    ranks_of: dict[Block, list[int]] = {}
    for single in singles:
        ranks_of.setdefault(single.block, []).extend(single.ranks)
    return [OutputGroup(tuple(ranks), block) for block, ranks in ranks_of.items()]


def _align_families(same: Sequence[OutputGroup]) -> list[OutputGroup]:
    """Align blocks with the same skeleton: the same number of lines, and the same words around the numbers."""
    families: dict[Hashable, list[OutputGroup]] = {}
    for group in same:
        block = group.block
        skeleton = tuple(_NUMBER.split(strip_colours("\n".join(block.lines)))), block.hidden, block.cut
        families.setdefault(skeleton, []).append(group)
    groups: list[OutputGroup] = []
    for family in families.values():
        if len(family) == 1:
            groups += family
        else:
            apart = _factor_common(family) if len(family) <= MOST_DISTINCT else []
            is_short = sum(len(group.lines) for group in apart) <= MOST_DISTINCT_LINES
            # Floods may differ in what is hidden, which no range shows.
            groups += apart if apart and (is_short or family[0].block.hidden) else [_collapse(family)]
    return groups


def _factor_common(family: list[OutputGroup]) -> list[OutputGroup]:
    """Show the first and last lines that all groups share once, and each group's other lines in one piece.

    Shared lines further inside stay where they are: a matrix split row by row is harder to read.
    """
    if any(group.block.hidden for group in family):
        return family
    columns = list(zip(*(group.lines for group in family), strict=True))
    head = _count_common(columns)
    tail = _count_common(columns[::-1])
    end = len(columns) - tail
    lines = family[0].lines
    ranks = _all_ranks(family)
    parts = [OutputGroup(ranks, Block(lines[:head]))]
    parts += [OutputGroup(group.ranks, Block(group.lines[head:end])) for group in family]
    parts += [OutputGroup(ranks, Block(lines[end:]))]
    return [part for part in parts if part.lines]


def _count_common(columns: Iterable[tuple[str, ...]]) -> int:
    count = 0
    for column in columns:
        if len(set(column)) > 1:
            break
        count += 1
    return count


def _collapse(family: list[OutputGroup]) -> OutputGroup:
    first = family[0].block
    columns = zip(*(group.lines for group in family), strict=True)
    owners = [group.ranks for group in family]
    lines = tuple(_merge_lines(column, owners) for column in columns)
    return OutputGroup(_all_ranks(family), Block(lines, first.hidden, first.cut), tuple(family))


def _all_ranks(family: Iterable[OutputGroup]) -> tuple[int, ...]:
    return tuple(sorted(rank for group in family for rank in group.ranks))


def _merge_lines(lines: Sequence[str], owners: Sequence[tuple[int, ...]]) -> str:
    """Merge lines that differ in numbers into one: `loss 2.31 … 2.35 (max r3)`."""
    if len(set(lines)) == 1:
        return lines[0]
    plain = [strip_colours(line) for line in lines]
    words = _NUMBER.split(plain[0])
    columns = list(zip(*(_NUMBER.findall(line) for line in plain), strict=True))
    merged, markers = words[0], dict[str, None]()
    for column, word in zip(columns, words[1:], strict=True):
        if len(set(column)) == 1:
            merged += column[0] + word
            continue
        numbers = [_number_of(text) for text in column]
        least, most = numbers.index(min(numbers)), numbers.index(max(numbers))
        merged += f"{column[least]} … {column[most]}{word}"
        # The largest is marked, unless the numbers are the rank numbers themselves.
        if any((text,) != tuple(map(str, ranks)) for text, ranks in zip(column, owners, strict=True)):
            markers[f"r{owners[most][0]}"] = None
    return f"{merged} (max {', '.join(markers)})" if markers else merged


def _number_of(text: str) -> float:
    # Only to find the smallest and largest: the text is shown as it was written.
    return float(int(text, 16)) if text[:2] in ("0x", "0X") else float(text)
