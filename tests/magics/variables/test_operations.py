"""Errors of push, pull and scatter that need no request to a rank."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.magics.errors import VariableError
from meshbook.magics.syntax.argparsing import PullSpec
from meshbook.magics.variables.operations import pack_all, pull, scatter
from meshbook.runtime.geometry import Extent

MESH: Any = SimpleNamespace(
    name="mesh",
    extent=Extent.of(gpus=4),
    session=SimpleNamespace(node=SimpleNamespace(settings=SimpleNamespace(max_message_bytes=100_000))),
)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "nothing to push"),
        ({"a b": 1}, "'a b' is not a valid variable name"),
        ({"class": 1}, "'class' is not a valid variable name"),
        ({3: 1}, "3 is not a valid variable name"),
        ({"a": 1, "b": threading.Lock()}, "nothing was pushed: b cannot be pickled: TypeError: cannot pickle"),
        ({"a": bytes(100_000)}, "bytes exceed the maximum message size (100,000)"),
    ],
)
def test_what_cannot_be_pushed(values: dict[Any, Any], problem: str) -> None:
    with pytest.raises(VariableError) as caught:
        pack_all(MESH, values)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ([], "nothing to pull"),
        ([PullSpec("c", 0)], "cannot pull c@0: its rank is not among ranks 1-2 of mesh"),
        ([PullSpec("c", -1)], "cannot pull c@-1: its rank is not among ranks 1-2 of mesh"),
        ([PullSpec("c", 9)], "cannot pull c@9"),
    ],
)
def test_what_cannot_be_pulled(wanted: list[PullSpec], problem: str) -> None:
    with pytest.raises(VariableError) as caught:
        next(pull(MESH, [1, 2], wanted, ask=None))
    assert problem in str(caught.value)


def test_what_cannot_be_scattered() -> None:
    with pytest.raises(VariableError, match="cannot scatter x: data of type int has no dimension 0"):
        next(scatter(MESH, [0, 1], "x", 5, 0))
