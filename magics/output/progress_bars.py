"""Merging of many ranks' progress bars into one: the minimum, median and maximum, and the slowest rank.

Pure: lines of text in, bars or a line out. It parses bars in tqdm's format; other lines are not bars.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_COUNT = r"\d+(?:\.\d+)?[kMGTPEZY]?"
_TIMES = r"(?P<elapsed>[\d:]+)(?:<(?P<left>(?:\d+ days?, )?[\d:?]+))?"
_RATE = r", +(?P<rate>\?|\d+(?:\.\d+)?)(?P<unit>[^\s,\]]*)(?P<postfix>, [^\]]*)?"
_BAR = re.compile(
    rf"(?:(?P<title>.*?): )? *(?P<percent>\d+)%\|(?P<drawn>[^|]*)\| (?P<count>{_COUNT})/(?P<total>{_COUNT})"
    rf" \[{_TIMES}{_RATE}\]"
)
_COUNTER = re.compile(rf"(?:(?P<title>.*?): )?(?P<count>{_COUNT})(?P<things>[^\s\d]+) \[{_TIMES}{_RATE}\]")
_SCALES = {letter: 1000.0**power for power, letter in enumerate("kMGTPEZY", 1)}


@dataclass(frozen=True, slots=True)
class MergedBar:
    """The fields of a bar's line. `total` and `drawn` are empty if the end is not known."""

    line: str
    title: str
    count: str
    total: str
    drawn: str
    elapsed: str
    left: str
    rate: str
    unit: str
    postfix: str
    things: str = ""  # the noun that a counter without an end counts

    @property
    def key(self) -> str:
        """The key by which bars of different ranks are merged: the title without its numbers."""
        return _NUMBER.sub("#", self.title) + self.things

    @property
    def progress(self) -> float:
        """The fraction that is done; without an end, the amount."""
        done = _value_of(self.count)
        return done / max(_value_of(self.total), 1e-9) if self.total else done

    @property
    def speed(self) -> float:
        """Items per second."""
        value = 0.0 if self.rate == "?" else float(self.rate)
        per_second = not self.unit.startswith("s/")
        scale = _SCALES.get(self.unit[:1], 1.0) if per_second else 1.0
        return value * scale if per_second or not value else 1 / value

    @property
    def lag(self) -> tuple[float, int, float]:
        """The sort key that puts the slowest last: least progress, then longest elapsed time, then lowest speed."""
        seconds = 0
        for part in self.elapsed.split(":"):
            seconds = seconds * 60 + int(part or 0)
        return -self.progress, seconds, -self.speed


def parse_bar(line: str) -> MergedBar | None:
    """Parse the bar in a line without colours; None for other text."""
    if not line.endswith("]"):  # most lines; cheaper than a regular expression
        return None
    found = _BAR.fullmatch(line) or _COUNTER.fullmatch(line)
    if found is None:
        return None
    parts = {name: text or "" for name, text in found.groupdict().items() if name != "percent"}
    return MergedBar(**({"line": line, "total": "", "drawn": ""} | parts))


def merge_bars(bars: Mapping[int, MergedBar]) -> str:
    """Merge bars into one line: `train:  60%|██████    | 9–12–20/20 [00:07<00:05, 1.2–1.6it/s] · r3 slowest`.

    The drawn part is that of the median bar; the times are those of the slowest.
    """
    ordered = sorted(bars, key=lambda rank: bars[rank].lag)
    last, middle = bars[ordered[-1]], bars[ordered[len(ordered) // 2]]
    title = _merge_texts([bar.title for bar in bars.values()])
    counts = _spread([bar.count for bar in bars.values()])
    times = f"{last.elapsed}<{last.left}" if last.left else last.elapsed
    rates = _spread_rates(list(bars.values()), middle)
    postfix = _merge_texts([bar.postfix for bar in bars.values()])
    head = f"{title}: " if title else ""
    if middle.total:
        totals = _spread([bar.total for bar in bars.values()])
        body = f"{100 * middle.progress:3.0f}%|{middle.drawn}| {counts}/{totals}"
    else:
        body = f"{counts}{middle.things}"
    line = f"{head}{body} [{times}, {rates}{postfix}]"
    return line if len({bar.lag[:2] for bar in bars.values()}) == 1 else f"{line} · r{ordered[-1]} slowest"


def _spread(texts: Sequence[str]) -> str:
    """Return `9–12–20`: minimum, median and maximum, each once."""
    ordered = sorted(texts, key=_value_of)
    return "–".join(dict.fromkeys([ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]]))


def _spread_rates(bars: Sequence[MergedBar], middle: MergedBar) -> str:
    if len({bar.unit for bar in bars}) == 1 and all(bar.rate != "?" for bar in bars):
        return _spread([bar.rate for bar in bars]) + middle.unit
    # `1.02s/it` beside `1.10it/s`: from the slowest to the fastest, each with its unit.
    ordered = sorted(bars, key=lambda bar: bar.speed)
    three = [ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]]
    return "–".join(dict.fromkeys(f"{bar.rate}{bar.unit}" for bar in three))


def _merge_texts(texts: Sequence[str]) -> str:
    """Merge texts that differ only in numbers; join other distinct texts in a row."""
    distinct = list(dict.fromkeys(texts))
    words = _NUMBER.split(distinct[0])
    if any(_NUMBER.split(text) != words for text in distinct):
        return " | ".join(text.strip(", ") for text in distinct[:3]) + (" | …" if len(distinct) > 3 else "")
    columns = zip(*(_NUMBER.findall(text) for text in distinct), strict=True)
    merged = words[0]
    for column, word in zip(columns, words[1:], strict=True):
        least, most = min(column, key=float), max(column, key=float)
        merged += (least if least == most else f"{least} … {most}") + word
    return merged


def _value_of(text: str) -> float:
    if text and text[-1] in _SCALES:
        return float(text[:-1]) * _SCALES[text[-1]]
    return float(text or 0)
