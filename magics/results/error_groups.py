"""The errors of a cell's ranks: grouped into distinct ones, and formatted. Causes come first, with one traceback each.

Pure. Not for the exception that the cell raises (`magics.errors`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshbook.runtime.cells.outcome import RankError, format_place
from meshbook.runtime.formats import format_label, name_ranks
from meshbook.runtime.telemetry.lines import skeleton
from meshbook.runtime.traces import short_name

MOST_TRACEBACKS = 8  # shown in full; more would hide the first failure when every rank fails differently
MOST_ALIKE = 16  # shown in one line each below the traceback that applies to them, too
MOST_LINES = 50  # shown in one line each, for the errors after those

_RED = "\x1b[31m"
_RESET = "\x1b[0m"
_INTERRUPT = "KeyboardInterrupt"
_MANY = (
    ("was killed", "were killed"),
    ("was freed from its", "were freed from their"),
    ("restart it", "restart them"),
    ("; it ", "; they "),
    ("does not", "do not"),
    ("ignores", "ignore"),
    ("still runs", "still run"),
)
_TIMEOUT = "TimeoutError"
# What to do once process groups were broken. Models keep the groups with which they were wrapped.
HOW_TO_INITIALIZE = "initialize them again (dist.init_process_group()), then wrap DDP and FSDP models again"


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """One distinct error and the ranks that had it; `error` is that of the rank that failed first."""

    ranks: tuple[int, ...]
    error: RankError
    mesh: str = ""  # name of the ranks' mesh, if there are several meshes

    @property
    def is_consequence(self) -> bool:
        return self.error.is_consequence

    @property
    def label(self) -> str:
        """`ranks 0-2,5`, or `ranks 0-2,5 of b`."""
        return f"{name_ranks(self.ranks)}{f' of {self.mesh}' if self.mesh else ''}"

    @property
    def title(self) -> str:
        """`[ranks 0-2,5] ZeroDivisionError: division by zero`, or `[ranks 0-2,5 of b] ...`"""
        return f"[{self.label}] {format_error(self.error).partition(chr(10))[0]}"


@dataclass(frozen=True, slots=True)
class EndedBy:
    """How the cell was ended, besides interrupts."""

    timed_out: str = ""  # the time limit, and where the ranks were when it expired
    cause: str = ""  # what has caused the error, and the remedy; shown first
    aborted: tuple[str, ...] = ()  # descriptions of the process groups that were broken
    hints: tuple[str, ...] = ()  # possible reasons and remedies

    @property
    def remarks(self) -> list[str]:
        """Remarks that matter to the cells after it."""
        broken = f"process groups were broken ({', '.join(self.aborted)}): {HOW_TO_INITIALIZE}"
        return [*self.hints, *([broken] if self.aborted else [])]


PLAIN = EndedBy()


def name_error(groups: Sequence[ErrorGroup], ending: EndedBy) -> str:
    """Return the name of the class of the cell's error."""
    if not are_interrupts(groups):
        return groups[0].error.type_name
    return _TIMEOUT if ending.timed_out else _INTERRUPT


def group_errors(errors: Mapping[int, RankError], order: Sequence[int], mesh: str = "") -> list[ErrorGroup]:
    """Make one group per distinct error: deaths first, then failures in the given order, and consequences last.

    Errors are equal if kind, type, message, place and `is_consequence` are. In the message of a consequence the numbers
    do not count: they are ports of peers.
    """
    ranks_of: dict[Hashable, list[int]] = {}
    for rank in [*order, *sorted(errors.keys() - set(order))]:
        if rank in errors:
            error = errors[rank]
            message = skeleton(error.message) if error.is_consequence else error.message
            identity = (error.kind, error.type_name, message, error.place, error.is_consequence)
            ranks_of.setdefault(identity, []).append(rank)
    groups = [ErrorGroup(tuple(sorted(set(ranks))), errors[ranks[0]], mesh) for ranks in ranks_of.values()]
    return sorted(groups, key=_precedence)


def are_interrupts(groups: Sequence[ErrorGroup]) -> bool:
    """Whether the cell was interrupted rather than failed: only interrupts, and consequences of them."""
    roots, _ = _split_roots(groups)
    return all(group.error.kind in ("interrupted", "skipped") for group in roots)


def render(groups: Sequence[ErrorGroup], ending: EndedBy = PLAIN) -> list[str]:
    """Return the lines of the traceback with ANSI colours, as IPython shows them."""
    if are_interrupts(groups):
        return [_red(name_error(groups, ending)), format_interrupt(groups, ending)]
    roots, consequences = _split_roots(groups)
    families = _join_alike(roots)
    shown, listed = families[:MOST_TRACEBACKS], [group for family in families[MOST_TRACEBACKS:] for group in family]
    parts = [ending.cause] if ending.cause else []
    for first, *others in shown:
        titles = (_red(group.title) for group in others[:MOST_ALIKE])
        parts.append("\n".join([*_render_group(first), *titles, *_count_rest(others[MOST_ALIKE:])]))
    parts += [_red(_one_line(group)) for group in listed[:MOST_LINES]]
    parts += _count_rest(listed[MOST_LINES:])
    parts += _format_consequential(consequences)
    parts += ending.remarks
    return "\n\n".join(parts).split("\n")


def summarise(groups: Sequence[ErrorGroup], ending: EndedBy = PLAIN) -> str:
    """Return the error in plain text, a line per distinct error, for papermill, nbclient and logs."""
    if are_interrupts(groups):
        return format_interrupt(groups, ending)
    roots, consequences = _split_roots(groups)
    lines = [_one_line(group) for group in roots[:MOST_TRACEBACKS]]
    lines += _count_rest(roots[MOST_TRACEBACKS:])
    lines += _format_consequential(consequences)
    return "\n".join([*lines, *filter(None, [ending.cause]), *ending.remarks])


def format_interrupt(groups: Iterable[ErrorGroup], ending: EndedBy = PLAIN) -> str:
    """Return `interrupted; ranks 0-2 were at cell 3:2, rank 3 at cell 3:7 in step`, then ranks that did not react.

    If a time limit ended the cell, its text has the places already.
    """
    groups = list(groups)
    others = [group for group in groups if group.error.kind not in ("interrupted", "skipped")]
    skipped = [group for group in groups if group.error.kind == "skipped"]
    silent = [group for group in groups if group.error.kind == "interrupted" and group.error.message]
    parts = (
        [ending.timed_out]
        if ending.timed_out
        else [
            f"interrupted on {groups[0].mesh}" if groups and groups[0].mesh else "interrupted",
            _format_places(groups),
        ]
    )
    for group in silent:
        message = group.error.message
        for one, many in _MANY if len(group.ranks) > 1 else ():
            message = message.replace(one, many, 1)
        parts.append(f"{name_ranks(group.ranks)} {message}")
    parts += [format_consequences(others)] if others else []
    return "; ".join(filter(None, [*parts, *_format_skipped(skipped), *ending.remarks]))


def _format_places(groups: Iterable[ErrorGroup]) -> str:
    """Format where the interrupted ranks were; the place may be unknown for a rank that never answered."""
    ranks_at: dict[str, set[int]] = {}
    for group in groups:
        place = format_place(group.error.frames)
        if group.error.kind == "interrupted" and (place or not group.error.message):
            ranks_at.setdefault(place or "at an unknown place", set()).update(group.ranks)
    by_rank = sorted(ranks_at.items(), key=lambda item: min(item[1]))
    verbs = ["was " if len(ranks) == 1 else "were " for _, ranks in by_rank[:1]] + [""] * (len(by_rank) - 1)
    return ", ".join(f"{name_ranks(ranks)} {verb}{place}" for (place, ranks), verb in zip(by_rank, verbs, strict=True))


def format_consequences(groups: Sequence[ErrorGroup]) -> str:
    """Return `ranks 1-3 failed as a consequence (KeyboardInterrupt at cell 3:2)`."""
    ranks = {rank for group in groups for rank in group.ranks}
    kinds = []
    for error in (group.error for group in groups):
        text = f"{error.type_name} {format_place(error.frames)}".rstrip()
        kinds.append(f"{text}: {error.message}" if error.kind == "interrupted" and error.message else text)
    kinds = list(dict.fromkeys(kinds))
    shown = kinds if len(kinds) <= 3 else [*kinds[:3], "…"]
    return f"{name_ranks(ranks)} failed as a consequence ({', '.join(shown)})"


def _format_consequential(groups: Sequence[ErrorGroup]) -> list[str]:
    """Format the ranks that failed as a consequence of another's failure, and those that were skipped for it."""
    failed = [group for group in groups if group.error.kind != "skipped"]
    skipped = [group for group in groups if group.error.kind == "skipped"]
    return [*([format_consequences(failed)] if failed else []), *_format_skipped(skipped)]


def _format_skipped(groups: Iterable[ErrorGroup]) -> list[str]:
    return [f"{name_ranks(group.ranks)} did not run: {group.error.message}" for group in groups]


def _join_alike(groups: Sequence[ErrorGroup]) -> list[list[ErrorGroup]]:
    """Join errors that differ only in the numbers of their messages: one traceback is enough for them."""
    families: dict[Hashable, list[ErrorGroup]] = {}
    for group in groups:
        error = group.error
        families.setdefault((error.kind, error.type_name, error.place, skeleton(error.message)), []).append(group)
    return list(families.values())


def _precedence(group: ErrorGroup) -> int:
    # A process that died is the cause of other failures, even if their errors were noticed first.
    if group.is_consequence:
        return 2
    return 0 if group.error.kind == "died" else 1


def _split_roots(groups: Sequence[ErrorGroup]) -> tuple[list[ErrorGroup], list[ErrorGroup]]:
    """Separate causes and consequences; if no cause is known, every error is shown as a cause."""
    roots = [group for group in groups if not group.is_consequence]
    return (roots, [group for group in groups if group.is_consequence]) if roots else (list(groups), [])


def _render_group(group: ErrorGroup) -> list[str]:
    body = list(group.error.rendered) or _render_frames(group.error)
    first, *more = format_error(group.error).split("\n")
    # Like Python's, a traceback ends with the error. A death has no traceback, only the rank's last output.
    has_traceback = body and group.error.kind != "died"
    return [_red(group.title), *body, *map(_red, [first, *more] if has_traceback else more)]


def _render_frames(error: RankError) -> list[str]:
    lines: list[str] = []
    # An error without a rendering is a misuse, which IPython shows in a line: the place in a library does not help.
    for frame in [frame for frame in error.frames if frame.is_user] or error.frames:
        lines.append(f"  {short_name(frame.filename)}:{frame.line} in {frame.function}")
        lines += [f"    {frame.source.strip()}"] if frame.source.strip() else []
    return lines


def _one_line(group: ErrorGroup) -> str:
    return f"{group.title} ({group.error.place})" if group.error.place else group.title


def format_error(error: RankError) -> str:
    """Return `ValueError: no such thing`."""
    return f"{error.type_name}: {error.message}" if error.message else error.type_name


def _count_rest(groups: Sequence[ErrorGroup]) -> list[str]:
    if not groups:
        return []
    ranks = {rank for group in groups for rank in group.ranks}
    return [f"… {len(groups)} more distinct errors {format_label(ranks)}; the error's `by_rank` has all"]


def _red(text: str) -> str:
    return f"{_RED}{text}{_RESET}"
