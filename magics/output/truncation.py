"""Truncation of groups to a budget of bytes, so that no cell outgrows its notebook; a note announces each cut."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, takewhile

from meshbook.magics.output.ansi import html_of
from meshbook.magics.output.grouping import Block, OutputGroup, StreamName
from meshbook.runtime.formats import format_label

# The least number of bytes that a line counts for: a page with tens of thousands of short lines is slow. 130,000 bytes
# are 4,062 such lines.
LEAST_COST = 32
_LEAST_SHARE = 512  # of a publication, for one group: less could not be read
_LEAST_LINE = 80
_ANNOUNCEMENT_SIZE = 120  # approximate size of the line that announces a cut


def fit(groups: Sequence[OutputGroup], budget: int) -> list[OutputGroup]:
    """Fit the groups into about `budget` bytes: small ones whole, of large ones the start and the end.

    Sizes are those in HTML, where escapes make text longest, so the plain text fits as well.
    """
    sizes = [_size_of(group.lines, group.prefix) for group in groups]
    count = _count_fitting([min(size, _LEAST_SHARE) for size in sizes], budget)
    share = _share_out(sizes[:count], budget)
    fitted = [
        group if size <= share else _shorten(group, int(share))
        for group, size in zip(groups[:count], sizes[:count], strict=True)
    ]
    if count == len(groups):
        return fitted
    ranks = {rank for group in groups[count:] for rank in group.ranks}
    note = f"… {len(groups) - count:,} more groups not shown: {format_label(ranks)} (%mesh log RANK)"
    return [*fitted, OutputGroup((), Block((note,)))]


def fit_streams(groups: Mapping[StreamName, list[OutputGroup]], budget: int) -> dict[StreamName, list[OutputGroup]]:
    # Errors must not be displaced by a flood on stdout, nor take more than they need.
    stderr = fit(groups["stderr"], budget // 3)
    used = sum(_size_of(group.lines, group.prefix) for group in stderr)
    return {"stdout": fit(groups["stdout"], budget - used), "stderr": stderr}


def fit_details(groups: Mapping[StreamName, list[OutputGroup]], budget: int) -> dict[StreamName, list[OutputGroup]]:
    ranges = sum(bool(group.members) for each in groups.values() for group in each)
    share = budget // max(ranges, 1)
    return {
        name: [replace(group, members=tuple(fit(group.members, share))) for group in each]
        for name, each in groups.items()
    }


def _share_out(sizes: Sequence[int], budget: int) -> float:
    """Return the largest size that each may have; small groups leave their unused share to large ones."""
    rest = budget
    for index, size in enumerate(sorted(sizes)):
        share = rest / (len(sizes) - index)
        if size > share:
            return share
        rest -= size
    return math.inf


def _shorten(group: OutputGroup, size: int) -> OutputGroup:
    block = group.block
    room = max(size - _ANNOUNCEMENT_SIZE, 0) // 2
    # A character may take 6 bytes after escaping and encoding, and a shortened line has to fit into the room.
    lines = [_shorten_line(line, room // 8) for line in block.lines]
    prefix = group.prefix
    sizes = [_size_of([line], prefix) for line in lines]
    # If lines are missing already, neither part may grow across that gap.
    first = _count_fitting(sizes[: block.cut] if block.hidden else sizes, room)
    back = sizes[block.cut :] if block.hidden else sizes[first:]
    last = len(lines) - _count_fitting(back[::-1], room)
    hidden = block.hidden + last - first
    return replace(group, block=Block((*lines[:first], *lines[last:]), hidden, first, block.identity))


def _shorten_line(line: str, length: int) -> str:
    if len(line) <= max(length, _LEAST_LINE):
        return line
    kept = max(length, _LEAST_LINE) - 24
    return f"{line[:kept]} … (+{len(line) - kept:,} characters)"


def cost_of(text: str) -> int:
    """Return the cost of a text in a budget: its characters, or more if its lines are short."""
    return max(len(text), text.count("\n") * LEAST_COST)


def _size_of(lines: Iterable[str], prefix: str) -> int:
    return sum(max(len(html_of(line).encode("utf-8", "replace")) + len(prefix) + 1, LEAST_COST) for line in lines)


def _count_fitting(sizes: Iterable[int], room: int) -> int:
    """Count how many sizes from the start fit into the room."""
    return sum(1 for _ in takewhile(lambda total: total <= room, accumulate(sizes)))
