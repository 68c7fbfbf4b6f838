"""The variables of a rank in a line each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import meshbook
from meshbook.runtime.cells.inventory import MOST_CHARACTERS, Inventory, entry_of, find_largest_on_gpu
from meshbook.runtime.cells.variables import Namespace


class Plain:
    pass


class Shy:
    @property
    def shape(self) -> Any:
        raise ValueError("no")

    def __repr__(self) -> str:
        return "two\nlines"


class OnGpu(torch.Tensor):
    device = torch.device("cuda", 0)


class Odd(torch.nn.Module):
    parameters = None  # type: ignore[assignment]


def double(x: int, y: int = 1) -> int:
    return x * y


@pytest.mark.parametrize(
    ("value", "type_name", "size", "text"),
    [
        (0.5, "float", None, "0.5"),
        ("text", "str", None, "'text'"),
        ([1, 2], "list", None, "[1, 2]"),
        (list(range(1000)), "list", None, "n=1,000: [0, 1, 2, 3, 4, 5, ...]"),
        (
            torch.zeros(2, 3, dtype=torch.bfloat16),
            "Tensor",
            12,
            "(2, 3) bfloat16 cpu [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]",
        ),
        (torch.zeros(100), "Tensor", 400, "(100,) float32 cpu"),
        (torch.zeros(3, device="meta"), "Tensor", 12, "(3,) float32 meta"),
        (torch.tensor(2), "Tensor", 8, "() int64 cpu 2"),
        (np.zeros((2, 50)), "ndarray", 800, "(2, 50) float64"),
        (torch.nn.Linear(1000, 1000), "Linear", 4_004_000, "1M parameters float32 cpu"),
        (pa.table({"a": [1, 2], "b": ["x", None]}), "Table", 26, "(2, 2) a int64, b string"),
        (pa.array([1.5]), "DoubleArray", 8, "(1,) double"),
        (pl.DataFrame({"a": [1, 2]}), "DataFrame", 16, "(2, 1) a Int64"),
        (pl.Series([1, 2]), "Series", 16, "(2,) Int64"),
        (pd.DataFrame({"a": [1, 2]}), "DataFrame", 148, "(2, 1) a int64"),
        (math, "module", None, "math"),
        (meshbook, "module", None, f"meshbook {meshbook.__version__}"),
        (Plain, "type", None, f"{__name__}.Plain"),
        (double, "function", None, "double(x: 'int', y: 'int' = 1) -> 'int'"),
        (Plain(), "Plain", None, f"<{__name__}.Plain object>"),
        (Shy(), "Shy", None, "two lines"),
        (Odd(), "Odd", None, "cannot be shown: TypeError: 'NoneType' object is not callable"),
    ],
)
def test_a_variable_in_a_line(value: Any, type_name: str, size: int | None, text: str) -> None:
    entry = entry_of("x", value)
    assert (entry.type_name, entry.size, entry.text) == (type_name, size, text)


def test_a_line_is_bounded_whatever_the_value_is() -> None:
    for value in ("x" * 10**6, {"a" * 500: ["b" * 500] * 50}, 10**4000, b"\n" * 500):
        assert len(entry_of("x", value).text) <= MOST_CHARACTERS


def test_the_users_variables_are_listed_by_name() -> None:
    namespace = Namespace({"b": 1, "a": 2, "hidden": 3}, lambda: ["b", "a"], None)
    assert [entry.name for entry in Inventory().handle(namespace)] == ["a", "b"]


def test_the_largest_variables_on_the_gpu_are_found() -> None:
    model = torch.nn.Linear(3, 1)
    model.weight = torch.nn.Parameter(torch.zeros(1, 3).as_subclass(OnGpu))  # type: ignore[attr-defined]
    on_gpu = {"x": torch.zeros(5).as_subclass(OnGpu), "y": torch.zeros(2).as_subclass(OnGpu), "model": model}  # type: ignore[attr-defined]
    values = on_gpu | {"z": torch.zeros(99), "n": 1, "odd": Odd()}
    found = find_largest_on_gpu(values, values, 2)
    assert [(entry.name, entry.size) for entry in found] == [("x", 20), ("model", 16)]
