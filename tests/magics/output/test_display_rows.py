"""Rich output of many ranks: what is the same, side by side, and when. As part of a cell it is in `test_output`."""

from __future__ import annotations

import pytest

from meshbook.magics.output.display_rows import MOST_OUTPUTS, DisplayRows
from meshbook.magics.output.gallery import RankDisplay
from meshbook.magics.output.publisher import LiveDisplay


def image(rank: int, content: str, text: str = "<Figure>", display_id: str = "") -> RankDisplay:
    return RankDisplay(rank, {"image/png": content, "text/plain": text}, {}, display_id)


def text(rank: int, content: str, display_id: str = "") -> RankDisplay:
    return RankDisplay(rank, {"text/plain": content}, {}, display_id)


# -- when ---------------------------------------------------------------------------------


def shown(displays: list[LiveDisplay]) -> list[str]:
    """Texts in order; `+` before those that take the place of others."""
    return [f"{'+' * display.update}{display.data['text/plain']}" for display in displays]


@pytest.mark.parametrize(
    ("now", "running", "is_ready"),
    [(10.0, {0, 1}, False), (10.9, {0, 1}, False), (11.0, {0, 1}, True), (10.0, {0}, True), (10.0, set(), True)],
)
def test_pictures_wait_for_their_like(now: float, running: set[int], is_ready: bool) -> None:
    pictures = DisplayRows(patience=1.0)
    pictures.add(image(0, "A"))
    assert pictures.take_ready(10.0, {0, 1, 2}) == []
    assert bool(pictures.take_ready(now, running)) == is_ready
    assert bool(pictures.take_all()) != is_ready
    assert pictures.take_ready(100.0, set()) == []


def test_the_nth_of_each_rank_are_one_output() -> None:
    pictures = DisplayRows(patience=1.0)
    for picture in (text(0, "a"), text(0, "b"), text(1, "a"), text(1, "c")):
        pictures.add(picture)
    assert shown(pictures.take_all()) == ["[0-1] a", "[0] b\n[1] c"]


def test_a_late_display_joins_the_others() -> None:
    pictures = DisplayRows(patience=1.0)
    pictures.add(text(0, "a"))
    pictures.take_ready(10.0, {0, 1})
    assert shown(pictures.take_ready(11.0, {0, 1})) == ["[0] a"]
    pictures.add(text(1, "a"))
    assert shown(pictures.take_ready(11.1, {0, 1})) == [], "four times a second at most"
    assert shown(pictures.take_ready(11.3, {0, 1})) == ["+[0-1] a"]


def test_a_display_is_replaced_by_its_id() -> None:
    pictures = DisplayRows(patience=0.0)
    for rank in range(2):
        pictures.add(text(rank, "a", "id"))
        pictures.add(text(rank, "b"))
    names = [display.name for display in pictures.take_all()]
    for number in range(100):
        pictures.update(text(1, f"now {number}", "id"))
    (display,) = pictures.take_all()
    assert display.name == names[0]
    assert shown([display]) == ["+[0] a\n[1] now 99"]
    pictures.update(text(1, "nobody", "other"))
    assert pictures.take_all() == []


def test_what_is_cleared_makes_room_for_the_next() -> None:
    pictures = DisplayRows(patience=0.0)
    for rank in range(2):
        pictures.add(text(rank, "a"))
        pictures.add(text(rank, "b"))
    pictures.take_all()
    pictures.clear(0)
    pictures.add(text(0, "c"))
    assert shown(pictures.take_all()) == ["+[0] c\n[1] a", "+[1] b"]
    pictures.clear(0)
    pictures.clear(1)
    assert shown(pictures.take_all()) == ["+", "+"]
    assert pictures.shown() == []


def test_a_flood_is_bounded_and_counted() -> None:
    pictures = DisplayRows(patience=0.0)
    for number in range(1000):
        pictures.add(text(0, f"{number}"))
    assert len(pictures.take_all()) == MOST_OUTPUTS
    assert pictures.hidden == {0: 1000 - MOST_OUTPUTS}


def test_outputs_are_bounded_and_not_only_displays() -> None:
    pictures = DisplayRows(patience=0.0)
    for _ in range(MOST_OUTPUTS):
        pictures.add(RankDisplay(0, {"text/markdown": "a", "text/plain": "a"}, {}))
    assert len(pictures.take_all()) == MOST_OUTPUTS
    assert pictures.hidden == {0: MOST_OUTPUTS // 2}
