"""Rendering of groups and of a cell's output area (header, text, footer) as plain text and as HTML.

The HTML needs neither style sheets nor scripts, so GitHub renders it, too.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Literal

from meshbook.magics.output.ansi import html_of
from meshbook.magics.output.grouping import OutputGroup, StreamName
from meshbook.runtime.formats import format_elapsed

_PRE_STYLE = (
    "margin:0;padding:0;background:none;white-space:pre-wrap;font-family:var(--jp-code-font-family,monospace);"
    "font-size:var(--jp-code-font-size,13px);color:var(--jp-content-font-color1,inherit)"
)


# JupyterLab moves text by this much to the right, but not HTML.
LEFT_EDGE = "padding-left:var(--jp-code-padding,0)"


def render_text(groups: Iterable[OutputGroup], stream: StreamName = "stdout") -> str:
    """Render the groups as plain text, with the label before each line; ANSI colours are kept."""
    return "".join(f"{line}\n" for group in groups for line in _labelled_lines(group, stream))


def render_html(groups: Iterable[OutputGroup], stream: StreamName = "stdout") -> str:
    """Render the groups as HTML: text is escaped, and a range opens to show each rank's own lines."""
    parts: list[str] = []
    plain: list[OutputGroup] = []
    for group in groups:
        if group.members:
            parts += [_render_pre(plain, stream), _render_details(group, stream)]
            plain = []
        else:
            plain.append(group)
    return "".join([*parts, _render_pre(plain, stream)])


def _labelled_lines(group: OutputGroup, stream: StreamName) -> list[str]:
    prefix, block = group.prefix, group.block
    lines = [prefix + line if line else prefix.rstrip() for line in block.lines]
    if block.hidden:
        lines.insert(block.cut, prefix + _announce_hidden(group, stream))
    return lines


def _announce_hidden(group: OutputGroup, stream: StreamName) -> str:
    noun = "line" if group.block.hidden == 1 else "lines"
    where = (
        f"%mesh log {group.ranks[0]}; with -o NAME, NAME[{group.ranks[0]}].{stream} has all"
        if group.ranks
        else "%mesh log RANK"
    )
    return f"… {group.block.hidden:,} {noun} not shown ({where})"


def _render_pre(groups: Sequence[OutputGroup], stream: StreamName) -> str:
    text = render_text(groups, stream)
    return f'<pre style="{_PRE_STYLE}">{html_of(text)}</pre>' if text else ""


def _render_details(group: OutputGroup, stream: StreamName) -> str:
    summary = html_of("\n".join(_labelled_lines(group, stream)))
    return (
        f'<details><summary style="{_PRE_STYLE}">{summary}</summary>'
        f'<div style="margin-left:1em">{_render_pre(group.members, stream)}</div></details>'
    )


HEADER_STYLE = (
    "font-family:var(--jp-ui-font-family,sans-serif);font-size:var(--jp-ui-font-size1,13px);"
    "color:var(--jp-ui-font-color2,#808080)"
)
_STDERR_STYLE = "background:var(--jp-rendermime-error-background,rgba(255,0,0,.1))"


Ending = Literal["done", "failed", "interrupted", "skipped"]  # how a cell ended on one rank
_ENDINGS: dict[Ending, str] = {
    "done": "done",
    "failed": "failed",
    "interrupted": "interrupted",
    "skipped": "did not run",
}


def format_header(
    *,
    total: int,
    running: int,
    elapsed: float,
    endings: Mapping[Ending, int],
    waiting: int = 0,
    slowest: int | None = None,
    mesh: str = "",
) -> str:
    """Return the line above a longer cell's output: `8 ranks · 6 running · 2 done · 00:12 · r3 slowest`."""
    counts = [
        *((running, "running"), (waiting, "waiting")),
        *((endings.get(ending, 0), word) for ending, word in _ENDINGS.items()),
    ]
    parts = [
        _count_ranks(total, mesh),
        *(f"{count} {word}" for count, word in counts if count),
    ]
    parts.append(format_elapsed(elapsed))
    return " · ".join(parts if slowest is None else [*parts, f"r{slowest} slowest"])


def format_left(total: int, elapsed: float, mesh: str = "") -> str:
    """Return the line of a cell whose ranks continue without the notebook."""
    return f"{_count_ranks(total, mesh)} · detached after {format_elapsed(elapsed)}; take it back with %mesh attach"


def _count_ranks(total: int, mesh: str) -> str:
    return f"{f'{mesh}: ' if mesh else ''}{total} {'rank' if total == 1 else 'ranks'}"


def render_area(
    groups: Mapping[StreamName, Sequence[OutputGroup]], header: str = "", footer: str = ""
) -> dict[str, str]:
    """Return the bundle to publish: text/plain and text/html."""
    text = [
        *([f"{header}\n"] if header else []),
        render_text(groups["stdout"], "stdout"),
        *(["stderr:\n"] if any(not group.is_bar for group in groups["stderr"]) else []),
        render_text(groups["stderr"], "stderr"),
        *([f"{footer}\n"] if footer else []),
    ]
    parts = [_render_line(header), render_html(groups["stdout"], "stdout")]
    for is_bar, some in groupby(groups["stderr"], lambda group: group.is_bar):
        shown = render_html(some, "stderr")
        # Progress bars also go to stderr, and are not errors.
        parts.append(shown if is_bar else f'<div style="{_STDERR_STYLE}">{shown}</div>')
    parts += [_render_line(footer)]
    return {"text/plain": "".join(text), "text/html": f'<div style="{LEFT_EDGE}">{"".join(parts)}</div>'}


def _render_line(text: str) -> str:
    return f'<div style="{HEADER_STYLE}">{html.escape(text).replace(chr(10), "<br>")}</div>' if text else ""
