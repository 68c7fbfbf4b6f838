"""Which ranks have the same under a name, in a line: `same on 0-6, differs on 7 (int)`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshbook.runtime.cells.inspecting import Inspected
from meshbook.runtime.geometry.ranges import format_ranks

MOST_KINDS = 3  # of what differs, that are told in words


def tell_agreement(said: Mapping[int, Inspected | None], first: int) -> str:
    """Compare what ranks said with what the first did; None is a rank that has not answered."""
    mark = _mark_of(said[first])
    same = [rank for rank, each in said.items() if each is not None and each.mark == mark]
    other = {rank: each for rank, each in said.items() if each is not None and each.mark not in (mark, "")}
    parts = [f"same on {format_ranks(same)}" if len(same) > 1 else f"on {first}"]
    if other:
        parts.append(f"differs on {format_ranks(other)} ({_tell_kinds(list(other.values()))})")
    if missing := [rank for rank, each in said.items() if each is not None and not each.mark]:
        parts.append(f"not there on {format_ranks(missing)}")
    if silent := [rank for rank, each in said.items() if each is None]:
        parts.append(f"no answer from {format_ranks(silent)}")
    return ", ".join(parts)


def _mark_of(inspected: Inspected | None) -> str:
    return inspected.mark if inspected is not None else ""


def _tell_kinds(others: Sequence[Inspected]) -> str:
    kinds = list(dict.fromkeys(each.summary for each in others))
    return ", ".join(kinds[:MOST_KINDS]) + (", …" if len(kinds) > MOST_KINDS else "")
