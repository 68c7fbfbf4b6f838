"""ipyparallel's direct view: calls, maps and variables on chosen ranks.

As with ipyparallel, functions of the notebook have the rank's own variables as their globals. Methods that set
variables have done so when they return, whatever `block` is.
"""

from __future__ import annotations

import builtins
import functools
import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshbook.magics.compat.answers import AsyncMapResult, AsyncResult, Make, ready_result
from meshbook.magics.compat.calls import ExecuteReply, ViewCall
from meshbook.magics.compat.functions import Function, name_of
from meshbook.magics.compat.views import Targets, View
from meshbook.magics.variables import operations
from meshbook.magics.variables.reduce import reduce_values
from meshbook.magics.variables.requests import RankRequest, run_steps
from meshbook.magics.variables.split import split
from meshbook.runtime.cells.function_calls import Apply, Evaluate, Execute
from meshbook.runtime.cells.packed_values import pack


class DirectView(View):
    """A view of some ranks of a mesh, or of one: then a result is a single value, not a list."""

    @property
    def _is_single(self) -> bool:
        return isinstance(self.targets, int)

    # -- calls -----------------------------------------------------------------

    def apply_async(self, function: Function, /, *arguments: Any, **keywords: Any) -> AsyncResult:
        """Call the function on each rank; returns at once."""
        request = _make_request(function, arguments, keywords)
        return self._ask(dict.fromkeys(self.ranks, request), name_of(function))

    def execute(
        self,
        code: str,
        silent: bool = True,
        targets: Targets = None,
        block: bool | None = None,
        label: str | None = None,
    ) -> AsyncResult:
        """Run source on each rank; `get()` returns an ExecuteReply for each."""
        return self._execute(code, "<execute>", silent, targets, block, label)

    def run(
        self, filename: str, targets: Targets = None, block: bool | None = None, label: str | None = None
    ) -> AsyncResult:
        """Run a file on each rank; the file is read here."""
        return self._execute(Path(filename).read_text(), filename, True, targets, block, label)

    def _execute(
        self, code: str, name: str, silent: bool, targets: Targets, block: bool | None, label: str | None
    ) -> AsyncResult:
        view = self._at(targets)
        view.label = label or self.label
        result = view._ask(dict.fromkeys(view.ranks, Execute(code, name, silent)), "execute", replies=True)
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
        """Call the function with each element, a piece of the sequences on each rank; returns the results in order."""
        requests, sizes = self._pieces(function, sequences, each=True)
        calls, request = self._send(requests, name_of(function), sizes, label=label)
        result = AsyncMapResult(
            calls,
            name_of(function),
            ordered=ordered,
            chunked=True,
            return_exceptions=return_exceptions,
            abort=request.interrupt,
            client=self.client,
        )
        return self.wait_if_blocking(result, block)

    def call_with_pieces(self, function: Function, sequences: Sequence[Any], chunksize: int | None) -> AsyncResult:
        requests, _ = self._pieces(function, sequences, each=False)
        return self._ask(requests, name_of(function), lambda values: reduce_values(values, "cat"))

    def _pieces(
        self, function: Function, sequences: Sequence[Any], *, each: bool
    ) -> tuple[dict[int, Apply], dict[int, int]]:
        """Return the requests of the ranks, each with a piece of the sequences; and the number of elements of each."""
        columns = [sequence if hasattr(sequence, "__len__") else list(sequence) for sequence in sequences]
        columns = [list(column) if isinstance(column, range) else column for column in columns]
        if each:
            least = min(map(len, columns), default=0)
            columns = [column[:least] for column in map(list, columns)]
        pieces = [split(column, len(self.ranks)) for column in columns]
        sizes = {rank: len(pieces[0][index]) for index, rank in enumerate(self.ranks)}
        busy = {rank: size for rank, size in sizes.items() if size} or {self.ranks[0]: 0}
        requests = {
            rank: _make_request(function, [piece[index] for piece in pieces], {}, each=each)
            for index, rank in enumerate(self.ranks)
            if rank in busy
        }
        return requests, busy

    def _ask(
        self, requests: Mapping[int, Any], what: str, make: Make | None = None, *, replies: bool = False
    ) -> AsyncResult:
        calls, request = self._send(requests, what, {}, label=self.label)
        if replies:
            for call in calls:
                call.shows_value = True
            make = functools.partial(_reply_all, list(requests), self._is_single)
        elif make is None and self._is_single:
            make = operator.itemgetter(0)
        return AsyncResult(
            *(calls, what, make or list),
            single=self._is_single,
            abort=request.interrupt,
            client=self.client,
        )

    def _send(
        self, requests: Mapping[int, Any], what: str, sizes: Mapping[int, int], *, label: str | None
    ) -> tuple[list[ViewCall], RankRequest]:
        submitted = time.time()  # before the ranks can begin
        request = RankRequest(self.client.mesh, requests, f"call {what}")
        calls = [
            ViewCall(self.client, rank, size=sizes.get(rank, 1), label=label or self.label, submitted=submitted)
            for rank in requests
        ]
        for call, rank in zip(calls, requests, strict=True):
            call.abort = request.interrupt
            call.follow(request.futures[rank])
        return calls, request

    # -- variables ---------------------------------------------------------------

    def push(
        self, values: Mapping[str, Any], targets: Targets = None, block: bool | None = None, track: bool | None = None
    ) -> Any:
        """Set variables on each rank."""
        if not isinstance(values, Mapping):
            raise TypeError(f"Must be a dict, not {type(values)}")
        view = self._at(targets)
        run_steps(operations.push(self.client.mesh, view.ranks, values))
        return self._done(view, None, "push", block)

    def update(self, values: Mapping[str, Any]) -> Any:
        """Set variables on each rank, as `push` does."""
        return self.push(values)

    def pull(self, names: str | Sequence[str], targets: Targets = None, block: bool | None = None) -> Any:
        """Return the value of a variable or an expression, or of several, on each rank."""
        wanted = [names] if isinstance(names, str) else list(names)
        if bad := [name for name in wanted if not isinstance(name, str)]:
            raise TypeError(f"keys must be str, not type {type(bad[0])!r}")
        view = self._at(targets)
        requests = dict.fromkeys(view.ranks, Evaluate(tuple(wanted)))

        def make(rows: list[Any]) -> Any:
            values = [row[0] for row in rows] if isinstance(names, str) else rows
            return values[0] if view._is_single else values

        return self.wait_if_blocking(view._ask(requests, "pull", make), block)

    def get(self, names: str | Sequence[str]) -> Any:
        """Pull, and wait."""
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
        """Set a variable to a piece of the sequence on each rank; `flatten`: to its element, if it has one."""
        view = self._at(targets)
        # pieces of a range cannot be joined again
        sequence = list(sequence) if isinstance(sequence, range) else sequence
        if flatten and len(sequence) == len(view.ranks):
            for rank, element in zip(view.ranks, sequence, strict=True):
                run_steps(operations.push(self.client.mesh, [rank], {name: element}))
        else:
            run_steps(operations.scatter(self.client.mesh, view.ranks, name, sequence, 0))
        return self._done(view, None, "scatter", block)

    def gather(self, name: str, dist: str = "b", targets: Targets = None, block: bool | None = None) -> Any:
        """Return the pieces of all ranks as one sequence."""
        view = self._at(targets)
        request = Evaluate((name,))
        made = view._ask(
            dict.fromkeys(view.ranks, request), "gather", lambda rows: reduce_values([row[0] for row in rows], "cat")
        )
        return self.wait_if_blocking(made, block)

    def clear(self, targets: Targets = None, block: bool | None = None) -> Any:
        """Delete the variables that programs have made on each rank."""
        return self.client.clear(self.targets if targets is None else targets, block)

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.push({name: value})

    def _done(self, view: DirectView, value: Any, name: str, block: bool | None) -> Any:
        made = ready_result(self.client, dict.fromkeys(view.ranks), name, lambda values: value, single=False)
        return self.wait_if_blocking(made, block)

    def _at(self, targets: Targets) -> DirectView:
        """Return a view of these ranks, by default of the same ones."""
        return self.client.direct_view(self.targets if targets is None else targets)

    @contextmanager
    def sync_imports(self, local: bool = True, quiet: bool = False) -> Iterator[None]:
        """Import on the ranks, too, what this block imports; aliases (`import ... as`) are not passed on."""
        taken: list[str] = []
        real = builtins.__import__

        def note(name: str, *arguments: Any, **keywords: Any) -> Any:
            module = real(name, *arguments, **keywords)
            caller = arguments[0] if arguments else keywords.get("globals") or {}
            if caller.get("__name__") == "__main__" and name not in taken:
                fromlist = arguments[2] if len(arguments) > 2 else keywords.get("fromlist")
                taken.append(f"from {name} import {', '.join(fromlist)}" if fromlist else f"import {name}")
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
        """The context manager `view.sync_imports()`."""
        return self.sync_imports()

    def use_cloudpickle(self) -> None:
        """Do nothing: functions are always pickled by cloudpickle."""

    use_dill = use_pickle = use_cloudpickle

    def activate(self, suffix: str = "") -> None:
        """Make these ranks the default targets of `%px`. Raises ValueError for a suffix, which is not supported."""
        if suffix:
            raise ValueError(f"%px{suffix} is not supported; select ranks with %%px --targets")
        self.client.set_px_targets(self.ranks)


class BroadcastView(DirectView):
    """The same as a direct view: a request that is the same for all ranks is always pickled once."""

    is_coalescing = False


def _make_request(
    function: Function, arguments: Sequence[Any], keywords: Mapping[str, Any], *, each: bool = False
) -> Apply:
    content = {"function": function, "arguments": tuple(arguments), "keywords": dict(keywords), "each": each}
    return Apply(pack(content))


def _reply_all(ranks: Sequence[int], single: bool, values: list[Any]) -> Any:
    replies = [ExecuteReply(value, rank) for rank, value in zip(ranks, values, strict=True)]
    return replies[0] if single else replies
