"""What is said of a name that ranks do not know."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.results.missing_names import explain_missing
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.geometry import Extent


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
            ["x is a name of the notebook, not of ranks 0-1: %mesh push x"],
        ),
        ({1: unknown("x")}, {}, ["x is a name of the notebook, not of rank 1: %mesh push x 1"]),
        (
            {0: unknown("sys"), 1: unknown("sys")},
            {},
            ["sys is a name of the notebook, not of ranks 0-1: import it in a cell with %%mesh"],
        ),
        (
            {1: unknown("y")},
            {"added": {1: 3}, "names": {0: ("y",)}},
            ["rank 1 came with %mesh resize, after the cells that made y: run the cell that makes y with %%mesh 1"],
        ),
        ({0: unknown("y"), 1: unknown("y")}, {"added": {1: 3}}, []),
        ({1: unknown("nowhere")}, {"added": {1: 3}, "names": {0: ("y",)}}, []),
        (
            {1: unknown("y")},
            {"lost": {1: ("model", "y")}},
            ["rank 1 lost y when it was started again: run the cell that makes it there"],
        ),
    ],
)
def test_what_is_said_of_a_missing_name(errors: dict[int, RankError], known: dict[str, Any], said: list[str]) -> None:
    assert list(explain_missing(errors, mesh_of(2, **known), {"x": 1, "sys": sys})) == said
