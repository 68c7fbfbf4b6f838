"""The errors that a notebook raises: the user's mistakes, and cells and requests that failed on ranks.

    UserError                     a mistake in a line; shown as one line, without a traceback through our code,
                                  and with the page of its cause, if that has one
    ├── SelectionError            a selector is invalid or selects no rank; a ValueError, too
    ├── UsageError                an option, verb or argument is unknown or invalid; a ValueError, too
    ├── NotInDebugger             a debugger command is for ranks that are not stopped
    ├── MeshError *               a mesh does not exist, exists already, or cannot do what was requested
    ├── JobError *                a job does not exist, or does not support the request
    └── CellDetached *            the run of the cell was detached; its ranks continue without the notebook

    MeshbookError                 of `meshbook.runtime.errors`; the errors marked * are MeshbookErrors, too
    ├── VariableError             variables cannot be moved or read; names them, the ranks and the reason
    │   └── VariableUsageError    the same from a magic's line; a UserError, too
    ├── CellError                 a cell failed on at least one rank; `by_rank` has the error of each rank
    │   ├── LocalError            the cell failed in the notebook, and maybe on ranks as well
    │   ├── RemoteFailure         calls through the ipyparallel API failed on engines
    │   └── one class per name    made on demand: the notebook shows `ZeroDivisionError`, not `CellError`
    └── KernelError               the root of ipyparallel's own errors
        ├── NoEnginesRegistered   a program waits for more engines than the mesh has
        └── TaskAborted           a task was aborted before it began

Not for errors on a rank itself (`meshbook.runtime.cells`) or their texts (`results.error_groups`).
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.getipython import get_ipython

from meshbook.magics.results.error_groups import (
    PLAIN,
    EndedBy,
    are_interrupts,
    format_error,
    group_errors,
    name_error,
    render,
    summarise,
)
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.errors import MeshbookError, format_help
from meshbook.runtime.formats import name_ranks

if TYPE_CHECKING:  # An error only holds results and does not use them.
    from meshbook.magics.results.result import MeshResult

SHOWN_REMOTE_TRACEBACKS = 4  # by an error with failures of several engines


class UserError(Exception):
    """The base of errors about a selector, an option, a verb or a mesh's name."""

    def _render_traceback_(self) -> list[str]:
        # IPython prints these lines in place of the traceback.
        page = format_help(self.__cause__.page) if isinstance(self.__cause__, MeshbookError) else ""
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}", *([page] if page else [])]


class SelectionError(UserError, ValueError):
    """A selector that is invalid, or selects no rank; the message has the part and its column, from 1."""


class UsageError(UserError, ValueError):
    """The line has an unknown or invalid word; the message names it, and the valid ones."""


class NotInDebugger(UserError):
    """The command is for ranks that are not stopped."""


class MeshError(UserError, MeshbookError):
    """A mesh that does not exist, exists already, or cannot do what was requested."""


class JobError(UserError, MeshbookError):
    """A job that does not exist, or does not support the request."""


class CellDetached(UserError, MeshbookError):
    """The run of a cell was detached: its ranks continue without this notebook."""


class VariableError(MeshbookError):
    """Variables that cannot be moved or read; the message says which, on which ranks, and why."""


class VariableUsageError(UserError, VariableError):
    """A VariableError caused by a magic line: its traceback shows no line of the cell's code."""


VariableUsageError.__name__ = VariableError.__name__


class CellError(MeshbookError):
    """A cell failed: `by_rank` has every rank's error, `groups` the distinct ones, `result` the partial result.

    It pickles without `result`, which refers to the running mesh.
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
        """The name of the first error, in front ends' terms."""
        return self.groups[0].error.type_name

    @property
    def evalue(self) -> str:
        """The text of the first error."""
        return self.groups[0].error.message

    def print_traceback(self) -> None:
        """Print the traceback that the notebook shows."""
        print("\n".join(self._render_traceback_()))

    @property
    def is_interrupt(self) -> bool:
        """Whether the cell was interrupted rather than failed."""
        return are_interrupts(self.groups)

    def raise_from_rank(self, rank: int) -> NoReturn:
        """Raise a rank's own exception, chained to this error; a separate CellError if it could not be pickled."""
        if rank not in self.by_rank:
            raise IndexError(f"rank {rank} did not fail; {name_ranks(self.by_rank)} did")
        error = self.by_rank[rank]
        raise _load_exception(error) or make_cell_error({rank: error}, [rank], self.result, mesh=self._mesh) from self

    def _render_traceback_(self) -> list[str]:
        # IPython calls this by name, instead of formatting the frames of the controller. `%xmode Minimal` shows errors
        # in one line; the ranks apply the other modes.
        shell = get_ipython()
        if shell is not None and shell.InteractiveTB.mode == "Minimal":
            return [f"\x1b[31m{self}\x1b[0m"]
        return render(self.groups, self._ending)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return make_cell_error, (self.by_rank, self._order, None, self._ending, self._mesh)


def make_cell_error(
    errors: Mapping[int, RankError],
    order: Sequence[int],
    result: MeshResult | None = None,
    ending: EndedBy = PLAIN,
    mesh: str = "",
) -> CellError:
    """Make the error to raise for a cell; its class is named after the first group's error.

    `order` are the ranks in the order of failure; `mesh` is the name of their mesh, if there are several. An
    interrupted cell gets a class named KeyboardInterrupt, but never the real one: asyncio lets that escape from a task,
    and it ends the event loop, which belongs to the kernel. A cell that its time limit interrupted gets a TimeoutError.
    """
    if not errors:
        raise ValueError("errors must not be empty: a cell fails only with the error of a rank")
    groups = group_errors(errors, order)
    made: CellError = _class_named(name_error(groups, ending), CellError)(errors, order, result, ending, mesh)
    return made


class LocalError(CellError):
    """The cell failed in the notebook, and maybe on ranks (`by_rank`); `local` is the exception raised here.

    `headline` and `traceback` are the text and the traceback of the error here; `ranks` is the error of the ranks.
    """

    def __init__(
        self,
        local: BaseException,
        *,
        headline: str,
        traceback: Sequence[str],
        ranks: CellError | None,
        result: MeshResult | None,
    ) -> None:
        self.local = local
        self.by_rank = {} if ranks is None else ranks.by_rank
        self.groups = [] if ranks is None else ranks.groups
        self.result = result
        self._rendered = [f"\x1b[31m{headline}\x1b[0m", *traceback]
        self._rendered += ["", *ranks._render_traceback_()] if ranks is not None else []
        MeshbookError.__init__(self, headline if ranks is None else f"{headline}\n{ranks}")

    @property
    def is_interrupt(self) -> bool:
        """Whether an interrupt stopped the cell."""
        return isinstance(self.local, KeyboardInterrupt | asyncio.CancelledError)

    def _render_traceback_(self) -> list[str]:
        return self._rendered

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return MeshbookError, (str(self),)


class RemoteFailure(CellError):
    """Calls that failed on engines. `elist` has `(ename, evalue, traceback, engine_info)` of each."""

    msg = ""
    elist: Sequence[tuple[str, str, str, dict[str, Any]]] = ()

    @property
    def traceback(self) -> str:
        """The traceback of the first failure."""
        return self.elist[0][2]

    @property
    def engine_info(self) -> dict[str, Any]:
        """The place of the first failure: `engine_id` and `method`."""
        return self.elist[0][3]

    def render_traceback(self, excid: int | None = None) -> list[str]:
        """Return the lines of the tracebacks, or of the one with this index."""
        chosen = self.elist[:SHOWN_REMOTE_TRACEBACKS] if excid is None else [self.elist[excid]]
        lines: list[str] = []
        for _, _, trace, where in chosen:
            lines += [
                f"[{where['engine_id']}:{where['method']}]:",
                *(trace or "No traceback available").splitlines(),
                "",
            ]
        hidden = len(self.elist) - len(chosen)
        return [*lines, f"... {hidden} more exceptions ..."] if excid is None and hidden else lines

    def print_traceback(self, excid: int | None = None) -> None:
        """Print the tracebacks of the engines, or the one with this index."""
        print("\n".join(self.render_traceback(excid)))

    def raise_exception(self, excid: int = 0) -> NoReturn:
        """Raise one of the failures; IndexError if there is none with this index."""
        _, _, _, where = self.elist[excid]
        rank = where["engine_id"]
        raise make_remote_failure([(rank, self.by_rank[rank])], where["method"])


def make_remote_failure(failures: Sequence[tuple[int, RankError]], method: str) -> RemoteFailure:
    """Return one error for failed calls, in the order of the calls; it has the name of the first."""
    by_rank: dict[int, RankError] = {}
    for rank, error in failures:
        by_rank.setdefault(rank, error)
    made: RemoteFailure = _class_named(failures[0][1].type_name, RemoteFailure)(by_rank, list(by_rank))
    made.msg = f"one or more exceptions raised in: {method}"
    made.elist = [
        (
            *(error.type_name, error.message),
            "\n".join([*error.rendered, format_error(error)]),
            {"engine_id": rank, "method": "apply"},
        )
        for rank, error in failures
    ]
    return made


class KernelError(MeshbookError):
    """The root of ipyparallel's own errors."""


class NoEnginesRegistered(KernelError):
    """A program waits for more engines than there are."""


class TaskAborted(KernelError):
    """A task was aborted before it began."""


@cache
def _class_named(name: str, base: type[CellError]) -> Any:
    # Cached, so that two errors of one name have the same class, as comparisons of types require.
    return type(name, (base,), {"__module__": __name__, "__doc__": base.__doc__})


def _load_exception(error: RankError) -> BaseException | None:
    """Return the exception itself; None if it cannot be unpickled here, for which its class may raise anything."""
    if error.pickled is None:
        return None
    try:
        loaded = pickle.loads(error.pickled)
    except Exception:
        return None
    return loaded if isinstance(loaded, BaseException) else None
