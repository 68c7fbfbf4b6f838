"""The errors of a cell as one: a traceback per distinct failure, causes first, consequences in a line.

Not for catching errors on a rank (`meshbook.runtime.cells`) or publishing them: IPython shows what is raised.

    CellError                 a cell failed on at least one rank; `by_rank` has each rank's error
    └── one class a name      made on demand: the notebook says `ZeroDivisionError`, not `CellError`
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.getipython import get_ipython

from meshbook.runtime.cells.outcome import RankError, format_place
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.geometry.ranges import format_label, name_ranks
from meshbook.runtime.telemetry.lines import skeleton

if TYPE_CHECKING:  # An error only hands results on, and needs nothing of them.
    from meshbook.magics.results.result import MeshResult

MOST_TRACEBACKS = 8  # shown in full; what differs on every rank would bury the first failure
MOST_ALIKE = 16  # of one line each, below the traceback that is theirs, too
MOST_LINES = 50  # of one line each, for the errors after those

_RED = "\x1b[31m"
_RESET = "\x1b[0m"
_INTERRUPT = "KeyboardInterrupt"
_MANY = (
    ("was killed and is", "were killed and are"),
    ("; it ", "; they "),
    ("does not", "do not"),
    ("still runs", "still run"),
)
_TIMEOUT = "TimeoutError"


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """One distinct error and the ranks that had it; `error` is that of the rank which failed first."""

    ranks: tuple[int, ...]
    error: RankError
    mesh: str = ""  # whose ranks they are, where there are several meshes

    @property
    def is_consequence(self) -> bool:
        return self.error.is_consequence

    @property
    def who(self) -> str:
        """`ranks 0-2,5`, or `ranks 0-2,5 of b`."""
        return f"{name_ranks(self.ranks)}{f' of {self.mesh}' if self.mesh else ''}"

    @property
    def title(self) -> str:
        """`[ranks 0-2,5] ZeroDivisionError: division by zero`, or `[ranks 0-2,5 of b] ...`"""
        return f"[{self.who}] {_last_line(self.error).partition(chr(10))[0]}"


@dataclass(frozen=True, slots=True)
class EndedBy:
    """What was done to end the cell, beside interrupting it."""

    timed_out: str = ""  # which time limit, and where the ranks were then
    aborted: tuple[str, ...] = ()  # the process groups that were broken, in words
    hints: tuple[str, ...] = ()  # what may have been the reason, and what to do

    @property
    def remarks(self) -> list[str]:
        """What is to be known for the cells after it."""
        broken = f"process groups were broken ({', '.join(self.aborted)}): initialize them again"
        return [*self.hints, *([broken] if self.aborted else [])]


PLAIN = EndedBy()


class CellError(MeshbookError):
    """A cell failed: `by_rank` every rank's error, `groups` the distinct ones, `result` what there is.

    It pickles without `result`, which reaches into the running mesh.
    """

    def __init__(
        self,
        errors: Mapping[int, RankError],
        order: Sequence[int],
        result: MeshResult | None = None,
        ending: EndedBy = PLAIN,
        mesh: str = "",
    ) -> None:
        self.by_rank = dict(sorted(errors.items()))
        self.groups = group_errors(errors, order, mesh)
        self._mesh = mesh
        self.result = result
        self._order = tuple(order)
        self._ending = ending
        super().__init__(summarise(self.groups, ending))

    @property
    def ename(self) -> str:
        """The name of the first error, as front ends have it."""
        return self.groups[0].error.type_name

    @property
    def evalue(self) -> str:
        """The text of the first error."""
        return self.groups[0].error.message

    def print_traceback(self) -> None:
        """Print what the notebook shows of it."""
        print("\n".join(self._render_traceback_()))

    @property
    def is_interrupt(self) -> bool:
        """Whether the cell was stopped rather than broken."""
        return are_interrupts(self.groups)

    def raise_from_rank(self, rank: int) -> NoReturn:
        """Raise a rank's own exception, chained to this; a CellError of its own if it could not travel."""
        if rank not in self.by_rank:
            raise IndexError(f"rank {rank} did not fail; {name_ranks(self.by_rank)} did")
        error = self.by_rank[rank]
        raise _load_exception(error) or make_cell_error({rank: error}, [rank], self.result, mesh=self._mesh) from self

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this by name, instead of formatting the frames of the controller.
        return [_red(str(self))] if _is_brief() else render(self.groups, self._ending)

    def __reduce__(self) -> tuple[Callable[..., CellError], tuple[Any, ...]]:
        return make_cell_error, (self.by_rank, self._order, None, self._ending, self._mesh)


def make_cell_error(
    errors: Mapping[int, RankError],
    order: Sequence[int],
    result: MeshResult | None = None,
    ending: EndedBy = PLAIN,
    mesh: str = "",
) -> CellError:
    """The error to raise for a cell; its class is named after the first group's error.

    `order` are the ranks as they failed; `mesh` names theirs, where there are several. An interrupted cell gives a
    class named KeyboardInterrupt, but never a real one: asyncio lets that escape from a task and ends the loop, which
    is the kernel's. One that was interrupted by its time limit gives a TimeoutError.
    """
    if not errors:
        raise ValueError("a cell without errors has not failed")
    groups = group_errors(errors, order)
    return _class_named(_name_of(groups, ending))(errors, order, result, ending, mesh)


def _name_of(groups: Sequence[ErrorGroup], ending: EndedBy) -> str:
    if not are_interrupts(groups):
        return groups[0].error.type_name
    return _TIMEOUT if ending.timed_out else _INTERRUPT


def group_errors(errors: Mapping[int, RankError], order: Sequence[int], mesh: str = "") -> list[ErrorGroup]:
    """One group per distinct error: what died, what failed in the given order, and consequences last.

    Errors are the same if type, message and place are.
    """
    ranks_of: dict[Hashable, list[int]] = {}
    for rank in [*order, *sorted(errors.keys() - set(order))]:
        if rank in errors:
            ranks_of.setdefault(_identity(errors[rank]), []).append(rank)
    groups = [ErrorGroup(tuple(sorted(set(ranks))), errors[ranks[0]], mesh) for ranks in ranks_of.values()]
    return sorted(groups, key=_precedence)


def are_interrupts(groups: Sequence[ErrorGroup]) -> bool:
    """Whether the cell was stopped rather than broken: only interrupts, and what fell because of them."""
    roots, _ = _split_roots(groups)
    return all(group.error.kind in ("interrupted", "skipped") for group in roots)


def render(groups: Sequence[ErrorGroup], ending: EndedBy = PLAIN) -> list[str]:
    """The lines of the traceback, with their ANSI colours, as IPython shows them."""
    if are_interrupts(groups):
        return [_red(_name_of(groups, ending)), format_interrupt(groups, ending)]
    roots, consequences = _split_roots(groups)
    families = _join_alike(roots)
    shown, listed = families[:MOST_TRACEBACKS], [group for family in families[MOST_TRACEBACKS:] for group in family]
    parts = ["\n".join([*_render_group(first), *_render_alike(others)]) for first, *others in shown]
    parts += [_red(_one_line(group)) for group in listed[:MOST_LINES]]
    parts += _count_rest(listed[MOST_LINES:])
    parts += _format_consequential(consequences)
    parts += ending.remarks
    return "\n\n".join(parts).split("\n")


def summarise(groups: Sequence[ErrorGroup], ending: EndedBy = PLAIN) -> str:
    """The error in plain text, a line per distinct error: what papermill, nbclient and a log show."""
    if are_interrupts(groups):
        return format_interrupt(groups, ending)
    roots, consequences = _split_roots(groups)
    lines = [_one_line(group) for group in roots[:MOST_TRACEBACKS]]
    lines += _count_rest(roots[MOST_TRACEBACKS:])
    lines += _format_consequential(consequences)
    return "\n".join([*lines, *ending.remarks])


def format_interrupt(groups: Iterable[ErrorGroup], ending: EndedBy = PLAIN) -> str:
    """`interrupted; ranks 0-2 were at cell 3:2, rank 3 at cell 3:7 in step`; then what became of who did not heed it.

    What a time limit has ended was looked at before.
    """
    groups = list(groups)
    others = [group for group in groups if group.error.kind not in ("interrupted", "skipped")]
    skipped = [group for group in groups if group.error.kind == "skipped"]
    unheeding = [group for group in groups if group.error.kind == "interrupted" and group.error.message]
    parts = [ending.timed_out] if ending.timed_out else [_format_interrupted(groups), _format_places(groups)]
    parts += [f"{name_ranks(group.ranks)} {_for_ranks(group.error.message, len(group.ranks))}" for group in unheeding]
    parts += [format_consequences(others)] if others else []
    return "; ".join(filter(None, [*parts, *_format_skipped(skipped), *ending.remarks]))


def _format_interrupted(groups: Sequence[ErrorGroup]) -> str:
    return f"interrupted on {groups[0].mesh}" if groups and groups[0].mesh else "interrupted"


def _for_ranks(said: str, count: int) -> str:
    """What is said of one rank, of several."""
    for one, many in _MANY if count > 1 else ():
        said = said.replace(one, many, 1)
    return said


def _format_places(groups: Iterable[ErrorGroup]) -> str:
    """Where those were that were interrupted; of one that has never answered that may not be known."""
    ranks_at: dict[str, set[int]] = {}
    for group in groups:
        place = format_place(group.error.frames)
        if group.error.kind == "interrupted" and (place or not group.error.message):
            ranks_at.setdefault(place or "at an unknown place", set()).update(group.ranks)
    by_rank = sorted(ranks_at.items(), key=lambda item: min(item[1]))
    verbs = ["was " if len(ranks) == 1 else "were " for _, ranks in by_rank[:1]] + [""] * (len(by_rank) - 1)
    return ", ".join(f"{name_ranks(ranks)} {verb}{place}" for (place, ranks), verb in zip(by_rank, verbs, strict=True))


def format_consequences(groups: Sequence[ErrorGroup]) -> str:
    """`ranks 1-3 fell as a consequence (KeyboardInterrupt at cell 3:2)`"""
    ranks = {rank for group in groups for rank in group.ranks}
    kinds = list(dict.fromkeys(_kind_and_place(group.error) for group in groups))
    shown = kinds if len(kinds) <= 3 else [*kinds[:3], "…"]
    return f"{name_ranks(ranks)} fell as a consequence ({', '.join(shown)})"


def _format_consequential(groups: Sequence[ErrorGroup]) -> list[str]:
    """Those that another one's failure has cost theirs, and those that it has cost their turn."""
    fallen = [group for group in groups if group.error.kind != "skipped"]
    skipped = [group for group in groups if group.error.kind == "skipped"]
    return [*([format_consequences(fallen)] if fallen else []), *_format_skipped(skipped)]


def _format_skipped(groups: Iterable[ErrorGroup]) -> list[str]:
    return [f"{name_ranks(group.ranks)} did not run: {group.error.message}" for group in groups]


def _join_alike(groups: Sequence[ErrorGroup]) -> list[list[ErrorGroup]]:
    """Errors that differ in the numbers of their messages alone: one traceback is enough for them."""
    families: dict[Hashable, list[ErrorGroup]] = {}
    for group in groups:
        error = group.error
        families.setdefault((error.kind, error.type_name, error.place, skeleton(error.message)), []).append(group)
    return list(families.values())


def _render_alike(groups: Sequence[ErrorGroup]) -> list[str]:
    return [*(_red(group.title) for group in groups[:MOST_ALIKE]), *_count_rest(groups[MOST_ALIKE:])]


def _identity(error: RankError) -> Hashable:
    return error.kind, error.type_name, error.message, error.place, error.is_consequence


def _precedence(group: ErrorGroup) -> int:
    # A process that died is why the others failed, even if their error was noticed first.
    if group.is_consequence:
        return 2
    return 0 if group.error.kind == "died" else 1


def _split_roots(groups: Sequence[ErrorGroup]) -> tuple[list[ErrorGroup], list[ErrorGroup]]:
    """Causes and consequences; where nothing is known to be the cause, every error is shown as one."""
    roots = [group for group in groups if not group.is_consequence]
    return (roots, [group for group in groups if group.is_consequence]) if roots else (list(groups), [])


def _render_group(group: ErrorGroup) -> list[str]:
    body = list(group.error.rendered) or _render_frames(group.error)
    first, *more = _last_line(group.error).split("\n")
    # As Python's, a traceback ends with the error once more; a death has none, but what the rank wrote last.
    has_traceback = body and group.error.kind != "died"
    return [_red(group.title), *body, *map(_red, [first, *more] if has_traceback else more)]


def _render_frames(error: RankError) -> list[str]:
    lines: list[str] = []
    # Without a rendering it is a misuse, which IPython tells in a line: where in a library that was found is no help.
    for frame in [frame for frame in error.frames if frame.is_user] or error.frames:
        lines.append(f"  {frame.filename.strip('<>')}:{frame.line} in {frame.function}")
        lines += [f"    {frame.source.strip()}"] if frame.source.strip() else []
    return lines


def _one_line(group: ErrorGroup) -> str:
    return f"{group.title} ({group.error.place})" if group.error.place else group.title


def _last_line(error: RankError) -> str:
    return f"{error.type_name}: {error.message}" if error.message else error.type_name


def _kind_and_place(error: RankError) -> str:
    told = f"{error.type_name} {format_place(error.frames)}".rstrip()
    return f"{told}: {error.message}" if error.kind == "interrupted" and error.message else told


def _count_rest(groups: Sequence[ErrorGroup]) -> list[str]:
    if not groups:
        return []
    ranks = {rank for group in groups for rank in group.ranks}
    return [f"… {len(groups)} more distinct errors {format_label(ranks)}; the error's `by_rank` has all"]


def _is_brief() -> bool:
    """Whether the notebook shows errors in a line (`%xmode Minimal`); the other modes are those of the ranks."""
    shell = get_ipython()
    return shell is not None and shell.InteractiveTB.mode == "Minimal"


def _red(text: str) -> str:
    return f"{_RED}{text}{_RESET}"


def _load_exception(error: RankError) -> BaseException | None:
    """The exception itself; None if it cannot be unpickled here, for which its class may have any reason."""
    if error.pickled is None:
        return None
    try:
        loaded = pickle.loads(error.pickled)
    except Exception:
        return None
    return loaded if isinstance(loaded, BaseException) else None


@cache
def _class_named(name: str) -> type[CellError]:
    # Kept, so that two errors of one name are of one class, as anyone who compares types expects.
    return type(name, (CellError,), {"__module__": __name__, "__doc__": CellError.__doc__})
