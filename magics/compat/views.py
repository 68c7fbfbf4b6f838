"""ipyparallel's views, on ranks of a mesh: `view.apply_sync(f)`, `view["x"]`, `view.map_sync(f, items)`.

Functions of the notebook find the ranks' own variables as their globals, as with ipyparallel. What concerns variables
alone is done when it returns, whatever `block` says.
"""

from __future__ import annotations

import builtins
import concurrent.futures
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from meshbook.magics import variables
from meshbook.magics.compat.answers import AsyncMapResult, AsyncResult, Call, ExecuteReply, Make, ready_result
from meshbook.magics.exchange import Exchange, carry_out
from meshbook.magics.merging import merge
from meshbook.magics.splitting import split
from meshbook.runtime.cells.calling import Apply, Evaluate, Execute
from meshbook.runtime.cells.parcels import pack

if TYPE_CHECKING:
    from meshbook.magics.compat.clients import Client

Function = Callable[..., Any]
Targets = int | slice | Sequence[int] | str | None


class View:
    """What views of both kinds have: flags, maps, decorators and control of what runs."""

    _flag_names: tuple[str, ...] = ("targets", "block", "track", "label")
    track = False  # what is sent was copied: nothing has to be tracked
    label: str | None = None
    targets: Any
    map: Callable[..., Any]  # by each kind in its own way

    def __init__(self, client: Client, targets: Any, **flags: Any) -> None:
        self.client = client
        self.targets = targets
        self.block: bool = client.block
        self.executor = ViewExecutor(self)
        self.set_flags(**flags)

    def __len__(self) -> int:
        return len(self._ranks)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.targets}>"

    @property
    def _ranks(self) -> list[int]:
        return self.client.ranks_of(self.targets)

    @property
    def history(self) -> list[str]:
        """The ids of all calls of the client."""
        return self.client.history

    def set_flags(self, **flags: Any) -> Self:
        """Set flags: `block`, `targets`, `label`, and those of a balanced view. KeyError for any other."""
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
        """Call a function; the results, or where the view does not block an AsyncResult."""
        return self._answer(self.apply_async(function, *arguments, **keywords))

    def apply_sync(self, function: Function, /, *arguments: Any, **keywords: Any) -> Any:
        """Call it and wait."""
        return self.apply_async(function, *arguments, **keywords).get()

    def apply_async(self, function: Function, /, *arguments: Any, **keywords: Any) -> AsyncResult:
        """Call it and go on."""
        raise NotImplementedError

    def map_sync(self, function: Function, *sequences: Any, **options: Any) -> Any:
        """The same, and wait."""
        return self.map(function, *sequences, block=True, **options)

    def map_async(self, function: Function, *sequences: Any, **options: Any) -> AsyncMapResult:
        """The same, and go on."""
        found: AsyncMapResult = self.map(function, *sequences, block=False, **options)
        return found

    def imap(self, function: Function, *sequences: Any, **options: Any) -> Iterator[Any]:
        """The results one by one, as they are done."""
        return iter(self.map_async(function, *sequences, **options))

    def remote(self, block: bool | None = None, **flags: Any) -> Callable[[Function], RemoteFunction]:
        """A decorator: calls of the function are calls on the ranks."""
        return lambda function: RemoteFunction(self, function, block=block, **flags)

    def parallel(
        self, dist: str = "b", block: bool | None = None, **flags: Any
    ) -> Callable[[Function], ParallelFunction]:
        """A decorator: the function is called with pieces of its sequences; `.map` calls it with each element."""
        return lambda function: ParallelFunction(self, function, block=block, **flags)

    def _call_with_pieces(self, function: Function, sequences: Sequence[Any], chunksize: int | None) -> AsyncResult:
        raise NotImplementedError

    # -- waiting and control -----------------------------------------------------

    def wait(self, jobs: Any = None, timeout: float | None = -1) -> bool:
        """Wait for these results, or for all calls of the client."""
        return self.client.wait(jobs, timeout)

    def abort(self, jobs: Any = None, targets: Targets = None, block: bool | None = None) -> None:
        """Give up calls that have not begun."""
        self.client.abort(jobs)

    def queue_status(self, targets: Targets = None, verbose: bool = False) -> Any:
        """How many calls each rank has, and has done."""
        return self.client.queue_status(self.targets if targets is None else targets, verbose)

    def get_result(self, index: int | str = -1, **_: Any) -> AsyncResult:
        """The result of a call, by its index in the history or its id."""
        return self.client.get_result(index)

    def spin(self) -> None:
        """Nothing has to be done for answers to come."""

    def shutdown(self, targets: Targets = None, **options: Any) -> None:
        """Take the mesh down."""
        self.client.shutdown(**options)

    def _answer(self, result: AsyncResult, block: bool | None = None) -> Any:
        return result.get() if (self.block if block is None else block) else result


class ViewExecutor(concurrent.futures.Executor):
    """Python's own interface of pools, over a view."""

    def __init__(self, view: View) -> None:
        self.view = view

    def submit(self, function: Function, /, *arguments: Any, **keywords: Any) -> AsyncResult:
        """Call the function on the next rank that is free."""
        return self.view.apply_async(function, *arguments, **keywords)

    def map(
        self, function: Function, *iterables: Any, timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """The results one by one, in order."""
        return self.view.imap(function, *iterables)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for what was submitted; the ranks stay."""
        if cancel_futures:
            self.view.abort()
        if wait:
            self.view.wait()


class RemoteFunction:
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


class ParallelFunction(RemoteFunction):
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
            return self.view._answer(self.view._call_with_pieces(self.func, sequences, self.chunksize))

    def map(self, *sequences: Any) -> Any:
        """Call it with each element."""
        options: dict[str, Any] = self._options | ({"chunksize": self.chunksize} if self.chunksize is not None else {})
        with self._flags():
            return self.view.map(self.func, *sequences, **options)


def remote(view: View, block: bool | None = None, **flags: Any) -> Callable[[Function], RemoteFunction]:
    """`@remote(view)`: as `@view.remote()`."""
    return view.remote(block=block, **flags)


def parallel(view: View, block: bool | None = None, **flags: Any) -> Callable[[Function], ParallelFunction]:
    """`@parallel(view)`: as `@view.parallel()`."""
    return view.parallel(block=block, **flags)


class DirectView(View):
    """Some ranks of a mesh, or one: then results are its own and no lists."""

    @property
    def _is_single(self) -> bool:
        return isinstance(self.targets, int)

    # -- calls -----------------------------------------------------------------

    def apply_async(self, function: Function, /, *arguments: Any, **keywords: Any) -> AsyncResult:
        """Call it on each rank and go on."""
        request = _call_of(function, arguments, keywords)
        return self._ask(dict.fromkeys(self._ranks, request), name_of(function))

    def execute(
        self,
        code: str,
        silent: bool = True,
        targets: Targets = None,
        block: bool | None = None,
        label: str | None = None,
    ) -> AsyncResult:
        """Run source on each rank. `get()` gives an ExecuteReply for each."""
        return self._execute(code, "<execute>", silent, targets, block, label)

    def run(
        self, filename: str, targets: Targets = None, block: bool | None = None, label: str | None = None
    ) -> AsyncResult:
        """Run the file, which is read here, on each rank."""
        return self._execute(Path(filename).read_text(), filename, True, targets, block, label)

    def _execute(
        self, code: str, name: str, silent: bool, targets: Targets, block: bool | None, label: str | None
    ) -> AsyncResult:
        view = self._at(targets)
        view.label = label or self.label
        result = view._ask(dict.fromkeys(view._ranks, Execute(code, name, silent)), "execute", replies=True)
        if self.block if block is None else block:
            result.get()
        return result

    def map(
        self,
        function: Function,
        *sequences: Any,
        block: bool | None = None,
        return_exceptions: bool = False,
        label: str | None = None,
        track: bool = False,
        ordered: bool = True,
    ) -> Any:
        """Call the function with each element, a piece of the sequences on each rank; the results in order."""
        requests, sizes = self._pieces(function, sequences, each=True)
        calls, exchange = self._send(requests, name_of(function), sizes, label=label)
        result = AsyncMapResult(
            calls,
            name_of(function),
            ordered=ordered,
            chunked=True,
            return_exceptions=return_exceptions,
            abort=exchange.interrupt,
            client=self.client,
        )
        return self._answer(result, block)

    def _call_with_pieces(self, function: Function, sequences: Sequence[Any], chunksize: int | None) -> AsyncResult:
        requests, _ = self._pieces(function, sequences, each=False)
        return self._ask(requests, name_of(function), lambda values: merge(values, "cat"))

    def _pieces(
        self, function: Function, sequences: Sequence[Any], *, each: bool
    ) -> tuple[dict[int, Apply], dict[int, int]]:
        """The requests of the ranks, each with a piece of the sequences; and how many elements it has."""
        columns = [sequence if hasattr(sequence, "__len__") else list(sequence) for sequence in sequences]
        columns = [list(column) if isinstance(column, range) else column for column in columns]
        if each:
            least = min(map(len, columns), default=0)
            columns = [column[:least] for column in map(list, columns)]
        pieces = [split(column, len(self._ranks)) for column in columns]
        sizes = {rank: len(pieces[0][index]) for index, rank in enumerate(self._ranks)}
        busy = {rank: size for rank, size in sizes.items() if size} or {self._ranks[0]: 0}
        requests = {
            rank: _call_of(function, [piece[index] for piece in pieces], {}, each=each)
            for index, rank in enumerate(self._ranks)
            if rank in busy
        }
        return requests, busy

    def _ask(
        self, requests: Mapping[int, Any], what: str, make: Make | None = None, *, replies: bool = False
    ) -> AsyncResult:
        calls, exchange = self._send(requests, what, {}, label=self.label)
        if replies:
            for call in calls:
                call.shows_value = True
            make = functools.partial(_reply_all, list(requests), self._is_single)
        elif make is None and self._is_single:
            make = _first
        return AsyncResult(
            *(calls, what, make or list),
            single=self._is_single,
            abort=exchange.interrupt,
            client=self.client,
        )

    def _send(
        self, requests: Mapping[int, Any], what: str, sizes: Mapping[int, int], *, label: str | None
    ) -> tuple[list[Call], Exchange]:
        exchange = Exchange(self.client.mesh, requests, f"call {what}")
        calls = [Call(self.client, rank, size=sizes.get(rank, 1), label=label or self.label) for rank in requests]
        for call, rank in zip(calls, requests, strict=True):
            call.abort = exchange.interrupt
            call.follow(exchange.futures[rank])
        return calls, exchange

    # -- variables ---------------------------------------------------------------

    def push(
        self, values: Mapping[str, Any], targets: Targets = None, block: bool | None = None, track: bool | None = None
    ) -> Any:
        """Set variables on each rank."""
        if not isinstance(values, Mapping):
            raise TypeError(f"Must be a dict, not {type(values)}")
        view = self._at(targets)
        carry_out(variables.push(self.client.mesh, view._ranks, values))
        return self._done(view, None, "push", block)

    def update(self, values: Mapping[str, Any]) -> Any:
        """The same."""
        return self.push(values)

    def pull(self, names: str | Sequence[str], targets: Targets = None, block: bool | None = None) -> Any:
        """The value of a variable or an expression, or those of several, on each rank."""
        wanted = [names] if isinstance(names, str) else list(names)
        if bad := [name for name in wanted if not isinstance(name, str)]:
            raise TypeError(f"keys must be str, not type {type(bad[0])!r}")
        view = self._at(targets)
        requests = dict.fromkeys(view._ranks, Evaluate(tuple(wanted)))

        def make(rows: list[Any]) -> Any:
            values = [row[0] for row in rows] if isinstance(names, str) else rows
            return values[0] if view._is_single else values

        return self._answer(view._ask(requests, "pull", make), block)

    def get(self, names: str | Sequence[str]) -> Any:
        """The same, and wait."""
        return self.pull(names, block=True)

    def scatter(
        self,
        name: str,
        sequence: Any,
        dist: str = "b",
        flatten: bool = False,
        targets: Targets = None,
        block: bool | None = None,
        track: bool | None = None,
    ) -> Any:
        """Set a variable to a piece of the sequence on each rank; `flatten`: to the element, where it is one."""
        view = self._at(targets)
        sequence = list(sequence) if isinstance(sequence, range) else sequence  # pieces of a range do not join again
        if flatten and len(sequence) == len(view._ranks):
            for rank, element in zip(view._ranks, sequence, strict=True):
                carry_out(variables.push(self.client.mesh, [rank], {name: element}))
        else:
            carry_out(variables.scatter(self.client.mesh, view._ranks, name, sequence, 0))
        return self._done(view, None, "scatter", block)

    def gather(self, name: str, dist: str = "b", targets: Targets = None, block: bool | None = None) -> Any:
        """The pieces of all ranks as one."""
        view = self._at(targets)
        request = Evaluate((name,))
        made = view._ask(
            dict.fromkeys(view._ranks, request), "gather", lambda rows: merge([row[0] for row in rows], "cat")
        )
        return self._answer(made, block)

    def clear(self, targets: Targets = None, block: bool | None = None) -> Any:
        """Delete the variables that programs have made on each rank."""
        return self.client.clear(self.targets if targets is None else targets, block)

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.push({name: value})

    def _done(self, view: DirectView, value: Any, name: str, block: bool | None) -> Any:
        made = ready_result(self.client, dict.fromkeys(view._ranks), name, lambda values: value, single=False)
        return self._answer(made, block)

    def _at(self, targets: Targets) -> DirectView:
        """A view of these ranks; of the same ones where there are none."""
        return self.client.direct_view(self.targets if targets is None else targets)

    @contextmanager
    def sync_imports(self, local: bool = True, quiet: bool = False) -> Iterator[None]:
        """What is imported in this block is imported on the ranks, too; functions are not told under other names."""
        taken: list[str] = []
        real = builtins.__import__

        def note(name: str, *arguments: Any, **keywords: Any) -> Any:
            module = real(name, *arguments, **keywords)
            caller = arguments[0] if arguments else keywords.get("globals") or {}
            if caller.get("__name__") == "__main__" and name not in taken:
                taken.append(_line_of(name, arguments[2] if len(arguments) > 2 else keywords.get("fromlist")))
            return module

        builtins.__import__ = note
        try:
            yield
        finally:
            builtins.__import__ = real
        for line in taken:
            if not quiet:
                print(f"{line} on {len(self)} ranks")
            self.execute(line, block=True)

    @property
    def importer(self) -> Any:
        """`with view.importer:` is `with view.sync_imports():`."""
        return self.sync_imports()

    def use_cloudpickle(self) -> None:
        """Functions travel by cloudpickle anyway."""

    use_dill = use_pickle = use_cloudpickle

    def activate(self, suffix: str = "") -> None:
        """%px means these ranks anyway, where they are all of the mesh. Of suffixes there is none."""
        if suffix:
            raise ValueError(f"%px{suffix} is not there: %%px --targets says which ranks are meant")


class BroadcastView(DirectView):
    """The same: a request that is the same for all ranks is pickled once anyway."""

    is_coalescing = False


def _call_of(function: Function, arguments: Sequence[Any], keywords: Mapping[str, Any], *, each: bool = False) -> Apply:
    return Apply(pack({"function": function, "arguments": tuple(arguments), "keywords": dict(keywords), "each": each}))


def _first(values: list[Any]) -> Any:
    return values[0]


def _reply_all(ranks: Sequence[int], single: bool, values: list[Any]) -> Any:
    replies = [ExecuteReply(value, rank) for rank, value in zip(ranks, values, strict=True)]
    return replies[0] if single else replies


def name_of(function: Any) -> str:
    """The name of a function, for texts."""
    return str(getattr(function, "__name__", type(function).__name__))


def _line_of(name: str, fromlist: Sequence[str] | None) -> str:
    return f"from {name} import {', '.join(fromlist)}" if fromlist else f"import {name}"
