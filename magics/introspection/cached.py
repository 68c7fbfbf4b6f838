"""Completion from a rank's last snapshot, for a rank that cannot answer. Pure."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

from meshbook.runtime.cells.completing import Match, kind_of
from meshbook.runtime.cells.snapshot import Snapshot

BUILT_IN_NAMES = ("device", "local_rank", "point", "rank", "world_size")  # names that each rank has from its start
_NAME = r"[^\W\d]\w*"
_ATTRIBUTE = re.compile(rf"(?<![\w.\])])({_NAME})\.(\w*)\Z")
_BARE = re.compile(rf"(?<![\w.])(?:{_NAME})?\Z")


def complete_cached(before: str, names: Iterable[str], snapshot: Snapshot) -> list[Match]:
    """Complete the name at the end of the source: to a name, or to a public attribute of a name."""
    end = len(before)
    if attribute := _ATTRIBUTE.search(before):
        start = attribute.start(2)
        return [
            Match(each, start, end) for each in snapshot.attributes.get(attribute[1], ()) if _fits(each, before, start)
        ]
    if (bare := _BARE.search(before)) is None:
        return []
    start = bare.start()
    known = dict.fromkeys(keyword.kwlist, "keyword") | {name: kind_of(value) for name, value in vars(builtins).items()}
    known |= dict.fromkeys((*BUILT_IN_NAMES, *names), "instance") | {
        name: snapshot.kinds[name] for name in names if name in snapshot.kinds
    }
    offered = (name for name in known if _fits(name, before, start) and (start < end or not name.startswith("_")))
    return [Match(name, start, end, known[name]) for name in sorted(offered)]


def _fits(name: str, before: str, start: int) -> bool:
    return name.startswith(before[start:])
