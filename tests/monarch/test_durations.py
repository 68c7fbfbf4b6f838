"""Durations as text."""

from __future__ import annotations

import pytest

from meshbook.monarch.keys import SECOND, read_duration, write_duration


@pytest.mark.parametrize(
    ("text", "nanoseconds", "written"),
    [
        ("0s", 0, "0s"),
        ("30s", 30 * SECOND, "30s"),
        ("250ms", SECOND // 4, "250ms"),
        ("1.5s", 3 * SECOND // 2, "1s 500ms"),
        ("1500ms", 3 * SECOND // 2, "1s 500ms"),
        ("90s", 90 * SECOND, "1m 30s"),
        ("1s1ms", 1_001_000_000, "1s 1ms"),
        ("2 minutes", 120 * SECOND, "2m"),
        ("3 sec", 3 * SECOND, "3s"),
        ("61m", 3660 * SECOND, "1h 1m"),
        ("36h", 36 * 3600 * SECOND, "1day 12h"),
        ("1week", 7 * 86400 * SECOND, "7days"),
        ("1M", 2_630_016 * SECOND, "1month"),
        ("2y", 2 * 31_557_600 * SECOND, "2years"),
        (" 1us  1ns ", 1001, "1us 1ns"),
    ],
)
def test_reading_and_writing(text, nanoseconds, written):
    assert read_duration(text) == nanoseconds
    assert write_duration(nanoseconds) == written
    assert read_duration(written) == nanoseconds


@pytest.mark.parametrize("text", ["", " ", "3", "s", "-1s", "1 parsec", "1s and more", "1.s", "1e3s", "½s"])
def test_what_is_no_duration_is_an_error(text):
    with pytest.raises(ValueError, match="invalid duration"):
        read_duration(text)
