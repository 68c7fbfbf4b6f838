"""The output of `%mesh who` and `%mesh whos`: the variables of ranks, equal ones once. Entries in, text out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from meshbook.magics.output.grouping import group_texts
from meshbook.runtime.cells.inventory import Entry
from meshbook.runtime.formats import format_bytes, format_label, format_ranks, name_ranks

WIDTH = 100  # characters in a line of names
_COLUMNS = ("Variable", "Type", "Size", "Ranks", "Value")


def format_names(by_rank: Mapping[int, Sequence[Entry]]) -> str:
    """Render the names, with one paragraph for each set of ranks."""
    ranks_of: dict[str, list[int]] = {}
    for rank in sorted(by_rank):
        for entry in by_rank[rank]:
            ranks_of.setdefault(entry.name, []).append(rank)
    names_on: dict[tuple[int, ...], list[str]] = {}
    for name in sorted(ranks_of):
        names_on.setdefault(tuple(ranks_of[name]), []).append(name)
    # The names on most ranks come first.
    groups = sorted(names_on.items(), key=lambda group: (-len(group[0]), group[0]))
    paragraphs: list[str] = []
    for ranks, names in groups:
        label = f"{format_label(ranks)} "
        indent = " " * len(label)
        paragraphs.append(textwrap.fill("  ".join(names), WIDTH, initial_indent=label, subsequent_indent=indent))
    return "\n".join(paragraphs) or _nothing(by_rank)


def format_table(by_rank: Mapping[int, Sequence[Entry]]) -> str:
    """Render a line for each variable, and one for each different value; many different numbers become a range."""
    entries: dict[str, dict[int, Entry]] = {}
    for rank in sorted(by_rank):
        for entry in by_rank[rank]:
            entries.setdefault(entry.name, {})[rank] = entry
    rows = [row for name in sorted(entries) for row in _rows_of(name, entries[name])]
    if not rows:
        return _nothing(by_rank)
    widths = [max(map(len, column)) for column in zip(_COLUMNS[:-1], *(row[:-1] for row in rows), strict=True)]
    lines: list[str] = []
    for row in (_COLUMNS, *rows):
        padded = [f"{field:<{width}}" for field, width in zip(row, widths, strict=False)]
        lines.append("   ".join([*padded, row[-1]]).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _rows_of(name: str, entries: Mapping[int, Entry]) -> Iterator[tuple[str, ...]]:
    types = dict.fromkeys(entry.type_name for entry in entries.values())
    for type_name in types:
        same = {rank: entry for rank, entry in entries.items() if entry.type_name == type_name}
        for group in group_texts({rank: entry.text or " " for rank, entry in same.items()}):
            size = _size_of([same[rank] for rank in group.ranks])
            yield name, type_name, size, format_ranks(group.ranks), " ".join(group.lines)


def _size_of(entries: Sequence[Entry]) -> str:
    sizes = [entry.size for entry in entries if entry.size is not None]
    if not sizes:
        return ""
    least, most = format_bytes(min(sizes)), format_bytes(max(sizes))
    return least if least == most else f"{least} … {most}"


def _nothing(by_rank: Mapping[int, Sequence[Entry]]) -> str:
    return f"no variables on {name_ranks(by_rank)}"
