"""The common part of ipyparallel's views: flags, calls, decorators, and control of running calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from meshbook.magics.compat.answers import AsyncMapResult, AsyncResult
from meshbook.magics.compat.functions import Function, ParallelFunction, ViewExecutor, ViewFunction

if TYPE_CHECKING:
    from meshbook.magics.compat.cluster import Client

Targets = int | slice | Sequence[int] | str | None


class View:
    """The base of all views: flags, maps, decorators and control of running calls."""

    _flag_names: tuple[str, ...] = ("targets", "block", "track", "label")
    track = False  # sent data is copied: nothing has to be tracked
    label: str | None = None
    targets: Any
    map: Callable[..., Any]  # each subclass defines it

    def __init__(self, client: Client, targets: Any, **flags: Any) -> None:
        self.client = client
        self.targets = targets
        self.block: bool = client.block
        self.executor = ViewExecutor(self)
        self.set_flags(**flags)

    def __len__(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.targets}>"

    @property
    def ranks(self) -> list[int]:
        """The ranks of the targets."""
        return self.client.ranks_of(self.targets)

    @property
    def history(self) -> list[str]:
        """The ids of all calls of the client."""
        return self.client.history

    def set_flags(self, **flags: Any) -> Self:
        """Set flags: `block`, `targets`, `label`, and those of a balanced view; KeyError for any other."""
        for name, value in flags.items():
            if name not in self._flag_names:
                raise KeyError(f"Invalid name: {name!r}")
            setattr(self, name, value)
        return self

    @contextmanager
    def temp_flags(self, **flags: Any) -> Iterator[None]:
        """Set flags for a block."""
        saved = {name: getattr(self, name) for name in self._flag_names}
        try:
            self.set_flags(**flags)
            yield
        finally:
            self.set_flags(**saved)

    # -- calls -----------------------------------------------------------------

    def apply(self, function: Function, /, *arguments: Any, **keywords: Any) -> Any:
        """Call a function; returns the results, or an AsyncResult if the view does not block."""
        return self.wait_if_blocking(self.apply_async(function, *arguments, **keywords))

    def apply_sync(self, function: Function, /, *arguments: Any, **keywords: Any) -> Any:
        """Call the function and wait."""
        return self.apply_async(function, *arguments, **keywords).get()

    def apply_async(self, function: Function, /, *arguments: Any, **keywords: Any) -> AsyncResult:
        """Call the function; returns at once."""
        raise NotImplementedError

    def map_sync(self, function: Function, *sequences: Any, **options: Any) -> Any:
        """Map, and wait."""
        return self.map(function, *sequences, block=True, **options)

    def map_async(self, function: Function, *sequences: Any, **options: Any) -> AsyncMapResult:
        """Map; returns at once."""
        found: AsyncMapResult = self.map(function, *sequences, block=False, **options)
        return found

    def imap(self, function: Function, *sequences: Any, **options: Any) -> Iterator[Any]:
        """Yield the results one by one, as they are done."""
        return iter(self.map_async(function, *sequences, **options))

    def remote(self, block: bool | None = None, **flags: Any) -> Callable[[Function], ViewFunction]:
        """Return a decorator: calls of the function are calls on the ranks."""
        return lambda function: ViewFunction(self, function, block=block, **flags)

    def parallel(
        self, dist: str = "b", block: bool | None = None, **flags: Any
    ) -> Callable[[Function], ParallelFunction]:
        """Return a decorator: the function is called with pieces of sequences; `.map` calls it with each element."""
        return lambda function: ParallelFunction(self, function, block=block, **flags)

    def call_with_pieces(self, function: Function, sequences: Sequence[Any], chunksize: int | None) -> AsyncResult:
        """Call the function with pieces of the sequences; returns at once."""
        raise NotImplementedError

    # -- waiting and control -----------------------------------------------------

    def wait(self, jobs: Any = None, timeout: float | None = -1) -> bool:
        """Wait for these results, or for all calls of the client."""
        return self.client.wait(jobs, timeout)

    def abort(self, jobs: Any = None, targets: Targets = None, block: bool | None = None) -> None:
        """Cancel calls that have not begun."""
        self.client.abort(jobs)

    def queue_status(self, targets: Targets = None, verbose: bool = False) -> Any:
        """Return how many calls each rank has pending and completed."""
        return self.client.queue_status(self.targets if targets is None else targets, verbose)

    def get_result(self, index: int | str = -1, **_: Any) -> AsyncResult:
        """Return the result of a call, by its index in the history or its id."""
        return self.client.get_result(index)

    def spin(self) -> None:
        """Do nothing: answers arrive on other threads."""

    def shutdown(self, targets: Targets = None, **options: Any) -> None:
        """Stop the mesh."""
        self.client.shutdown(**options)

    def wait_if_blocking(self, result: AsyncResult, block: bool | None = None) -> Any:
        """Return the value if the call blocks (by default as the view does), else the result itself."""
        return result.get() if (self.block if block is None else block) else result
