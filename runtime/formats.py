"""Formatting for users: times, bytes, and sets of ranks as `0-2,5`, `[0-2,5]` or `ranks 0-2,5`.

Text of users may have characters that cannot be encoded. A text in a message is `whole`, one for a stream `encodable`;
the streams of the command `meshbook` write escapes themselves.

Not for parsing a selection that a user typed; that grammar is richer and has its own parser.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO


def format_seconds(seconds: float) -> str:
    """Format a duration: `12 ms`, `3.21 s`, `2 min 05 s`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02} s"


def format_bytes(count: float) -> str:
    """Format bytes in decimal units: `512 kB`, `1.2 GB`, `31 GB`."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while count >= 999.5 and unit != "TB":
        count, unit = count / 1000, next(units)
    return f"{count:.1f} {unit}" if count < 9.95 and unit != "B" else f"{count:.0f} {unit}"


def format_elapsed(seconds: float) -> str:
    """Format minutes and seconds, `00:12`, and hours if there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


MOST_RUNS = 12  # runs in a label, which precedes every line; a longer one would hide the line


def format_ranks(ranks: Iterable[int]) -> str:
    """Format ranks as sorted runs: `{0, 1, 2, 5}` gives `0-2,5`; no ranks give the empty string."""
    return ",".join(_format_run(first, last) for first, last in _find_runs(ranks))


def format_label(ranks: Iterable[int]) -> str:
    """Format the label of a group of ranks, `[0-2,5]`; after `MOST_RUNS` runs it only counts the rest."""
    runs = _find_runs(ranks)
    text = ",".join(_format_run(first, last) for first, last in runs[:MOST_RUNS])
    uncounted = sum(last - first + 1 for first, last in runs[MOST_RUNS:])
    return f"[{text},… {uncounted} more]" if uncounted else f"[{text}]"


def name_ranks(ranks: Iterable[int]) -> str:
    """Format ranks for a sentence: `rank 3`, `ranks 0-2,5`."""
    members = set(ranks)
    return f"{'rank' if len(members) == 1 else 'ranks'} {format_ranks(members)}"


def _find_runs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last of each run of consecutive ranks, in order."""
    runs: list[tuple[int, int]] = []
    ordered = sorted(set(ranks))
    if ordered and ordered[-1] - ordered[0] == len(ordered) - 1:  # a fast path: most sets are one run
        return [(ordered[0], ordered[-1])]
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs


def _format_run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def mesh_name(mesh: str) -> str:
    """Return the name that the user gave a mesh: `trainers` of `trainers-3f9c01aa`, which is unique in the run."""
    return mesh.rpartition("-")[0] or mesh


def whole(text: str) -> str:
    """Return text that UTF-8 can encode: join adjacent surrogate halves, and replace single ones with U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encodable(text: str, file: TextIO) -> str:
    """Return the text with escapes for the characters that this file cannot encode."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text
