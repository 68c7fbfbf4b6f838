"""Completion of the options of `%%mesh` and of the verbs of `%mesh`."""

from __future__ import annotations

import pytest

from meshbook.magics.introspection.option_completion import complete_cell_options, complete_verb
from meshbook.magics.introspection.selector_completion import SelectorScope

SCENE = SelectorScope(
    {"mesh": {"hosts": 2, "gpus": 4}, "trainers": {"gpus": 2}, "many": {"ranks": 1000}},
    "mesh",
    ["a", "ab"],
    ["loss", "model"],
    ["1", "2", "fit"],
    ["gpu1", "gpu2"],
)


WORDS = "all failed ok changed"


EIGHT = "0 1 2 3 4 5 6 7 0: ::2 -1"


OF_TWO = "0 1 0: ::2 -1"


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
        ("down ", "mesh trainers many --help --now --all"),
        ("down tr", "trainers"),
        ("down --no", "--now"),
        ("drain g", "gpu1 gpu2"),
        ("drain gpu1 gpu", "gpu1 gpu2"),
        ("join ss", "ssh:"),
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
        ("explain gro", "grouperror"),
        ("explain Gro", "GroupError"),
        ("help st", "status stack"),
        ("help stack ", ""),
        ("mode o", "on off"),
        ("mode on fa", "failed"),
    ],
)
def test_verbs(line: str, matches: str) -> None:
    check(complete_verb, line, matches)


def check(complete: object, line: str, matches: str) -> None:
    """Each match replaces what it continues, up to the cursor."""
    found = complete(line, 7, SCENE)  # type: ignore[operator]
    assert [match.text for match in found] == matches.split()
    for match in found:
        assert match.end == 7 + len(line)
        assert match.text.startswith(line[match.start - 7 :])
