"""What is done once a module has been imported."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from meshbook.runtime.imports import when_imported

NAME = "imported_later"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    return tmp_path


def test_a_module_that_is_there_is_acted_on_at_once() -> None:
    done: list[int] = []
    when_imported("sys", lambda: done.append(1))
    assert done == [1]


def test_a_later_one_is_acted_on_after_its_first_import(folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("value = 1\n")
    seen: list[object] = []
    before = list(sys.meta_path)
    for _ in range(2):
        when_imported(NAME, lambda: seen.append(sys.modules[NAME].value))
    assert seen == []
    module = importlib.import_module(NAME)
    assert seen == [1, 1]
    assert sys.meta_path == before
    assert type(module.__loader__) is SourceFileLoader
    importlib.import_module(NAME)
    assert seen == [1, 1]


def test_a_search_is_no_import(folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("")
    done: list[int] = []
    when_imported(NAME, lambda: done.append(1))
    assert importlib.util.find_spec(NAME) is not None
    assert done == []
    importlib.import_module(NAME)
    assert done == [1]


def test_a_module_that_cannot_be_found_may_be_found_later(folder: Path) -> None:
    done: list[int] = []
    when_imported(NAME, lambda: done.append(1))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    (folder / f"{NAME}.py").write_text("")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert done == [1]


def test_a_module_whose_import_fails_is_not_acted_on(folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("1 / 0\n")
    done: list[int] = []
    when_imported(NAME, lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(NAME)
    assert done == []
