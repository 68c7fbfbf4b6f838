"""ipyparallel's errors: those that views raise, and the names and attributes that its programs use."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

from meshbook.magics.cells.rank_errors import error_of_lost
from meshbook.magics.results.cell_error import CellError
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.cells.variables import RequestError
from meshbook.runtime.errors import CallCancelled, ItemError, MeshbookError
from meshbook.runtime.traces import headline, name_cells

TRACEBACKS = 4  # shown by a CompositeError


class KernelError(MeshbookError):
    """The root of ipyparallel's own errors."""


class NoEnginesRegistered(KernelError):
    """A program waits for more engines than there are."""


class TaskAborted(KernelError):
    """A task was aborted before it began."""


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
        chosen = self.elist[:TRACEBACKS] if excid is None else [self.elist[excid]]
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
        raise make_error([(rank, self.by_rank[rank])], where["method"])


@cache
def _named(name: str) -> type[RemoteFailure]:
    # Cached, so that two errors of one name have the same class.
    return type(name, (RemoteFailure,), {"__module__": __name__, "__doc__": RemoteFailure.__doc__})


def make_error(failures: Sequence[tuple[int, RankError]], method: str) -> RemoteFailure:
    """Return one error for failed calls, in the order of the calls; it has the name of the first."""
    by_rank: dict[int, RankError] = {}
    for rank, error in failures:
        by_rank.setdefault(rank, error)
    made = _named(failures[0][1].type_name)(by_rank, list(by_rank))
    made.msg = f"one or more exceptions raised in: {method}"
    made.elist = [
        (
            *(error.type_name, error.message),
            "\n".join([*error.rendered, headline_of(error)]),
            {"engine_id": rank, "method": "apply"},
        )
        for rank, error in failures
    ]
    return made


def headline_of(error: RankError) -> str:
    """Format an error: `ValueError: no such thing`."""
    return f"{error.type_name}: {error.message}" if error.message else error.type_name


def as_rank_error(rank: int, error: BaseException | RankError | RequestError) -> RankError:
    """Return any outcome of a call that is not a value as an error of its rank."""
    if isinstance(error, RankError):  # the rank does not have the source lines of this notebook's cells
        return dataclasses.replace(error, rendered=tuple(name_cells("\n".join(error.rendered)).split("\n")))
    if isinstance(error, RequestError):
        return RankError("raised", "SerializationError", error.reason)
    if isinstance(error, ItemError):
        return RankError("raised", error.type_name, error.text, rendered=tuple(error.trace.splitlines()[:-1]))
    if isinstance(error, CallCancelled):
        return RankError("skipped", TaskAborted.__name__, "the task was aborted before it began")
    if isinstance(error, MeshbookError):
        return error_of_lost(rank, error)
    return RankError("raised", type(error).__name__, headline(error))


def names() -> Mapping[str, Any]:
    """Return the names of `ipyparallel.error`. Errors of cells and of views are one class."""
    own = (KernelError, NoEnginesRegistered, TaskAborted)
    return {each.__name__: each for each in own} | {
        "RemoteError": CellError,
        "CompositeError": CellError,
        "TimeoutError": TimeoutError,
    }
