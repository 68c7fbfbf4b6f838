"""Conversion of matches to a completion reply, in which all cover one range of the cell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshbook.runtime.cells.completion import Match


def reply_of(cell: str, cursor: int, matches: Sequence[Match]) -> dict[str, Any]:
    """Return the content of a `complete_reply`, with kinds and signatures in IPython's format."""
    start = min((match.start for match in matches), default=cursor)
    end = max((match.end for match in matches), default=cursor)
    typed = {
        text: {"start": start, "end": end, "text": text, "type": match.kind, "signature": match.signature}
        for match in reversed(matches)  # of two with equal text the first is kept
        for text in [cell[start : match.start] + match.text + cell[match.end : end]]
    }
    ordered = [*reversed(typed.values())]
    return {
        "status": "ok",
        "matches": [each["text"] for each in ordered],
        "cursor_start": start,
        "cursor_end": end,
        "metadata": {"_jupyter_types_experimental": ordered},
    }
