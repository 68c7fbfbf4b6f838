"""Names that a body defines itself, before it has run: loop variables, arguments, imports. Found by jedi.

It does not resolve them: jedi would import the modules of the body into this process, torch among them.
"""

from __future__ import annotations

import re
from typing import Any

from meshbook.runtime.cells.completion import Match

_LAST = re.compile(r"(?<![\w.])(?:[^\W\d]\w*)?\Z")


def own_names(before: str) -> list[Match]:
    """Complete the bare name at the end of the source to names that it defines and that are visible there."""
    import jedi  # weight: 0.1 s, which would delay the start of a kernel

    last = _LAST.search(before)
    if last is None:
        return []
    word, lines = last.group(), before.split("\n")
    here = len(lines), len(lines[-1]) - len(word)
    found = jedi.Interpreter(before, [{}]).get_names(all_scopes=True)
    kinds = {
        each.name: _kind_of(each)
        for each in found
        if each.name.startswith(word) and (each.line, each.column) < here and _is_visible(each, here)
    }
    return [Match(name, last.start(), len(before), kind) for name, kind in kinds.items()]


def _is_visible(name: Any, here: tuple[int, int]) -> bool:
    """Whether the function or class that contains this name encloses the cursor."""
    if _is_import(name):
        return True
    scope = name.parent()
    end = scope.get_definition_end_position() if scope is not None and scope.type in ("function", "class") else None
    return end is None or here <= end


def _kind_of(name: Any) -> str:
    return "module" if _is_import(name) else str(name.type)


def _is_import(name: Any) -> bool:
    # Imports are not inspected further: jedi would follow the import.
    return str(name.get_line_code()).lstrip().startswith(("import ", "from "))
