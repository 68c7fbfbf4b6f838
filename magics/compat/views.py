"""ipyparallel's views, on ranks of a mesh: `view.apply_sync(f)`, `view["x"]`, `view.map_sync(f, items)`.

Functions of the notebook find the ranks' own variables as their globals, as with ipyparallel. What concerns variables
alone is done when it returns, whatever `block` says.
"""

from __future__ import annotations

import builtins
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from meshbook.magics import variables
from meshbook.magics.compat.answers import AsyncResult, Make, Ready, values_of
from meshbook.magics.exchange import Exchange, carry_out
from meshbook.magics.merging import merge
from meshbook.magics.meshes import NotebookMesh
from meshbook.magics.splitting import split
from meshbook.magics.wanted import Wanted
from meshbook.runtime.cells.calling import Apply, Execute
from meshbook.runtime.cells.parcels import pack

Function = Callable[..., Any]


class DirectView:
    """Some ranks of a mesh, or one: then results are its own and no lists."""

    def __init__(self, mesh: NotebookMesh, targets: int | Sequence[int]) -> None:
        self._mesh = mesh
        self.targets = targets
        self.block = False

    @property
    def _ranks(self) -> list[int]:
        return [self.targets] if isinstance(self.targets, int) else list(self.targets)

    def __len__(self) -> int:
        return len(self._ranks)

    def __repr__(self) -> str:
        return f"<DirectView {self.targets} of {self._mesh.name}>"

    # -- calls -----------------------------------------------------------------

    def apply(self, function: Function, *arguments: Any, **keywords: Any) -> Any:
        """Call a function on each rank; the results, or where the view does not block an AsyncResult."""
        return self._answer(self.apply_async(function, *arguments, **keywords))

    def apply_sync(self, function: Function, *arguments: Any, **keywords: Any) -> Any:
        """Call it and wait."""
        return self.apply_async(function, *arguments, **keywords).get()

    def apply_async(self, function: Function, *arguments: Any, **keywords: Any) -> AsyncResult:
        """Call it and go on."""
        request = _call_of(function, arguments, keywords)
        return self._ask(dict.fromkeys(self._ranks, request), _name_of(function))

    def execute(self, code: str, silent: bool = True, block: bool | None = None) -> Any:
        """Run source on each rank."""
        request = Execute(code, "<execute>")
        return self._answer(self._ask(dict.fromkeys(self._ranks, request), "execute", lambda values: None), block)

    def run(self, filename: str, block: bool | None = None) -> Any:
        """Run the file, which is read here, on each rank."""
        request = Execute(Path(filename).read_text(), filename)
        return self._answer(self._ask(dict.fromkeys(self._ranks, request), "run", lambda values: None), block)

    def map(self, function: Function, *sequences: Any, block: bool | None = None) -> Any:
        """Call the function with each element, a piece of the sequences on each rank; the results in order."""
        columns = [list(sequence) for sequence in sequences]
        pieces = [split(column, len(self._ranks)) for column in columns]
        requests = {
            rank: _call_of(function, [piece[index] for piece in pieces], {}, each=True)
            for index, rank in enumerate(self._ranks)
        }
        joined = self._ask(requests, _name_of(function), lambda values: list(itertools.chain(*values.values())))
        return self._answer(joined, block)

    def map_sync(self, function: Function, *sequences: Any) -> Any:
        """The same, and wait."""
        return self.map(function, *sequences, block=True)

    def map_async(self, function: Function, *sequences: Any) -> AsyncResult:
        """The same, and go on."""
        return self.map(function, *sequences, block=False)  # type: ignore[no-any-return]

    def remote(self, block: bool | None = None) -> Callable[[Function], Function]:
        """A decorator: calls of the function are calls on each rank."""

        def decorate(function: Function) -> Function:
            @functools.wraps(function)
            def call(*arguments: Any, **keywords: Any) -> Any:
                return self._answer(self.apply_async(function, *arguments, **keywords), block)

            return call

        return decorate

    def parallel(self, block: bool | None = None) -> Callable[[Function], Function]:
        """A decorator: the function is called with pieces of its sequences; `.map` calls it with each element."""

        def decorate(function: Function) -> Function:
            @functools.wraps(function)
            def call(*sequences: Any) -> Any:
                pieces = [split(sequence, len(self._ranks)) for sequence in sequences]
                requests = {
                    rank: _call_of(function, [piece[index] for piece in pieces], {})
                    for index, rank in enumerate(self._ranks)
                }
                joined = self._ask(requests, _name_of(function), lambda values: merge(list(values.values()), "cat"))
                return self._answer(joined, block)

            call.map = functools.partial(self.map, function, block=block)  # type: ignore[attr-defined]
            return call

        return decorate

    # -- variables ---------------------------------------------------------------

    def push(self, values: Mapping[str, Any], block: bool | None = None) -> Any:
        """Set variables on each rank."""
        carry_out(variables.push(self._mesh, self._ranks, values))
        return self._answer(Ready(None), block)

    update = push

    def pull(self, names: str | Sequence[str], block: bool = True) -> Any:
        """The value of a variable, or those of several, on each rank."""
        wanted = [names] if isinstance(names, str) else list(names)
        sought = [Wanted(name, None) for name in wanted]
        found = carry_out(variables.pull(self._mesh, self._ranks, sought, ask=input))
        by_rank = [list(row) for row in zip(*(found[name] for name in wanted), strict=True)]
        values = [row[0] for row in by_rank] if isinstance(names, str) else by_rank
        return self._answer(Ready(values[0] if isinstance(self.targets, int) else values), block)

    get = pull

    def scatter(self, name: str, sequence: Any, flatten: bool = False, block: bool | None = None, **_: Any) -> Any:
        """Set a variable to a piece of the sequence on each rank; `flatten`: to the element, where it is one."""
        sequence = list(sequence) if isinstance(sequence, range) else sequence  # pieces of a range do not join again
        if flatten and len(sequence) == len(self._ranks):
            for rank, element in zip(self._ranks, sequence, strict=True):
                carry_out(variables.push(self._mesh, [rank], {name: element}))
        else:
            carry_out(variables.scatter(self._mesh, self._ranks, name, sequence, 0))
        return self._answer(Ready(None), block)

    def gather(self, name: str, block: bool | None = None, **_: Any) -> Any:
        """The pieces of all ranks as one."""
        found = carry_out(variables.pull(self._mesh, self._ranks, [Wanted(name, "cat")], ask=input))
        return self._answer(Ready(found[name]), block)

    def __getitem__(self, name: str) -> Any:
        return self.pull(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.push({name: value})

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

    # -- waiting -----------------------------------------------------------------

    def activate(self, suffix: str = "") -> None:
        """%px means these ranks anyway, where they are all of the mesh. Of suffixes there is none."""
        if suffix:
            raise ValueError(f"%px{suffix} is not there: %%px --targets says which ranks are meant")

    def wait(self, jobs: Any = None, timeout: float | None = None) -> bool:
        """Wait for these results."""
        waiting = jobs if isinstance(jobs, list | tuple) else [] if jobs is None else [jobs]
        return all(job.wait(timeout) for job in waiting)

    def _ask(self, requests: Mapping[int, Any], what: str, make: Make | None = None) -> AsyncResult:
        return AsyncResult(Exchange(self._mesh, requests, f"call {what}"), make or self._in_order)

    def _in_order(self, values: dict[int, Any]) -> Any:
        return values[self.targets] if isinstance(self.targets, int) else [values[rank] for rank in self._ranks]

    def _answer(self, result: Any, block: bool | None = None) -> Any:
        return result.get() if (self.block if block is None else block) else result


class LoadBalancedView:
    """All ranks, each of which takes the next task when it is done with one."""

    def __init__(self, mesh: NotebookMesh, targets: Sequence[int]) -> None:
        self._mesh = mesh
        self.block = False
        self._free: SimpleQueue[int] = SimpleQueue()
        for rank in targets:
            self._free.put(rank)
        self._pool = ThreadPoolExecutor(len(targets), thread_name_prefix="meshbook tasks")

    def apply_async(self, function: Function, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Call the function on the next rank that is free."""
        return self._pool.submit(self._call, _call_of(function, arguments, keywords), _name_of(function))

    def apply_sync(self, function: Function, *arguments: Any, **keywords: Any) -> Any:
        """The same, and wait."""
        return self.apply_async(function, *arguments, **keywords).result()

    def apply(self, function: Function, *arguments: Any, **keywords: Any) -> Any:
        """The same; whether it waits is for `block` to say."""
        task = self.apply_async(function, *arguments, **keywords)
        return task.result() if self.block else task

    def map_sync(self, function: Function, *sequences: Any) -> list[Any]:
        """Call the function with each element; the results in order."""
        tasks = [self.apply_async(function, *row) for row in zip(*sequences, strict=False)]
        return [task.result() for task in tasks]

    def map_async(self, function: Function, *sequences: Any) -> Future[list[Any]]:
        """The same, and go on."""
        tasks = [self.apply_async(function, *row) for row in zip(*sequences, strict=False)]
        gathered: Future[list[Any]] = Future()
        gathered.set_running_or_notify_cancel()
        left = itertools.count(len(tasks) - 1, -1)

        def note(_: Future[Any]) -> None:
            if next(left) == 0:
                _settle(gathered, tasks)

        for task in tasks:
            task.add_done_callback(note)
        if not tasks:
            gathered.set_result([])
        return gathered

    def map(self, function: Function, *sequences: Any, block: bool | None = None) -> Any:
        """The same; whether it waits is for `block` to say."""
        wait = self.block if block is None else block
        return (self.map_sync if wait else self.map_async)(function, *sequences)

    def _call(self, request: Apply, what: str) -> Any:
        rank = self._free.get()
        try:
            (value,) = values_of(Exchange(self._mesh, {rank: request}, f"call {what}").wait()).values()
        finally:
            self._free.put(rank)
        return value


def _settle(gathered: Future[list[Any]], tasks: Sequence[Future[Any]]) -> None:
    try:
        gathered.set_result([task.result() for task in tasks])
    except Exception as error:
        gathered.set_exception(error)


def _call_of(function: Function, arguments: Sequence[Any], keywords: Mapping[str, Any], *, each: bool = False) -> Apply:
    return Apply(pack({"function": function, "arguments": tuple(arguments), "keywords": dict(keywords), "each": each}))


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _line_of(name: str, fromlist: Sequence[str] | None) -> str:
    return f"from {name} import {', '.join(fromlist)}" if fromlist else f"import {name}"
