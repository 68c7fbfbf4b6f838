"""Rich output of many ranks: what is the same, side by side, and when. As part of a cell it is in `test_output`."""

from __future__ import annotations

import re

import pytest

from meshbook.magics.output.display_rows import MOST_OUTPUTS, DisplayRows
from meshbook.magics.output.gallery import LARGE_IMAGE, MOST_MARKUP, RankDisplay, lay_out
from meshbook.magics.output.publisher import LiveDisplay


def image(rank: int, content: str, text: str = "<Figure>", display_id: str = "") -> RankDisplay:
    return RankDisplay(rank, {"image/png": content, "text/plain": text}, {}, display_id)


def text(rank: int, content: str, display_id: str = "") -> RankDisplay:
    return RankDisplay(rank, {"text/plain": content}, {}, display_id)


# -- how they look ------------------------------------------------------------------------


def texts(*pictures: RankDisplay) -> list[str]:
    return [bundle.data["text/plain"] for bundle in lay_out({picture.rank: picture for picture in pictures})]


def markup(*pictures: RankDisplay) -> str:
    """The HTML of the one output, without styles."""
    (bundle,) = lay_out({picture.rank: picture for picture in pictures})
    return re.sub(' style="[^"]*"', "", bundle.data["text/html"])


def test_equal_pictures_are_one() -> None:
    # The text of a figure holds its address.
    (bundle,) = lay_out({0: image(0, "A", "<Figure at 0x1>"), 1: image(1, "A", "<Figure at 0x2>")})
    assert bundle.data["image/png"] == "A", "where no HTML is shown"
    assert bundle.data["text/plain"] == "[0-1] <Figure at 0x1>"
    assert bundle.data["text/html"].endswith('>[0-1]</div><img src="data:image/png;base64,A">')


def test_different_pictures_stand_side_by_side() -> None:
    assert texts(image(1, "B"), image(0, "A"), image(2, "B")) == ["[0] <Figure>\n[1-2] <Figure>"]
    assert markup(image(1, "B"), image(0, "A")) == (
        '<div><div><div>[0]</div><img src="data:image/png;base64,A"></div>'
        '<div><div>[1]</div><img src="data:image/png;base64,B"></div></div>'
    )


def test_four_are_shown_and_the_rest_opens() -> None:
    shown = markup(*(image(rank, str(rank)) for rank in range(64)))
    assert shown.partition("<details>")[0].count("<img") == 4
    assert "<details><summary>show 60 more</summary>" in shown
    assert shown.count("<img") == 64


def test_a_size_that_an_image_has_is_kept() -> None:
    sized = RankDisplay(0, {"image/png": "A"}, {"image/png": {"width": 30, "height": 20.5}})
    (bundle,) = lay_out({0: sized})
    assert '<img src="data:image/png;base64,A" width="30" height="20.5">' in bundle.data["text/html"]
    assert bundle.metadata == sized.metadata


@pytest.mark.parametrize(
    ("data", "bundles"),
    [
        ({"text/plain": "note\nof two lines"}, [{"text/plain": "[3] note\n[3] of two lines"}]),
        ({"text/html": "<b>1</b>"}, [{"text/plain": "[3]", "text/html": "<div>[3]</div><b>1</b>"}]),
        (
            {"image/png": "A", "text/html": "<b>1</b>"},
            [{"image/png": "A", "text/plain": "[3]", "text/html": "<div>[3]</div><b>1</b>"}],
        ),
        (
            {"text/markdown": "# a", "text/plain": "a"},
            [{"text/plain": "[3]", "text/html": "<div>[3]</div>"}, {"text/markdown": "# a", "text/plain": "a"}],
        ),
        (
            {"image/png": "A" * LARGE_IMAGE},
            [{"text/plain": "[3]", "text/html": "<div>[3]</div>"}, {"image/png": "A" * LARGE_IMAGE}],
        ),
    ],
)
def test_every_kind_carries_its_label(data: dict[str, str], bundles: list[dict[str, str]]) -> None:
    shown = [dict(bundle.data) for bundle in lay_out({3: RankDisplay(3, data, {})})]
    for bundle in shown:
        if "text/html" in bundle:
            bundle["text/html"] = re.sub(' style="[^"]*"', "", bundle["text/html"])
    assert shown == bundles


def test_what_only_a_front_end_can_draw_stands_for_itself() -> None:
    plot = RankDisplay(1, {"application/vnd.plotly.v1+json": {"a": 1}, "text/plain": "plot"}, {})
    assert texts(text(0, "a"), plot) == ["[0] a", "[1]", "plot"]


def test_a_gallery_is_bounded_and_says_so() -> None:
    shown = markup(*(image(rank, str(rank) * (MOST_MARKUP // 3)) for rank in range(4)))
    assert len(shown) < 1.1 * MOST_MARKUP
    assert "… [2-3] not shown, since it is large (result[2].displays has it)" in shown


def test_text_is_harmless_beside_images() -> None:
    assert "&lt;b&gt;" in markup(image(0, "A"), text(1, "<b>"))


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


def test_who_comes_late_joins_the_others() -> None:
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
