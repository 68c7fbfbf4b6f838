"""The package `monarch`, as an installed alias, for one test."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from meshbook.monarch import install
from meshbook.monarch.modules import Finder
from meshbook.runtime.config import OVERRIDES
from meshbook.runtime.hosts.faults import _FaultHook, set_unhandled_fault_hook, unhandled_fault_hook


@pytest.fixture
def alias(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`import monarch` gives ours; afterwards the process is as it was."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    hook = unhandled_fault_hook()
    monkeypatch.setattr(_FaultHook, "default", _FaultHook.default)
    monkeypatch.setattr(OVERRIDES, "defaults", {})
    install()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "monarch"]:
        del sys.modules[name]
    assert not any(isinstance(finder, Finder) for finder in sys.meta_path[1:])  # once, and first
    set_unhandled_fault_hook(hook)


@pytest.fixture(autouse=True)
def _no_overrides() -> Iterator[None]:
    yield
    OVERRIDES.clear()
