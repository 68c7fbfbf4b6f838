"""What is said of a name that ranks do not know."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.magics.cells.rank_errors import explain_missing
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.procs import ProcMesh


def mesh_of(count: int, **known: Any) -> NotebookMesh:
    procs: Any = SimpleNamespace(extent=Extent.of(gpus=count), nodes=[])
    rest: Any = None
    return NotebookMesh("mesh", procs, rest, rest, rest, rest, has_gpus=False, **known)


def unknown(name: str) -> RankError:
    return RankError("raised", "NameError", f"name {name!r} is not defined")


@pytest.mark.parametrize(
    ("errors", "known", "said"),
    [
        ({0: unknown("y"), 1: unknown("y")}, {}, []),
        ({0: RankError("raised", "ValueError", "name 'x' is not defined")}, {}, []),
        (
            {0: unknown("x"), 1: unknown("x")},
            {},
            ["x is defined in the notebook, but not on ranks 0-1; send it with %mesh push x"],
        ),
        ({1: unknown("x")}, {}, ["x is defined in the notebook, but not on rank 1; send it with %mesh push x 1"]),
        (
            {0: unknown("sys"), 1: unknown("sys")},
            {},
            ["sys is defined in the notebook, but not on ranks 0-1; import it in a cell with %%mesh"],
        ),
        (
            {0: unknown("mesh"), 1: unknown("mesh")},
            {},
            [
                "mesh is defined in the notebook, but not on ranks 0-1; it is a handle for the notebook; "
                "use it in a cell there (%%here, if %mesh mode is on)"
            ],
        ),
        (
            {1: unknown("y")},
            {"added": {1: 3}, "names": {0: ("y",)}},
            ["%mesh resize added rank 1 after the cells that define y; run the cell that defines y with %%mesh 1"],
        ),
        ({0: unknown("y"), 1: unknown("y")}, {"added": {1: 3}}, []),
        ({1: unknown("nowhere")}, {"added": {1: 3}, "names": {0: ("y",)}}, []),
        (
            {1: unknown("y")},
            {"lost": {1: ("model", "y")}},
            ["rank 1 lost y in a restart; run the cell that defines it there again"],
        ),
    ],
)
def test_what_is_said_of_a_missing_name(errors: dict[int, RankError], known: dict[str, Any], said: list[str]) -> None:
    assert (
        list(explain_missing(errors, mesh_of(2, **known), {"x": 1, "sys": sys, "mesh": ProcMesh.__new__(ProcMesh)}))
        == said
    )
