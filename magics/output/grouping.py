"""The text of many ranks as one: what all said appears once, what differs stands beside its ranks.

Text in, groups out. Not for their looks (`rendering`), nor for keeping them within bounds (`fitting`).

A group is lossless: its lines are what its ranks wrote; or, where blocks differ only in their numbers on many
ranks, lines with the numbers as ranges over `members`, the groups that still have every rank's own lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from meshbook.magics.output.ansi import strip_colours
from meshbook.magics.output.progress_bars import MergedBar, merge_bars, parse_bar
from meshbook.runtime.geometry.ranges import format_label

GroupMode = Literal["auto", "same", "rank", "order", "none"]
StreamName = Literal["stdout", "stderr"]

# Up to this many different blocks are all shown, so the losses of four ranks can be read; more make a range.
MOST_DISTINCT = 4

# A sign belongs to a number only where it cannot be a minus or a hyphen: `x=-1`, but not `3-1` or `rank-1`.
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|(?:(?<![\w.)\]])[-+])?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Block:
    """What is kept of one rank's stream. Before `lines[cut]`, `hidden` lines were left out.

    `identity` stands for the whole text where a part is missing: blocks are the same only if the whole was.
    """

    lines: tuple[str, ...]
    hidden: int = 0
    cut: int = 0
    identity: bytes = b""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that said the same or, with `members`, the same but for numbers. No ranks: no label.

    `is_bar`: it is a progress bar, which stands on stderr without being trouble.
    """

    ranks: tuple[int, ...]
    block: Block
    members: tuple[Group, ...] = ()
    is_bar: bool = False
    mesh: str = ""  # whose ranks they are, where that is to be said

    @property
    def lines(self) -> tuple[str, ...]:
        return self.block.lines

    @property
    def prefix(self) -> str:
        return f"{self.mesh}{format_label(self.ranks)} " if self.ranks else ""

    def of_mesh(self, mesh: str) -> Group:
        """The same with the name of its mesh in the labels."""
        return replace(self, mesh=mesh, members=tuple(each.of_mesh(mesh) for each in self.members)) if mesh else self


def group_texts(texts: Mapping[int, str], mode: GroupMode = "auto") -> list[Group]:
    """Groups of one stream's text by rank, in order of their lowest rank; a rank without text is in none."""
    return group_blocks({rank: Block(split_lines(text)) for rank, text in texts.items()}, mode)


def group_blocks(blocks: Mapping[int, Block], mode: GroupMode = "auto") -> list[Group]:
    """Like `group_texts`, for text of which only a part was kept.

    `rank` gives each rank a group, `same` joins equal blocks, `auto` also aligns blocks that differ only in
    numbers, and makes one of progress bars with one title. `order` and `none` need the order of arrival, which a
    mapping hasn't: they group like `rank`.
    """
    singles = [Group((rank,), blocks[rank]) for rank in sorted(blocks) if blocks[rank].lines]
    if mode in ("rank", "order", "none"):
        return singles
    return _join_same(singles) if mode == "same" else _align(singles)


def split_lines(text: str) -> tuple[str, ...]:
    """The lines of a text without their ends. Only a newline ends a line: U+2028 and form feed are content.

    A worker collapses carriage returns chunk by chunk, so the states of one line from two chunks meet here.
    """
    if not text:
        return ()
    lines = text.removesuffix("\n").split("\n")
    return tuple(line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line for line in lines)


def _align(singles: Sequence[Group]) -> list[Group]:
    """Bars where they are, if they are at the same places on all ranks; else below the text."""
    parts = {single.ranks[0]: _split_at_bars(single.block.lines) for single in singles}
    places = {rank: tuple(_place_of(part) for part in each) for rank, each in parts.items()}
    if not any(any(each) for each in places.values()):
        return _align_families(_join_same(singles))
    if len(set(places.values())) > 1 or any(single.block.hidden for single in singles):
        return [*_align_families(_join_same(list(_without_bars(singles)))), *_merge_all_bars(parts)]
    return [group for index in range(len(places[singles[0].ranks[0]])) for group in _align_part(parts, index)]


def _split_at_bars(lines: Sequence[str]) -> list[MergedBar | tuple[str, ...]]:
    """Bars, and the lines between them."""
    parts: list[MergedBar | tuple[str, ...]] = []
    start = 0
    for index, line in enumerate(lines):
        if (bar := _bar_of(line)) is not None:
            parts += [tuple(lines[start:index]), bar] if index > start else [bar]
            start = index + 1
    return [*parts, tuple(lines[start:])] if start < len(lines) else parts


def _bar_of(line: str) -> MergedBar | None:
    return parse_bar(strip_colours(line)) if line.endswith("]") else None


def _place_of(part: MergedBar | tuple[str, ...]) -> str:
    return f"bar {part.key}" if isinstance(part, MergedBar) else ""


def _without_bars(singles: Iterable[Group]) -> Iterator[Group]:
    for single in singles:
        block = single.block
        lines = tuple(line for line in block.lines if _bar_of(line) is None)
        cut = sum(_bar_of(line) is None for line in block.lines[: block.cut])
        if lines or block.hidden:
            yield replace(single, block=replace(block, lines=lines, cut=cut))


def _align_part(parts: Mapping[int, Sequence[MergedBar | tuple[str, ...]]], index: int) -> list[Group]:
    bars, texts = {}, []
    for rank, each in parts.items():
        part = each[index]
        if isinstance(part, MergedBar):
            bars[rank] = part
        else:
            texts.append(Group((rank,), Block(part)))
    return [_merge_bars(bars)] if bars else _align_families(_join_same(texts))


def _merge_all_bars(parts: Mapping[int, Sequence[MergedBar | tuple[str, ...]]]) -> list[Group]:
    """The n-th bars with one title are one."""
    alike: dict[tuple[str, int], dict[int, MergedBar]] = {}
    for rank, each in parts.items():
        counts: Counter[str] = Counter()
        for bar in each:
            if isinstance(bar, MergedBar):
                alike.setdefault((bar.key, counts[bar.key]), {})[rank] = bar
                counts[bar.key] += 1
    return [_merge_bars(bars) for bars in alike.values()]


def _merge_bars(bars: Mapping[int, MergedBar]) -> Group:
    same = _join_same([Group((rank,), Block((bar.line,)), is_bar=True) for rank, bar in bars.items()])
    members = tuple(replace(group, is_bar=True) for group in same)
    if len(members) == 1:
        return members[0]
    return Group(tuple(bars), Block((merge_bars(bars),)), members, is_bar=True)


def _join_same(singles: Sequence[Group]) -> list[Group]:
    ranks_of: dict[Block, list[int]] = {}
    for single in singles:
        ranks_of.setdefault(single.block, []).extend(single.ranks)
    return [Group(tuple(ranks), block) for block, ranks in ranks_of.items()]


def _align_families(same: Sequence[Group]) -> list[Group]:
    """Put blocks of one skeleton side by side: as many lines, and the same words around the numbers."""
    families: dict[Hashable, list[Group]] = {}
    for group in same:
        families.setdefault(_skeleton(group.block), []).append(group)
    return [part for family in families.values() for part in _merge_family(family)]


def _skeleton(block: Block) -> Hashable:
    return tuple(_NUMBER.split(strip_colours("\n".join(block.lines)))), block.hidden, block.cut


def _merge_family(family: list[Group]) -> list[Group]:
    if len(family) == 1:
        return family
    return _factor_common(family) if len(family) <= MOST_DISTINCT else [_collapse(family)]


def _factor_common(family: list[Group]) -> list[Group]:
    """Say the first and last lines that all share once, and between them what each wrote, in one piece.

    Shared lines further inside stay where they are: a matrix torn apart row by row is harder to read.
    """
    if any(group.block.hidden for group in family):
        return family
    columns = list(zip(*(group.lines for group in family), strict=True))
    head = _count_common(columns)
    tail = _count_common(columns[::-1])
    end = len(columns) - tail
    lines = family[0].lines
    ranks = _all_ranks(family)
    parts = [Group(ranks, Block(lines[:head]))]
    parts += [Group(group.ranks, Block(group.lines[head:end])) for group in family]
    parts += [Group(ranks, Block(lines[end:]))]
    return [part for part in parts if part.lines]


def _count_common(columns: Iterable[tuple[str, ...]]) -> int:
    count = 0
    for column in columns:
        if len(set(column)) > 1:
            break
        count += 1
    return count


def _collapse(family: list[Group]) -> Group:
    first = family[0].block
    columns = zip(*(group.lines for group in family), strict=True)
    owners = [group.ranks for group in family]
    lines = tuple(_merge_lines(column, owners) for column in columns)
    return Group(_all_ranks(family), Block(lines, first.hidden, first.cut), tuple(family))


def _all_ranks(family: Iterable[Group]) -> tuple[int, ...]:
    return tuple(sorted(rank for group in family for rank in group.ranks))


def _merge_lines(lines: Sequence[str], owners: Sequence[tuple[int, ...]]) -> str:
    """One line for lines that differ in numbers: `loss 2.31 … 2.35 (max r3)`."""
    if len(set(lines)) == 1:
        return lines[0]
    plain = [strip_colours(line) for line in lines]
    words = _NUMBER.split(plain[0])
    columns = list(zip(*(_NUMBER.findall(line) for line in plain), strict=True))
    merged = words[0] + "".join(_merge_numbers(column) + word for column, word in zip(columns, words[1:], strict=True))
    markers = dict.fromkeys(f"r{_find_largest(column, owners)}" for column in columns if _needs_marker(column, owners))
    return f"{merged} (max {', '.join(markers)})" if markers else merged


def _merge_numbers(column: Sequence[str]) -> str:
    if len(set(column)) == 1:
        return column[0]
    return f"{min(column, key=_number_of)} … {max(column, key=_number_of)}"


def _needs_marker(column: Sequence[str], owners: Sequence[tuple[int, ...]]) -> bool:
    """A number that is the same everywhere has no largest; one that is the rank's own says nothing by it."""
    is_own_rank = all((text,) == tuple(map(str, ranks)) for text, ranks in zip(column, owners, strict=True))
    return len(set(column)) > 1 and not is_own_rank


def _find_largest(column: Sequence[str], owners: Sequence[tuple[int, ...]]) -> int:
    values = [_number_of(text) for text in column]
    return owners[values.index(max(values))][0]


def _number_of(text: str) -> float:
    # Only for finding the smallest and the largest: what is shown stays as it was written.
    return float(int(text, 16)) if text[:2] in ("0x", "0X") else float(text)
