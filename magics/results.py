"""The result of a cell on every rank: what `Out[n]`, `_` and `-o NAME` hold, how it is read and shown.

Not for running cells, and not for the text they print (`output`). A value that was too large to travel stays
with its rank until it is asked for.
"""

from __future__ import annotations

import base64
import html
import math
import operator
import pickle
import statistics
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from textwrap import indent
from typing import Any, TypeAlias

from meshbook.magics.colours import html_of
from meshbook.magics.grouping import (
    Block,
    Group,
    StreamName,
    group_texts,
    split_lines,
)
from meshbook.magics.rendering import render_text
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, CellValue, RankError, TensorSummary
from meshbook.runtime.geometry import Extent, Region
from meshbook.runtime.geometry.ranges import format_label, name_ranks
from meshbook.runtime.geometry.region import Index

ReadLog: TypeAlias = Callable[[int, StreamName], str]
Fetch: TypeAlias = Callable[[int], Any]

MOST_VALUES = 32  # different values all shown; of more, those that differ in numbers become a range
MOST_TEXT = 130_000  # characters of text; a value after that is only counted
MOST_OPEN = 4  # rich values shown at once, the others behind a click
MOST_RICH = 300_000  # characters of HTML; a value after that is shown as text
MOST_ROWS = 64  # of the table of costs, the slowest ranks
MOST_ELEMENTS = 8  # of a tensor that is shown itself; a larger one shows its statistics

_IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif")
_COLUMNS = ("rank", "wall", "CPU", "peak RSS", "peak GPU")
_PRE = '<pre style="margin:0;white-space:pre-wrap;font-family:var(--jp-code-font-family,monospace)">'
_LABEL = '<div style="color:var(--jp-ui-font-color2,#808080);font-family:var(--jp-code-font-family,monospace)">'
_CELL = '<td style="text-align:right;font-family:var(--jp-code-font-family,monospace)">'


class RankResult:
    """What the cell gave on one rank. `value` is fetched from the rank if it stayed there, once."""

    def __init__(self, rank: int, outcome: CellOutcome, texts: ReadLog, fetch: Fetch | None) -> None:
        self.rank = rank
        self.outcome = outcome
        self._texts = texts
        self._fetch = fetch

    @property
    def error(self) -> RankError | None:
        """Why the cell failed here; None if it did not."""
        return self.outcome.error

    @property
    def cost(self) -> CellCost:
        """Time and memory."""
        return self.outcome.cost

    @cached_property
    def value(self) -> Any:
        """The value of the last expression, None if there is none; LookupError if it is out of reach."""
        value = self.outcome.value
        if value is None:
            return None
        if value.pickled is not None:
            return pickle.loads(value.pickled)
        if self._fetch is None:
            raise LookupError(f"the value of rank {self.rank} stayed there: {value.note or 'it did not travel'}")
        return self._fetch(self.rank)

    @property
    def stdout(self) -> str:
        """All that the rank printed in this cell."""
        return self._texts(self.rank, "stdout")

    @property
    def stderr(self) -> str:
        """All that the rank wrote to stderr in this cell."""
        return self._texts(self.rank, "stderr")

    def __repr__(self) -> str:
        return _render_outcomes({self.rank: self.outcome})

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return _bundle({self.rank: self.outcome})


class MeshResult:
    """What a cell gave on all its ranks: `result[3]`, `result.at(gpus=0)`, `result.values`, `result.stack()`.

    It has the dimensions of the mesh that ran the cell. Its ranks are those of the labels in the output:
    ranks of the base mesh.
    """

    def __init__(
        self,
        region: Region,
        outcomes: Mapping[int, CellOutcome],
        texts: ReadLog,
        fetch: Fetch | None = None,
    ) -> None:
        self.region = region
        self._texts = texts
        self._fetch = fetch
        # A rank that died may have left no outcome; then it is not in the result.
        self._outcomes = {rank: outcomes[rank] for rank in sorted(region.ranks()) if rank in outcomes}
        self._results = {rank: RankResult(rank, outcome, texts, fetch) for rank, outcome in self._outcomes.items()}

    @property
    def extent(self) -> Extent:
        """The names and sizes of the dimensions."""
        return self.region.extent

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks there are, in order."""
        return tuple(self._results)

    @property
    def has_value(self) -> bool:
        """Whether any rank's cell ended in an expression that was not None."""
        return any(map(_has_value, self._outcomes.values()))

    @property
    def values(self) -> list[Any]:
        """The values in rank order; None for a rank that failed or gave none."""
        return [each.value for each in self]

    @property
    def errors(self) -> dict[int, RankError]:
        """The error of each rank that failed."""
        return {rank: each.error for rank, each in self._outcomes.items() if each.error is not None}

    @property
    def cost(self) -> CostTable:
        """Time and memory by rank, shown as a table."""
        return CostTable({rank: each.cost for rank, each in self._outcomes.items()})

    def at(self, /, **point: int) -> RankResult:
        """The rank at these coordinates, `result.at(hosts=0, gpus=3)`; ValueError if they leave several."""
        region = self.region.slice(**point)
        if len(region) != 1:
            free = ", ".join(region.labels)
            raise ValueError(f"{len(region)} ranks are there: give {free} as well, or use slice()")
        return self[region.ranks()[0]]

    def slice(self, /, **dims: Index) -> MeshResult:
        """Part of the result: `result.slice(gpus=slice(0, 2))`; an int removes its dimension."""
        return MeshResult(self.region.slice(**dims), self._outcomes, self._texts, self._fetch)

    def stack(self) -> Any:
        """The values as one tensor or array of shape (ranks, ...); ValueError if a rank has none."""
        missing = [rank for rank, each in self._outcomes.items() if not _has_value(each)]
        if missing:
            raise ValueError(f"nothing to stack from {name_ranks(missing)}: no value there")
        return _stack(self.values)

    def to_numpy(self) -> Any:
        """Like `stack`, always as a NumPy array in the memory of the controller."""
        stacked = self.stack()
        return stacked.detach().cpu().numpy() if hasattr(stacked, "detach") else stacked

    def __getitem__(self, rank: int) -> RankResult:
        """The result of a rank; a negative one counts from the last."""
        try:
            index = operator.index(rank)
        except TypeError:
            raise TypeError(
                "a result is indexed by rank, result[3]; by dimension use result.at(...) or result.slice(...)"
            ) from None
        ranks = self.ranks
        if -len(ranks) <= index < 0:
            return self._results[ranks[index]]
        if index not in self._results:
            raise IndexError(f"no rank {index} in this result; it has {name_ranks(ranks)}")
        return self._results[index]

    def __iter__(self) -> Iterator[RankResult]:
        return iter(self._results.values())

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return _render_outcomes(self._outcomes)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return _bundle(self._outcomes)


@dataclass(frozen=True, repr=False)
class CostTable:
    """What a cell cost on each rank, shown as a table with the skew below; of many ranks the slowest."""

    by_rank: Mapping[int, CellCost]

    def __repr__(self) -> str:
        header = "".join(f"{title:>11}" for title in _COLUMNS)
        rows = ["".join(f"{field:>11}" for field in fields) for fields in self._rows()]
        return "\n".join([header, *rows, *self._notes()])

    def _repr_html_(self) -> str:
        header = "".join(f"<th>{title}</th>" for title in _COLUMNS)
        rows = ["".join(f"{_CELL}{field}</td>" for field in fields) for fields in self._rows()]
        notes = "".join(f"<div>{note}</div>" for note in self._notes())
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in [header, *rows])}</table>{notes}"

    def _rows(self) -> list[tuple[str, ...]]:
        slowest = sorted(self.by_rank, key=lambda rank: -self.by_rank[rank].wall)[:MOST_ROWS]
        return [_describe_cost(rank, self.by_rank[rank]) for rank in sorted(slowest)]

    def _notes(self) -> list[str]:
        omitted = len(self.by_rank) - MOST_ROWS
        rest = [f"… {omitted:,} faster ranks not shown (result.cost.by_rank has all)"] if omitted > 0 else []
        return [*rest, summarise_costs(self.by_rank)]


def summarise_costs(costs: Mapping[int, CellCost]) -> str:
    """The footer of a cell: `wall 3.21 s · slowest r5 +0.40 s · peak mem r2 31 GB`.

    The skew is that of the slowest rank over the median.
    """
    if not costs:
        return "no ranks"
    slowest = max(costs, key=lambda rank: costs[rank].wall)
    wall = costs[slowest].wall
    skew = wall - statistics.median(cost.wall for cost in costs.values())
    fullest = max(costs, key=lambda rank: _memory_of(costs[rank]))
    parts = [f"wall {format_seconds(wall)}"]
    # In the unit of the whole, beside which it is read.
    more = format_seconds(skew) if wall < 1 else f"{skew:.2f} s"
    parts += [f"slowest r{slowest} +{more}"] if len(costs) > 1 else []
    return " · ".join([*parts, f"peak mem r{fullest} {format_bytes(_memory_of(costs[fullest])[1])}"])


def format_seconds(seconds: float) -> str:
    """`12 ms`, `3.21 s`, `2 min 05 s`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02} s"


def format_bytes(count: float) -> str:
    """Decimal units, as memory is sold: `512 kB`, `1.2 GB`, `31 GB`."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while count >= 999.5 and unit != "TB":
        count, unit = count / 1000, next(units)
    return f"{count:.1f} {unit}" if count < 9.95 and unit != "B" else f"{count:.0f} {unit}"


def _stack(values: Sequence[Any]) -> Any:
    # torch and numpy cost up to seconds to import, and who stacks nothing needs neither. A value that is a
    # tensor has brought torch with it, so numbers never load it.
    if "torch" in sys.modules:
        import torch

        if all(isinstance(value, torch.Tensor) for value in values):
            return torch.stack([value.to(values[0].device) for value in values])
    import numpy

    return numpy.stack(values)


def _has_value(outcome: CellOutcome) -> bool:
    return outcome.value is not None and outcome.value.type_name != "NoneType"


def _memory_of(cost: CellCost) -> tuple[bool, int]:
    """Sorts by GPU memory where there is any: that is what runs out first."""
    return (
        cost.peak_gpu_memory is not None,
        cost.peak_rss if cost.peak_gpu_memory is None else cost.peak_gpu_memory,
    )


def _describe_cost(rank: int, cost: CellCost) -> tuple[str, ...]:
    gpu = "-" if cost.peak_gpu_memory is None else format_bytes(cost.peak_gpu_memory)
    return f"{rank}", format_seconds(cost.wall), format_seconds(cost.cpu), format_bytes(cost.peak_rss), gpu


# How values are shown


@dataclass(frozen=True, slots=True)
class _Part:
    """Some ranks' values as they are shown: `text` has its labels, `markup` is HTML without one."""

    ranks: tuple[int, ...]
    text: str
    markup: str = ""


def _render_outcomes(outcomes: Mapping[int, CellOutcome]) -> str:
    if not any(_has_value(each) or each.error for each in outcomes.values()):
        return f"{name_ranks(outcomes)}: no value" if outcomes else "no ranks"
    parts, omitted = _within_bounds(_parts_of(outcomes))
    return "".join([*(part.text for part in parts), *omitted]).removesuffix("\n")


def _bundle(outcomes: Mapping[int, CellOutcome]) -> dict[str, Any]:
    """The display bundle: HTML only where a value has some, because plain text reads better as plain text."""
    bundle = {**_shared_mime(outcomes), "text/plain": _render_outcomes(outcomes)}
    parts, omitted = _within_bounds(_parts_of(outcomes))
    if any(part.markup for part in parts):
        bundle["text/html"] = _render_markup(parts) + html_of("".join(omitted))
    return bundle


def _render_markup(parts: Sequence[_Part]) -> str:
    blocks: list[str] = []
    size = 0
    for part in parts:
        size += len(part.markup)
        if part.markup and size <= MOST_RICH:
            blocks.append(f"{_LABEL}{format_label(part.ranks)}</div>{part.markup}")
        else:
            blocks.append(f"{_PRE}{html_of(part.text)}</pre>")
    rest = blocks[MOST_OPEN:]
    more = f"<details><summary>show {len(rest)} more</summary>{''.join(rest)}</details>" if rest else ""
    return f"<div>{''.join(blocks[:MOST_OPEN])}{more}</div>"


def _within_bounds(parts: Sequence[_Part]) -> tuple[list[_Part], list[str]]:
    """The parts whose text fits, at least one, and a line that counts the others."""
    sizes = list(accumulate(len(part.text) for part in parts))
    count = max(sum(size <= MOST_TEXT for size in sizes), 1)
    note = [f"… {len(parts) - count} more; `values` has all\n"] if count < len(parts) else []
    return list(parts[:count]), note


def _shared_mime(outcomes: Mapping[int, CellOutcome]) -> dict[str, Any]:
    """What only a front end's extension can draw (a plot as JSON), where all ranks have the same."""
    mimes = [each.value.mime for each in outcomes.values() if each.value is not None]
    if not mimes or any(mime != mimes[0] for mime in mimes):
        return {}
    return {name: content for name, content in mimes[0].items() if name.startswith("application/")}


def _parts_of(outcomes: Mapping[int, CellOutcome]) -> list[_Part]:
    """The values in order of their lowest rank, then the ranks without one, then the errors."""
    values = {rank: each.value for rank, each in outcomes.items() if each.value is not None and _has_value(each)}
    plain = {rank: each.mime for rank, each in values.items() if each.tensor is None}
    texts = {rank: str(mime.get("text/plain", "")) for rank, mime in plain.items() if not _markup_of(mime)}
    rich = {rank: mime for rank, mime in plain.items() if rank not in texts}
    parts = sorted([*_tensor_parts(values), *_rich_parts(rich), *_text_parts(texts)], key=lambda each: each.ranks)
    failed = {rank: _describe_error(each.error) for rank, each in outcomes.items() if each.error is not None}
    silent = [rank for rank in outcomes if rank not in values and rank not in failed]
    if silent:
        parts.append(_Part(tuple(silent), f"{format_label(silent)} no value\n"))
    return [*parts, *_text_parts(failed)]


def _text_parts(texts: Mapping[int, str]) -> list[_Part]:
    return [_Part(group.ranks, render_text([group])) for group in _group_values(texts)]


def _rich_parts(mimes: Mapping[int, Mapping[str, Any]]) -> list[_Part]:
    ranks_of: dict[str, list[int]] = {}
    for rank, mime in mimes.items():
        ranks_of.setdefault(_markup_of(mime), []).append(rank)
    parts: list[_Part] = []
    for markup, ranks in ranks_of.items():
        block = Block(split_lines(str(mimes[ranks[0]].get("text/plain", ""))))
        parts.append(_Part(tuple(ranks), render_text([Group(tuple(ranks), block)]), markup))
    return parts


def _tensor_parts(values: Mapping[int, CellValue]) -> list[_Part]:
    families: dict[Hashable, dict[int, CellValue]] = {}
    for rank, value in values.items():
        if value.tensor is not None:
            families.setdefault(_kind_of(value.tensor), {})[rank] = value
    return [_Part(tuple(family), _describe_tensors(family)) for family in families.values()]


def _kind_of(tensor: TensorSummary) -> Hashable:
    # Ranks mostly have a GPU each: cuda:0 to cuda:7 are one kind of device.
    return tensor.type_name, tensor.shape, tensor.dtype, tensor.device.partition(":")[0]


def _describe_tensors(values: Mapping[int, CellValue]) -> str:
    """Type, shape, dtype and device once, and what is in them once or by rank."""
    tensors = [value.tensor for value in values.values() if value.tensor is not None]
    devices = list(dict.fromkeys(tensor.device for tensor in tensors))
    device = devices[0] if len(devices) == 1 else f"{devices[0]} … {devices[-1]}"
    first = tensors[0]
    dtype = first.dtype.removeprefix("torch.")
    heading = f"{format_label(values)} {first.type_name} {first.shape} {dtype} {device}"
    contents = {rank: _describe_content(value) for rank, value in values.items()}
    if len(set(contents.values())) == 1:
        return f"{heading}  {contents[next(iter(values))]}".rstrip() + "\n"
    return f"{heading}\n{indent(render_text(_group_values(contents)), '  ')}"


def _describe_content(value: CellValue) -> str:
    """A small tensor itself, a larger one's statistics."""
    text = str(value.mime.get("text/plain", ""))
    tensor = value.tensor
    if tensor is None or (math.prod(tensor.shape) <= MOST_ELEMENTS and text and "\n" not in text):
        return text
    numbers = (("min", tensor.minimum), ("mean", tensor.mean), ("max", tensor.maximum))
    return "  ".join(f"{name} {number:.4g}" for name, number in numbers if number is not None)


def _group_values(texts: Mapping[int, str]) -> list[Group]:
    return group_texts(texts, "same" if len(set(texts.values())) <= MOST_VALUES else "auto")


def _markup_of(mime: Mapping[str, Any]) -> str:
    if "text/html" in mime:
        return str(mime["text/html"])
    for name in _IMAGES:
        if name in mime:
            return f'<img src="data:{name};base64,{_as_base64(mime[name], name)}">'
    return ""


def _as_base64(content: str | bytes, name: str) -> str:
    # A bundle has images as base64 and SVG as text; some formatters leave images as bytes.
    if isinstance(content, str) and name != "image/svg+xml":
        return html.escape(content.replace("\n", ""))
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()


def _describe_error(error: RankError) -> str:
    message = error.message.partition("\n")[0]
    place = f" ({error.place})" if error.place else ""
    return f"{error.type_name}: {message}{place}" if message else f"{error.type_name}{place}"
