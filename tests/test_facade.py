"""The public face: what `import meshbook` offers is what it says, documented, and not much."""

from __future__ import annotations

import inspect

import meshbook

MOST_NAMES = 40
NOT_FOR_USERS = {"install_client", "load_ipython_extension"}  # the latter is IPython's hook


def test_what_is_offered_is_what_is_there() -> None:
    there = {name for name, value in vars(meshbook).items() if not (name.startswith("_") or inspect.ismodule(value))}
    assert there - NOT_FOR_USERS == set(meshbook.__all__)
    assert sorted(meshbook.__all__) == meshbook.__all__
    assert len(meshbook.__all__) <= MOST_NAMES


def test_each_name_says_what_it_is() -> None:
    silent = [name for name in meshbook.__all__ if not inspect.getdoc(getattr(meshbook, name))]
    assert silent == []
