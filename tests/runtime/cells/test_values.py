"""The value of a cell as it travels: its looks within bounds, itself where it is small, a summary of tensors."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from IPython.core.formatters import BaseFormatter, DisplayFormatter

from meshbook.runtime.cells.outcome import TensorSummary
from meshbook.runtime.cells.values import (
    SHOWN_CHARACTERS,
    SHOWN_RICH_CHARACTERS,
    TRAVEL_BYTES,
    describe,
    pack,
    summarize_tensor,
)


class Rich:
    def __init__(self, size: int) -> None:
        self.size = size

    def __repr__(self) -> str:
        return "rich"

    def _repr_html_(self) -> str:
        return "x" * self.size


@pytest.mark.parametrize("kind", [int, object])
def test_a_formatter_for_a_builtin_class_is_asked(kind: type) -> None:
    formatter = DisplayFormatter()
    formatter.formatters["text/html"].for_type(kind, lambda value: f"<b>{value}</b>")
    assert describe(1, formatter).mime == {"text/plain": "1", "text/html": "<b>1</b>"}


def test_a_bundle_for_a_builtin_class_is_asked() -> None:
    formatter = DisplayFormatter()
    formatter.mimebundle_formatter.for_type(int, lambda value, **_: {"text/markdown": f"*{value}*"})
    assert describe(1, formatter).mime == {"text/plain": "1", "text/markdown": "*1*"}


def test_a_builtin_value_is_formatted_as_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(BaseFormatter, "lookup", lambda self, value: asked.append(self.format_type))
    assert describe([1], DisplayFormatter()).mime == {"text/plain": "[1]"}
    assert "text/html" not in asked


@pytest.mark.parametrize(
    ("value", "mime", "name"),
    [
        (42, {"text/plain": "42"}, "int"),
        ("text", {"text/plain": "'text'"}, "str"),
        ([1, 2], {"text/plain": "[1, 2]"}, "list"),
        (Rich(3), {"text/plain": "rich", "text/html": "xxx"}, "Rich"),
        (Rich(SHOWN_RICH_CHARACTERS + 1), {"text/plain": "rich"}, "Rich"),
    ],
)
def test_looks(value: object, mime: dict[str, str], name: str) -> None:
    described = describe(value, DisplayFormatter())
    assert (dict(described.mime), described.type_name, described.tensor) == (mime, name, None)


def test_an_endless_text_is_cut_with_a_count() -> None:
    text = describe("x" * 1_000_000, DisplayFormatter()).mime["text/plain"]
    assert len(text) < SHOWN_CHARACTERS + 50
    assert text.endswith("x… (1,000,002 characters)")


class Unpicklable:
    def __reduce__(self) -> Any:
        raise ValueError("no pickle")


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (threading.Lock(), "cannot be pickled (TypeError: cannot pickle '_thread.lock' object)"),
        (Unpicklable(), "cannot be pickled (ValueError: no pickle)"),
        (b"x" * TRAVEL_BYTES, "values of more than 1 MiB stay on their rank"),
        ([b"x" * (TRAVEL_BYTES // 2), b"y" * (TRAVEL_BYTES // 2)], "values of more than 1 MiB stay on their rank"),
        (torch.zeros(TRAVEL_BYTES // 4 + 1), "tensors of more than 1 MiB stay on their rank"),
    ],
    ids=["lock", "unpicklable", "large", "large together", "tensor"],
)
def test_a_value_that_stays_says_why(value: object, note: str) -> None:
    assert pack(value) == (None, note)


@pytest.mark.parametrize(
    "value", [None, 42, [1, {"a": 2}], "text", b"x" * (TRAVEL_BYTES - 100), torch.arange(3.0, requires_grad=True)]
)
def test_a_small_value_travels(value: object) -> None:
    pickled, note = pack(value)
    assert pickled is not None
    assert note == ""
    copy = pickle.loads(pickled)
    if isinstance(value, torch.Tensor):
        assert not copy.requires_grad
        assert torch.equal(copy, value)
    else:
        assert copy == value


def test_the_limit_can_be_another_one() -> None:
    assert pack(b"x" * (5 << 20), 3 << 20) == (None, "values of more than 3 MiB stay on their rank")


def summary(shape: tuple[int, ...], dtype: str, name: str, *statistics: float | None) -> TensorSummary:
    return TensorSummary(name, shape, dtype, "cpu", *statistics)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor([[1.0, 2.0, 6.0]]), summary((1, 3), "float32", "Tensor", 1.0, 3.0, 6.0)),
        (torch.tensor(5), summary((), "int64", "Tensor", 5.0, 5.0, 5.0)),
        (torch.tensor([True, False]), summary((2,), "bool", "Tensor", 0.0, 0.5, 1.0)),
        (torch.ones(2, dtype=torch.bfloat16), summary((2,), "bfloat16", "Tensor", 1.0, 1.0, 1.0)),
        (torch.zeros(0, 4), summary((0, 4), "float32", "Tensor")),
        (torch.zeros(2, dtype=torch.complex64), summary((2,), "complex64", "Tensor")),
        (torch.nn.Parameter(torch.ones(2)), summary((2,), "float32", "Parameter", 1.0, 1.0, 1.0)),
        (torch.empty(9, device="meta"), TensorSummary("Tensor", (9,), "float32", "meta")),
        (np.array([[1, 2, 6]], dtype="int16"), summary((1, 3), "int16", "ndarray", 1.0, 3.0, 6.0)),
        (np.zeros((0, 4)), summary((0, 4), "float64", "ndarray")),
        (np.array(["a", "b"]), summary((2,), "<U1", "ndarray")),
        (np.float64(3), None),
        ([1.0, 2.0], None),
        ("text", None),
    ],
)
def test_the_summary_of_a_tensor(value: object, expected: TensorSummary | None) -> None:
    assert summarize_tensor(value) == expected


def test_a_formatter_that_fails_fails_here() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError("no text")

    with pytest.raises(ValueError, match="no text"):
        describe(Odd(), DisplayFormatter())
