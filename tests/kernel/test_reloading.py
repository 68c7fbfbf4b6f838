"""Actor classes that are defined anew in a cell: what the next spawn uses, and live actors that take it on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def test_folders_that_the_notebook_adds_to_its_import_path(notebook: KernelNotebook, tmp_path: Path) -> None:
    """They are on that of the ranks as well: in the same cell, at the same end, and after a restart."""
    last, first = tmp_path / "last", tmp_path / "first"
    for folder in (last, first):
        folder.mkdir()
        (folder / f"helper_in_{folder.name}.py").write_text("def double(x):\n    return 2 * x\n")
    notebook.run("%mesh up --gpus 2 --name other")
    notebook.run(
        f"import sys\nsys.path.append({str(last)!r})\nimport helper_in_last\n"
        "doubled = list(other.map(helper_in_last.double, [1, 2]))"
    )
    assert notebook.evaluate("doubled") == [2, 4]
    notebook.run(f"sys.path.insert(0, {str(first)!r})")
    look = "%%mesh other\nimport sys\nimport helper_in_first, helper_in_last\nends = sys.path[0], sys.path[-1]"
    notebook.run(look)
    assert notebook.evaluate("other.pull('ends')") == [(str(first), str(last))] * 2
    notebook.run("%mesh restart other[1]")
    notebook.run(look)
    assert notebook.evaluate("other.pull('ends')") == [(str(first), str(last))] * 2
    notebook.run("%mesh down other\nsys.path.pop(0), sys.path.pop()")


MODULE = """
from meshbook import Actor, endpoint
from {helper} import VERSION, helper

def f(x):
    return helper(), VERSION, x

class Worker(Actor):
    @endpoint
    def work(self):
        return f(1)
"""
HELPER = "VERSION = {version}\ndef helper():\n    return 'version {version}'\n"


def test_ranks_follow_a_module_that_was_edited_and_reloaded(notebook: KernelNotebook, tmp_path: Path) -> None:
    """In maps, lambdas, cells and actors; also if the edit is in a module that another one imports from."""

    def write(name: str, text: str, at: int) -> None:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        os.utime(path, (at, at))  # Python compares whole seconds

    def check(expected: tuple[Any, ...]) -> None:
        calls = ("mesh.map(edited.f, [1]).get()", "mesh.map(lambda x: edited.f(x), [1]).get()")
        for call in (*calls, "[actors.slice(gpus=0).work.call_one().get()]"):
            assert notebook.evaluate(call) == [expected], call
        assert notebook.run("%%mesh 0\nedited.f(1)").result == f"[0] {expected}"

    write("edited_helper", HELPER.format(version=1), 1_600_000_000)
    write("edited", MODULE.format(helper="edited_helper"), 1_600_000_000)
    both = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport edited"
    notebook.run(both)
    notebook.run(f"%%mesh\n{both}")
    notebook.run("actors = mesh.spawn('edited', edited.Worker)")
    check(("version 1", 1, 1))
    write("edited_helper", HELPER.format(version=22), 1_600_000_001)
    check(("version 1", 1, 1))  # as in the notebook
    notebook.run("import importlib, edited_helper\nimportlib.reload(edited_helper)\nimportlib.reload(edited)")
    check(("version 22", 22, 1))
