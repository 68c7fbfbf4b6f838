"""`static/protocol.d.ts` is what the generator writes, and the generator renders Python types as TypeScript."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Literal, NamedTuple, NotRequired, TypedDict

import pytest

from meshbook.widgets import protocol, typescript

Colour = Literal["red", "blue"]


class Point(NamedTuple):
    x: int
    label: str | None


class Base(TypedDict, total=False):
    """A base."""

    colour: Colour


class Shape(Base):
    """A shape.

    With points.
    """

    kind: Literal["shape"]
    points: list[Point]
    sizes: dict[str, list[int | None]]
    extra: NotRequired[tuple[str, bool]]


@dataclass
class Query:
    """A query."""

    text: str
    limit: int = 0


def module(**names: object) -> types.ModuleType:
    made = types.ModuleType("made")
    vars(made).update(names)
    return made


def test_the_file_is_up_to_date() -> None:
    current = typescript.PATH.read_text("utf-8")
    assert current == typescript.declarations(protocol), "run python -m meshbook.widgets.typescript"


def test_types_are_rendered_by_name_and_with_their_docstrings() -> None:
    text = typescript.declarations(module(Colour=Colour, Point=Point, Shape=Shape, Query=Query, _Base=Base, other=3))
    _, *declarations = text.split("\n\n")
    assert [declaration.strip() for declaration in declarations] == [
        'export type Colour = "red" | "blue";',
        "/** Point(x, label) */\nexport type Point = [x: number, label: string | null];",
        "/**\n * A shape.\n *\n * With points.\n */\nexport interface Shape {\n  colour?: Colour;\n"
        '  kind: "shape";\n  points: Point[];\n  sizes: Record<string, (number | null)[]>;\n'
        "  extra?: [string, boolean];\n}",
        "/** A query. */\nexport interface Query {\n  text: string;\n  limit?: number;\n}",
    ]


def test_a_type_without_a_rendering_is_refused() -> None:
    class Odd(TypedDict):
        numbers: set[int]

    with pytest.raises(typescript.UnknownTypeError, match="set"):
        typescript.declarations(module(Odd=Odd))
