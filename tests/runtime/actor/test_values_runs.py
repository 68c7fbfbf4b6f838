"""Which values may stand for each other."""

from __future__ import annotations

import enum
import math
from typing import Any

import pytest

from meshbook.runtime.actor.values import are_same, runs_of


class Odd:
    """Compares as nothing should be asked to."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "Odd()"


class Text(str):
    pass


class Colour(enum.IntEnum):
    RED = 1


ODD = Odd()
LONG = tuple(range(17))


def fresh(value: Any) -> Any:
    """An equal one that is another object, where Python makes one."""
    return eval(repr(value))


@pytest.mark.parametrize(
    "value", [None, True, 10**30, 2.5, -0.0, math.inf, "text", b"bytes", (), (1, "a", (2.5, (None,)))], ids=repr
)
def test_plain_values_are_the_same_as_their_equals(value: Any) -> None:
    other = fresh(value) if value != math.inf else float("inf")
    assert are_same(value, other)


@pytest.mark.parametrize("value", [ODD, [1], math.nan, Colour.RED, LONG, (ODD,)], ids=str)
def test_everything_is_the_same_as_itself(value: Any) -> None:
    assert are_same(value, value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0, False),
        (0.0, -0.0),
        (float("nan"), float("nan")),
        (1, 2),
        ("a", "b"),
        ("a", b"a"),
        ("a", Text("a")),
        (Text("a"), Text("a")),
        (Colour.RED, 1),
        ((1,), (True,)),
        ((0.0,), (-0.0,)),
        ((1,), (1, 2)),
        ((1,), [1]),
        ([1], [1]),
        ({}, {}),
        (Odd(), Odd()),
        ((Odd(),), (Odd(),)),
        (LONG, tuple(range(17))),
    ],
    ids=repr,
)
def test_these_are_not(one: Any, other: Any) -> None:
    assert not are_same(one, other)


def test_deep_tuples_are_not_looked_into() -> None:
    def nested(depth: int) -> Any:
        made: Any = tuple("x")  # another object each time
        for _ in range(depth):
            made = (made,)
        return made

    assert are_same(nested(3), nested(3))
    assert not are_same(nested(4), nested(4))
    assert not are_same(nested(100_000), nested(100_000))


@pytest.mark.parametrize(
    ("values", "runs"),
    [
        ("", ([], [])),
        ("a", (["a"], [1])),
        ("aabbba", (["a", "b", "a"], [2, 3, 1])),
        ([1, True, 1.0, 1], ([1, True, 1.0, 1], [1, 1, 1, 1])),
    ],
)
def test_runs(values: Any, runs: Any) -> None:
    assert runs_of(values) == runs
