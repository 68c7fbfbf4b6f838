"""Explanations for names that ranks do not have, with the command that brings each name there. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.geometry.ranges import format_ranks, name_ranks

_NOT_DEFINED = re.compile(r"name '(\w+)' is not defined")


def explain_missing(errors: Mapping[int, RankError], mesh: NotebookMesh, variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each missing name that can be explained; `variables` are those of the notebook."""
    for name, ranks in _missing(errors).items():
        if lost := [rank for rank in ranks if name in mesh.lost.get(rank, ())]:
            yield f"{name_ranks(lost)} lost {name} in a restart; run the cell that defines it there again"
        elif mesh.added.keys() >= set(ranks) and (name in variables or _is_known(name, mesh)):
            added = f"%mesh resize added {name_ranks(ranks)} after the cells that define {name}"
            yield f"{added}; {_format_remedy(name, ranks, mesh, variables)}"
        elif name in variables:
            where = f"{name} is defined in the notebook, but not on {name_ranks(ranks)}"
            yield f"{where}; {_format_remedy(name, ranks, mesh, variables)}"


def _is_known(name: str, mesh: NotebookMesh) -> bool:
    """Whether some rank has this name; otherwise it is a typing error."""
    return any(name in names for names in mesh.names.values())


def _missing(errors: Mapping[int, RankError]) -> dict[str, list[int]]:
    """Return the ranks of each name in a NameError."""
    found: dict[str, list[int]] = {}
    for rank, error in errors.items():
        if error.type_name == "NameError" and (match := _NOT_DEFINED.match(error.message)):
            found.setdefault(match[1], []).append(rank)
    return found


def _format_remedy(name: str, ranks: Collection[int], mesh: NotebookMesh, variables: Mapping[str, Any]) -> str:
    chosen = "" if len(ranks) == mesh.extent.nelements else format_ranks(ranks)
    selector = mesh.selector(chosen)
    if name not in variables:
        return f"run the cell that defines {name} with %%mesh{selector}"
    if isinstance(variables[name], ModuleType):
        return f"import it in a cell with %%mesh{selector}"
    return f"send it with %mesh push {name}{selector}"
