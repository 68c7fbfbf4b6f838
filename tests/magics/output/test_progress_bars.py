"""Progress bars of many ranks as one line; the lines are tqdm's own."""

from __future__ import annotations

import pytest
from tqdm import tqdm

from meshbook.magics.output.grouping import OutputGroup, group_texts
from meshbook.magics.output.render import render_text
from meshbook.runtime.telemetry.bar_lines import parse_bar


def bar(count: float, total: int | None, elapsed: float, title: str = "", **options: object) -> str:
    line: str = tqdm.format_meter(count, total, elapsed, prefix=title, **options)
    return f"{line.rstrip()}\n"


def groups(lines: list[str]) -> list[OutputGroup]:
    """Of ranks that each wrote one of these texts."""
    return group_texts(dict(enumerate(lines)))


def shown(lines: list[str]) -> list[str]:
    return render_text(groups(lines)).splitlines()


MERGED = {
    "in the middle": (
        [bar(count, 20, 4, "train") for count in (9, 12, 20, 8)],
        "train:  45%|████▌     | 8–9–20/20 [00:04<00:06, 2.00–2.25–5.00it/s] · r3 slowest",
    ),
    "at the end the slowest took longest": (
        [bar(20, 20, seconds, "train") for seconds in (1, 4, 2)],
        "train: 100%|██████████| 20/20 [00:04<00:00, 5.00–10.00–20.00it/s] · r1 slowest",
    ),
    "alike": ([bar(20, 20, 4, "train", postfix=f"loss={rank}") for rank in (3, 1)],
              "train: 100%|██████████| 20/20 [00:04<00:00, 5.00it/s, loss=1 … 3]"),
    "with the rank in the title": (
        [bar(5, 10, 6, f"rank {rank}") for rank in range(3)],
        "rank 0 … 2:  50%|█████     | 5/10 [00:06<00:06, 1.20s/it]",
    ),
    "slower and faster than one a second": (
        [bar(count, 10, 6) for count in (5, 6, 7)],
        " 60%|██████    | 5–6–7/10 [00:06<00:06, 1.20s/it–1.00it/s–1.17it/s] · r0 slowest",
    ),
    "without an end": (
        [bar(count, None, 2, "read") for count in (20, 10)], "read: 10–20it [00:02, 5.00–10.00it/s] · r1 slowest"
    ),
    "in bytes": (
        [bar(5e6, 10**7, seconds, "load", unit="B", unit_scale=True) for seconds in (5, 10)],
        "load:  50%|█████     | 5.00M/10.0M [00:10<00:10, 500kB/s–1.00MB/s] · r1 slowest",
    ),
    "just begun": (
        [bar(0, 10, 0, "a"), bar(1, 10, 1, "a")], "a:   0%|          | 0–1/10 [00:00<?, ?it/s–1.00it/s] · r0 slowest"
    ),
    "of different totals": (
        [bar(5, 10, 5, "a"), bar(5, 20, 5, "a")], "a:  25%|██▌       | 5/10–20 [00:05<00:15, 1.00it/s] · r1 slowest"
    ),
    "of many hours": (
        [bar(1, 1000, seconds, "a") for seconds in (3600, 7200)],
        "a:   0%|          | 1/1000 [2:00:00<1998:00:00, 3600.00–7200.00s/it] · r1 slowest",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "expected"), MERGED.values(), ids=MERGED)
def test_bars_of_one_title_are_one(lines: list[str], expected: str) -> None:
    (group,) = groups(lines)
    assert group.is_bar
    assert group.lines == (expected,)
    assert sorted(member.lines[0] for member in group.members) == sorted(line.strip("\n") for line in lines)


def test_bars_stay_between_the_lines_where_they_are() -> None:
    texts = [f"begin\n{bar(20, 20, rank + 1, 'one')}middle {rank}\n{bar(20, 20, 3, 'two')}" for rank in range(2)]
    assert shown(texts) == [
        "[0-1] begin",
        "[0-1] one: 100%|██████████| 20/20 [00:02<00:00, 10.00–20.00it/s] · r1 slowest",
        "[0] middle 0",
        "[1] middle 1",
        f"[0-1] {bar(20, 20, 3, 'two')}".rstrip(),
    ]


def test_bars_are_below_text_that_not_all_ranks_wrote() -> None:
    texts = [bar(20, 20, 3, "a"), f"careful\n{bar(20, 20, 3, 'a')}{bar(1, 20, 3, 'a')}", "other\n"]
    assert shown(texts) == [
        "[1] careful",
        "[2] other",
        f"[0-1] {bar(20, 20, 3, 'a')}".rstrip(),
        f"[1] {bar(1, 20, 3, 'a')}".rstrip(),
    ]


def test_one_bar_is_as_it_was() -> None:
    (group,) = groups([bar(9, 20, 4, "train")])
    assert render_text([group]) == f"[0] {bar(9, 20, 4, 'train')}"


@pytest.mark.parametrize(
    "line",
    ["", "a [1]", "50%", "[0]", "50%|█████     | 5/10", "x: 50%|##| 5/10 [soon]", "a|b| 1/2 [00:01<00:01, 1it/s]"],
)
def test_other_lines_are_no_bars(line: str) -> None:
    assert parse_bar(line) is None
