"""The place of the cursor in a cell, which decides what is completed. In the tables, the bar is the cursor."""

from __future__ import annotations

import pytest

from meshbook.magics.introspection.cursor import CursorPlace, InBody, OnOptions, OnSelector, OnVerb, place_of

# --- where the cursor is ---


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        ("%%mes|", None),
        ("%%mesh|", None),
        ("%%mesh |", OnOptions("", 7)),
        ("%%mesh  0 -|q\nx", OnOptions("0 -", 8)),
        ("#mesh: 0|", OnOptions(" 0", 6)),
        ("# mesh:|", OnOptions("", 7)),
        ("\n\n%%mesh al|\nx", OnOptions("al", 9)),
        ("%|%mesh 0\nx", None),
        ("%%mesh 0\nx|", InBody("0", "########\nx")),
        ("%%mesh\n|", InBody("", "######\n")),
        ("\n #|\n%%mesh 0\nx", None),
        ("\n%%mesh 0\r\nx\n|y", InBody("0", "\n#########\nx\ny")),
        ("#mesh: 𝒳é\n𝒳é.|", InBody("𝒳é", "#########\n𝒳é.")),
        ("%%meshes 0\nx|", None),
        ("x = 1\n%%mesh 0|", None),
        ("%%time\n%%mesh al|", OnOptions("al", 14)),
        ("%%timeit -n 1\n\n%%mesh 0\nx|", InBody("0", "%%timeit -n 1\n\n########\nx")),
        ("%%time\nx|", None),
        ("%%time|", None),
        ("%mesh |", OnVerb("", 6)),
        ("x = 1\n  %mesh up --|", OnVerb("up --", 14)),
        ("job = %mesh re|", OnVerb("re", 12)),
        ("a, b = %mesh |", OnVerb("", 13)),
        ("%mesh|", None),
        ("%meshes |", None),
        ("'%mesh |'", None),
        ("|", None),
        ("%on |", OnSelector("", 4)),
        ("x = 1\ny = %on gpus=|", OnSelector("gpus=", 14)),
        ("x = 1\n%on 0 lo|", InBody("0", "#####\n      lo")),
        ("%online|", None),
    ],
)
def test_place(cell: str, place: CursorPlace | None) -> None:
    cursor = cell.index("|")
    assert place_of(cell.replace("|", ""), cursor) == place


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        ("lo|", InBody("0", "lo")),
        ("%ls\nx = 1\nlo|", InBody("0", "###\nx = 1\nlo")),
        ("%l|s\nx = 1", None),
        ("%mesh |\nx = 1", OnVerb("", 6)),
        ("%%time\nlo|", InBody("0", "######\nlo")),
        ("%%here\nlo|", None),
        ("%%html\nlo|", None),
        ("%%mesh 1\nlo|", InBody("1", "########\nlo")),
    ],
)
def test_place_in_mesh_mode(cell: str, place: CursorPlace | None) -> None:
    cursor = cell.index("|")
    assert place_of(cell.replace("|", ""), cursor, mode="0") == place
