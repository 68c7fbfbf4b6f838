"""Modules that are edited while a program and its ranks run: what the program reports, and what a rank does."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from meshbook.runtime.wire import module_edits, pickling

NAME = "edited_for_a_test"
OLD = "def f(x):\n    return ('old', x)\n\nSETTING = 1\n"
NEW = "def f(x):\n    return ('the new one', x)\n\nSETTING = 22\n"
Edit = Callable[[str], None]


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Write the file of the module; each version is a second newer, the first is older than the program."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(module_edits, "_state", module_edits._State())
    times = iter(range(1_600_000_000, 1_600_000_100))

    def write(source: str) -> None:
        path, at = tmp_path / f"{NAME}.py", next(times)
        path.write_text(source)
        os.utime(path, (at, at))
        importlib.invalidate_caches()

    write(OLD)
    return write


@pytest.fixture
def module(edit: Edit, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    module = importlib.import_module(NAME)
    monkeypatch.setitem(sys.modules, NAME, module)
    module_edits.note_modules()
    return module


@pytest.fixture
def on_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Go on as a rank, which knows what this process has noted so far."""
    return lambda: monkeypatch.setattr(module_edits, "has_program", lambda: False)


def names_of(edits: module_edits.Edits) -> list[str]:
    return [name for name, *_ in edits]


def digest_of(module: ModuleType) -> str:
    """The digest of the module's file."""
    version = module_edits._version_of(module)
    assert version is not None
    return version.digest


def test_a_module_that_was_not_edited_is_not_in_messages(module: ModuleType) -> None:
    assert module_edits.find_edits() == ()
    assert b"module_edits" not in pickling.dumps(module.f, "a function")[0]


def test_a_module_is_reported_once_the_program_has_reloaded_it(module: ModuleType, edit: Edit) -> None:
    edit(NEW)
    module_edits.expect_edits()
    assert module_edits.find_edits() == ()
    importlib.reload(module)
    assert names_of(module_edits.find_edits()) == [NAME]
    assert b"module_edits" in pickling.dumps(1, "a number")[0]


def test_a_message_at_the_beginning_of_a_reload_does_not_hide_it(module: ModuleType, edit: Edit) -> None:
    """As another thread sends it."""
    at_beginning: list[module_edits.Edits] = []

    class Sends(MetaPathFinder):
        def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
            at_beginning.append(module_edits.find_edits())

    module_edits.find_edits()
    sys.meta_path.insert(1, Sends())
    edit(NEW)
    importlib.reload(module)
    assert at_beginning[0] == ()
    assert names_of(module_edits.find_edits()) == [NAME]


def test_a_function_that_was_replaced_in_place_counts_as_reloaded(module: ModuleType, edit: Edit) -> None:
    """As autoreload does it, where only functions were edited."""
    edit(NEW)
    names: dict[str, Any] = {}
    exec(NEW, names)
    module.f.__code__ = names["f"].__code__
    module_edits.expect_edits()
    assert names_of(module_edits.find_edits()) == [NAME]


def test_a_module_that_is_newer_than_the_program_is_reported(
    module: ModuleType, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank may have imported it before it was edited."""
    monkeypatch.setattr(module_edits._state, "began", 0.0)
    module_edits._state.seen.discard(NAME)
    monkeypatch.setitem(sys.modules, "another_module_of_this_test", ModuleType("another"))
    module_edits.note_modules()
    assert NAME in names_of(module_edits.find_edits())


def test_a_rank_reloads_what_the_program_has_reloaded(
    module: ModuleType, edit: Edit, on_rank: Callable[[], None]
) -> None:
    """Also for modules that have imported names from it."""
    imported = module.f
    edit(NEW)
    digest = digest_of(module)
    on_rank()
    module_edits.follow(((NAME, digest, 0.0), ("not_imported_here", "0", 0.0)))
    assert (module.f(1), imported(1), module.SETTING) == (("the new one", 1), ("the new one", 1), 22)
    module.SETTING = 3
    module_edits.follow(((NAME, digest, 0.0),))
    assert module.SETTING == 3  # it was reloaded once
    module_edits.follow(((NAME, digest, time.time()),))  # the program has reloaded it again
    assert module.SETTING == 22


def test_a_rank_whose_file_differs_says_so_once(
    module: ModuleType, on_rank: Callable[[], None], recwarn: pytest.WarningsRecorder
) -> None:
    on_rank()
    for _ in range(2):
        module_edits.follow(((NAME, "of another file", 0.0),))
    assert [NAME in str(each.message) for each in recwarn] == [True]
    assert module.f(1) == ("old", 1)


def test_a_rank_that_cannot_reload_a_module_says_so_and_goes_on(
    module: ModuleType, edit: Edit, on_rank: Callable[[], None]
) -> None:
    edit(f"{NEW}\nraise ValueError('not here')\n")
    digest = digest_of(module)
    on_rank()
    with pytest.warns(UserWarning, match=r"keeps its old version.*ValueError: not here"):
        module_edits.follow(((NAME, digest, 0.0),))
    assert module.f(1) == ("old", 1)
    module_edits.follow(((NAME, digest, 0.0),))


def test_the_receiver_follows_before_it_unpickles(
    module: ModuleType, edit: Edit, on_rank: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(NEW)
    digest = digest_of(module)
    monkeypatch.setattr(module_edits._state, "edits", ((NAME, digest, 0.0),))
    body = pickling.dumps({"f": module.f}, "a function")
    on_rank()
    assert pickling.loads(body, "a function")["f"](1) == ("the new one", 1)
