"""What is said of an object on a rank that holds much: its shape and its kind, and not what is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from meshbook.runtime.cells.object_info import inspect_name


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("value", "summary", "told"),
    [
        (torch.ones(2, 3), "Tensor (2, 3) torch.float32", "Device: cpu"),
        (np.ones(4), "ndarray (4,) float64", "Shape: (4,)"),
        (pl.DataFrame({"n": [1, 2]}), "DataFrame (2, 1)", "Columns: n Int64"),
        (pl.Series([1, 2]), "Series (2,) Int64", "Size: 16 B"),
        (pa.table({"n": [1, 2], "s": ["x", "y"]}), "Table (2, 2)", "Columns: n int64, s string"),
        (pd.DataFrame({"n": [1, 2]}), "DataFrame (2, 1)", "Columns: n int64"),
        ([torch.ones(1)] * 3, "list 3", "Length: 3"),
    ],
)
def test_large_values_are_summarized(shell: InteractiveShell, value: Any, summary: str, told: str) -> None:
    shell.user_ns["x"] = value
    found = inspect_name(shell, "x", 0, (), whole=True)
    assert found.summary == summary
    assert found.data is not None
    text = re.sub(r"\x1b\[[0-9;]*m", "", found.data["text/plain"])
    assert told in re.sub(" +", " ", text)
