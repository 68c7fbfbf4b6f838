"""The rendering of a last expression's values by rank: equal values once, tensors by their common properties.

Pure: outcomes in, text and HTML out. Not for the objects that hold the values (`result`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import indent
from typing import Any

from meshbook.magics.output.ansi import html_of
from meshbook.magics.output.gallery import markup_of, side_by_side
from meshbook.magics.output.grouping import Block, OutputGroup, group_texts, split_lines
from meshbook.magics.output.render import render_text
from meshbook.runtime.cells.outcome import CellOutcome, CellValue
from meshbook.runtime.formats import format_label, name_ranks

MOST_VALUES = 32  # up to this many different values are all shown; of more, numbers become ranges
MOST_TEXT = 130_000  # characters of text; further values are only counted
MOST_RICH = 300_000  # characters of HTML; further values are shown as text
MOST_ELEMENTS = 8  # of a tensor whose elements are shown; a larger one shows its statistics

_PRE = '<pre style="margin:0;background:none;white-space:pre-wrap;font-family:var(--jp-code-font-family,monospace)">'
_LABEL = '<div style="color:var(--jp-ui-font-color2,#808080);font-family:var(--jp-code-font-family,monospace)">'


@dataclass(frozen=True, slots=True)
class _Part:
    """The rendered values of some ranks: `text` is labelled, `markup` is HTML without a label."""

    ranks: tuple[int, ...]
    text: str
    markup: str = ""


def has_value(outcome: CellOutcome) -> bool:
    """Whether the cell ended in an expression that was not None."""
    return outcome.value is not None and outcome.value.type_name != "NoneType"


def render_outcomes(outcomes: Mapping[int, CellOutcome], mesh: str = "") -> str:
    """Render the values, equal ones once, and each error in one line; `mesh` is the prefix of ranks, if given."""
    if not _has_content(outcomes):
        return f"{name_ranks(outcomes)}{f' of {mesh}' if mesh else ''}: no value" if outcomes else "no ranks"
    return _text_of(*_within_bounds(_parts_of(outcomes, mesh)))


def _has_content(outcomes: Mapping[int, CellOutcome]) -> bool:
    return any(has_value(each) or each.error for each in outcomes.values())


def _text_of(parts: Sequence[_Part], omitted: Sequence[str]) -> str:
    return "".join([*(part.text for part in parts), *omitted]).removesuffix("\n")


def bundle_of(outcomes: Mapping[int, CellOutcome], mesh: str = "") -> dict[str, Any]:
    """Return the display bundle: HTML only if a value has HTML, because plain text reads better as plain text."""
    parts, omitted = _within_bounds(_parts_of(outcomes, mesh))
    text = _text_of(parts, omitted) if _has_content(outcomes) else render_outcomes(outcomes, mesh)
    bundle = {**_shared_mime(outcomes), "text/plain": text}
    if any(part.markup for part in parts):
        bundle["text/html"] = _render_markup(parts, mesh) + html_of("".join(omitted))
    return bundle


def _render_markup(parts: Sequence[_Part], mesh: str) -> str:
    blocks: list[str] = []
    size = 0
    for part in parts:
        size += len(part.markup)
        if part.markup and size <= MOST_RICH:
            blocks.append(f"{_LABEL}{mesh}{format_label(part.ranks)}</div>{part.markup}")
        else:
            blocks.append(f"{_PRE}{html_of(part.text)}</pre>")
    return side_by_side(blocks)


def _within_bounds(parts: Sequence[_Part]) -> tuple[list[_Part], list[str]]:
    """Return the parts whose text fits, at least one, and a line that counts the others."""
    sizes = list(accumulate(len(part.text) for part in parts))
    count = max(sum(size <= MOST_TEXT for size in sizes), 1)
    note = [f"… {len(parts) - count} more; `values` has all\n"] if count < len(parts) else []
    return list(parts[:count]), note


def _shared_mime(outcomes: Mapping[int, CellOutcome]) -> dict[str, Any]:
    """Return the content that only front-end extensions can render (a plot as JSON), if all ranks have the same."""
    mimes = [each.value.mime for each in outcomes.values() if each.value is not None]
    if not mimes or any(mime != mimes[0] for mime in mimes):
        return {}
    return {name: content for name, content in mimes[0].items() if name.startswith("application/")}


def _parts_of(outcomes: Mapping[int, CellOutcome], mesh: str) -> list[_Part]:
    """Return the values in order of their lowest rank, then the ranks without one, then the errors."""
    values = {rank: each.value for rank, each in outcomes.items() if each.value is not None and has_value(each)}
    plain = {rank: each.mime for rank, each in values.items() if each.tensor is None}
    texts = {rank: str(mime.get("text/plain", "")) for rank, mime in plain.items() if not markup_of(mime)}
    rich = {rank: mime for rank, mime in plain.items() if rank not in texts}
    parts = sorted(
        [*_tensor_parts(values, mesh), *_rich_parts(rich, mesh), *_text_parts(texts, mesh)], key=lambda each: each.ranks
    )
    failed = {}
    for rank, outcome in outcomes.items():
        if (error := outcome.error) is not None:
            message, place = error.message.partition("\n")[0], f" ({error.place})" if error.place else ""
            failed[rank] = f"{error.type_name}: {message}{place}" if message else f"{error.type_name}{place}"
    silent = [rank for rank in outcomes if rank not in values and rank not in failed]
    if silent:
        parts.append(_Part(tuple(silent), f"{mesh}{format_label(silent)} no value\n"))
    return [*parts, *_text_parts(failed, mesh)]


def _text_parts(texts: Mapping[int, str], mesh: str) -> list[_Part]:
    return [_Part(group.ranks, render_text([group.of_mesh(mesh)])) for group in _group_values(texts)]


def _rich_parts(mimes: Mapping[int, Mapping[str, Any]], mesh: str) -> list[_Part]:
    ranks_of: dict[str, list[int]] = {}
    for rank, mime in mimes.items():
        ranks_of.setdefault(markup_of(mime), []).append(rank)
    parts: list[_Part] = []
    for markup, ranks in ranks_of.items():
        block = Block(split_lines(str(mimes[ranks[0]].get("text/plain", ""))))
        parts.append(_Part(tuple(ranks), render_text([OutputGroup(tuple(ranks), block, mesh=mesh)]), markup))
    return parts


def _tensor_parts(values: Mapping[int, CellValue], mesh: str) -> list[_Part]:
    families: dict[Hashable, dict[int, CellValue]] = {}
    for rank, value in values.items():
        if (tensor := value.tensor) is not None:
            # Ranks usually have one GPU each: cuda:0 to cuda:7 count as one kind of device.
            device = tensor.device.partition(":")[0]
            families.setdefault((tensor.type_name, tensor.shape, tensor.dtype, device), {})[rank] = value
    return [_Part(tuple(family), _format_tensors(family, mesh)) for family in families.values()]


def _format_tensors(values: Mapping[int, CellValue], mesh: str) -> str:
    """Format type, shape, dtype and device once, and the contents once or by rank."""
    tensors = [value.tensor for value in values.values() if value.tensor is not None]
    devices = list(dict.fromkeys(tensor.device for tensor in tensors))
    device = devices[0] if len(devices) == 1 else f"{devices[0]} … {devices[-1]}"
    first = tensors[0]
    dtype = first.dtype.removeprefix("torch.")
    heading = f"{mesh}{format_label(values)} {first.type_name} {first.shape} {dtype} {device}"
    contents = {rank: _format_content(value) for rank, value in values.items()}
    if len(set(contents.values())) == 1:
        return f"{heading}  {contents[next(iter(values))]}".rstrip() + "\n"
    return f"{heading}\n{indent(render_text(_group_values(contents)), '  ')}"


def _format_content(value: CellValue) -> str:
    """Format a small tensor's elements, or a larger one's statistics."""
    text = str(value.mime.get("text/plain", ""))
    tensor = value.tensor
    if tensor is None or (math.prod(tensor.shape) <= MOST_ELEMENTS and text and "\n" not in text):
        return text
    numbers = (("min", tensor.minimum), ("mean", tensor.mean), ("max", tensor.maximum))
    return "  ".join(f"{name} {number:.4g}" for name, number in numbers if number is not None)


def _group_values(texts: Mapping[int, str]) -> list[OutputGroup]:
    return group_texts(texts, "same" if len(set(texts.values())) <= MOST_VALUES else "auto")
