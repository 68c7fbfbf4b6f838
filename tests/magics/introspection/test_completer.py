"""Completions of several sources, joined into one reply."""

from __future__ import annotations

import pytest

from meshbook.magics.introspection.completer import join_matches, reply_of
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.completion import Match
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh


def test_all_matches_of_a_reply_have_one_range() -> None:
    matches = [Match("path", 5, 7, "module"), Match(".path", 4, 7), Match("path", 5, 7, "late")]
    reply = reply_of("x=os.pa", 7, matches)
    assert reply["matches"] == [".path"]
    assert (reply["cursor_start"], reply["cursor_end"]) == (4, 7)
    assert [each["type"] for each in reply["metadata"]["_jupyter_types_experimental"]] == ["module"]


def test_names_of_the_body_and_of_the_rank_are_joined() -> None:
    own = [Match("batch", 4, 6, "statement"), Match("base", 4, 6, "statement")]
    joined = join_matches(own, [Match("base", 4, 6, "module")])
    assert [(match.text, match.kind) for match in joined] == [("batch", "statement"), ("base", "module")]
    assert join_matches(own, []) == own


@pytest.mark.parametrize("cls", [ProcMesh, HostMesh, Future])
def test_names_of_the_runtime_are_not_offered(cls: type) -> None:
    offered = dir(cls.__new__(cls))
    assert {"dismiss", "note_end", "note_tensor_engine", "stop_procs", "set_pending_call"}.isdisjoint(offered)
    assert {"spawn", "spawn_procs", "get"}.intersection(offered)
