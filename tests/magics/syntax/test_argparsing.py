"""Names of variables to push and pull on an option line."""

from __future__ import annotations

import argparse

import pytest

from meshbook.magics.syntax.argparsing import PullSpec, pull_specs, push_names


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("c", [PullSpec("c")]),
        ("c,d@0, e@mean", [PullSpec("c"), PullSpec("d", 0), PullSpec("e", "mean")]),
        ("c@-1", [PullSpec("c", -1)]),
        ("c@first", [PullSpec("c", "first")]),
    ],
)
def test_pull_specs(text: str, wanted: list[PullSpec]) -> None:
    assert pull_specs(text) == tuple(wanted)
    assert ",".join(map(str, wanted)) == text.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("c@", "'c@': expected a rank after @, or one of mean, cat, stack, first"),
        ("c@maen", "Did you mean 'mean'?"),
        ("c@0:2", "expected a rank after @"),
        ("2c", "'2c' is not a valid variable name"),
        ("", "'' is not a valid variable name"),
        (",", "',' is not a valid variable name"),
        ("c@0,c@1", "c is given twice"),
    ],
)
def test_what_cannot_be_pulled(text: str, problem: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        pull_specs(text)
    assert problem in str(caught.value)


def test_push_names() -> None:
    assert push_names("a, b,c") == ("a", "b", "c")
    with pytest.raises(argparse.ArgumentTypeError):
        push_names("a,b@0")
