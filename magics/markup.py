"""Rich output of a rank as a piece of HTML, and such pieces of many ranks side by side."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from typing import Any

MOST_OPEN = 4  # shown at once, the others behind a click

_GRID = "display:flex;flex-wrap:wrap;gap:8px 16px;align-items:flex-start"
_IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif")


def markup_of(data: Mapping[str, Any], metadata: Mapping[str, Any] = {}) -> str:  # never changed
    """The HTML of a display bundle, or its image; empty where it has neither."""
    if "text/html" in data:
        return str(data["text/html"])
    for name in _IMAGES:
        if name in data:
            return f'<img src="data:{name};base64,{_as_base64(data[name], name)}"{_size_of(metadata.get(name))}>'
    return ""


def side_by_side(pieces: Sequence[str]) -> str:
    """Pieces of HTML in a grid, the first four open."""
    more = pieces[MOST_OPEN:]
    rest = f"<details><summary>show {len(more)} more</summary>{_grid(more)}</details>" if more else ""
    return f"{_grid(pieces[:MOST_OPEN])}{rest}"


def _grid(pieces: Sequence[str]) -> str:
    # Without styles, as on GitHub, they stand below each other.
    return f'<div style="{_GRID}">{"".join(f"<div>{piece}</div>" for piece in pieces)}</div>'


def _as_base64(content: str | bytes, name: str) -> str:
    # A bundle has images as base64 and SVG as text; some formatters leave images as bytes.
    if isinstance(content, str) and name != "image/svg+xml":
        return html.escape(content.replace("\n", ""))
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()


def _size_of(metadata: Any) -> str:
    """A sharp image says how large it is to be shown."""
    if not isinstance(metadata, Mapping):
        return ""
    sizes = {name: metadata.get(name) for name in ("width", "height")}
    return "".join(f' {name}="{size:g}"' for name, size in sizes.items() if isinstance(size, int | float))
