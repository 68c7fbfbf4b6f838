"""Times, bytes and sets of ranks as text."""

import pytest

from meshbook.runtime.formats import MOST_RUNS, format_bytes, format_label, format_ranks, format_seconds, name_ranks


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


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (set(), ""),
        ({3}, "3"),
        ({0, 1}, "0-1"),
        ({0, 1, 2, 5}, "0-2,5"),
        ([7, 5, 6, 0, 7], "0,5-7"),
        (range(4096), "0-4095"),
    ],
)
def test_ranks_are_written_as_sorted_runs(ranks, expected):
    assert format_ranks(ranks) == expected


def test_a_label_is_in_brackets():
    assert format_label({0, 1, 2, 5}) == "[0-2,5]"


def test_a_label_of_a_ragged_set_counts_what_it_does_not_name():
    label = format_label(range(0, 2048, 2))

    assert label.startswith("[0,2,4,")
    assert label.endswith(f",… {1024 - MOST_RUNS} more]")
    assert len(label) < 80


@pytest.mark.parametrize(("ranks", "expected"), [([3], "rank 3"), ([0, 1, 3], "ranks 0-1,3")])
def test_ranks_in_a_sentence(ranks, expected):
    assert name_ranks(ranks) == expected
