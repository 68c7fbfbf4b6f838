"""The `AsyncResult` that a view's calls return: values, with the time, rank and output of each call."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython

from meshbook.magics.cells.maps import format_bar
from meshbook.magics.compat.calls import KEYS, ViewCall, ViewFuture, as_rank_error, wait_for
from meshbook.magics.errors import TaskAborted, make_remote_failure
from meshbook.magics.output.publisher import LiveDisplay, publisher_for
from meshbook.runtime.cells.dependencies import UnmetDependency
from meshbook.runtime.cells.function_calls import RecordedResult
from meshbook.runtime.cells.packed_values import PackedValues

if TYPE_CHECKING:
    from meshbook.magics.compat.cluster import Client

Make = Callable[[list[Any]], Any]
FOREVER = -1.0  # ipyparallel's timeout for no limit


def values_of(answers: Mapping[int, Any], what: str = "calls") -> dict[int, Any]:
    """Return the values that ranks have sent; raises RemoteError if a function raised."""
    given: dict[int, Any] = {
        rank: each.answer if isinstance(each, RecordedResult) else each for rank, each in answers.items()
    }
    if failed := [
        (rank, as_rank_error(rank, each)) for rank, each in given.items() if not isinstance(each, PackedValues)
    ]:
        raise make_remote_failure(failed, what)
    return {rank: each.open()["value"] for rank, each in given.items()}


class AsyncResult(ViewFuture):
    """The answers of some calls. `make` turns their values into the result of `get`; `abort` ends the calls early."""

    def __init__(
        self,
        calls: Sequence[ViewCall],
        name: str = "unknown",
        make: Make = lambda values: values,
        *,
        single: bool = False,
        return_exceptions: bool = False,
        abort: Callable[[], object] = lambda: None,
        client: Client | None = None,
    ) -> None:
        super().__init__()
        self.calls = list(calls)
        self._fname = name
        self._make = make
        self._single = single
        self._return_exceptions = return_exceptions
        self._abort = abort
        self._client = client
        self._lock = threading.Lock()  # guards `_open`
        self._open = len(self.calls)
        if not self.calls:
            self._resolve()
        for call in self.calls:
            call.add_done_callback(self._note_end)

    def _note_end(self, _: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._open -= 1
            is_last = not self._open
        if is_last:
            self._resolve()

    def _resolve(self) -> None:
        try:
            self.set_result(self._collect(self._return_exceptions))
        except Exception as error:
            self.set_exception(error)

    def _collect(self, return_exceptions: bool) -> Any:
        failed = [call for call in self.calls if call.exception() is not None]
        if not failed:
            return self._make([call.result() for call in self.calls])
        if return_exceptions:
            values = [call.exception() or call.result() for call in self.calls]
            return values[0] if self._single else self._flatten(values)
        reports = [(call.engine if call.engine is not None else -1, call.error) for call in failed]
        here = (call.exception() for call in failed)
        if (own := next((each for each in here if isinstance(each, TaskAborted | UnmetDependency)), None)) is not None:
            raise own
        raise make_remote_failure([(rank, error) for rank, error in reports if error is not None], self._fname)

    def _flatten(self, values: list[Any]) -> list[Any]:
        return values

    # -- waiting ------------------------------------------------------------------------

    def get(
        self, timeout: float | None = None, return_exceptions: bool | None = None, return_when: str | None = None
    ) -> Any:
        """Wait for the result; TimeoutError after so many seconds. Raises the errors of engines."""
        if return_when == concurrent.futures.FIRST_EXCEPTION:
            self.wait(timeout, return_when)
            for call in self.calls:
                if call.done() and call.exception() is not None:
                    return self._collect(bool(return_exceptions))
        if not self.wait(timeout):
            raise TimeoutError(f"Result not ready: {self!r}")
        return self._collect(self._return_exceptions if return_exceptions is None else return_exceptions)

    @property
    def r(self) -> Any:
        """The result."""
        return self.get()

    def wait(self, timeout: float | None = FOREVER, return_when: str | None = None) -> Any:
        """Wait until all calls have ended, or for so many seconds; returns whether they have ended.

        With `return_when` of `concurrent.futures`: returns the results that are done, and the others.
        """
        limit = None if timeout is None or timeout < 0 else timeout
        with self._aborted_by_interrupt():
            if return_when is None:
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    self.exception(limit)
                return self.done()
            parts = self.split()
            return wait_for(parts, limit, return_when)

    @contextlib.contextmanager
    def _aborted_by_interrupt(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self._abort()
            raise

    def wait_for_output(self, timeout: float = FOREVER) -> bool:
        """Wait as `wait` does: output arrives with the answers."""
        return bool(self.wait(timeout))

    def wait_for_send(self, timeout: float = FOREVER) -> None:
        """Return at once: sent data has been copied."""

    sent = True

    def done(self) -> bool:
        """Return whether all calls have ended."""
        return super().done() or (bool(self.calls) and all(call.done() for call in self.calls))

    ready = done

    def successful(self) -> bool:
        """Return whether no call has raised; RuntimeError if some are pending."""
        if not self.done():
            raise RuntimeError("Cannot check successful() if not done.")
        return all(call.exception() is None for call in self.calls)

    def abort(self) -> None:
        """Cancel calls that have not begun, and interrupt those of a direct view; RuntimeError if all are done."""
        if self.done():
            raise RuntimeError("Can't abort, I am already done!")
        self._abort()

    def cancel(self) -> bool:
        """Abort the calls; False if all are done."""
        if self.done():
            return False
        self._abort()
        return True

    def split(self) -> tuple[AsyncResult, ...]:
        """Return a result for each call."""
        if len(self.calls) == 1:
            return (self,)
        return tuple(
            AsyncResult([call], self._fname, lambda values: values[0], single=True, client=self._client)
            for call in self.calls
        )

    @classmethod
    def join(cls, *results: AsyncResult) -> AsyncResult:
        """Return the results of several as one list."""
        if not results:
            raise ValueError("Must specify at least one AsyncResult to join")
        return AsyncResult([call for each in results for call in each.calls], results[0]._fname)

    def wait_interactive(
        self,
        interval: float = 0.1,
        timeout: float = FOREVER,
        widget: bool | None = None,
        return_when: str = "ALL_COMPLETED",
    ) -> None:
        """Wait, and show the progress."""
        end = None if timeout is None or timeout < 0 else time.monotonic() + timeout
        began, shown, publisher = time.monotonic(), "", publisher_for(get_ipython())
        how = None if return_when == concurrent.futures.ALL_COMPLETED else return_when
        is_over = False
        while not is_over:
            left = interval if end is None else max(0.0, min(interval, end - time.monotonic()))
            found = self.wait(left, how)
            is_over = self.done() or (end is not None and time.monotonic() >= end)
            if how is not None and not is_over:
                done, _ = found
                is_over = bool(done) and (
                    how == concurrent.futures.FIRST_COMPLETED or any(each.exception() is not None for each in done)
                )
            text = format_bar(self._fname, self.progress, len(self), time.monotonic() - began)
            if text != shown or is_over:
                publisher.publish([LiveDisplay({"text/plain": text}, bool(shown), is_over)])
                shown = text

    # -- metadata of the calls --------------------------------------------------------------

    @property
    def msg_ids(self) -> list[str]:
        """The ids of the calls."""
        return [call.msg_id for call in self.calls]

    @property
    def metadata(self) -> Any:
        """The time, rank and output of each call: a list, or one entry for a single call."""
        found = [call.metadata for call in self.calls]
        return found[0] if self._single else found

    def get_dict(self, timeout: float | None = FOREVER) -> dict[int, Any]:
        """Return the results by engine; ValueError if an engine has several."""
        found = self.get(None if timeout is None or timeout < 0 else timeout)
        engines = [call.engine for call in self.calls]
        results = [found] if self._single else found
        made: dict[int, Any] = {}
        for engine, result in zip(engines, results, strict=False):
            if engine in made:
                raise ValueError(f"Cannot build dict, {engines.count(engine)} jobs ran on engine #{engine}")
            made[-1 if engine is None else engine] = result
        return made

    @property
    def result_dict(self) -> dict[int, Any]:
        """The results by engine."""
        return self.get_dict()

    @property
    def progress(self) -> int:
        """The number of items that are done."""
        return sum(call.size for call in self.calls if call.done())

    @property
    def elapsed(self) -> float:
        """Seconds from sending the first call until now, or until the last answer."""
        if self.done():
            return self.wall_time
        return time.time() - min(call.submitted for call in self.calls)

    @property
    def serial_time(self) -> float:
        """The sum of the seconds that the calls took; TimeoutError if some are pending."""
        self._check_ready()
        return sum(call.recorded.seconds for call in self.calls if call.recorded is not None)

    @property
    def wall_time(self) -> float:
        """Seconds from the first call until the last answer; TimeoutError if some are pending."""
        self._check_ready()
        first = min((call.submitted for call in self.calls), default=0.0)
        return max((call.received or first for call in self.calls), default=0.0) - first

    def timedelta(
        self, start: Any, end: Any, start_key: Callable[[Any], Any] = min, end_key: Callable[[Any], Any] = max
    ) -> float:
        """Return the seconds between two times, or between the earliest and the latest of several."""
        first = start if isinstance(start, datetime) else start_key(start)
        last = end if isinstance(end, datetime) else end_key(end)
        return float((last - first).total_seconds())

    def _check_ready(self) -> None:
        if not self.done():
            raise TimeoutError("Result not ready.")

    # -- output -----------------------------------------------------------------------------

    def display_outputs(self, groupby: str = "type", result_only: bool = False) -> None:
        """Show the output of the calls and the values of `execute`: by type, or engine by engine."""
        if groupby not in ("type", "engine", "order"):
            raise ValueError(f"groupby must be one of 'type', 'engine', 'order', not {groupby!r}")
        self._check_ready()
        kinds: list[Callable[[ViewCall], None]] = [
            *([] if result_only else [self._show_stdout, self._show_stderr, self._show_displays]),
            self._show_result,
        ]
        if groupby == "engine":
            pairs = [(kind, call) for call in self.calls for kind in kinds]
        else:
            pairs = [(kind, call) for kind in kinds for call in self.calls]
        for kind, call in pairs:
            kind(call)

    def _show_stdout(self, call: ViewCall) -> None:
        _show_stream("" if self._single else f"[stdout:{call.engine}] \n", call.metadata["stdout"], sys.stdout)

    def _show_stderr(self, call: ViewCall) -> None:
        _show_stream("" if self._single else f"[stderr:{call.engine}] \n", call.metadata["stderr"], sys.stderr)

    def _show_displays(self, call: ViewCall) -> None:
        shell = get_ipython()
        for output in call.metadata["outputs"] if shell is not None else ():
            shell.display_pub.publish(data=dict(output["data"]), metadata=dict(output["metadata"] or {}))

    def _show_result(self, call: ViewCall) -> None:
        shell = get_ipython()
        if shell is not None and (found := call.metadata["execute_result"]) is not None:
            data = dict(found["data"])
            data["text/plain"] = f"Out[{call.engine}]: {data.get('text/plain', '')}"
            shell.display_pub.publish(data=data, metadata={})

    @contextlib.contextmanager
    def stream_output(self) -> Iterator[None]:
        """Show at the end of the block the output that the calls have made so far."""
        try:
            yield
        finally:
            if self.done():
                self.display_outputs()

    # -- as a sequence ------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        """Return a result by its index, or an entry of the metadata by its key."""
        if isinstance(key, str):
            values = [call.metadata[key] for call in self.calls]
            return values[0] if self._single else values
        self._check_ready()
        return self.get()[key]

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_") or key not in KEYS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {key!r}")
        return self[key]

    def __iter__(self) -> Iterator[Any]:
        if self._single:
            raise TypeError("AsyncResults with a single result are not iterable.")
        for call in self.calls:
            with self._aborted_by_interrupt():
                yield call.result()

    def __len__(self) -> int:
        return sum(call.size for call in self.calls)

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "finished" if self.successful() else "failed"
        return f"<{type(self).__name__}({self._fname}): {state}>"


class AsyncMapResult(AsyncResult):
    """The results of a map: one list, iterated as items are done; with `ordered=False` as they arrive.

    If it is `chunked`, the value of a call is the list of the results of its items.
    """

    def __init__(
        self, calls: Sequence[ViewCall], name: str, *, ordered: bool = True, chunked: bool = False, **options: Any
    ) -> None:
        self._chunked = chunked
        self.ordered = ordered
        super().__init__(calls, name, _chain if chunked else list, **options)

    def _flatten(self, values: list[Any]) -> list[Any]:
        return _chain([[each] if isinstance(each, Exception) else each for each in values]) if self._chunked else values

    def __iter__(self) -> Iterator[Any]:
        calls = self.calls if self.ordered else concurrent.futures.as_completed(self.calls)
        for call in calls:
            with self._aborted_by_interrupt():
                error = call.exception()
            if error is not None and self._return_exceptions:
                yield error
            elif self._chunked:
                yield from call.result()
            else:
                yield call.result()


def ready_result(client: Client, values: Mapping[int, Any], name: str, make: Make, *, single: bool) -> AsyncResult:
    """Return the result of an operation that is already done, by engine."""
    calls = [ViewCall(client, engine) for engine in values]
    result = AsyncResult(calls, name, make, single=single, client=client)
    for call, value in zip(calls, values.values(), strict=True):
        call.settle(value)
    return result


def _chain(values: list[Any]) -> list[Any]:
    return [item for part in values for item in part]


def _show_stream(prefix: str, text: str, file: Any) -> None:
    if text:
        print(f"{prefix}{text}", file=file, end="" if text.endswith("\n") else "\n")
