"""What a view's calls return: their answers, now or later."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meshbook.magics.exchange import Exchange, VariableError
from meshbook.magics.tracebacks import make_cell_error
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.traces import name_cells

Make = Callable[[dict[int, Any]], Any]


def values_of(answers: Mapping[int, Any]) -> dict[int, Any]:
    """The values that ranks have sent. CellError where a function raised."""
    if failed := {rank: _with_cells(answer) for rank, answer in answers.items() if isinstance(answer, RankError)}:
        raise make_cell_error(failed, list(failed))
    return {rank: answer.open()["value"] for rank, answer in answers.items()}


def _with_cells(error: RankError) -> RankError:
    """With the lines of this notebook's cells, which a rank does not know."""
    return dataclasses.replace(error, rendered=tuple(name_cells("\n".join(error.rendered)).split("\n")))


class AsyncResult:
    """The answers of some ranks. `make` makes what `get` returns of their values by rank."""

    def __init__(self, exchange: Exchange, make: Make) -> None:
        self._exchange = exchange
        self._make = make
        self._value: tuple[Any] | None = None

    def get(self, timeout: float | None = None) -> Any:
        """The result, once it is there. TimeoutError after so many seconds; what a rank raised is raised."""
        if not self.wait(timeout):
            raise TimeoutError(f"no result after {timeout:g} s")
        if self._value is None:
            self._value = (self._make(values_of(self._exchange.wait())),)
        return self._value[0]

    result = get

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all ranks have answered, or so many seconds have passed; whether they have."""
        end = None if timeout is None or timeout < 0 else time.monotonic() + timeout
        return all(_is_done_by(end, future) for future in self._exchange.futures.values())

    def ready(self) -> bool:
        """Whether all ranks have answered."""
        return all(future.done() for future in self._exchange.futures.values())

    done = ready

    def successful(self) -> bool:
        """Whether none of them has raised. AssertionError where not all have answered."""
        assert self.ready(), "the result is not ready"
        try:
            self.get()
        except (VariableError, Exception):
            return False
        return True

    def abort(self) -> None:
        """Interrupt the ranks that have not answered."""
        self._exchange.interrupt()

    cancel = abort

    def __getitem__(self, index: Any) -> Any:
        return self.get()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self._exchange.futures)

    def __repr__(self) -> str:
        return f"<AsyncResult of {len(self)} ranks: {'finished' if self.ready() else 'running'}>"


class Ready:
    """A result that is there: of what is done at once."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self, timeout: float | None = None) -> Any:
        """The result."""
        return self._value

    result = get

    def wait(self, timeout: float | None = None) -> bool:
        """True."""
        return True

    def ready(self) -> bool:
        """True."""
        return True

    done = successful = ready

    def __getitem__(self, index: Any) -> Any:
        return self._value[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._value)

    def __repr__(self) -> str:
        return "<AsyncResult: finished>"


def _is_done_by(end: float | None, future: Future[Any]) -> bool:
    try:
        future.exception(timeout=None if end is None else max(0.0, end - time.monotonic()))
    except TimeoutError:
        return False
    return True
