"""Groups cut to a budget: what fits stays whole, and what is cut says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.magics.output.grouping import Block, OutputGroup
from meshbook.magics.output.render import render_html, render_text
from meshbook.magics.output.truncation import fit, fit_details, fit_streams

SLACK = 3_000  # announcements, and the markup around a text


def group(rank: int, *lines: str) -> OutputGroup:
    return OutputGroup((rank,), Block(lines))


def flood(rank: int, count: int = 1000, line: str = "x" * 50) -> OutputGroup:
    return group(rank, *(f"{number} {line}" for number in range(count)))


@pytest.mark.parametrize("groups", [[], [group(0, "a")], [group(0, "a"), group(1, "b" * 400)]])
def test_what_fits_is_left_alone(groups: list[OutputGroup]) -> None:
    assert fit(groups, 1000) == groups


def test_a_large_group_keeps_its_start_and_its_end() -> None:
    (cut,) = fit([flood(3)], 2000)
    first, *_, last = cut.lines
    assert (first[:2], last[:4]) == ("0 ", "999 ")
    assert cut.block.hidden + len(cut.lines) == 1000
    said = render_text([cut]).splitlines()[cut.block.cut]
    assert said == f"[3] … {cut.block.hidden} lines not shown (%mesh log 3; with -o NAME, NAME[3].stdout has all)"


def test_small_groups_leave_their_share_to_large_ones() -> None:
    small, large = fit([group(0, "short"), flood(1)], 10_000)
    assert small == group(0, "short")
    assert len(render_text([large])) == pytest.approx(10_000, rel=0.1)
    one, other = fit([flood(0), flood(1)], 10_000)
    assert abs(len(one.lines) - len(other.lines)) < 2


def test_too_many_groups_are_counted_and_named() -> None:
    groups = fit([flood(rank, 20) for rank in range(40)], 10_000)
    assert 10 < len(groups) < 40
    assert groups[-1].block.lines == (
        f"… {41 - len(groups)} more groups not shown: [{len(groups) - 1}-39] (%mesh log RANK)",
    )


def test_of_many_short_lines_some_thousand_are_left() -> None:
    (cut,) = fit([OutputGroup((0,), Block(tuple("x" for _ in range(100_000))))], 130_000)
    assert 3_500 < len(cut.lines) < 4_100
    assert cut.block.hidden + len(cut.lines) == 100_000


def test_a_long_line_is_cut() -> None:
    (cut,) = fit([group(0, "x" * 100_000)], 2000)
    (line,) = cut.lines
    assert line.endswith(f" … (+{100_000 - line.count('x'):,} characters)")


@given(
    st.lists(st.tuples(st.integers(0, 300), st.sampled_from(["", "x", "<&>" * 30, "é" * 500])), max_size=30),
    st.sampled_from([1_000, 5_000, 40_000]),
)
def test_text_and_html_are_about_the_budget_at_most(floods: list[tuple[int, str]], budget: int) -> None:
    groups = fit([flood(rank, count, line) for rank, (count, line) in enumerate(floods) if count], budget)
    assert len(render_text(groups).encode()) < budget + SLACK
    assert len(render_html(groups).encode()) < budget + SLACK


def test_errors_have_their_share_and_no_more() -> None:
    fitted = fit_streams({"stdout": [flood(0)], "stderr": [flood(0)]}, 9_000)
    out, err = (len(render_text(fitted[name])) for name in ("stdout", "stderr"))
    assert err == pytest.approx(3_000, rel=0.1)
    assert out == pytest.approx(6_000, rel=0.1)
    fitted = fit_streams({"stdout": [flood(0)], "stderr": [group(0, "careful")]}, 9_000)
    assert fitted["stderr"] == [group(0, "careful")]
    assert len(render_text(fitted["stdout"])) == pytest.approx(9_000, rel=0.1)


def test_the_members_of_ranges_share_a_budget_of_their_own() -> None:
    members = tuple(flood(rank) for rank in range(5))
    ranges = [OutputGroup((0, 1, 2, 3, 4), Block(("0 … 4",)), members), group(7, "alone")]
    fitted = fit_details({"stdout": ranges, "stderr": []}, 10_000)
    assert fitted["stdout"][1] == group(7, "alone")
    assert fitted["stdout"][0].lines == ("0 … 4",)
    assert len(render_text(fitted["stdout"][0].members)) < 10_000 + SLACK
