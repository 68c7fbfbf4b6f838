"""Magics that are the notebook's. A rank has none of these names; whoever writes one there is told where it belongs."""

from __future__ import annotations

_PLACES = {
    ("line", "mesh"): "use it in a cell of its own, without %%mesh",
    ("line", "on"): "use it in a cell of its own, without %%mesh",
    ("cell", "mesh"): "it stands on the first line of a cell",
    ("cell", "here"): "it stands on the first line of a cell",
}


def tell_elsewhere(kind: str, name: str) -> str:
    """What to say of this `line` or `cell` magic, which the rank does not have; nothing for one of nobody's."""
    mark = "%" if kind == "line" else "%%"
    place = _PLACES.get((kind, name))
    return f"{mark}{name} is the notebook's, and ranks have none: {place}" if place else ""
