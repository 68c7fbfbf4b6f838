"""Times and bytes as text."""

import pytest

from meshbook.runtime.amounts import format_bytes, format_seconds


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 ms"), (0.0126, "13 ms"), (0.9999, "1.00 s"), (59.99, "59.99 s"), (3725, "62 min 05 s")],
)
def test_seconds(seconds, expected):
    assert format_seconds(seconds) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (9_960_000, "10 MB"), (31e9, "31 GB"), (5e15, "5000 TB")],
)
def test_bytes(count, expected):
    assert format_bytes(count) == expected
