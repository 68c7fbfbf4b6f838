"""Merging of many ranks' progress bars into one: the minimum, median and maximum, and the slowest rank. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshbook.runtime.telemetry.bar_lines import NUMBER, BarLine, value_of


def merge_bars(bars: Mapping[int, BarLine]) -> str:
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
    ordered = sorted(texts, key=value_of)
    return "–".join(dict.fromkeys([ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]]))


def _spread_rates(bars: Sequence[BarLine], middle: BarLine) -> str:
    if len({bar.unit for bar in bars}) == 1 and all(bar.rate != "?" for bar in bars):
        return _spread([bar.rate for bar in bars]) + middle.unit
    # `1.02s/it` beside `1.10it/s`: from the slowest to the fastest, each with its unit.
    ordered = sorted(bars, key=lambda bar: bar.speed)
    three = [ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]]
    return "–".join(dict.fromkeys(f"{bar.rate}{bar.unit}" for bar in three))


def _merge_texts(texts: Sequence[str]) -> str:
    """Merge texts that differ only in numbers; join other distinct texts in a row."""
    distinct = list(dict.fromkeys(texts))
    words = NUMBER.split(distinct[0])
    if any(NUMBER.split(text) != words for text in distinct):
        return " | ".join(text.strip(", ") for text in distinct[:3]) + (" | …" if len(distinct) > 3 else "")
    columns = zip(*(NUMBER.findall(text) for text in distinct), strict=True)
    merged = words[0]
    for column, word in zip(columns, words[1:], strict=True):
        least, most = min(column, key=float), max(column, key=float)
        merged += (least if least == most else f"{least} … {most}") + word
    return merged
