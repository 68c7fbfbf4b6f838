"""Magics that only the notebook supports: a rank refuses them with an error that names the place for them."""

from __future__ import annotations

_OWN_CELL = "use it in a cell of its own, without %%mesh"
_FIRST_LINE = "put it on the first line of a cell"
# These access the notebook's history, its cells or its files; a rank keeps no history.
_OF_HISTORY = (
    *("edit", "hist", "history", "load", "loadpy", "logstart", "macro"),
    *("notebook", "pastebin", "recall", "rep", "rerun", "save"),
)
_PLACES = {
    ("line", "mesh"): _OWN_CELL,
    ("line", "on"): _OWN_CELL,
    ("cell", "mesh"): _FIRST_LINE,
    ("cell", "here"): _FIRST_LINE,
    ("line", "store"): f"{_OWN_CELL}, and send the restored variables with mesh.push",
    **{("line", name): _OWN_CELL for name in _OF_HISTORY},
    # These belong to ipykernel.
    **{("line", name): _OWN_CELL for name in ("connect_info", "qtconsole", "subshell")},
}


def format_elsewhere(kind: str, name: str) -> str:
    """Return why a rank refuses this `line` or `cell` magic; an empty string if it does not."""
    mark = "%" if kind == "line" else "%%"
    place = _PLACES.get((kind, name))
    return f"{mark}{name} works only in the notebook, not on ranks; {place}" if place else ""
