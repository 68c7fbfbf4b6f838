"""Rich output of a rank as a piece of HTML, which a grid or a list of many ranks can hold."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from typing import Any

_IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif")


def markup_of(data: Mapping[str, Any], metadata: Mapping[str, Any] = {}) -> str:  # never changed
    """The HTML of a display bundle, or its image; empty where it has neither."""
    if "text/html" in data:
        return str(data["text/html"])
    for name in _IMAGES:
        if name in data:
            return f'<img src="data:{name};base64,{_as_base64(data[name], name)}"{_size_of(metadata.get(name))}>'
    return ""


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
