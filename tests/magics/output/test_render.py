"""Grouped output as text and HTML."""

import re

from meshbook.magics.output.grouping import Block, OutputGroup, group_texts
from meshbook.magics.output.render import render_html, render_text
from tests.magics.output.test_grouping import LOSSES, on


def test_a_cut_is_announced_where_it_is_with_the_way_to_the_rest():
    group = OutputGroup((0, 1), Block(("first", "last"), hidden=999_000, cut=1))

    assert render_text([group], "stderr").splitlines() == [
        "[0-1] first",
        "[0-1] … 999,000 lines not shown (%mesh log 0; with -o NAME, NAME[0].stderr has all)",
        "[0-1] last",
    ]


def test_a_range_opens_to_each_ranks_own_lines_in_html():
    html = render_html(group_texts({**on(5, lambda rank: f"<loss> {LOSSES[rank]}\n"), 5: "other\n"}))

    assert re.search(r"<summary[^>]*>\[0-4\] &lt;loss&gt; 2.31 … 2.35 \(max r1\)</summary>", html)
    assert all(f"[{rank}] &lt;loss&gt; {loss}\n" in html for rank, loss in enumerate(LOSSES))
    assert "[5] other\n</pre>" in html
    assert html.index("<details>") < html.index("[5] other")
