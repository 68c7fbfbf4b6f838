"""The progress bars of a cell's ranks, merged by title. Pure: rows of text in."""

from __future__ import annotations

from collections.abc import Mapping

from meshbook.magics.output.ansi import strip_colours
from meshbook.magics.output.progress_bars import MergedBar as RankBar
from meshbook.magics.output.progress_bars import merge_bars, parse_bar
from meshbook.widgets.source import ProgressBar

MOST = 12  # bars shown


def bars_of(rows: Mapping[int, str]) -> list[ProgressBar]:
    """Return the merged bars in the ranks' rows that may still change, in the order of the ranks."""
    alike: dict[str, dict[int, RankBar]] = {}
    for rank, text in sorted(rows.items()):
        for line in text.splitlines():
            if (bar := parse_bar(strip_colours(line).rstrip())) is not None and bar.total:
                alike.setdefault(bar.key, {})[rank] = bar
    return [_merged(bars) for bars in list(alike.values())[:MOST]]


def _merged(bars: Mapping[int, RankBar]) -> ProgressBar:
    done = sorted(bar.progress for bar in bars.values())
    return ProgressBar(merge_bars(bars), done[len(done) // 2], tuple(bars), done[0], done[-1])
