"""Inspection in code for ranks: shift-tab and hover show the first rank's object and which other ranks have the same.

Not for `x?` in a cell that is run: there each rank inspects its own object.

A line compares the ranks: `same on 0-6, differs on 7 (int)`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from IPython.utils.tokenutil import token_at_cursor

from meshbook.magics.introspection.cursor import InBody, OnOptions, OnSelector, OnVerb, place_of
from meshbook.magics.introspection.ranks import ANSWER_SECONDS, RankNames, answer_of
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.cell_options import cell_parser
from meshbook.magics.verbs.verb_table import VERBS, overview
from meshbook.runtime.cells.object_info import Inspected, inspect_name
from meshbook.runtime.formats import format_ranks

MOST_RANKS = 64  # that are compared
_MAGIC = re.compile(r"(?:\A|\n)\s*(%%?)mesh\Z")
_HEAD = "\x1b[31mRanks:\x1b[39m"  # in the style of IPython's fields


class Inspector:
    """Inspects names in cells of a notebook, from any thread."""

    def __init__(self, notebook: Notebook, ranks: RankNames) -> None:
        self._notebook = notebook
        self._ranks = ranks

    def install(self) -> None:
        """Make the shell's kernel call this inspector first."""
        self._notebook.inspection = self
        kernel = self._notebook.shell.kernel
        kernel.do_inspect = self._before(kernel.do_inspect)

    def _before(self, inherited: Callable[..., Any]) -> Callable[..., Any]:
        def do_inspect(code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Collection[str] = ()) -> Any:
            data = self.inspect(code, cursor_pos, detail_level, omit_sections)
            if data is None:
                return inherited(code, cursor_pos, detail_level, omit_sections)
            return _reply(data)

        return do_inspect

    def inspect_while_busy(self, cell: str, cursor: int, detail: int, omitted: Collection[str]) -> dict[str, Any]:
        """Return the content of an `inspect_reply` while the user's code runs in this process."""
        data = self.inspect(cell, cursor, detail, omitted)
        if data is None and (name := token_at_cursor(cell, cursor)):
            found = inspect_name(self._notebook.shell, name, detail, omitted, whole=True)
            data = {"text/plain": found.data["text/plain"]} if found.data is not None else None
        return _reply(data or {})

    def inspect(self, cell: str, cursor: int, detail: int = 0, omitted: Collection[str] = ()) -> dict[str, str] | None:
        """Inspect what is at the cursor, by MIME type; empty if nothing is found, None if IPython is responsible."""
        if (magic := _MAGIC.search(cell, 0, cursor)) is not None:
            return {"text/plain": cell_parser().format_help() if magic[1] == "%%" else overview()}
        match place_of(cell, cursor, self._notebook.mode.line):
            case OnOptions() | OnSelector():
                return {"text/plain": cell_parser().format_help()}
            case OnVerb(text):
                verb = VERBS.get((text.split() or [""])[0])
                return {"text/plain": verb.parser().format_help() if verb is not None else overview()}
            case InBody(options, source):
                return self._in_body(options, token_at_cursor(source, cursor), detail, sorted(omitted))
            case _:
                return None

    def _in_body(self, options: str, name: str, detail: int, omitted: Sequence[str]) -> dict[str, str]:
        targets = self._ranks.targets(options) if name else None
        if targets is None:
            return {}
        mesh, ranks = targets[0], targets[1][:MOST_RANKS]
        until = time.monotonic() + ANSWER_SECONDS
        futures = self._ranks.ask_inspections(mesh, ranks, name, detail, omitted)
        answers: dict[int, Inspected | None] = {rank: answer_of(futures[rank], until) for rank in ranks}
        first = answers[ranks[0]]
        if first is None:
            kind = self._ranks.cached_kind(mesh, ranks[0], name)
            if kind is None:
                return {}
            text = f"no answer from {ranks[0]}, which had `{name}` ({kind}) after its last cell"
            return {"text/plain": f"{_HEAD} {text}"}
        others = sorted(set(targets[1]) - set(ranks))
        line = format_agreement(answers, ranks[0]) + (f"; {len(others)} more were not queried" if others else "")
        # Only plain text: IPython's kernel does not show HTML, either.
        return {"text/plain": f"{_HEAD} {line}\n{first.data['text/plain']}"} if first.data is not None else {}


def _reply(data: dict[str, str]) -> dict[str, Any]:
    return {"status": "ok", "found": bool(data), "data": data, "metadata": {}}


MOST_KINDS = 3  # of differing objects that are described


def format_agreement(answers: Mapping[int, Inspected | None], first: int) -> str:
    """Compare the ranks' answers with that of `first`; None marks a rank that has not answered."""
    inspected = answers[first]
    mark = inspected.mark if inspected is not None else ""
    same = [rank for rank, each in answers.items() if each is not None and each.mark == mark]
    other = {rank: each for rank, each in answers.items() if each is not None and each.mark not in (mark, "")}
    parts = [f"same on {format_ranks(same)}" if len(same) > 1 else f"on {first}"]
    if other:
        kinds = list(dict.fromkeys(each.summary for each in other.values()))
        some = ", ".join(kinds[:MOST_KINDS]) + (", …" if len(kinds) > MOST_KINDS else "")
        parts.append(f"differs on {format_ranks(other)} ({some})")
    if missing := [rank for rank, each in answers.items() if each is not None and not each.mark]:
        parts.append(f"not defined on {format_ranks(missing)}")
    if silent := [rank for rank, each in answers.items() if each is None]:
        parts.append(f"no answer from {format_ranks(silent)}")
    return ", ".join(parts)
