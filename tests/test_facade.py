"""The public face: what `import meshbook` offers is what it says, documented, and not much."""

from __future__ import annotations

import inspect
import pickle
from unittest import mock

import cloudpickle
import jedi
import pytest

import meshbook
from meshbook.runtime.hosts import faults

MOST_NAMES = 46
NOT_FOR_USERS = {"install_client", "load_ipython_extension"}  # the latter is IPython's hook


def test_what_is_offered_is_what_is_there() -> None:
    there = {name for name, value in vars(meshbook).items() if not (name.startswith("_") or inspect.ismodule(value))}
    assert there - NOT_FOR_USERS == set(meshbook.__all__)
    assert sorted(meshbook.__all__) == meshbook.__all__
    assert len(meshbook.__all__) <= MOST_NAMES


def test_it_travels_by_its_name() -> None:
    # As a global of what a notebook defines: `import meshbook`, and later `meshbook.context()`.
    data = cloudpickle.dumps(meshbook)
    assert len(data) < 200
    assert pickle.loads(data) is meshbook


def test_the_hook_can_be_patched() -> None:
    before = faults.unhandled_fault_hook()
    with mock.patch.object(meshbook, "unhandled_fault_hook") as hook:
        faults.unhandled_fault_hook()("a failure")  # type: ignore[arg-type]
    hook.assert_called_once_with("a failure")
    assert faults.unhandled_fault_hook() is faults.default_hook
    faults.set_unhandled_fault_hook(before)


def test_each_name_says_what_it_is() -> None:
    silent = [name for name in meshbook.__all__ if not inspect.getdoc(getattr(meshbook, name))]
    assert silent == []


@pytest.mark.slow
def test_tab_completes_what_each_class_has() -> None:
    # As IPython asks. It shows nothing where jedi fails, as over a property whose type is an alias of literals.
    for name in (name for name in meshbook.__all__ if inspect.isclass(getattr(meshbook, name))):
        code = f"{name}."
        assert jedi.Interpreter(code, [vars(meshbook)]).complete(1, len(code)), name
