"""ipyparallel's decorators, which turn calls of a function into calls on ranks; and a view as a standard executor."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshbook.magics.compat.answers import AsyncResult
    from meshbook.magics.compat.views import View

Function = Callable[..., Any]


class ViewExecutor(concurrent.futures.Executor):
    """The `concurrent.futures.Executor` of a view."""

    def __init__(self, view: View) -> None:
        self.view = view

    def submit(self, function: Function, /, *arguments: Any, **keywords: Any) -> AsyncResult:
        """Call the function on the next free rank."""
        return self.view.apply_async(function, *arguments, **keywords)

    def map(
        self, function: Function, *iterables: Any, timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Yield the results in order."""
        return self.view.imap(function, *iterables)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the submitted calls; the ranks keep running."""
        if cancel_futures:
            self.view.abort()
        if wait:
            self.view.wait()


class ViewFunction:
    """A function whose calls are calls on the ranks of a view."""

    def __init__(self, view: View, function: Function, block: bool | None = None, **flags: Any) -> None:
        self.view = view
        self.func = function
        self.block = block
        self.flags = flags
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        with self._flags():
            return self.view.apply(self.func, *arguments, **keywords)

    @contextmanager
    def _flags(self) -> Iterator[None]:
        with self.view.temp_flags(block=self.view.block if self.block is None else self.block, **self.flags):
            yield


class ParallelFunction(ViewFunction):
    """A function that is called with pieces of sequences, or by `map` with each element."""

    def __init__(
        self,
        view: View,
        function: Function,
        block: bool | None = None,
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: bool = False,
        **flags: Any,
    ) -> None:
        super().__init__(view, function, block=block, **flags)
        self.chunksize = chunksize
        self._options: dict[str, Any] = {"ordered": ordered, "return_exceptions": return_exceptions}

    def __call__(self, *sequences: Any) -> Any:
        lengths = [len(sequence) for sequence in sequences]
        if len(set(lengths)) > 1:
            raise ValueError(f"all sequences must have equal length, but have {lengths}")
        with self._flags():
            return self.view.wait_if_blocking(self.view.call_with_pieces(self.func, sequences, self.chunksize))

    def map(self, *sequences: Any) -> Any:
        """Call the function with each element."""
        options: dict[str, Any] = self._options | ({"chunksize": self.chunksize} if self.chunksize is not None else {})
        with self._flags():
            return self.view.map(self.func, *sequences, **options)


def remote(view: View, block: bool | None = None, **flags: Any) -> Callable[[Function], ViewFunction]:
    """Decorate a function: as `@view.remote()`."""
    return view.remote(block=block, **flags)


def parallel(view: View, block: bool | None = None, **flags: Any) -> Callable[[Function], ParallelFunction]:
    """Decorate a function: as `@view.parallel()`."""
    return view.parallel(block=block, **flags)


def name_of(function: Any) -> str:
    """Return the name of a function, for texts."""
    return str(getattr(function, "__name__", type(function).__name__))
