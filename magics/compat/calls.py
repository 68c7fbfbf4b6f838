"""One call on an engine: its answer or its error, and its time, rank and output."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import math
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from meshbook.magics.cells.rank_errors import error_of_lost
from meshbook.magics.errors import CellError, KernelError, NoEnginesRegistered, TaskAborted, make_remote_failure
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.dependencies import ImpossibleDependency, UnmetDependency
from meshbook.runtime.cells.function_calls import RecordedResult
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.cells.packed_values import PackedValues
from meshbook.runtime.cells.variables import RequestError
from meshbook.runtime.errors import CallCancelled, ItemError, MeshbookError
from meshbook.runtime.threads import SIGNAL_CHECK_SECONDS
from meshbook.runtime.traces import headline, name_cells

if TYPE_CHECKING:
    from meshbook.magics.compat.cluster import Client


# Keys of a call's metadata.
KEYS = (
    *("msg_id", "submitted", "started", "completed", "received", "engine_uuid", "engine_id", "follow", "after"),
    *("status", "execute_input", "execute_result", "error", "stdout", "stderr", "outputs", "data", "label"),
)


class Metadata(dict[str, Any]):
    """The time, rank and output of a call; the keys are also attributes."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None


def wait_for(
    futures: Collection[concurrent.futures.Future[Any]],
    seconds: float | None = None,
    return_when: str = concurrent.futures.ALL_COMPLETED,
) -> tuple[set[Any], set[Any]]:
    """Wait like `concurrent.futures.wait`; return those that are done, and the others.

    It waits in pieces: a Ctrl-C that comes just before a wait is noticed only at the end of the wait.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    while True:
        left = max(0.0, end - time.monotonic())
        done, others = concurrent.futures.wait(futures, min(left, SIGNAL_CHECK_SECONDS), return_when)
        is_over = not others or (bool(done) and return_when == concurrent.futures.FIRST_COMPLETED)
        if return_when == concurrent.futures.FIRST_EXCEPTION:
            is_over = is_over or any(not each.cancelled() and each.exception(0) is not None for each in done)
        if is_over or left <= SIGNAL_CHECK_SECONDS:
            return done, others


class ViewFuture(concurrent.futures.Future[Any]):
    """A future whose waits Ctrl-C ends."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the value; TimeoutError after so many seconds."""
        wait_for([self], timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait; return the exception, or None if there is a value. TimeoutError after so many seconds."""
        wait_for([self], timeout)
        return super().exception(0)


class ViewCall(ViewFuture):
    """One call. `engine` is its rank; None until a rank has taken it. `size` is the number of its items.

    `submitted` is the time when it was sent, in seconds since 1970; by default, now.
    """

    def __init__(
        self,
        client: Client,
        engine: int | None = None,
        *,
        size: int = 1,
        label: str | None = None,
        submitted: float | None = None,
    ) -> None:
        super().__init__()
        self.client = client
        self.engine = engine
        self.size = size
        self.label = label
        self.msg_id = uuid.uuid4().hex
        self.submitted = time.time() if submitted is None else submitted
        self.received: float | None = None
        self.recorded: RecordedResult | None = None
        self.error: RankError | None = None
        self.shows_value = False  # the value is a display bundle
        self.abort: Callable[[], object] = lambda: None  # cancels the call
        client.note_begin(self)

    def follow(self, answer: Future[Any], find_engine: Callable[[], int | None] = lambda: None) -> None:
        """Settle with this answer. The user's objects in it are unpickled on a thread of the client's."""
        answer.when_done(lambda: self.client.resolve(functools.partial(self.take, answer, find_engine)))

    def take(self, answer: Future[Any], find_engine: Callable[[], int | None]) -> None:
        """Settle with an answer that has arrived."""
        self.engine = find_engine() if self.engine is None else self.engine
        given: Any
        try:
            given = answer.get()
            if isinstance(given, RecordedResult):
                self.recorded, given = given, given.answer
            value = given.open()["value"] if isinstance(given, PackedValues) else None
        except Exception as error:
            given = error
        self.received = time.time()
        if isinstance(given, PackedValues):
            self.settle(value)
        else:
            self.error = as_rank_error(-1 if self.engine is None else self.engine, given)
            is_aborted = self.error.type_name == TaskAborted.__name__
            self.settle_error(TaskAborted(self.error.message) if is_aborted else None)

    def settle(self, value: Any) -> None:
        """Set the value."""
        self.received = self.received or time.time()
        self.client.note_end(self)
        self.set_result(value)

    def refuse(self, error: BaseException) -> None:
        """Set an error of this process: the call has never begun."""
        self.error = as_rank_error(-1, error)
        self.settle_error(error)

    def settle_error(self, error: BaseException | None = None) -> None:
        """Set an error, by default that of its rank."""
        self.client.note_end(self)
        if error is None:
            assert self.error is not None
            error = make_remote_failure([(-1 if self.engine is None else self.engine, self.error)], "apply")
        self.set_exception(error)

    @property
    def metadata(self) -> Metadata:
        """The present metadata of the call."""
        known = Metadata.fromkeys(KEYS)
        made = Metadata(known)
        made.update(msg_id=self.msg_id, engine_id=self.engine, label=self.label, submitted=_date(self.submitted))
        made.update(stdout="", stderr="", outputs=[], data={}, received=_date(self.received))
        made["engine_uuid"] = None if self.engine is None else f"{self.client.name}.{self.engine}"
        if self.done():
            made["status"] = "ok" if self.error is None else "error"
        if (recorded := self.recorded) is not None:
            made.update(started=_date(recorded.began), completed=_date(recorded.began + recorded.seconds))
            made.update(stdout=recorded.stdout, stderr=recorded.stderr, outputs=list(recorded.outputs))
            for each in recorded.data:
                made["data"].update(each.open())
        if self.shows_value and self.done() and self.error is None:
            made["execute_result"] = ExecuteReply(self.result(), self.engine).execute_result
        return made


class ExecuteReply:
    """The reply of an engine to `execute`: the display bundle of the last expression, unless it was silent."""

    def __init__(self, data: Mapping[str, Any] | None, engine: int | None) -> None:
        self.execute_result = None if data is None else {"data": dict(data), "metadata": {}}
        self.data = dict(data or {})
        self._engine = engine

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return self.data

    def __repr__(self) -> str:
        text = self.data.get("text/plain", "")
        return f"Out[{self._engine}]: {text}" if text else f"<ExecuteReply[{self._engine}]>"


def _date(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


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


def error_names() -> Mapping[str, Any]:
    """Return the names of `ipyparallel.error`. Errors of cells and of views are one class."""
    own = (KernelError, NoEnginesRegistered, TaskAborted)
    return {each.__name__: each for each in own} | {
        "RemoteError": CellError,
        "CompositeError": CellError,
        "AlreadyDisplayedError": CellError,
        "IPythonError": KernelError,
        "EngineError": KernelError,
        "TaskRejectError": TaskAborted,
        "TimeoutError": TimeoutError,
        "TaskTimeout": TimeoutError,
        "UnmetDependency": UnmetDependency,
        "ImpossibleDependency": ImpossibleDependency,
        "InvalidDependency": ImpossibleDependency,
        "DependencyTimeout": ImpossibleDependency,
    }
