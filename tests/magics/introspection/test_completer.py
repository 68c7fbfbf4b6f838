"""Completion on option lines, as tables: the bar is the cursor."""

from __future__ import annotations

import pytest

from meshbook.magics.introspection.completer import join_matches, reply_of
from meshbook.magics.introspection.cursor import CursorPlace, InBody, OnOptions, OnSelector, OnVerb, place_of
from meshbook.magics.introspection.option_completion import complete_cell_options, complete_verb
from meshbook.magics.introspection.ranks import complete_cached
from meshbook.magics.introspection.selector_completion import SelectorScope
from meshbook.runtime.cells.completion import Match, Snapshot

SCENE = SelectorScope(
    {"mesh": {"hosts": 2, "gpus": 4}, "trainers": {"gpus": 2}, "many": {"ranks": 1000}},
    "mesh",
    ["a", "ab"],
    ["loss", "model"],
    ["1", "2", "fit"],
)
WORDS = "all failed ok changed"
EIGHT = "0 1 2 3 4 5 6 7 0: ::2 -1"
OF_TWO = "0 1 0: ::2 -1"


# --- where the cursor is ---


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        ("%%mes|", None),
        ("%%mesh|", None),
        ("%%mesh |", OnOptions("", 7)),
        ("%%mesh  0 -|q\nx", OnOptions("0 -", 8)),
        ("#mesh: 0|", OnOptions(" 0", 6)),
        ("# mesh:|", OnOptions("", 7)),
        ("\n\n%%mesh al|\nx", OnOptions("al", 9)),
        ("%|%mesh 0\nx", None),
        ("%%mesh 0\nx|", InBody("0", "########\nx")),
        ("%%mesh\n|", InBody("", "######\n")),
        ("\n #|\n%%mesh 0\nx", None),
        ("\n%%mesh 0\r\nx\n|y", InBody("0", "\n#########\nx\ny")),
        ("#mesh: 𝒳é\n𝒳é.|", InBody("𝒳é", "#########\n𝒳é.")),
        ("%%meshes 0\nx|", None),
        ("x = 1\n%%mesh 0|", None),
        ("%%time\n%%mesh al|", OnOptions("al", 14)),
        ("%%timeit -n 1\n\n%%mesh 0\nx|", InBody("0", "%%timeit -n 1\n\n########\nx")),
        ("%%time\nx|", None),
        ("%%time|", None),
        ("%mesh |", OnVerb("", 6)),
        ("x = 1\n  %mesh up --|", OnVerb("up --", 14)),
        ("job = %mesh re|", OnVerb("re", 12)),
        ("a, b = %mesh |", OnVerb("", 13)),
        ("%mesh|", None),
        ("%meshes |", None),
        ("'%mesh |'", None),
        ("|", None),
        ("%on |", OnSelector("", 4)),
        ("x = 1\ny = %on gpus=|", OnSelector("gpus=", 14)),
        ("x = 1\n%on 0 lo|", InBody("0", "#####\n      lo")),
        ("%online|", None),
    ],
)
def test_place(cell: str, place: CursorPlace | None) -> None:
    cursor = cell.index("|")
    assert place_of(cell.replace("|", ""), cursor) == place


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        ("lo|", InBody("0", "lo")),
        ("%ls\nx = 1\nlo|", InBody("0", "###\nx = 1\nlo")),
        ("%l|s\nx = 1", None),
        ("%mesh |\nx = 1", OnVerb("", 6)),
        ("%%time\nlo|", InBody("0", "######\nlo")),
        ("%%here\nlo|", None),
        ("%%html\nlo|", None),
        ("%%mesh 1\nlo|", InBody("1", "########\nlo")),
    ],
)
def test_place_in_mesh_mode(cell: str, place: CursorPlace | None) -> None:
    cursor = cell.index("|")
    assert place_of(cell.replace("|", ""), cursor, mode="0") == place


# --- lines ---


@pytest.mark.parametrize(
    ("line", "matches"),
    [
        ("fa", "failed"),
        ("tr", "trainers trainers["),
        ("h", "hosts="),
        ("3", "3"),
        ("-1", "-1"),
        ("gpus=", "0 1 2 3 0: ::2 -1"),
        ("gpus=0,", "hosts="),
        ("gpus=0,hosts=", OF_TWO),
        ("0,", EIGHT),
        ("!", f"{WORDS} hosts= gpus= {EIGHT}"),
        ("!f", "failed"),
        ("trainers[", f"{WORDS} gpus= {OF_TWO}"),
        ("trainers[!gpus=", OF_TWO),
        ("trainers[0]", ""),
        ("nobody[gp", ""),
        ("colours=", ""),
        ("many[9", "9"),
        ("many[", f"{WORDS} ranks= {' '.join(map(str, range(16)))} 0: ::2 -1"),
        ("0 x", ""),
        ("--gr", "--group"),
        ("--group ", "auto same rank order none"),
        ("-g r", "rank"),
        ("--group=s", "same"),
        ("-q --sh", ""),
        ("--show t", "trainers trainers["),
        ("--show=trainers[f", "failed"),
        ("-o ", ""),
        ("--timeout ", ""),
        ("-Tq --ti", "--timeout"),
        ("-gnone -T --g", ""),
        ("0 -T --nothing --ou", "--out"),
        ("'trainers[", ""),
        ("--push ", "a ab"),
        ("--push ab,", "a"),
        ("--pull model,lo", "loss"),
        ("--pull loss@m", "mean"),
        ("--pull loss@3", "3"),
    ],
)
def test_options_of_a_cell(line: str, matches: str) -> None:
    check(complete_cell_options, line, matches)


def test_an_empty_line_offers_ranks_and_long_options() -> None:
    found = [match.text for match in complete_cell_options("", 7, SCENE)]
    assert found[:7] == ["all", "failed", "ok", "changed", "mesh", "mesh[", "trainers"]
    assert "--group" in found
    assert "-g" not in found


def test_exclusive_options_are_not_offered_together() -> None:
    found = [match.text for match in complete_cell_options("0 --quiet ", 7, SCENE)]
    assert "--show" not in found
    assert "--quiet" not in found
    assert "--time" in found


@pytest.mark.parametrize(
    ("line", "matches"),
    [
        ("st", "status stack"),
        ("  heal", "heal"),
        ("down ", "mesh trainers many --help --now"),
        ("down tr", "trainers"),
        ("down --no", "--now"),
        ("up --gpus 4 --s", "--spares"),
        ("up --gpus ", ""),
        ("interrupt trainers[0] --k", "--kill"),
        ("stack gpus=", "0 1 2 3 0: ::2 -1"),
        ("log --", "--help --grep --regex --case --stderr --cell --time"),
        ("log -n 3 --g", "--grep"),
        ("nothing ", ""),
        ("diff mo", "model"),
        ("result ", "1 2 fit --help"),
        ("cancel f", "fit"),
        ("config on", "on_error"),
        ("config on_error ", "stop finish debug default"),
        ("config plain-time ", "default"),
        ("config block o", "on off"),
        ("help st", "status stack"),
        ("help stack ", ""),
        ("mode o", "on off"),
        ("mode on fa", "failed"),
    ],
)
def test_verbs(line: str, matches: str) -> None:
    check(complete_verb, line, matches)


def test_without_a_mesh_there_are_words_and_options() -> None:
    found = complete_cell_options("a", 7, SelectorScope())
    assert [match.text for match in found] == ["all"]


def check(complete: object, line: str, matches: str) -> None:
    """Each match replaces what it continues, up to the cursor."""
    found = complete(line, 7, SCENE)  # type: ignore[operator]
    assert [match.text for match in found] == matches.split()
    for match in found:
        assert match.end == 7 + len(line)
        assert match.text.startswith(line[match.start - 7 :])


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
