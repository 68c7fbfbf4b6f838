"""Option lines of `%%mesh` and `%mesh`, as tables: their parsed values, and the errors of invalid lines."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.magics.errors import UsageError
from meshbook.magics.syntax.argparsing import HelpText, PullSpec
from meshbook.magics.syntax.cell_options import CellOptions, parse_cell_options, parse_comment
from meshbook.magics.verbs.verb_table import parse_verb


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("", CellOptions()),
        ("  ", CellOptions()),
        ("0:4", CellOptions("0:4")),
        ("!3", CellOptions("!3")),
        ("NAME[gpus=0]", CellOptions("NAME[gpus=0]")),
        ("NAME[0,3]", CellOptions("NAME[0,3]")),
        ("'NAME[0, 3]'", CellOptions("NAME[0, 3]")),
        ("gpus=0:4,hosts=1", CellOptions("gpus=0:4,hosts=1")),
        ("-1", CellOptions("-1")),
        ("-1,0", CellOptions("-1,0")),
        ("-2:", CellOptions("-2:")),
        ("-2: -q", CellOptions("-2:", quiet=True)),
        ("-T -1 -q", CellOptions("-1", time=True, quiet=True)),
        ("-o losses", CellOptions(out="losses")),
        ("--out losses 0", CellOptions("0", out="losses")),
        ("--out=losses", CellOptions(out="losses")),
        ("--show -2: 0:3", CellOptions("0:3", show="-2:")),
        ("--show=!0", CellOptions(show="!0")),
        ("-Tq", CellOptions(time=True, quiet=True)),
        ("--quiet --time", CellOptions(time=True, quiet=True)),
        ("--on-error finish", CellOptions(on_error="finish")),
        ("--on-error=stop all", CellOptions("all")),
        ("--timeout 3", CellOptions(timeout=3.0)),
        ("0 --timeout=.5", CellOptions("0", timeout=0.5)),
        ("-g rank", CellOptions(group="rank")),
        ("-b", CellOptions()),
        ("0 -a", CellOptions("0", block=False)),
        ("--noblock -o job", CellOptions(out="job", block=False)),
        ("--first 0 1:", CellOptions("1:", first="0")),
        ("--seq --on-error finish", CellOptions(seq=True, on_error="finish")),
        ("-gnone", CellOptions(group="none")),
        ("--group same failed", CellOptions("failed", group="same")),
        ("0 --push a,b --pull c@mean", CellOptions("0", push=("a", "b"), pull=(PullSpec("c", "mean"),))),
    ],
)
def test_cell_options(line: str, options: CellOptions) -> None:
    assert parse_cell_options(line) == options


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--quit", "unknown option '--quit'. Did you mean '--quiet'? The options are -h, --help, -a, --noblock,"),
        ("--timeout 0", "--timeout: '0' is not a positive number of seconds"),
        ("--timeout=-3", "--timeout: '-3' is not a positive number of seconds"),
        ("--timeout .", "--timeout: '.' is not a positive number of seconds"),
        ("--timeout inf", "--timeout: 'inf' is not a positive number of seconds"),
        ("-z", "unknown option '-z'. The options are"),
        ("-a -b", "argument -b/--block: not allowed with argument -a/--noblock"),
        ("0 --tim", "unknown option '--tim'. Did you mean '--time'?"),
        ("0 1 --remote", "unknown option '--remote'"),
        ("--local -a", "--local and -a cannot be combined"),
        ("gpus=0:2, hosts=1", "unexpected argument 'hosts=1' (names and selectors cannot contain spaces)"),
        ("0 -1", "unexpected argument '-1'"),
        ("-o 3x", "-o/--out: '3x' is not a valid variable name"),
        ("-o class", "-o/--out: 'class' is not a valid variable name"),
        ("-o -1", "-o/--out: '-1' is not a valid variable name"),
        ("-o", "-o/--out: expected one argument"),
        ("--show", "--show: expected one argument"),
        ("-q --show 0", "not allowed with argument -q/--quiet"),
        ("-g sometimes", "-g/--group: invalid choice: 'sometimes'"),
        ("-o 'losses", 'cannot parse "-o \'losses": no closing quotation'),
        ("-o %(prog)s", "'%(prog)s' is not a valid variable name"),
        pytest.param("--" + "x" * 100_000, "unknown option '--xxx", id="endless option"),
        pytest.param("-o " + "1" * 100_000, "…' is not a valid variable name", id="endless name"),
    ],
)
def test_invalid_cell_options(line: str, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)) as caught:
        parse_cell_options(line)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("line", ["?", "-h", "--help", "0:4 --help"])
def test_help_is_a_value_and_prints_nothing(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    asked = parse_cell_options(line)
    assert isinstance(asked, HelpText)
    assert asked.text.startswith("usage: %%mesh ")
    for word in (
        "SEL",
        "--out",
        "--show",
        "--quiet",
        "--time",
        "--on-error",
        "--group",
        "gpus=0:4",
        "failed",
    ):
        assert word in asked.text
    assert capfd.readouterr() == ("", "")


def test_help_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = parse_cell_options("--help")
    monkeypatch.setenv("COLUMNS", "30")
    assert parse_cell_options("--help") == before


@pytest.mark.parametrize(
    ("first_line", "options"),
    [
        ("#mesh: 0:4 -o x", "0:4 -o x"),
        ("# mesh: 0:4", "0:4"),
        ("#mesh:failed\n", "failed"),
        ("#mesh:", ""),
        ("# mesh:   ", ""),
        ("#mesh 0:4", None),
        ("# the mesh: four ranks", None),
        ("#  mesh: 0", None),
        ("## mesh: 0", None),
        (" #mesh: 0", None),
        ("x = 1  # mesh: 0", None),
        ("%%mesh 0", None),
        ("", None),
    ],
)
def test_comment(first_line: str, options: str | None) -> None:
    assert parse_comment(first_line) == options


@given(st.text(alphabet="-ogqTh0: ='\"\\!?sTtaup", max_size=24) | st.text())
def test_any_text_gives_options_help_or_a_usage_error(line: str) -> None:
    for parse in (parse_cell_options, parse_verb):
        with contextlib.suppress(UsageError):
            parse(line)
