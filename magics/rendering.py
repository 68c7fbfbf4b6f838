"""Groups of text as plain text and as HTML, which needs neither style sheets nor scripts: GitHub shows it, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshbook.magics.colours import html_of
from meshbook.magics.grouping import Group, StreamName

_PRE_STYLE = (
    "margin:0;padding:0;background:none;white-space:pre-wrap;font-family:var(--jp-code-font-family,monospace);"
    "font-size:var(--jp-code-font-size,13px);color:var(--jp-content-font-color1,inherit)"
)


def render_text(groups: Iterable[Group], stream: StreamName = "stdout") -> str:
    """The groups as plain text, the label before each line; ANSI colours stay."""
    return "".join(f"{line}\n" for group in groups for line in _labelled_lines(group, stream))


def render_html(groups: Iterable[Group], stream: StreamName = "stdout") -> str:
    """The groups as HTML: text escaped, a range opens to show each rank's own lines."""
    parts: list[str] = []
    plain: list[Group] = []
    for group in groups:
        if group.members:
            parts += [_render_pre(plain, stream), _render_details(group, stream)]
            plain = []
        else:
            plain.append(group)
    return "".join([*parts, _render_pre(plain, stream)])


def _labelled_lines(group: Group, stream: StreamName) -> list[str]:
    prefix, block = group.prefix, group.block
    lines = [prefix + line if line else prefix.rstrip() for line in block.lines]
    if block.hidden:
        lines.insert(block.cut, prefix + _announce_hidden(group, stream))
    return lines


def _announce_hidden(group: Group, stream: StreamName) -> str:
    noun = "line" if group.block.hidden == 1 else "lines"
    where = (
        f"result[{group.ranks[0]}].{stream} has all; %mesh log {group.ranks[0]}" if group.ranks else "%mesh log RANK"
    )
    return f"… {group.block.hidden:,} {noun} not shown ({where})"


def _render_pre(groups: Sequence[Group], stream: StreamName) -> str:
    text = render_text(groups, stream)
    return f'<pre style="{_PRE_STYLE}">{html_of(text)}</pre>' if text else ""


def _render_details(group: Group, stream: StreamName) -> str:
    summary = html_of("\n".join(_labelled_lines(group, stream)))
    return (
        f'<details><summary style="{_PRE_STYLE}">{summary}</summary>'
        f'<div style="margin-left:1em">{_render_pre(group.members, stream)}</div></details>'
    )
