"""A static picture of a mesh, as text and as HTML: for saved notebooks, and where no widget can be shown. Pure.

The HTML has its own styles. Where these are removed, as on GitHub, it stays readable: letters show the states.
"""

from __future__ import annotations

import base64
import html
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshbook.runtime.formats import format_bytes, format_elapsed, name_ranks
from meshbook.widgets.host_sums import roll_up
from meshbook.widgets.protocol import HostEntry, RankState
from meshbook.widgets.source import CellFacts, MeshSnapshot, PausedRanks
from meshbook.widgets.states import MARKS, UNHEALTHY, MarkPicture, StateMark, picture_of, states_of
from meshbook.widgets.worst import worst_of

MOST_HOSTS = 8
MOST_PAUSES = 4
MOST_CHARACTERS = 120  # of a name, or of text from ranks
_STYLE = (
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:1.6;"
    "color:var(--jp-ui-font-color1,inherit)"
)
_GRID = (
    "font-family:var(--jp-code-font-family,monospace);font-size:12px;line-height:1.5;margin:6px 0;padding:0;"
    "background:none;color:inherit;overflow-x:auto"
)
_TABLE = "border-collapse:collapse;margin:6px 0;font-size:12px"
_CELL = "padding:1px 12px 1px 0;text-align:left;border:0"


# In a reopened notebook JupyterLab shows an error in place of the widget, just before the picture. An output has no
# type until JupyterLab has rendered it.
_WIDGET = ':not([data-mime-type]),[data-mime-type="application/vnd.jupyter.widget-view+json"]'
_HIDDEN = (
    f".jp-OutputArea-child:has(> .jp-OutputArea-output:is({_WIDGET}))"
    ":not(:has(.meshbook-dashboard[data-connected])):has(+ * .meshbook-picture){display:none}"
)


def embed_svg(svg: str, alt: str, width: int) -> str:
    """Return the HTML of a picture of this width in pixels, for notebooks that are trusted and for those that are not.

    From the latter JupyterLab removes SVG and style sheets, but not the text in an SVG. So the text has no size there,
    and an image takes the place of the SVG. It has no tooltips, and colours for light and dark ground.
    """
    still = re.sub("<title>[^<]*</title>", "", svg).replace("currentColor", "#808080")
    data, name = base64.b64encode(still.encode()).decode(), f"meshbook-svg-{zlib.crc32(svg.encode()):08x}"
    return (
        f'<style>.{name}{{display:none}}</style><div style="font-size:0">{svg}</div>'
        f'<img class="{name}" alt="{html.escape(alt)}" style="width:100%;max-width:{width}px"'
        f' src="data:image/svg+xml;base64,{data}"/>'
    )


class StaticPicture(NamedTuple):
    """A picture as text and as HTML."""

    text: str
    html: str


@dataclass(frozen=True)
class _Facts:
    """The content of both forms: the same words in the same order."""

    title: str
    counts: tuple[tuple[StateMark, int], ...]
    lines: tuple[str, ...]  # the cell, and the ranks that wait for the user
    picture: MarkPicture
    worst: tuple[str, ...]
    hosts: tuple[tuple[str, ...], ...]
    more_hosts: int


def snapshot_text(snapshot: MeshSnapshot) -> str:
    """Return the picture as plain text."""
    return "\n".join(_text_lines(_facts_of(snapshot)))


def snapshot_html(snapshot: MeshSnapshot) -> str:
    """Return the picture as HTML: some 15 KB for 64 ranks, never more than 40."""
    facts = _facts_of(snapshot)
    counts = " &nbsp;".join(f"{_mark(mark)} {count} {mark.title}" for mark, count in facts.counts)
    parts = [f"<div><b>{_safe(facts.title)}</b></div>", f"<div>{counts}</div>"]
    parts += [f"<div>{_safe(line)}</div>" for line in facts.lines]
    parts += [_grid(facts.picture), *(f"<div>{_safe(line)}</div>" for line in facts.worst), _table(facts)]
    return f'<div style="{_STYLE}">{"".join(parts)}</div>'


def snapshot_picture(snapshot: MeshSnapshot) -> StaticPicture:
    """Return the picture in both forms."""
    return StaticPicture(snapshot_text(snapshot), snapshot_html(snapshot))


def picture_data(picture: StaticPicture, picture_id: str, at: str) -> dict[str, str]:
    """Return the picture as an output that replaces the widget before it. `at`: the date and time."""
    remark = f'<div style="{_STYLE};opacity:0.75">As of {_safe(at)}. Run the cell for the live view.</div>'
    shown = f'<div class="meshbook-picture" data-of="{picture_id}">{picture.html}{remark}</div>'
    return {"text/plain": picture.text, "text/html": f"<style>{_HIDDEN}</style>{shown}"}


# -- content -----------------------------------------------------------------------


def at_rest(snapshot: MeshSnapshot) -> MeshSnapshot:
    """Remove a cell that runs on no rank: it is the one that shows the picture."""
    return replace(snapshot, cell=None) if snapshot.cell is not None and not snapshot.cell.ranks else snapshot


def _facts_of(snapshot: MeshSnapshot) -> _Facts:
    states = states_of(snapshot)
    counted = [(MARKS[state], int((states == state).sum())) for state in RankState]
    hosts = sorted(
        roll_up(snapshot.mesh, snapshot.vitals, states), key=_is_healthy
    )  # hosts with ranks that need attention first
    mesh = snapshot.mesh
    dims = " × ".join(f"{_plain(name)}={size}" for name, size in mesh.dims)
    ranks = f"{mesh.size} rank{'s' if mesh.size != 1 else ''}"
    return _Facts(
        " · ".join(filter(None, [_plain(mesh.name), dims, ranks, "" if mesh.alive else "down"])),
        tuple((mark, count) for mark, count in counted if count),
        (*_cell(snapshot.cell), *_pauses(snapshot.pauses)),
        picture_of(snapshot.mesh, states),
        tuple(f"rank {each.rank}: {each.text}" for each in worst_of("state", snapshot.vitals, states)),
        tuple(_host(host) for host in hosts[:MOST_HOSTS]),
        len(hosts) - MOST_HOSTS,
    )


def _cell(cell: CellFacts | None) -> Iterator[str]:
    if cell is not None:
        jobs = f"{cell.jobs} job{'s' if cell.jobs != 1 else ''}" if cell.jobs else ""
        fields = [f"{cell.title} on {name_ranks(cell.ranks)}", cell.waits, format_elapsed(cell.seconds), jobs]
        yield " · ".join(_plain(part) for part in fields if part)


def _pauses(pauses: Sequence[PausedRanks]) -> Iterator[str]:
    for pause in pauses[:MOST_PAUSES]:
        yield _plain(" · ".join(filter(None, [f"{name_ranks(pause.ranks)} {pause.what}", pause.place])))
    if len(pauses) > MOST_PAUSES:
        yield f"and {len(pauses) - MOST_PAUSES} more waiting"


def _is_healthy(host: HostEntry) -> bool:
    return not host["counts"].keys() & {state.name.lower() for state in UNHEALTHY}


def _host(host: HostEntry) -> tuple[str, ...]:
    counts = ", ".join(f"{count} {MARKS[RankState[name.upper()]].title}" for name, count in host["counts"].items())
    gpu = "" if host["gpu"] is None else f"GPU {host['gpu']:.0%}"
    cpu = "" if host["cpu"] is None else f"{host['cpu']:.1f} cores"
    memory, gpu_memory = _bytes(host["memory"]), _bytes(host["gpu_memory"])
    return _plain(host["name"]), counts, cpu, memory, " ".join(filter(None, [gpu, gpu_memory]))


def _bytes(count: float | None) -> str:
    return "" if count is None else format_bytes(count)


def _plain(text: str) -> str:
    """Return the text as one line of limited length, without terminal control characters."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return shown if len(shown) <= MOST_CHARACTERS else shown[: MOST_CHARACTERS - 1] + "…"


def _remark(picture: MarkPicture) -> str:
    return "" if picture.per_mark == 1 else f"a mark stands for {picture.per_mark} ranks and shows the worst of them"


def _more(facts: _Facts) -> str:
    return f"and {facts.more_hosts} more hosts" if facts.more_hosts > 0 else ""


# -- as text -----------------------------------------------------------------------


def _text_lines(facts: _Facts) -> Iterator[str]:
    yield facts.title
    yield "  " + ", ".join(f"{count} {mark.title} ({mark.letter})" for mark, count in facts.counts)
    yield from (f"  {line}" for line in facts.lines)
    width = max((len(row.label) for row in facts.picture.rows), default=0)
    for row in facts.picture.rows:
        groups = ("".join(MARKS[state].letter for state in group) for group in facts.picture.groups_of(row))
        yield f"  {row.label:<{width}}  {' '.join(groups)}"
    yield from (f"  {line}" for line in filter(None, [_remark(facts.picture), *facts.worst]))
    yield from (f"  {'  '.join(filter(None, host))}" for host in facts.hosts)
    yield from (f"  {line}" for line in filter(None, [_more(facts)]))


# -- as HTML -----------------------------------------------------------------------


def _grid(picture: MarkPicture) -> str:
    width = max((len(row.label) for row in picture.rows), default=0)
    lines = []
    for row in picture.rows:
        marks = " ".join("".join(_mark(MARKS[state]) for state in group) for group in picture.groups_of(row))
        lines.append(f"{_safe(row.label.ljust(width))}  {marks}")
    remark = f"<div>{_remark(picture)}</div>" if _remark(picture) else ""
    return f'<pre style="{_GRID}">{chr(10).join(lines)}</pre>{remark}'


def _mark(mark: StateMark) -> str:
    # The blanks make it a cell with styles, and separate the letters without.
    return (
        f'<span style="background:{mark.ground};color:{mark.colour};margin:1px;white-space:pre"> {mark.letter} </span>'
    )


def _table(facts: _Facts) -> str:
    rows = ["".join(f'<td style="{_CELL}">{_safe(field)}</td>' for field in host) for host in facts.hosts]
    table = "".join(f"<tr>{row}</tr>" for row in rows)
    more = f"<div>{_more(facts)}</div>" if _more(facts) else ""
    return f'<table style="{_TABLE}">{table}</table>{more}'


def _safe(text: str) -> str:
    return html.escape(text)
