"""The values of a cell as text and HTML."""

import pytest
import torch

from meshbook.runtime.cells.outcome import (
    CellOutcome,
    CellValue,
    TensorSummary,
)
from tests.magics.results.test_result import COST, NOTHING, SQUARES, error, result, tensor, value

# Showing

LARGE = torch.arange(16.0).reshape(4, 4)


TEXTS = {
    "equal values": ([value(4)] * 8, "[0-7] 4"),
    "different values are all there": (
        [value(rank) for rank in range(8)],
        "\n".join(f"[{rank}] {rank}" for rank in range(8)),
    ),
    "some equal": ([value("a"), value("b"), value("a")], "[0,2] 'a'\n[1] 'b'"),
    "a hundred values are a range": ([value(rank / 2) for rank in range(100)], "[0-99] 0.0 … 49.5 (max r99)"),
    "no value": ([NOTHING] * 3, "ranks 0-2: no value"),
    "no value on some": ([value(1), NOTHING], "[0] 1\n[1] no value"),
    "errors": ([value(1), error(), error()], "[0] 1\n[1-2] ValueError: bad (cell 3:2)"),
    "only errors": ([error(), error()], "[0-1] ValueError: bad (cell 3:2)"),
    "equal small tensors": (
        [tensor(torch.ones(2))] * 4,
        "[0-3] Tensor (2,) float32 cpu  tensor([1., 1.])",
    ),
    "a scalar tensor": ([tensor(torch.tensor(28.0))] * 4, "[0-3] Tensor () float32 cpu  tensor(28.)"),
    "small tensors": (
        [tensor(torch.full((2,), rank)) for rank in range(2)],
        "[0-1] Tensor (2,) int64 cpu\n  [0] tensor([0, 0])\n  [1] tensor([1, 1])",
    ),
    "equal large tensors": ([tensor(LARGE)] * 4, "[0-3] Tensor (4, 4) float32 cpu  min 0  mean 7.5  max 15"),
    "large tensors on a GPU each": (
        [tensor(LARGE, "cuda:0"), tensor(LARGE, "cuda:1"), tensor(LARGE * 2, "cuda:2")],
        "[0-2] Tensor (4, 4) float32 cuda:0 … cuda:2\n  [0-1] min 0  mean 7.5  max 15\n  [2] min 0  mean 15  max 30",
    ),
    "tensors of two shapes": (
        [tensor(LARGE), tensor(LARGE[:3])],
        "[0] Tensor (4, 4) float32 cpu  min 0  mean 7.5  max 15\n"
        "[1] Tensor (3, 4) float32 cpu  min 0  mean 5.5  max 11",
    ),
    "a tensor without statistics": (
        [CellOutcome(COST, CellValue({}, "Tensor", TensorSummary("Tensor", (0, 3), "torch.bool", "cpu")))],
        "[0] Tensor (0, 3) bool cpu",
    ),
    "tensors and numbers": (
        [value(1), tensor(torch.ones(1))],
        "[0] 1\n[1] Tensor (1,) float32 cpu  tensor([1.])",
    ),
}


@pytest.mark.parametrize(("outcomes", "expected"), TEXTS.values(), ids=TEXTS)
def test_a_result_as_text(outcomes, expected):
    shown = result(*outcomes)

    assert repr(shown) == expected
    assert shown._repr_mimebundle_() == {"text/plain": expected}


def test_one_ranks_result_as_text():
    assert [repr(each) for each in result(*SQUARES[:1], NOTHING)] == ["[0] 0", "rank 1: no value"]


def test_a_flood_of_text_is_counted():
    text = repr(result(*(value(chr(97 + rank) * 50_000) for rank in range(4))))

    assert len(text) < 110_000
    assert text.endswith("… 2 more; `values` has all")


def test_a_rich_value_appears_once_per_distinct_bundle():
    frames = [value("df", text__html=f"<table>{rank // 2}</table>") for rank in range(4)]
    html = result(*frames)._repr_mimebundle_()["text/html"]

    assert html.count("<table>") == 2
    assert html.index("[0-1]</div><table>0") < html.index("[2-3]</div><table>1")


def test_the_text_of_a_rich_value_is_there_for_places_without_html():
    assert repr(result(*[value(3, text__html="<b>3</b>")] * 2)) == "[0-1] 3"


def test_many_rich_values_are_behind_a_click():
    html = result(*(value(rank, text__html=f"<i>{rank}</i>") for rank in range(10)))._repr_mimebundle_()["text/html"]

    assert "<summary>show 6 more</summary>" in html
    assert html.index("<i>3</i>") < html.index("<details>") < html.index("<i>4</i>")


def test_rich_values_stay_within_bounds():
    big = [value(rank, text__html=f"<i>{rank}{'x' * 100_000}</i>") for rank in range(10)]

    assert len(result(*big)._repr_mimebundle_()["text/html"]) < 320_000


@pytest.mark.parametrize(
    ("mime", "content", "expected"),
    [
        ("image/png", "iVBO\nRw==\n", "data:image/png;base64,iVBORw=="),
        ("image/png", b"\x89PNG", "data:image/png;base64,iVBORw=="),
        ("image/svg+xml", "<svg/>", "data:image/svg+xml;base64,PHN2Zy8+"),
        ("image/png", '"><script>', "data:image/png;base64,&quot;&gt;&lt;script&gt;"),
    ],
)
def test_an_image_becomes_part_of_the_html(mime, content, expected):
    outcome = CellOutcome(COST, CellValue({"text/plain": "<Image>", mime: content}, "Image"))

    assert f'<img src="{expected}">' in result(outcome)._repr_mimebundle_()["text/html"]


def test_text_beside_a_rich_value_is_escaped():
    html = result(value("<script>"), value(1, text__html="<b>1</b>"))._repr_mimebundle_()["text/html"]

    assert "&lt;script&gt;" in html
    assert "<script>" not in html


def test_what_only_an_extension_draws_is_passed_on_if_all_have_the_same():
    def plot(n):
        return CellOutcome(COST, CellValue({"text/plain": "plot", "application/plot+json": {"n": n}}, "Plot"))

    assert result(plot(1), plot(1))._repr_mimebundle_() == {
        "text/plain": "[0-1] plot",
        "application/plot+json": {"n": 1},
    }
    assert "application/plot+json" not in result(plot(1), plot(2))._repr_mimebundle_()
