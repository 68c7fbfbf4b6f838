"""ipyparallel's clients and clusters on meshes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import itertools
import signal
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from meshbook.magics.compat.answers import AsyncResult
from meshbook.magics.compat.balanced import LoadBalancedView, count_open
from meshbook.magics.compat.calls import ViewCall, wait_for
from meshbook.magics.compat.direct import BroadcastView, DirectView
from meshbook.magics.compat.functions import ViewExecutor
from meshbook.magics.compat.translation import Rewriting
from meshbook.magics.compat.views import Targets
from meshbook.magics.errors import NoEnginesRegistered
from meshbook.magics.meshes import lifecycle
from meshbook.magics.meshes.registry import DEFAULT_NAME, MeshRegistry, NotebookMesh
from meshbook.magics.notebook import Notebook
from meshbook.magics.variables.requests import RankRequest
from meshbook.runtime.cells.function_calls import Clear
from meshbook.runtime.geometry import Extent

if TYPE_CHECKING:
    from meshbook.runtime.mesh.scheduling import Scheduler

P = ParamSpec("P")
R = TypeVar("R")
RESOLVERS = 4  # threads that unpickle answers and run callbacks; a callback may wait for other answers


class Client:
    """The ranks of a mesh, by number: `rc.ids`, `rc[:]`, `rc[0]`."""

    block = False

    def __init__(self, meshes: MeshRegistry, mesh: NotebookMesh, rewriting: Rewriting) -> None:
        self._meshes = meshes
        self._rewriting = rewriting
        self.mesh = mesh
        self.history: list[str] = []
        self.schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()
        self._lock = threading.Lock()  # guards the attributes below: answers arrive on other threads
        self._open: dict[str, ViewCall] = {}
        self._known: weakref.WeakValueDictionary[str, ViewCall] = weakref.WeakValueDictionary()
        self._completed: Counter[int] = Counter()
        self._resolvers = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="meshbook results")

    @property
    def name(self) -> str:
        """The name of the mesh."""
        return self.mesh.name

    @property
    def ids(self) -> list[int]:
        """The ranks."""
        return list(range(self.mesh.extent.nelements))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, key: int | slice | Sequence[int]) -> DirectView:
        return self.direct_view(key)

    def __iter__(self) -> Iterator[DirectView]:
        return (self.direct_view(rank) for rank in self.ids)

    def ranks_of(self, targets: Targets) -> list[int]:
        """Return the ranks of targets: a number, a slice, several numbers, "all"; raises TypeError or IndexError."""
        if targets is None or targets == "all":
            return self.ids
        if isinstance(targets, str):
            raise TypeError(f"{targets!r} not valid str target, must be 'all'")
        if isinstance(targets, slice):
            return self.ids[targets]
        wanted = [targets] if isinstance(targets, int) else list(targets)
        if unknown := [rank for rank in wanted if not -len(self) <= rank < len(self)]:
            raise IndexError(f"No such engine: {unknown[0]}")
        return [self.ids[rank] for rank in wanted]

    # -- views -------------------------------------------------------------------------

    def direct_view(self, targets: Targets = "all", **flags: Any) -> DirectView:
        """Return a view of these ranks."""
        return DirectView(self, self._chosen(targets), **flags)

    def broadcast_view(self, targets: Targets = "all", is_coalescing: bool = False, **flags: Any) -> BroadcastView:
        """Return a view of these ranks; the same as `direct_view`."""
        view = BroadcastView(self, self._chosen(targets), **flags)
        view.is_coalescing = is_coalescing
        return view

    def load_balanced_view(self, targets: Targets = None, **flags: Any) -> LoadBalancedView:
        """Return a view that gives each task to the next free rank."""
        return LoadBalancedView(self, None if targets is None else self.ranks_of(targets), **flags)

    def executor(self, targets: Targets = None) -> ViewExecutor:
        """Return a `concurrent.futures.Executor` over a load-balanced view."""
        return self.load_balanced_view(targets).executor

    def _chosen(self, targets: Targets) -> int | list[int]:
        ranks = self.ranks_of(targets)
        return ranks[0] if isinstance(targets, int) else ranks

    def activate(self, targets: Targets = "all", suffix: str = "") -> DirectView:
        """Make these ranks the default targets of `%px`, and return their view."""
        view = self.direct_view(targets)
        view.activate(suffix)
        return view

    def set_px_targets(self, ranks: Sequence[int]) -> None:
        """Set the default targets of `%px`: these ranks, or all ranks of the current mesh."""
        is_whole = list(ranks) == self.ids and self.mesh is self._meshes.get()
        targets = "all" if is_whole else f"{self.name}[{','.join(map(str, ranks))}]"
        self._rewriting.defaults = dataclasses.replace(self._rewriting.defaults, targets=targets)

    # -- calls in progress -----------------------------------------------------------------

    def note_begin(self, call: ViewCall) -> None:
        """Record a new call."""
        with self._lock:
            self.history.append(call.msg_id)
            self._open[call.msg_id] = self._known[call.msg_id] = call

    def note_end(self, call: ViewCall) -> None:
        """Record that a call has ended."""
        with self._lock:
            self._open.pop(call.msg_id, None)
            if call.engine is not None:
                self._completed[call.engine] += 1

    def resolve(self, work: Callable[[], object]) -> None:
        """Run this on a thread that may unpickle and run callbacks."""
        try:
            self._resolvers.submit(work)
        except RuntimeError:  # the interpreter is shutting down
            work()

    @property
    def outstanding(self) -> set[str]:
        """The ids of the pending calls."""
        with self._lock:
            return set(self._open)

    # -- waiting and control ---------------------------------------------------------------

    def wait(self, jobs: Any = None, timeout: float | None = -1) -> bool:
        """Wait for these results (or ids, or indices of the history), or for all calls; returns whether they are."""
        limit = None if timeout is None or timeout < 0 else timeout
        waiting = list(self._jobs(jobs))
        _, open_ = wait_for(waiting, limit)
        return not open_

    def wait_interactive(self, jobs: Any = None, interval: float = 1.0, timeout: float = -1.0) -> None:
        """Wait as `wait` does, and show the progress."""
        calls = [call for each in self._jobs(jobs) for call in ([each] if isinstance(each, ViewCall) else each.calls)]
        if calls:
            AsyncResult(calls, "tasks", client=self).wait_interactive(interval, timeout)

    def abort(self, jobs: Any = None, targets: Targets = None, block: bool | None = None) -> None:
        """Cancel these calls, or all, that have not begun."""
        for each in self._jobs(jobs):
            if (isinstance(each, AsyncResult) and not each.done()) or (isinstance(each, ViewCall) and not each.done()):
                each.abort()

    def _jobs(self, jobs: Any) -> Iterable[Any]:
        if jobs is None:
            with self._lock:
                return list(self._open.values())
        given = [jobs] if isinstance(jobs, str | int | concurrent.futures.Future) else list(jobs)
        return [each if isinstance(each, concurrent.futures.Future) else self._find(each) for each in given]

    def calls_of(self, job: Any) -> list[ViewCall]:
        """Return the calls of a result, or of an id."""
        return job.calls if isinstance(job, AsyncResult) else [job if isinstance(job, ViewCall) else self._find(job)]

    def _find(self, index: int | str) -> ViewCall:
        msg_id = self.history[index] if isinstance(index, int) else index
        if not isinstance(msg_id, str):
            raise TypeError(f"a result is found by its msg_id, history index or AsyncResult, not by {index!r}")
        with self._lock:
            if msg_id not in self._known:
                raise KeyError(f"no result has the id {msg_id!r}; a result is kept as long as the program refers to it")
            return self._known[msg_id]

    def get_result(self, index: int | str | Sequence[int | str] = -1, **_: Any) -> AsyncResult:
        """Return the result of calls, by their index in the history or their id."""
        if isinstance(index, int | str):
            return AsyncResult([self._find(index)], make=lambda values: values[0], single=True, client=self)
        return AsyncResult([self._find(each) for each in index], client=self)

    def queue_status(self, targets: Targets = "all", verbose: bool = False) -> Any:
        """Return the pending (`queue`, `tasks`) and completed calls of each rank, and the count of unassigned tasks."""
        tasks, unassigned = count_open(list(self.schedulers))
        with self._lock:
            queued = Counter(call.engine for call in self._open.values())
            found: dict[Any, Any] = {
                rank: {"queue": queued[rank], "completed": self._completed[rank], "tasks": tasks.get(rank, 0)}
                for rank in self.ranks_of(targets)
            }
        if isinstance(targets, int):
            return found[self.ranks_of(targets)[0]]
        return found | {"unassigned": unassigned}

    def clear(self, targets: Targets = None, block: bool | None = None) -> None:
        """Delete the variables that programs have made on these ranks."""
        asked = RankRequest(self.mesh, dict.fromkeys(self.ranks_of(targets), Clear()), "clear variables")
        if self.block if block is None else block:
            asked.wait()

    def wait_for_engines(self, n: int | None = None, **_: Any) -> None:
        """Check the number of engines, which are already up; raises NoEnginesRegistered if there are fewer."""
        if n is not None and n > len(self):
            raise NoEnginesRegistered(f"{self.name} has {len(self)} ranks, not {n}; start it with {n}")

    def send_signal(self, sig: int | str, targets: Targets = None, block: bool | None = None) -> None:
        """Send a signal to these ranks; SIGINT interrupts what they run, and has no effect on an idle one."""
        number = signal.Signals[sig] if isinstance(sig, str) else signal.Signals(sig)
        region = self.mesh.procs.region.pick(self.ranks_of(targets))
        if number is signal.SIGINT:
            self.mesh.control._with_region(region).interrupt_current.broadcast()
        else:
            self.mesh.procs._with_region(region).kill(number, sender=f"Client.send_signal({number.name})").get()

    def spin(self) -> None:
        """Do nothing: answers arrive on other threads."""

    def purge_results(self, *_: Any, **__: Any) -> None:
        """Do nothing: results are freed when the program drops them."""

    purge_local_results = purge_hub_results = purge_everything = purge_results

    def close(self, linger: float | None = None) -> None:
        """End the client's threads; the mesh stays up until the cluster is stopped."""
        for scheduler in list(self.schedulers):
            scheduler.close()
        self._resolvers.shutdown(wait=False)

    def shutdown(
        self, targets: Targets = "all", restart: bool = False, hub: bool = False, block: bool | None = None
    ) -> None:
        """Stop the mesh."""
        self.close()
        if self.mesh in list(self._meshes):
            self._meshes.down(self.mesh.name)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _on_thread(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return a method as a coroutine, which does not block the event loop."""

    @functools.wraps(method)
    async def run(*arguments: P.args, **keywords: P.kwargs) -> R:
        return await asyncio.to_thread(method, *arguments, **keywords)

    return run


class Cluster:
    """A mesh, once it has started, whose ranks are in sets: each `start_engines` adds one at its end.

    The process that runs the program is the controller. A subclass has the notebook.
    """

    notebook: Notebook
    rewriting: Rewriting

    def __init__(self, n: int | None = None, **_: Any) -> None:
        self.n = n
        self.engines: dict[str, int] = {}  # the number of ranks in each set, in order
        self._client: Client | None = None
        self._numbers = itertools.count(1)

    @property
    def cluster_id(self) -> str:
        """The name of the mesh; empty while there is none."""
        return "" if self._client is None else self._client.name

    def start_controller_sync(self, **_: Any) -> None:
        """Start the session of this program."""
        self.notebook.session()

    def start_engines_sync(self, n: int | None = None, engine_set_id: str | None = None, **_: Any) -> str:
        """Start a set of `n` ranks, the first by starting the mesh; return its id."""
        self.start_controller_sync()
        name = engine_set_id or f"engines-{next(self._numbers)}"
        if name in self.engines:
            raise ValueError(f"the cluster has a set {name!r} already")
        wanted = n or self.n
        if self._client is None:
            self._client = Client(self.notebook.meshes, self._up(wanted), self.rewriting)
            self.engines[name] = len(self._client)
        else:
            before = len(self._client)
            self._resize(before + (wanted or before))
            self.engines[name] = len(self._client) - before
        return name

    def _up(self, count: int | None) -> NotebookMesh:
        meshes = self.notebook.meshes
        taken = {mesh.name for mesh in meshes}
        names = [DEFAULT_NAME, *(f"{DEFAULT_NAME}_{number}" for number in range(2, len(taken) + 2))]
        mesh = meshes.up(Extent.of(gpus=count) if count else None, next(name for name in names if name not in taken))
        self.notebook.bind(mesh)
        meshes.use(mesh.name)  # a view of the last cluster is the active one
        return mesh

    def _resize(self, count: int) -> None:
        mesh = self.connect_client_sync().mesh
        lifecycle.resize(mesh, {"gpus": count}, lambda: self.notebook.bind(mesh))

    def stop_engines_sync(self, engine_set_id: str | None = None) -> None:
        """Stop the ranks of a set, or all. NotImplementedError unless it is the last one, since ranks are numbered."""
        last = next(reversed(self.engines), None)
        self._ranks_of(engine_set_id)
        if engine_set_id is None or list(self.engines) == [engine_set_id]:
            if self._client is not None:
                self._client.shutdown()
            self._client = None
            self.engines.clear()
        elif engine_set_id != last:
            raise NotImplementedError(f"only the last set of a cluster can be stopped alone: {last}, or all sets")
        else:
            self._resize(len(self.connect_client_sync()) - self.engines[last])
            del self.engines[last]

    def restart_engines_sync(self, engine_set_id: str | None = None) -> None:
        """Kill the ranks of a set, or all, and restart them."""
        lifecycle.restart(self.connect_client_sync().mesh, self._ranks_of(engine_set_id), "Cluster.restart_engines()")

    def signal_engines_sync(self, signum: int, engine_set_id: str | None = None) -> None:
        """Send a signal to the ranks of a set, or to all: see `Client.send_signal`."""
        self.connect_client_sync().send_signal(signum, self._ranks_of(engine_set_id))

    def signal_engine_sync(self, signum: int, engine_id: int) -> None:
        """Send a signal to one rank."""
        self.connect_client_sync().send_signal(signum, engine_id)

    def restart_engine_sync(self, engine_id: int) -> None:
        """Kill one rank, and restart it."""
        lifecycle.restart(self.connect_client_sync().mesh, [engine_id], "Cluster.restart_engine()")

    def _ranks_of(self, engine_set_id: str | None) -> list[int]:
        """Return the ranks of a set, or all. KeyError for an unknown set."""
        if engine_set_id is None:
            return [] if self._client is None else self._client.ids
        if engine_set_id not in self.engines:
            raise KeyError(f"the cluster has no set {engine_set_id!r}; its sets: {', '.join(self.engines) or 'none'}")
        names = list(self.engines)
        first = sum(self.engines[each] for each in names[: names.index(engine_set_id)])
        return list(range(first, first + self.engines[engine_set_id]))

    def start_cluster_sync(self, n: int | None = None) -> Self:
        """Start the mesh."""
        if self._client is None:
            self.start_engines_sync(n)
        return self

    def connect_client_sync(self, **_: Any) -> Client:
        """Return the client of the started mesh."""
        return self._client or connect(self.notebook, self.rewriting)

    def start_and_connect_sync(self, n: int | None = None, activate: bool = False, **_: Any) -> Client:
        """Start the mesh, and return its client."""
        return self.start_cluster_sync(n).connect_client_sync()

    def stop_cluster_sync(self) -> None:
        """Stop the mesh."""
        self.stop_engines_sync()

    stop_controller_sync = stop_cluster_sync

    start_controller = _on_thread(start_controller_sync)
    start_engines = _on_thread(start_engines_sync)
    stop_engines = _on_thread(stop_engines_sync)
    restart_engines = _on_thread(restart_engines_sync)
    signal_engines = _on_thread(signal_engines_sync)
    signal_engine = _on_thread(signal_engine_sync)
    restart_engine = _on_thread(restart_engine_sync)
    start_cluster = _on_thread(start_cluster_sync)
    connect_client = _on_thread(connect_client_sync)
    start_and_connect = _on_thread(start_and_connect_sync)
    stop_cluster = stop_controller = _on_thread(stop_cluster_sync)

    def __enter__(self) -> Client:
        return self.start_and_connect_sync()

    def __exit__(self, *_: object) -> None:
        self.stop_cluster_sync()

    async def __aenter__(self) -> Client:
        return await self.start_and_connect()

    async def __aexit__(self, *_: object) -> None:
        await self.stop_cluster()


def connect(notebook: Notebook, rewriting: Rewriting) -> Client:
    """Return a client of the current mesh, which is started if there is none."""
    notebook.session()
    if not len(notebook.meshes):
        notebook.bind(notebook.meshes.up())
    return Client(notebook.meshes, notebook.meshes.get(), rewriting)
