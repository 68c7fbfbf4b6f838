"""The picture that stands still: what it says, that it is bounded, and that nothing of a rank's is markup."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from meshbook.testing import fake_mesh
from meshbook.widgets.protocol import RankState
from meshbook.widgets.snapshot import embed_svg, snapshot_html, snapshot_text
from meshbook.widgets.source import CellFacts, MeshFacts, MeshSnapshot, PausedRanks, RankConditions
from meshbook.widgets.states import picture_of
from tests.widgets.conftest import facts, snapshot, vitals

EVIL = '<script>alert("&")</script>\x1b[31m\n'


def mesh_of(**dims: int) -> MeshFacts:
    size = int(np.prod(list(dims.values())))
    return MeshFacts("m", tuple(dims.items()), ("node0",), (0,) * size)


@pytest.mark.parametrize(
    ("dims", "per_mark", "labels"),
    [
        ({"gpus": 4}, 1, ["0-3"]),
        ({}, 1, ["0"]),
        ({"gpus": 40}, 1, ["0-31", "32-39"]),
        ({"hosts": 2, "gpus": 8}, 1, ["hosts=0", "hosts=1"]),
        ({"pods": 2, "hosts": 2, "gpus": 2}, 1, [f"pods={pod} hosts={host}" for pod in (0, 1) for host in (0, 1)]),
        ({"hosts": 32, "gpus": 8}, 1, [f"{first}-{first + 31}" for first in range(0, 256, 32)]),
        ({"hosts": 33, "gpus": 8}, 2, ["0-63", "64-127", "128-191", "192-255", "256-263"]),
        ({"hosts": 512, "gpus": 8}, 16, [f"{first}-{first + 511}" for first in range(0, 4096, 512)]),
        ({"gpus": 1000}, 4, [f"{first}-{min(first + 127, 999)}" for first in range(0, 1000, 128)]),
    ],
)
def test_ranks_are_laid_out(dims: dict[str, int], per_mark: int, labels: list[str]) -> None:
    mesh = mesh_of(**dims)
    picture = picture_of(mesh, np.zeros(mesh.size, np.uint8))
    assert picture.per_mark == per_mark
    assert [row.label for row in picture.rows] == labels
    assert sum(len(row.states) for row in picture.rows) == -(-mesh.size // per_mark)


def test_a_mark_for_many_shows_the_worst() -> None:
    states = np.zeros(4096, np.uint8)
    states[77], states[78] = RankState.DEAD, RankState.RUNNING
    rows = picture_of(mesh_of(hosts=512, gpus=8), states).rows
    assert rows[0].states[4] is RankState.DEAD
    assert {state for row in rows for state in row.states} == {RankState.IDLE, RankState.DEAD}


def test_the_text() -> None:
    now = MeshSnapshot(
        facts(16, hosts=2),
        vitals(16, [1] * 10 + [2] * 4, cpu=1.0, memory=1e9, step=[1.0] * 15 + [3.0]),
        RankConditions(dead={12}, running=[15]),
        cell=CellFacts(9, "cell 9", 72.4, range(16), waits="", jobs=2),
        pauses=[PausedRanks((3,), "in the debugger", "cell 9:14")],
    )
    assert snapshot_text(now).splitlines() == [
        "gpus · hosts=2 × gpus=8 · 16 ranks",
        "  1 idle (·), 11 running (R), 3 in a collective (C), 1 dead (X)",
        "  cell 9 on ranks 0-15 · 01:12 · 2 jobs",
        "  rank 3 in the debugger · cell 9:14",
        "  hosts=0  RRRRRRRR",
        "  hosts=1  RRCCXC·R",
        "  rank 12: dead",
        "  rank 15: 2.00 s behind",
        "  node1  1 idle, 3 running, 3 in a collective, 1 dead  8.0 cores  8.0 GB",
        "  node0  8 running  8.0 cores  8.0 GB",
    ]


class Reader(HTMLParser):
    """Text and tags of a page; tags have to be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_says_the_same_and_shows_all_text_as_text() -> None:
    now = snapshot(
        mesh=MeshFacts(EVIL, ((EVIL, 8),), (EVIL,), (0,) * 8),
        conditions=RankConditions(error={1}),
        cell=CellFacts(None, EVIL, 0.0, [0], waits=EVIL),
        pauses=[PausedRanks((3,), EVIL, EVIL)] * 9,
    )
    page = Reader(snapshot_html(now))
    assert page.tags == {"div", "b", "span", "pre", "table", "tr", "td"}
    assert page.names == {"style"}
    assert not page.open
    assert page.text.count('<script>alert("&")</script>') == 2 + 2 + 2 * 4 + 1  # mesh, cell, pauses, host
    assert "rank 1: its last cell failed" in page.text
    assert "and 5 more waiting" in page.text
    for shown in (page.text, snapshot_text(now)):
        assert "\x1b" not in shown


@pytest.mark.slow
@pytest.mark.parametrize(("size", "most"), [(1, 2_000), (64, 12_000), (256, 32_000), (4096, 32_000), (65536, 32_000)])
def test_pictures_are_small(size: int, most: int) -> None:
    mesh = fake_mesh(size, faults=0)
    mesh.advance(1)
    mesh.kill(range(0, size, 2))
    assert len(snapshot_html(mesh.snapshot())) < most
    assert len(snapshot_text(mesh.snapshot())) < 5_000


def test_a_mesh_that_is_down_says_so() -> None:
    down = MeshFacts("gpus", (("gpus", 1),), ("node0",), (0,), alive=False)
    text = snapshot_text(snapshot(1, mesh=down, conditions=RankConditions(dead={0})))
    assert re.match(r"gpus · gpus=1 · 1 rank · down\n  1 dead", text)


def test_an_svg_has_an_image_in_its_place_where_notebooks_are_not_trusted() -> None:
    """JupyterLab removes the SVG and the style sheet from these, and leaves the text of the SVG."""
    svg = '<svg fill="currentColor"><title>tip</title><text>label</text></svg>'
    page = embed_svg(svg, "a <curve>", 90)
    untrusted = re.sub("<style>.*?</style>|</?(svg|title|text)[^>]*>", "", page)
    rest, image = untrusted.split("<img ")
    assert rest == '<div style="font-size:0">tiplabel</div>'
    assert 'alt="a &lt;curve&gt;"' in image
    assert "max-width:90px" in image
    data = image.split("base64,")[1].split('"')[0]
    assert base64.b64decode(data).decode() == '<svg fill="#808080"><text>label</text></svg>'
    assert page.startswith(f"<style>.{image.split('class=')[1].split()[0].strip(chr(34))}{{display:none}}</style>")
