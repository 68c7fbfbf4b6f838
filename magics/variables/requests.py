"""Requests to ranks about their variables: sent, awaited on a thread or in a coroutine, cancelled by Ctrl-C.

An operation on variables is a generator (`Steps`): it yields requests and receives their answers. It is independent of
which of the two ways waits for them.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

from meshbook.magics.cells.admission import format_waiting
from meshbook.magics.cells.rank_errors import check_able
from meshbook.magics.errors import VariableError, VariableUsageError, make_cell_error
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.meshes.whereabouts import ask_ranks
from meshbook.magics.shell.cell_interrupts import run_interruptible
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.cells.variables import RequestError, VariableRequest
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.formats import name_ranks

QUIET = 2.0  # seconds without an answer until a message reports what the request waits for
_serial = itertools.count(1)
T = TypeVar("T")
# The requests that the steps in this context have created. Ctrl-C may arrive before one of them is awaited.
_created_requests: ContextVar[list[RankRequest] | None] = ContextVar("created_requests", default=None)


@contextmanager
def as_usage_errors() -> Iterator[None]:
    """Convert the VariableError of a magic line's steps to VariableUsageError."""
    try:
        yield
    except VariableError as error:
        raise VariableUsageError(str(error)) from None


class RankRequest:
    """One request to each of some ranks; the constructor sends it. `what` completes "cannot …"."""

    def __init__(self, mesh: NotebookMesh, requests: Mapping[int, VariableRequest], what: str) -> None:
        check_able(mesh, mesh.procs.region.pick(requests))
        mesh.share_path()
        self._mesh = mesh
        self._what = what
        self._operation = f"{what} {next(_serial)}"
        nodes = mesh.procs.nodes
        self._nodes = {rank: nodes[rank].node for rank in requests}
        self._is_cancelled = False
        if (created := _created_requests.get()) is not None:
            created.append(self)
        mesh.queues.join(self._nodes.values(), self._operation, what)
        self._futures: dict[int, Future[Any]] = {}
        try:
            self._send(requests)
        except BaseException:
            for rank in requests.keys() - self._futures.keys():  # no rank may wait for a request that was never sent
                mesh.queues.leave(self._nodes[rank], self._operation)
            raise

    def _send(self, requests: Mapping[int, VariableRequest]) -> None:
        """Send one call to all ranks with the same request, so that it is pickled once."""
        alike: dict[int, list[int]] = {}
        for rank in sorted(requests):
            alike.setdefault(id(requests[rank]), []).append(rank)
        for ranks in alike.values():
            handle = self._mesh.pick(self._mesh.cells, ranks).handle
            futures = handle.call_each(requests[ranks[0]], self._operation)
            for rank, future in zip(ranks, futures, strict=True):
                self._futures[rank] = future
                future.when_done(functools.partial(self._mesh.queues.leave, self._nodes[rank], self._operation))

    @property
    def futures(self) -> Mapping[int, Future[Any]]:
        """The future answer of each rank, unprocessed."""
        return self._futures

    @property
    def ahead(self) -> dict[int, str]:
        """The tasks of the ranks that must end first: `job 7 of cell 12`."""
        ahead = self._mesh.queues.ahead_of(self._nodes, self._operation)
        return {rank: title for rank, title in ahead.items() if title}

    def wait(self) -> dict[int, Any]:
        """Wait for the answers by rank; blocks this thread. Ctrl-C cancels the request, here and on the ranks."""
        with self._breakable():
            if not self._are_done_within(QUIET):
                waiting = format_waiting(self.ahead, len(self._nodes))
                waiting = waiting or f"waiting for {name_ranks(self._open_ranks())}"
                print(f"{waiting} (interrupt to cancel)")
            for future in self._futures.values():
                future.exception()
        return self._answers()

    def wait_at_most(self, seconds: float) -> dict[int, Any]:
        """Return the answers that arrive in time, including refusals. Ranks that run something else are not awaited."""
        ahead = self.ahead
        with self._breakable():
            self._are_done_within(seconds, without=ahead)
        if self._open_ranks():
            self.interrupt()  # ranks that have not begun by now need not begin
        busy = {rank: RequestError(f"busy with {title}") for rank, title in ahead.items()}
        return busy | {rank: _result_of(future) for rank, future in self._futures.items() if future.done()}

    @contextmanager
    def _breakable(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self.interrupt()
            raise

    def _are_done_within(self, seconds: float, without: Collection[int] = ()) -> bool:
        end = time.monotonic() + seconds
        try:
            for rank in self._futures.keys() - set(without):
                self._futures[rank].exception(timeout=max(0.0, end - time.monotonic()))
        except TimeoutError:
            return False
        return True

    async def settle(self) -> dict[int, Any]:
        """Wait like `wait`, without blocking the event loop."""
        cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def cancel() -> None:
            self.interrupt()
            if not cancelled.done():
                cancelled.set_result(None)

        await run_interruptible(self._first_of(cancelled), cancel)
        if cancelled.done():
            error = RankError("interrupted", "KeyboardInterrupt", f"no answer before '{self._what}' was cancelled")
            raise make_cell_error(dict.fromkeys(self._open_ranks() or self._futures, error), ())
        return self._answers()

    async def _first_of(self, cancelled: asyncio.Future[None]) -> None:
        asyncio_futures = [future.as_asyncio() for future in self._futures.values()]
        answers = asyncio.ensure_future(asyncio.wait(asyncio_futures))
        waiting: list[asyncio.Future[Any]] = [answers, cancelled]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for asyncio_future in asyncio_futures:
            asyncio_future.add_done_callback(asyncio.Future.exception)  # no warning: the futures report errors

    def _open_ranks(self) -> list[int]:
        return [rank for rank, future in self._futures.items() if not future.done()]

    def interrupt(self) -> None:
        """Cancel the request: the ranks stop what it requested. Idempotent."""
        if not self._is_cancelled:
            ask_ranks(self._mesh, list(self._nodes)).interrupt.broadcast(self._operation)
            self._is_cancelled = True

    def _answers(self) -> dict[int, Any]:
        answers = {rank: _result_of(future) for rank, future in self._futures.items()}
        raise_refusals(self._what, answers)
        return answers


def raise_refusals(what: str, answers: Mapping[int, Any]) -> None:
    """Raise VariableError if any answer is a refusal, with all refusals by rank."""
    refused: dict[RequestError, list[int]] = {}
    for rank, answer in sorted(answers.items()):
        if isinstance(answer, RequestError):
            refused.setdefault(answer, []).append(rank)
    if refused:
        parts = [
            f"{refusal.reason} on {name_ranks(ranks)}" + (f" ({refusal.hint})" if refusal.hint else "")
            for refusal, ranks in refused.items()
        ]
        raise VariableError(f"cannot {what}: {'; '.join(parts)}")


def _result_of(future: Future[Any]) -> Any:
    try:
        return future.get()
    except MeshbookError as error:
        return RequestError(str(error).strip())


Steps: TypeAlias = Generator[RankRequest, dict[int, Any], T]


def run_steps(steps: Steps[T]) -> T:
    """Run the steps on this thread and block for each. Ctrl-C cancels them, here and on the ranks."""
    created: list[RankRequest] = []
    token = _created_requests.set(created)
    try:
        request = next(steps)
        while True:
            request = steps.send(request.wait())
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except KeyboardInterrupt:
        for request in created[-1:]:  # the earlier ones have been answered
            request.interrupt()
        raise
    finally:
        _created_requests.reset(token)


async def run_steps_async(steps: Steps[T]) -> T:
    """Run the steps in a coroutine."""
    try:
        request = next(steps)
        while True:
            request = steps.send(await request.settle())
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
