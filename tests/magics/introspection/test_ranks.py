"""Completion from the last snapshot of a rank, which needs no answer of it."""

from __future__ import annotations

import pytest

from meshbook.magics.introspection.ranks import complete_cached
from meshbook.runtime.cells.completion import Snapshot

# --- from the last snapshot ---

SNAPSHOT = Snapshot({"model": "instance", "step": "function"}, {"model": ("fc", "forward")})


@pytest.mark.parametrize(
    ("before", "matches"),
    [
        ("mod", "model"),
        ("x = (st", "staticmethod step str"),
        ("world", "world_size"),
        ("model.f", "fc forward"),
        ("print(model.", "fc forward"),
        ("other.", ""),
        ("model.fc.", ""),
        ("model().", ""),
        ("wh", "while"),
        ("gone", ""),
    ],
)
def test_completion_from_a_snapshot(before: str, matches: str) -> None:
    found = complete_cached(before, ("model", "step", "plain"), SNAPSHOT)
    assert [match.text for match in found] == matches.split()
    assert {match.end for match in found} <= {len(before)}
