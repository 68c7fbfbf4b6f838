"""Completion of selectors: words, meshes, dimensions and ranks."""

from __future__ import annotations

from meshbook.magics.introspection.option_completion import complete_cell_options
from meshbook.magics.introspection.selector_completion import SelectorScope
from tests.magics.introspection.test_option_completion import SCENE


def test_an_empty_line_offers_ranks_and_long_options() -> None:
    found = [match.text for match in complete_cell_options("", 7, SCENE)]
    assert found[:7] == ["all", "failed", "ok", "changed", "mesh", "mesh[", "trainers"]
    assert "--group" in found
    assert "-g" not in found


def test_without_a_mesh_there_are_words_and_options() -> None:
    found = complete_cell_options("a", 7, SelectorScope())
    assert [match.text for match in found] == ["all"]
