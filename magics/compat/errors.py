"""ipyparallel's errors: those that views raise, and the names and attributes that its programs use."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from meshbook.magics.cells.rank_errors import error_of_lost
from meshbook.magics.errors import CellError, KernelError, NoEnginesRegistered, TaskAborted
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.cells.variables import RequestError
from meshbook.runtime.errors import CallCancelled, ItemError, MeshbookError
from meshbook.runtime.traces import headline, name_cells


def as_rank_error(rank: int, error: BaseException | RankError | RequestError) -> RankError:
    """Return any outcome of a call that is not a value as an error of its rank."""
    if isinstance(error, RankError):  # the rank does not have the source lines of this notebook's cells
        return dataclasses.replace(error, rendered=tuple(name_cells("\n".join(error.rendered)).split("\n")))
    if isinstance(error, RequestError):
        return RankError("raised", "SerializationError", error.reason)
    if isinstance(error, ItemError):
        return RankError("raised", error.type_name, error.text, rendered=tuple(error.trace.splitlines()[:-1]))
    if isinstance(error, CallCancelled):
        return RankError("skipped", TaskAborted.__name__, "the task was aborted before it started")
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
