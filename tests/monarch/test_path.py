"""How `import monarch` comes to give ours, and what else is refused."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from meshbook.monarch import FOLDER, install


def test_install_puts_ours_before_all_others(alias):
    assert sys.path[0] == FOLDER
    assert os.environ["PYTHONPATH"] == f"{FOLDER}{os.pathsep}/elsewhere"
    assert importlib.import_module("monarch").__file__ == str(Path(FOLDER) / "monarch" / "__init__.py")


def test_installing_twice_changes_nothing(alias):
    importlib.import_module("monarch.actor")
    before = list(sys.path), os.environ["PYTHONPATH"]
    install()
    assert (list(sys.path), os.environ["PYTHONPATH"]) == before


def test_without_a_python_path_there_is_ours_alone(alias, monkeypatch):
    monkeypatch.delenv("PYTHONPATH")
    install()
    assert os.environ["PYTHONPATH"] == FOLDER  # an empty entry would mean the current folder


def test_it_comes_back_to_the_front(alias):
    sys.path.insert(0, "/first")
    install()
    assert sys.path[:2] == [FOLDER, "/first"]
    assert sys.path.count(FOLDER) == 1


def test_another_monarch_that_is_imported_already_is_an_error(monkeypatch):
    other = ModuleType("monarch")
    other.__file__ = "/site-packages/monarch/__init__.py"
    monkeypatch.setitem(sys.modules, "monarch", other)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(RuntimeError, match=r"from /site-packages/monarch/__init__.py; restart Python.*install\(\)"):
        install()
    assert FOLDER not in sys.path
