"""The layout of one display of several ranks."""

from __future__ import annotations

import re

import pytest

from meshbook.magics.output.gallery import LARGE_IMAGE, MOST_MARKUP, RankDisplay, lay_out
from tests.magics.output.test_display_rows import image, text

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


def test_different_pictures_are_side_by_side() -> None:
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


def test_content_that_only_a_front_end_can_draw_is_an_output_of_its_own() -> None:
    plot = RankDisplay(1, {"application/vnd.plotly.v1+json": {"a": 1}, "text/plain": "plot"}, {})
    assert texts(text(0, "a"), plot) == ["[0] a", "[1]", "plot"]


def test_a_gallery_is_bounded_and_says_so() -> None:
    shown = markup(*(image(rank, str(rank) * (MOST_MARKUP // 3)) for rank in range(4)))
    assert len(shown) < 1.1 * MOST_MARKUP
    assert "… [2-3] not shown, since it is large (with -o NAME, NAME[2].displays has them)" in shown


def test_text_is_harmless_beside_images() -> None:
    assert "&lt;b&gt;" in markup(image(0, "A"), text(1, "<b>"))
