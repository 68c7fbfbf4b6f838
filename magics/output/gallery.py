"""The layout of ranks' displays: each as a piece of HTML, and those of many ranks side by side.

Equal displays appear once, under their ranks. Different ones appear side by side, most of them collapsed.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshbook.magics.output.grouping import Block, OutputGroup, split_lines
from meshbook.magics.output.render import HEADER_STYLE, render_html, render_text
from meshbook.runtime.formats import format_label

WHERE_DISPLAYS_ARE = "with -o NAME, NAME[{}].displays has them"
MOST_OPEN = 4  # shown at once; the others are collapsed

_GRID = "display:flex;flex-wrap:wrap;gap:8px 16px;align-items:flex-start"
_IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif")


def markup_of(data: Mapping[str, Any], metadata: Mapping[str, Any] = {}) -> str:  # never mutated
    """Return the HTML of a display bundle, or its image as HTML; empty if it has neither."""
    if "text/html" in data:
        return str(data["text/html"])
    for name in _IMAGES:
        if name in data:
            # Bundles contain images as base64 and SVG as text; some formatters leave images as bytes.
            content = data[name]
            if isinstance(content, str) and name != "image/svg+xml":
                encoded = html.escape(content.replace("\n", ""))
            else:
                encoded = base64.b64encode(content.encode() if isinstance(content, str) else content).decode()
            return f'<img src="data:{name};base64,{encoded}"{_size_of(metadata.get(name))}>'
    return ""


def side_by_side(pieces: Sequence[str]) -> str:
    """Arrange pieces of HTML in a grid; the first four are open."""
    more = pieces[MOST_OPEN:]
    rest = f"<details><summary>show {len(more)} more</summary>{_grid(more)}</details>" if more else ""
    return f"{_grid(pieces[:MOST_OPEN])}{rest}"


def _grid(pieces: Sequence[str]) -> str:
    # Where styles are removed, as on GitHub, the pieces appear below each other.
    return f'<div style="{_GRID}">{"".join(f"<div>{piece}</div>" for piece in pieces)}</div>'


def _size_of(metadata: Any) -> str:
    """Return the display size of an image as attributes; high-resolution images give it in their metadata."""
    if not isinstance(metadata, Mapping):
        return ""
    sizes = {name: metadata.get(name) for name in ("width", "height")}
    return "".join(f' {name}="{size:g}"' for name, size in sizes.items() if isinstance(size, int | float))


MOST_MARKUP = 1_000_000  # bytes of one gallery: front ends drop messages over a megabyte a second
LARGE_IMAGE = 300_000  # bytes; a larger image is not published twice, as image and in HTML


@dataclass(frozen=True, slots=True)
class RankDisplay:
    """A rich output as its rank sent it. A display with the same id may replace it."""

    rank: int
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    display_id: str = ""
    mesh: str = ""  # name of the rank's mesh, if there are several meshes


@dataclass(frozen=True, slots=True)
class MimeBundle:
    """The published content of one output."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _EqualDisplays:
    """The ranks that displayed the same content."""

    ranks: tuple[int, ...]
    display: RankDisplay
    markup: str

    @property
    def label(self) -> str:
        return f"{self.display.mesh}{format_label(self.ranks)}"

    @property
    def text(self) -> str:
        """The labelled plain text."""
        lines = split_lines(str(self.display.data.get("text/plain", ""))) or ("",)
        return (
            render_text([OutputGroup(self.ranks, Block(lines), mesh=self.display.mesh)]).removesuffix("\n").rstrip(" ")
        )

    @property
    def is_foreign(self) -> bool:
        """Whether only a front end can render it: Markdown, LaTeX, a plot as JSON."""
        return not self.markup and bool(self.display.data.keys() - {"text/plain"})


def lay_out(row: Mapping[int, RankDisplay]) -> list[MimeBundle]:
    """Return the outputs for one display of these ranks: one, plus two for each that only a front end can render."""
    alike = _join_same(row.values())
    foreign = [each for each in alike if each.is_foreign]
    own = [each for each in alike if not each.is_foreign]
    if len(own) == 1 and len(own[0].markup) > LARGE_IMAGE and "text/html" not in own[0].display.data:
        foreign, own = [*own, *foreign], []
    bundles = _lay_out_own(own)
    for each in foreign:
        heading = {"text/plain": each.label, "text/html": f'<div style="{HEADER_STYLE}">{each.label}</div>'}
        bundles += [MimeBundle(heading, {}), MimeBundle(each.display.data, each.display.metadata)]
    return bundles


def _join_same(displays: Iterable[RankDisplay]) -> list[_EqualDisplays]:
    ranks_of: dict[str, list[RankDisplay]] = {}
    for display in displays:
        # The text of a figure may contain an address, so richer content, if any, decides what is equal.
        rich = {mime: content for mime, content in display.data.items() if mime != "text/plain"}
        ranks_of.setdefault(repr(sorted((rich or display.data).items())), []).append(display)
    found = [
        _EqualDisplays(tuple(sorted(each.rank for each in same)), same[0], markup_of(same[0].data, same[0].metadata))
        for same in ranks_of.values()
    ]
    return sorted(found, key=lambda each: each.ranks)


def _lay_out_own(own: Sequence[_EqualDisplays]) -> list[MimeBundle]:
    if not own:
        return []
    parts: dict[str, Any] = {"text/plain": "\n".join(each.text for each in own)}
    if any(each.markup for each in own):
        parts["text/html"] = _in_html(own)
    if len(own) > 1:
        return [MimeBundle(parts, {})]
    # Also as an image: a PDF cannot contain HTML, and an image can be copied.
    images = {mime: content for mime, content in own[0].display.data.items() if mime.startswith("image/")}
    return [MimeBundle(images | parts, own[0].display.metadata)]


def _in_html(own: Sequence[_EqualDisplays]) -> str:
    if len(own) == 1:
        return _cell_in_html(own[0])
    cells: list[str] = []
    left_out: list[int] = []
    size = 0
    for each in own:
        cell = _cell_in_html(each)
        size += len(cell)
        if size <= MOST_MARKUP:
            cells.append(cell)
        else:
            left_out += each.ranks
    if not left_out:
        return side_by_side(cells)
    note = f"… {format_label(left_out)} not shown, since it is large ({WHERE_DISPLAYS_ARE.format(left_out[0])})"
    return f'{side_by_side(cells)}<div style="{HEADER_STYLE}">{note}</div>'


def _cell_in_html(each: _EqualDisplays) -> str:
    if not each.markup:
        return render_html([OutputGroup(each.ranks, Block(split_lines(str(each.display.data.get("text/plain", "")))))])
    return f'<div style="{HEADER_STYLE}">{each.label}</div>{each.markup}'
