"""What the front end decides without a page: where cells lie, how ranks and amounts are written."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

from meshbook.widgets import assets
from tests.browser.harness import BarePage

pytestmark = pytest.mark.browser

ENTRY = """
import { layoutGrid, rankAt, ranksIn } from "./layout.js";
import { parseRanks, pointOf, rankText, selectorOf } from "./ranks.js";
import { asBytes, asClock, asSeconds, asValue } from "./units.js";
import { curveOf } from "./spark.js";
Object.assign(window, { layoutGrid, rankAt, ranksIn, parseRanks, pointOf, rankText, selectorOf });
Object.assign(window, { asBytes, asClock, asSeconds, asValue, curveOf });
export default { render() {} };
"""

# Every rank is found at the middle of its cell and nowhere else, and lies within the grid.
LAYS_OUT = """([dims, width, height]) => {
  const layout = layoutGrid(dims, width, height);
  const { lefts, tops, cell } = layout;
  const found = (rank) => rankAt(layout, lefts[rank] + cell / 2, tops[rank] + cell / 2);
  const lost = [...lefts.keys()].filter((rank) => found(rank) !== rank);
  const right = lefts.reduce((most, left) => Math.max(most, left + cell), 0);
  const bottom = tops.reduce((most, top) => Math.max(most, top + cell), 0);
  return { count: lefts.length, lost, cell, rows: layout.rows, high: layout.height, wide: layout.width,
    within: right <= layout.width + 0.5 && bottom <= layout.height + 0.5,
    isRow: dims.length === 0 || [...lefts.keys()].every((rank) =>
      rank % dims.at(-1)[1] === 0 || tops[rank] === tops[rank - 1] || lefts[rank] <= lefts[rank - 1]),
    headings: layout.labels.filter((label) => label.heading).map((label) => label.text) };
}"""


@pytest.fixture(scope="module")
def ask(make_page: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluates JavaScript that has the front end's functions."""

    def read(path: str) -> str:
        return ENTRY if path == "entry.js" else files(assets.__package__).joinpath("static", path).read_text("utf-8")

    esm = assets.join_modules(read, "entry.js")
    page = BarePage(make_page(), esm, "", lambda content, buffers: []).page
    return lambda script, *values: page.evaluate(script, *values)


@pytest.mark.parametrize(
    "dims",
    [
        [],
        [["gpus", 1]],
        [["gpus", 4096]],
        [["hosts", 2], ["gpus", 8]],
        [["hosts", 512], ["gpus", 8]],
        [["hosts", 3], ["gpus", 1000]],
        [["pods", 4], ["hosts", 3], ["gpus", 8]],
        [["a", 1], ["b", 1], ["c", 1], ["d", 5]],
    ],
)
def test_every_rank_has_a_place_of_its_own(ask: Callable[..., Any], dims: list[list[Any]]) -> None:
    for width in (240, 700, 1500):
        laid = ask(LAYS_OUT, [dims, width, 440])
        assert laid["count"] == math.prod(size for _, size in dims)
        assert not laid["lost"]
        assert laid["within"]
        assert laid["isRow"]
        assert laid["wide"] <= width
        assert laid["high"] <= 440 or laid["count"] > 512


def test_few_rows_are_a_matrix_and_many_flow(ask: Callable[..., Any]) -> None:
    assert ask(LAYS_OUT, [[["hosts", 8], ["gpus", 8]], 900, 280])["rows"] == 1
    large = ask(LAYS_OUT, [[["hosts", 512], ["gpus", 8]], 1046, 440])
    assert large["rows"] > 8
    assert large["high"] <= 440
    pods = ask(LAYS_OUT, [[["pods", 2], ["hosts", 2], ["gpus", 2]], 900, 280])
    assert pods["headings"] == ["pods 0", "pods 1"]


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("rankText([0, 1, 2, 3, 7])", "0-3,7"),
        ("selectorOf([0, 1, 2, 3, 7], 9)", "0:4,7"),
        ("selectorOf([0, 1], 2)", "all"),
        ("selectorOf([], 2)", ""),
        ("parseRanks('0-2,5')", [0, 1, 2, 5]),
        ("parseRanks('')", []),
        ("pointOf(13, [['hosts', 2], ['gpus', 8]])", "hosts 1, gpus 5"),
        ("asBytes(1234567890)", "1.2 GB"),
        ("asBytes(999)", "999 B"),
        ("asBytes(31e9)", "31 GB"),
        ("asClock(3725)", "1:02:05"),
        ("asClock(7)", "0:07"),
        ("asSeconds(0.32)", "320 ms"),
        ("asValue(NaN, 'bytes')", "–"),
        ("asValue(0.5, 'share')", "50 %"),
        ("curveOf([NaN, NaN], 10, 10)", ""),
    ],
)
def test_ranks_and_amounts_are_written_as_people_read_them(ask: Callable[..., Any], script: str, answer: Any) -> None:
    assert ask(script) == answer
