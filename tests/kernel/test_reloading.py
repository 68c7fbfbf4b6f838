"""Actor classes that are defined anew in a cell: what the next spawn uses, and live actors that take it on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]

CLASS = """
from meshbook import Actor, endpoint

def label(count):
    return f"{version} {{count}}"

class Counter(Actor):
    def __init__(self):
        self.count = 0

    @endpoint
    def add(self):
        self.count += 1
        return label(self.count)
"""


def test_a_class_that_is_defined_again_in_a_cell(notebook: KernelNotebook) -> None:
    """What it uses of other cells is new as well; existing actors change on request."""
    notebook.run(CLASS.format(version="first"))
    notebook.run("first = mesh.spawn('counters', Counter)\nfirst.add.call().get()")
    notebook.run(CLASS.format(version="second") + "    @endpoint\n    def take(self):\n        self.count -= 1\n")
    notebook.run("second = mesh.spawn('counters', Counter)")
    assert notebook.evaluate("list(second.add.call().get().values())") == ["second 1"] * 4
    assert notebook.evaluate("list(first.add.call().get().values())") == ["first 2"] * 4
    notebook.run("await first.reload()")
    assert notebook.evaluate("list(first.add.call().get().values())") == ["second 3"] * 4
    assert notebook.evaluate("list(first.take.call().get().values())") == [None] * 4
    notebook.run("def label(count):\n    return f'third {count}'\nawait first.reload()")
    assert notebook.evaluate("list(first.add.call().get().values())") == ["third 3"] * 4
    notebook.run("first.stop().get(); second.stop().get()")
