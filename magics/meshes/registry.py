"""The registry of a notebook's meshes by name: start, look up, stop. Each mesh has the actors that cells need."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshbook.magics.cells.admission import RankQueues
from meshbook.magics.errors import MeshError, SelectionError
from meshbook.magics.meshes.mesh_hosts import MeshHosts
from meshbook.magics.syntax.selectors import LastCell, SelectedRegion, parse, resolve
from meshbook.runtime.actor.context import CURRENT, Context, current_origin
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.actor import CellActor, CellControl
from meshbook.runtime.cells.inspection_actor import CellInspection
from meshbook.runtime.errors import ExitReport, MeshbookError
from meshbook.runtime.formats import format_elapsed, name_ranks
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.session import Session, close_session, current_session, running_session
from meshbook.runtime.interrupts import allow_interrupts, hold_interrupts
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.mesh.procs import ProcMesh, handle_failures
from meshbook.runtime.mesh.worker_specs import inherited_path
from meshbook.runtime.resources import count_cores, count_gpus

DEFAULT_NAME = "mesh"
RESERVED = frozenset({"all", "ok", "failed", "changed"})  # words of the selector grammar
MOST_DEFAULT_RANKS = 8  # CPU ranks that start by default; a machine with 128 cores needs an explicit number

Progress = Callable[[int, int], None]  # (ready ranks, all ranks)


def _nothing() -> None:
    """Do nothing: the default callback."""


@dataclass
class NotebookMesh:
    """A process mesh with the actors that run cells on it."""

    name: str
    procs: ProcMesh
    cells: CellActor
    control: CellControl
    inspection: CellInspection
    session: Session
    has_gpus: bool
    spares: int = 0  # number of spares to keep
    hosts: MeshHosts | None = None  # None: this machine
    dead: dict[int, ExitReport] = field(default_factory=dict)
    last: LastCell = field(default_factory=LastCell)
    unwatch: Callable[[], None] = _nothing  # stop watching its ranks
    open_dashboard: Callable[[], Any] = _nothing
    is_one_of_several: Callable[[], bool] = lambda: False  # in the notebook
    when_changed: Callable[[], object] = _nothing  # called after its ranks or their health have changed
    closing: threading.Thread | None = None  # returns its hosts, once it has ended
    busy: dict[int, int] = field(default_factory=dict)  # rank -> the cell that ended without its answer
    names: dict[int, tuple[str, ...]] = field(
        default_factory=dict
    )  # the names in each rank's namespace after its last cell
    # rank -> the names that it had before restarts, and those that cells bound elsewhere in which it died
    lost: dict[int, tuple[str, ...]] = field(default_factory=dict)
    fresh: dict[int, int] = field(default_factory=dict)  # restarted rank -> the serial of the last cell before
    added: dict[int, int] = field(default_factory=dict)  # rank added by a resize -> the serial of the last cell before
    # The import path of the notebook when the mesh began, and what of it the ranks have by now.
    first_path: tuple[str, ...] = field(default_factory=inherited_path)
    shared_path: frozenset[str] = frozenset()
    breaks: int = 0  # how often its process groups were broken by command
    broken: dict[int, str] = field(default_factory=dict)  # rank -> by what its process groups were broken last
    lost_contexts: dict[int, int] = field(default_factory=dict)  # rank -> the cell that showed its CUDA context as lost
    queues: RankQueues = field(default_factory=RankQueues)  # the cells that run on it, and the cells that wait for them
    # Guards what is known of each rank while a resize moves it, from the ends and restarts that the I/O thread reports.
    moving: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.rank_of = {address.node: rank for rank, address in enumerate(self.procs.nodes)}  # of those not stopped

    @property
    def extent(self) -> Extent:
        return self.procs.extent

    @property
    def per_host(self) -> Extent:
        """The dimensions on each host."""
        machines = set(self.hosts.machines.extent) if self.hosts is not None else set()
        return Extent.of(**{label: size for label, size in self.extent.items() if label not in machines})

    def pick(self, handle: Any, ranks: Iterable[int]) -> Any:
        """Narrow a handle of its processes, or of actors on all of them, to these ranks."""
        return handle._with_region(self.procs.region.pick(ranks))

    @property
    def label(self) -> str:
        """The prefix of ranks in output: the name if there are several meshes, else empty."""
        return self.name if self.is_one_of_several() else ""

    def selector(self, ranks: str = "") -> str:
        """Return the selector of these ranks for a command, with a leading blank: ` 3`, ` b[3]`, ` b` for all."""
        chosen = f"{self.label}[{ranks}]" if self.label and ranks else self.label or ranks
        return f" {chosen}" if chosen else ""

    def resolve(self, selector: str) -> tuple[int, ...]:
        """Return the ranks of this mesh that a selector selects, whichever mesh is the current one."""
        parsed = parse(selector)
        if parsed.mesh not in (None, self.name):
            raise SelectionError(f"the selector must select ranks of {self.name}, not of {parsed.mesh}")
        return tuple(resolve(parsed, {self.name: self.procs.region}, self.name, self.last).region.ranks())

    @property
    def stuck(self) -> set[int]:
        """The living ranks that have not answered in a cell that is over, and still run it."""
        return set(self.busy) - self.dead.keys()

    @property
    def is_stopped(self) -> bool:
        """Whether its processes were asked to end; it leaves the registry once they have ended."""
        return self.procs.is_stopped

    @property
    def failed(self) -> set[int]:
        """The ranks whose last cell failed, other than by an interrupt, unless they were restarted since.

        With those that have lost their CUDA context.
        """
        last = self.last
        failed = {rank for rank in last.failed - last.interrupted if self.fresh.get(rank) != last.serial}
        return failed | self.lost_contexts.keys()

    @property
    def parts(self) -> list[ActorMesh]:
        """The actors that cells need on its ranks."""
        fields = (getattr(self, field.name) for field in dataclasses.fields(self))
        return [value for value in fields if isinstance(value, ActorMesh)]

    def follow(self, procs: ProcMesh) -> Future[Any] | None:
        """Switch to these processes after a resize; the future completes once each rank has its new position."""
        if procs.nodes == self.procs.nodes:
            return None
        actors = procs.all_of(self.cells), procs.all_of(self.control), procs.all_of(self.inspection)
        with self.moving:
            self.procs = procs
            self.cells, self.control, self.inspection = actors
            self._move_ranks()
        self.when_changed()
        return self.cells.update_names.call()

    def _move_ranks(self) -> None:
        before = {rank: node for node, rank in self.rank_of.items()}
        self.rank_of = {address.node: rank for rank, address in enumerate(self.procs.nodes)}
        known_by_rank: list[dict[int, Any]] = [self.dead, self.busy, self.names, self.lost, self.fresh, self.added]
        for known in [*known_by_rank, self.broken, self.lost_contexts]:
            # The entries of processes that are gone are dropped.
            moved = {
                self.rank_of[node]: each for rank, each in known.items() if (node := before.get(rank)) in self.rank_of
            }
            known.clear()
            known.update(moved)
        stayed = set(before.values())
        self.added |= {rank: self.last.serial for node, rank in self.rank_of.items() if node not in stayed}
        self.last = LastCell()

    def share_path(self) -> None:
        """Add the folders to the import path of the ranks that the notebook has added to its own since they began."""
        path = inherited_path()
        new = [entry for entry in path if entry not in self.shared_path and entry not in self.first_path]
        living = [rank for rank in self.rank_of.values() if rank not in self.dead]
        if not new or not living or self.is_stopped:
            return
        place = next((index for index, entry in enumerate(path) if entry in self.first_path), 0)
        first = [entry for entry in new if entry in path[:place]]
        # On the main thread of a rank, as cells: those that follow have the folders.
        self.pick(self.cells, living).add_to_path.broadcast(first, [entry for entry in new if entry not in first])
        self.shared_path = self.shared_path.union(new)

    def note_lost(self, rank: int, names: Iterable[str]) -> None:
        """Record names that a rank lacks after a restart."""
        self.lost[rank] = tuple(dict.fromkeys((*names, *self.lost.get(rank, ()))))

    def note_broken(self, by: str, others_than: Iterable[int] = ()) -> None:
        """Record that the process groups of the ranks were broken; later cells that use them name the remedy."""
        self.broken |= dict.fromkeys(set(self.rank_of.values()).difference(others_than), by)

    def note_last(self, cell: LastCell) -> None:
        """Record that a cell has ended. `last` is the one that began last, even if cells end in another order."""
        if cell.serial >= self.last.serial:
            self.last = cell
            self.when_changed()

    @property
    def tasks(self) -> dict[str, list[int]]:
        """The ranks that run a cell, by its title: `job 7 of cell 12`."""
        found = {
            title: [self.rank_of[node] for node in nodes if node in self.rank_of]
            for title, nodes in self.queues.at_work().items()
        }
        return {title: ranks for title, ranks in found.items() if ranks}

    def at_work(self) -> Iterator[str]:
        """Yield `ranks 0-1 run job 7 of cell 12` for each task that its ranks run."""
        return itertools.starmap(format_task, self.tasks.items())

    def format_summary(self) -> str:
        """Return `mesh: 4 ranks (gpus=4) on CPU`."""
        shape = ", ".join(f"{label}={size}" for label, size in self.extent.items())
        kind = "one GPU each" if self.has_gpus else f"on CPU (no GPU {'here' if self.hosts is None else 'there'})"
        kind += f", on {self.hosts}" if self.hosts is not None else ""
        state = "; stopping" if self.is_stopped else ""
        state += f"; {name_ranks(self.dead)} dead" if self.dead else ""
        state += f"; {name_ranks(self.stuck)} stuck" if self.stuck else ""
        count = self.extent.nelements
        return f"{self.name}: {count} {'rank' if count == 1 else 'ranks'} ({shape}), {kind}{state}"


def format_task(title: str, ranks: Sequence[int]) -> str:
    """Return `ranks 0-1 run job 7 of cell 12`."""
    return f"{name_ranks(ranks)} {'runs' if len(ranks) == 1 else 'run'} {title}"


class MeshRegistry:
    """All meshes of this notebook.

    One is the current mesh, whose ranks a selector without a name means: the first that starts, until `use` selects
    another.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, NotebookMesh] = {}
        self._current = ""
        self.ended_idle = ""  # why no mesh is up, if meshes were ended because they ran nothing
        self.open_dashboard: Callable[[str], Any] = lambda name: None  # by mesh name; set by the notebook
        # Called on any thread after a mesh was started, stopped or selected, or its health has changed. Does not wait.
        self.when_changed: Callable[[], object] = _nothing
        self._lock = threading.Lock()  # guards both: meshes and cells may start on different threads

    def __iter__(self) -> Iterator[NotebookMesh]:
        return iter(self._living().values())

    def __len__(self) -> int:
        return len(self._living())

    def _living(self) -> dict[str, NotebookMesh]:
        """Return the meshes of the running session: `close_session()` ends all of its meshes."""
        session = running_session()
        return {name: mesh for name, mesh in self._by_name.items() if mesh.session is session}

    def get(self, name: str | None = None) -> NotebookMesh:
        """Return the mesh of this name, or the current one. Raises MeshError if there is none."""
        living = self._living()
        if not living:
            raise MeshError(f"no mesh is up; {self.ended_idle or 'start one with %mesh up --gpus 4'}")
        wanted = name if name is not None else self._current
        if wanted not in living:
            raise MeshError(f"no mesh is named {wanted!r}; meshes: {', '.join(living)}")
        return living[wanted]

    def find(self, name: str | None = None) -> NotebookMesh | None:
        """Return the mesh that `up` would start under this name, if it is up already."""
        return self._living().get(name or DEFAULT_NAME)

    def use(self, name: str) -> NotebookMesh:
        """Make this the current mesh. Raises MeshError if no mesh has this name."""
        mesh = self.get(name)
        with self._lock:
            self._current = mesh.name
        self.when_changed()
        return mesh

    def select(self, text: str) -> tuple[NotebookMesh, SelectedRegion]:
        """Return a selector's mesh and ranks. Raises SelectionError if it selects none, MeshError without a mesh."""
        current = self.get()
        regions = {mesh.name: mesh.procs.region for mesh in self}
        parsed = parse(text)
        of = self._living().get(parsed.mesh or "", current)
        selected = resolve(parsed, regions, current.name, of.last)
        return self.get(selected.mesh), selected

    def sharing(self, hosts: MeshHosts) -> list[NotebookMesh]:
        """Return the meshes on these hosts."""
        return [mesh for mesh in self if mesh.hosts is hosts]

    def ranks_of(self, selector: str) -> tuple[NotebookMesh, list[int]]:
        """Return a selector's mesh and its ranks as numbers. Raises as `select` does."""
        mesh, selected = self.select(selector)
        return mesh, list(selected.region.ranks())

    def up(
        self,
        extent: Extent | None = None,
        name: str | None = None,
        progress: Progress | None = None,
        *,
        spares: int = 0,
        open_hosts: Callable[[], MeshHosts] | None = None,
    ) -> NotebookMesh:
        """Start a mesh and wait until every rank is ready to run cells; its `spares` may become ready later.

        `open_hosts` starts or finds its hosts, each of which then has `extent` ranks; they end with their last mesh.
        Raises MeshError for a name in use. If a rank does not start, the error contains what it left on stderr. Ctrl-C
        ends what has been started.
        """
        name = name or DEFAULT_NAME
        self._check_name(name)
        session = _session_with_agent()
        with hold_interrupts(f"{name} was not started") as hold:
            if open_hosts is None:
                gpus = count_gpus()
                mesh = self._up_on(session, None, extent or default_extent(gpus), name, progress, spares, gpus)
            else:
                hosts = open_hosts()
                try:
                    with allow_interrupts():
                        gpus = hosts.count_gpus()
                    extent = extent or Extent.of(gpus=max(1, gpus))
                    if shared := set(extent) & set(hosts.machines.extent):
                        dimension = shared.pop()
                        raise MeshError(
                            f"the hosts have the dimension {dimension!r} already; --shape is that on each host"
                        )
                    mesh = self._up_on(session, hosts, extent, name, progress, spares, gpus)
                except BaseException:
                    self._close_unused(hosts)
                    raise
            hold.note = f"{name} is up"
            return mesh

    def _up_on(
        self,
        session: Session,
        hosts: MeshHosts | None,
        extent: Extent,
        name: str,
        progress: Progress | None,
        spares: int,
        gpus: int,
    ) -> NotebookMesh:
        machines = session.host if hosts is None else hosts.machines
        procs = machines.spawn_procs(per_host=dict(extent), name=name, spares=spares)
        try:
            cells = procs.spawn_on_main("cells", CellActor)
            control = procs.spawn("cell control", CellControl)
            inspection = procs.spawn("cell inspection", CellInspection)
            for part in (procs, cells, control, inspection):
                handle_failures(part, lambda failure: True)  # running and later cells report the failure
            mesh = NotebookMesh(name, procs, cells, control, inspection, session, gpus > 0, spares, hosts)
            self._watch(mesh)
            with allow_interrupts():
                wait_ready(mesh, progress)
        except BaseException:
            # Also for Ctrl-C: a mesh that is half up is of no use.
            procs.stop("it did not start")
            raise
        with self._lock:
            self.ended_idle = ""
            self._by_name = self._living() | {name: mesh}
            if self._current not in self._by_name:
                self._current = name
        self.when_changed()
        return mesh

    def adopt(self, mesh: NotebookMesh, *, is_current: bool) -> None:
        """Add a mesh that another notebook has started."""
        for part in (mesh.procs, *mesh.parts):
            handle_failures(part, lambda failure: True)  # as in `up`
        self._watch(mesh)
        with self._lock:
            self._by_name = self._by_name | {mesh.name: mesh}  # its session is about to become the running one
            if is_current or not self._current:
                self._current = mesh.name
        self.when_changed()

    def _check_name(self, name: str) -> None:
        if not name.isidentifier() or name in RESERVED:
            raise MeshError(
                f"invalid mesh name {name!r}; use a valid variable name other than {', '.join(sorted(RESERVED))}"
            )
        if (known := self.find(name)) is not None:
            raise MeshError(
                f"{known.format_summary()}, is already up; resize it with %mesh resize {name} --gpus N (or --shape), "
                f"stop it with %mesh down {name}, or start another mesh with --name"
            )

    def _watch(self, mesh: NotebookMesh) -> None:
        node = mesh.session.node

        def note_end(report: ExitReport) -> None:
            with mesh.moving:
                rank = mesh.rank_of.get(report.node)
                if rank is None:
                    return
                if report.stopped:
                    del mesh.rank_of[report.node]
                else:
                    mesh.dead[rank] = report
                # If so, the mesh is stopped: its dead ranks will not be healed.
                has_ended = report.stopped and mesh.dead.keys() >= set(mesh.rank_of.values())
            if has_ended:
                self._remove(mesh)
            if not report.stopped:
                mesh.when_changed()

        def note_restart(name: str) -> None:
            with mesh.moving:
                if (rank := mesh.rank_of.get(name)) is None:
                    return
                mesh.dead.pop(rank, None)
                mesh.busy.pop(rank, None)
                mesh.broken.pop(rank, None)
                mesh.lost_contexts.pop(rank, None)
                mesh.note_lost(rank, mesh.names.pop(rank, ()))
                mesh.fresh[rank] = mesh.last.serial
            mesh.when_changed()

        def unwatch() -> None:
            mesh.unwatch = _nothing
            node.peers.when_down.remove(note_end)
            node.peers.when_restarted.remove(note_restart)

        mesh.unwatch = unwatch
        mesh.open_dashboard = lambda: self.open_dashboard(mesh.name)
        mesh.when_changed = lambda: self.when_changed()
        mesh.is_one_of_several = lambda: len(self) > 1
        node.peers.when_down.append(note_end)
        node.peers.when_restarted.append(note_restart)

        def go_on(procs: ProcMesh, ranks: Sequence[int]) -> Future[Any] | None:
            followed = mesh.follow(procs)
            mesh.shared_path = frozenset()
            mesh.share_path()
            mesh.note_broken("the restart or resize of ranks", others_than=ranks)
            return followed

        mesh.procs.after_heal(go_on)

    def down(self, name: str | None = None, *, now: bool = False) -> NotebookMesh:
        """Stop a mesh; `now` kills its ranks instead of letting them finish what they run.

        Ctrl-C ends the wait: the mesh stays in the registry until its ranks have ended, and then its hosts end.
        """
        mesh = self.get(name)
        with hold_interrupts(f"{mesh.name} is being stopped; %mesh down {mesh.name} waits for its end") as hold:
            if now:
                mesh.procs.kill(sender="%mesh down --now")
            stopped = mesh.procs.stop("%mesh down")
            try:
                with allow_interrupts():
                    stopped.get()
            finally:
                stopped.when_done(lambda: self._remove(mesh))  # needed if all ranks had died: no event follows
            hold.note = f"{mesh.name} is down"
            if mesh.closing is not None:
                with allow_interrupts():
                    mesh.closing.join()
        return mesh

    def _remove(self, mesh: NotebookMesh) -> None:
        """Forget a mesh whose processes have ended, and begin to return its hosts. Idempotent; does not wait."""
        with self._lock:
            mesh.unwatch()
            if self._by_name.get(mesh.name) is not mesh:  # it did not start, or is removed already
                return
            del self._by_name[mesh.name]
            if self._current == mesh.name:
                self._current = next(reversed(self._by_name), "")
            if mesh.hosts is not None and mesh.session is running_session():  # else the session ends them
                # `down` joins it; after `stop()` by code the interpreter does, since it is no daemon.
                mesh.closing = threading.Thread(target=self._close_unused, args=(mesh.hosts,), name="meshbook hosts")
                mesh.closing.start()
        mesh.session.output.forget(mesh.procs.name)
        mesh.session.history.forget(mesh.procs.name)
        self.when_changed()

    def end_idle(self, hosts: MeshHosts) -> str:
        """Stop the meshes on idle hosts; return a line with the reason and the commands that start them again."""
        meshes = self.sharing(hosts)
        first = f"--hosts {hosts.text}"
        commands = []
        for mesh in meshes:
            shape = ",".join(f"{label}={size}" for label, size in mesh.per_host.items())
            named = "" if mesh.name == DEFAULT_NAME else f" --name {mesh.name}"
            commands.append(f"%mesh up {first} --shape {shape} --idle {hosts.idle:g}s{named}")
            first = f"--hosts {mesh.name}"  # the next ones share them
        names = " and ".join(mesh.name for mesh in meshes)
        for mesh in meshes:
            self.down(mesh.name)
        self.ended_idle = (
            f"{names} ended after {format_elapsed(hosts.idle)} without a cell or call, and the hosts {hosts} were "
            f"returned; start again: {'; '.join(commands)}"
        )
        return self.ended_idle

    def _close_unused(self, hosts: MeshHosts) -> None:
        if not self.sharing(hosts):
            hosts.close()


def _session_with_agent() -> Session:
    """Return the session; a new one if the host agent has ended, and all of its workers with it."""
    if current_session().has_lost_agent:
        close_session()
        # The running cell continues as a client of the new session.
        CURRENT.set(Context(current_session().context.actor_instance, origin=current_origin()))
    return current_session()


def default_extent(gpus: int) -> Extent:
    """Return as many ranks as there are GPUs, else cores; at least two, since one rank is no mesh."""
    return Extent.of(gpus=gpus if gpus else min(max(2, count_cores()), MOST_DEFAULT_RANKS))


def wait_ready(mesh: NotebookMesh, progress: Progress | None) -> None:
    """Wait for every rank's cell actor; raise MeshError for the first rank that failed."""
    prepared: list[Future[bool]] = list(mesh.cells.prepare.call_each())
    while True:
        waiting = []
        for rank, future in enumerate(prepared):
            if not future.done():
                waiting.append(future)
            elif isinstance(error := future.exception(), MeshbookError):
                raise MeshError(f"rank {rank} of {mesh.name} did not start: {error}") from error
            elif error is not None:
                raise error
        if not waiting:
            return
        try:
            waiting[0].exception(0.25)
        except TimeoutError:
            if progress is not None:
                progress(len(prepared) - len(waiting), len(prepared))


def format_up(mesh: NotebookMesh, started: float) -> str:
    """Return the line that `%mesh up` prints."""
    return (
        f"{mesh.format_summary()}; {name_ranks(range(mesh.extent.nelements))} up in {time.monotonic() - started:.2f} s"
    )
