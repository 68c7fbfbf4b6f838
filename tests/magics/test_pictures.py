"""Rich output of many ranks: which is the same, in what order, and when. As part of a cell it is in `test_output`."""

from __future__ import annotations

from typing import Any

import pytest

from meshbook.magics.pictures import Picture, Pictures, group_pictures


def image(rank: int, content: str, text: str = "<Figure>") -> Picture:
    return Picture(rank, {"image/png": content, "text/plain": text}, {})


def shown(pictures: list[Picture]) -> list[str]:
    """Labels and contents in order."""
    return [str(display.data.get("image/png") or display.data["text/plain"]) for display in group_pictures(pictures)]


@pytest.mark.parametrize(
    ("pictures", "expected"),
    [
        ([], []),
        ([image(0, "A")], ["[0]", "A"]),
        ([image(2, "A"), image(0, "A"), image(1, "A")], ["[0-2]", "A"]),
        ([image(1, "B"), image(0, "A")], ["[0]", "A", "[1]", "B"]),
        # The text of a figure holds its address.
        ([image(0, "A", "<Figure at 0x1>"), image(1, "A", "<Figure at 0x2>")], ["[0-1]", "A"]),
        # First figures before second ones; the same figure twice of one rank is two.
        ([image(0, "A"), image(0, "B"), image(1, "A"), image(1, "C")], ["[0-1]", "A", "[0]", "B", "[1]", "C"]),
        ([image(0, "A"), image(0, "A")], ["[0]", "A", "[0]", "A"]),
    ],
)
def test_equal_pictures_appear_once(pictures: list[Picture], expected: list[str]) -> None:
    assert shown(pictures) == expected


@pytest.mark.parametrize(
    ("data", "bundles"),
    [
        ({"text/plain": "note"}, [{"text/plain": "[3] note"}]),
        ({"text/html": "<b>1</b>"}, [{"text/plain": "[3] ", "text/html": "LABEL<b>1</b>"}]),
        (
            {"image/png": "A", "text/html": "<b>1</b>"},
            [{"text/plain": "[3]", "text/html": "LABEL"}, {"image/png": "A", "text/html": "<b>1</b>"}],
        ),
    ],
)
def test_text_and_html_have_room_for_their_label(data: dict[str, str], bundles: list[dict[str, str]]) -> None:
    displays = [dict(display.data) for display in group_pictures([Picture(3, data, {})])]
    for bundle in displays:
        if "text/html" in bundle:
            head, end, rest = bundle["text/html"].partition("</div>")
            bundle["text/html"] = "LABEL" + rest if end and "[3]" in head else head
    assert displays == bundles


def test_metadata_goes_with_its_picture() -> None:
    metadata = {"image/png": {"width": 3}}
    assert [display.metadata for display in group_pictures([Picture(0, {"image/png": "A"}, metadata)])] == [
        {},
        metadata,
    ]


@pytest.mark.parametrize(
    ("now", "running", "is_ready"),
    [(10.0, {0, 1}, False), (10.9, {0, 1}, False), (11.0, {0, 1}, True), (10.0, {0}, True), (10.0, set(), True)],
)
def test_pictures_wait_for_their_like(now: float, running: set[int], is_ready: bool) -> None:
    pictures: Any = Pictures(patience=1.0)
    pictures.add(image(0, "A"))
    assert pictures.take_ready(10.0, {0, 1, 2}) == []
    assert bool(pictures.take_ready(now, running)) == is_ready
    assert bool(pictures.take_all()) != is_ready
    assert pictures.take_ready(100.0, set()) == []
