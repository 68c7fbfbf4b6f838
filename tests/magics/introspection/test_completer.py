"""Completions of several sources, joined into one reply."""

from __future__ import annotations

from meshbook.magics.introspection.completer import join_matches, reply_of
from meshbook.runtime.cells.completion import Match


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
