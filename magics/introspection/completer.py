"""Completion for a cell and a cursor: of option lines from their parsers, of a body from its first rank.

It places no stand-ins in the user's namespace. Other places are left to IPython's completer. jedi finds the names that
a body defines itself: loop variables, arguments, imports. It does not resolve them, because it would import the
modules of the body into this process, torch among them.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from IPython.core.completer import Completion as ShownMatch
from IPython.core.completer import IPCompleter

from meshbook.magics.introspection.cursor import InBody, OnOptions, OnSelector, OnVerb, place_of, runs_on_ranks
from meshbook.magics.introspection.option_completion import complete_cell_options, complete_verb
from meshbook.magics.introspection.ranks import ANSWER_SECONDS, RankNames, answer_of, complete_cached
from meshbook.magics.introspection.selector_completion import SelectorScope, complete_selector
from meshbook.magics.notebook import Notebook
from meshbook.runtime.cells.completion import Match, Snapshot, complete, make_completer
from meshbook.runtime.threads import BackgroundThreads

JEDI_LOADING_SECONDS = 1.0  # for jedi's first use in a process, which also delays IPython's own first completion


class NotebookCompleter:
    """Completes cells of a notebook, from any thread."""

    def __init__(self, notebook: Notebook, ranks: RankNames) -> None:
        self._notebook = notebook
        self._ranks = ranks
        self._jedi_threads = BackgroundThreads("jedi", most=1)
        self._busy_completer: IPCompleter | None = None

    def install(self) -> None:
        """Make the shell's completer call this one first, in a kernel and on a terminal alike."""
        completer = self._notebook.shell.Completer
        # Not by a custom matcher, which is IPython's way: one that finds nothing cannot prevent the others from
        # offering local names, which the ranks do not have.
        completer.completions = self._before(completer.completions)
        self._notebook.completion = self
        self._notebook.shell.events.register("post_run_cell", lambda result: self._ranks.after_cell())

    def _before(self, inherited: Callable[[str, int], Iterator[ShownMatch]]) -> Callable[[str, int], Any]:
        def completions(text: str, offset: int) -> Iterable[ShownMatch]:
            found = self.complete(text, offset)
            return inherited(text, offset) if found is None else map(_as_ipython, found)

        return completions

    def complete(self, cell: str, cursor: int, *, with_jedi: bool = True) -> list[Match] | None:
        """Return the matches; None if IPython's completer is responsible."""
        match place_of(cell, cursor, self._notebook.mode.line):
            case OnOptions(text, start):
                return complete_cell_options(text, start, self._scope())
            case OnVerb(text, start):
                return complete_verb(text, start, self._scope())
            case OnSelector(text, start):
                return complete_selector(text, start, self._scope())
            case InBody(options, source):
                return self._in_body(options, source[:cursor], with_jedi=with_jedi)
            case _:
                return None

    def complete_while_busy(self, cell: str, cursor: int, running: str) -> list[Match]:
        """Return the matches while the user's code runs in this process; `running` is the source of that cell.

        If that cell runs on ranks, jedi is used here; otherwise it is left out, as it is on ranks.
        """
        found = self.complete(cell, cursor, with_jedi=runs_on_ranks(running, self._notebook.mode.line))
        if found is None:
            if self._busy_completer is None:
                self._busy_completer = make_completer(self._notebook.shell)
            found = complete(self._busy_completer, cell, cursor)
        return found

    def _scope(self) -> SelectorScope:
        shell, meshes = self._notebook.shell, {mesh.name: mesh for mesh in self._notebook.meshes}
        sizes = {name: dict(mesh.extent) for name, mesh in meshes.items()}
        local = [name for name in list(shell.user_ns) if not name.startswith("_") and name not in shell.user_ns_hidden]
        default = self._notebook.meshes.get() if meshes else None
        remote = sorted({name for names in list(default.names.values()) for name in names}) if default else []
        jobs = [name for job in self._notebook.jobs for name in (str(job.number), job.name) if name]
        hosts = list(dict.fromkeys(name for mesh in meshes.values() for name in mesh.procs.host_mesh.names))
        return SelectorScope(sizes, default.name if default else "", sorted(local), remote, jobs, hosts)

    def _in_body(self, options: str, before: str, *, with_jedi: bool) -> list[Match]:
        """Join matches from the first rank and from the body itself; jedi works while the rank does."""
        until = time.monotonic() + ANSWER_SECONDS
        targets = self._ranks.targets(options)
        if targets is None:  # the cell starts the mesh: its ranks will have the names of every rank
            return join_matches(
                self._local_matches(before, until) if with_jedi else [], complete_cached(before, (), Snapshot())
            )
        mesh, rank = targets[0], targets[1][0]
        future = self._ranks.ask_matches(mesh, rank, before)
        own = self._local_matches(before, until) if with_jedi else []
        found = answer_of(future, until)
        return join_matches(own, self._ranks.cached_matches(mesh, rank, before) if found is None else found)

    def _local_matches(self, before: str, until: float) -> list[Match]:
        within = max(0.0, until - time.monotonic()) if "jedi" in sys.modules else JEDI_LOADING_SECONDS
        try:
            return self._jedi_threads.run(lambda: find_local_names(before), within)
        except Exception:  # late, or an error of jedi, which fails on some incomplete code
            return []


def join_matches(own: Sequence[Match], remote: Sequence[Match]) -> list[Match]:
    """Join both, each text once, over the same range of the source; the rank's kind of a name takes precedence."""
    start = min((match.start for match in remote), default=None)
    known = {match.text for match in remote}
    new = [match for match in own if match.text not in known and (start is None or match.start == start)]
    return [*new, *remote]


def _as_ipython(match: Match) -> ShownMatch:
    return ShownMatch(
        start=match.start,
        end=match.end,
        text=match.text,
        type=match.kind,
        _origin="meshbook",
        signature=match.signature,
    )


_LAST = re.compile(r"(?<![\w.])(?:[^\W\d]\w*)?\Z")


def find_local_names(before: str) -> list[Match]:
    """Complete the bare name at the end of the source to names that it defines and that are visible there."""
    import jedi  # weight: 0.1 s, which would delay the start of a kernel

    last = _LAST.search(before)
    if last is None:
        return []
    word, lines = last.group(), before.split("\n")
    here = len(lines), len(lines[-1]) - len(word)
    found = jedi.Interpreter(before, [{}]).get_names(all_scopes=True)
    kinds = {
        each.name: "module" if _is_import(each) else str(each.type)
        for each in found
        if each.name.startswith(word) and (each.line, each.column) < here and _is_visible(each, here)
    }
    return [Match(name, last.start(), len(before), kind) for name, kind in kinds.items()]


def _is_visible(name: Any, here: tuple[int, int]) -> bool:
    """Whether the function or class that contains this name encloses the cursor."""
    if _is_import(name):
        return True
    scope = name.parent()
    end = scope.get_definition_end_position() if scope is not None and scope.type in ("function", "class") else None
    return end is None or here <= end


def _is_import(name: Any) -> bool:
    # Imports are not inspected further: jedi would follow the import.
    return str(name.get_line_code()).lstrip().startswith(("import ", "from "))


def reply_of(cell: str, cursor: int, matches: Sequence[Match]) -> dict[str, Any]:
    """Return the content of a `complete_reply`, with kinds and signatures in IPython's format."""
    start = min((match.start for match in matches), default=cursor)
    end = max((match.end for match in matches), default=cursor)
    typed = {
        text: {"start": start, "end": end, "text": text, "type": match.kind, "signature": match.signature}
        for match in reversed(matches)  # of two with equal text the first is kept
        for text in [cell[start : match.start] + match.text + cell[match.end : end]]
    }
    ordered = [*reversed(typed.values())]
    return {
        "status": "ok",
        "matches": [each["text"] for each in ordered],
        "cursor_start": start,
        "cursor_end": end,
        "metadata": {"_jupyter_types_experimental": ordered},
    }
