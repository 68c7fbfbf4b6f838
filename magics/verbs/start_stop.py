"""`%mesh up`, `use`, `down`, `resize`, `heal` and `restart`: the lifecycle of meshes and their ranks."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace
from typing import Any

from meshbook.magics.cells.detach import print_detached_runs
from meshbook.magics.cells.rank_errors import format_remedy
from meshbook.magics.errors import MeshError, UsageError
from meshbook.magics.meshes import lifecycle
from meshbook.magics.meshes.idleness import watch_hosts
from meshbook.magics.meshes.mesh_hosts import MeshHosts, open_hosts
from meshbook.magics.meshes.registry import DEFAULT_NAME, NotebookMesh, format_up
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.publisher import LiveDisplay, publisher_for
from meshbook.magics.syntax.argparsing import Parser, count, hosts_text, mesh_name, variable
from meshbook.magics.verbs import Verb, add_mesh_name, add_selection, add_size
from meshbook.magics.verbs.detach import duration
from meshbook.runtime.geometry import Extent
from meshbook.runtime.interrupts import hold_interrupts


@dataclass(frozen=True)
class UpVerb(Verb):
    """Start a mesh of `gpus` workers, or of this shape; the default of both is None. A mesh that is up stays.

    With `hosts`, this is the number or shape on each host.
    """

    word = "up"
    description = (
        "Start a mesh. A mesh of this name and shape that is already up stays as it is. With --hosts, --gpus and "
        "--shape are those on each host. Example: %mesh up --hosts slurm:4 --gpus 8"
    )

    gpus: int | None = None
    shape: Extent | None = None
    name: str | None = None
    spares: int = 0
    hosts: str | None = None
    idle: float | None = None
    fixed: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_size(parser, required=False)
        parser.add_argument("--name", metavar="NAME", type=variable, help="name of the mesh, for selectors")
        parser.add_argument(
            "--spares",
            metavar="N",
            type=count,
            default=0,
            help="keep N processes ready to replace ranks that die (default: none)",
        )
        parser.add_argument(
            "--hosts",
            metavar="HOSTS",
            type=hosts_text,
            help="start it on other machines: slurm:4, ssh:gpu1,gpu2, ray:4, local:2, cluster.toml, a name in "
            "hosts.toml, or the name of a mesh, to share its hosts (default: this machine)",
        )
        parser.add_argument(
            "--idle",
            metavar="TIME",
            type=duration,
            help="end the meshes on these hosts, and return the hosts, once no cell, job, call or client has used them "
            "for this time: 30m, 2h (default: MESHBOOK_HOST_IDLE in seconds, or never)",
        )
        parser.add_argument(
            "--fixed",
            action="store_true",
            help="let later %%mesh up of this name have these hosts and this size, whatever they ask for; meshbook run "
            "--hosts and --gpus use it",
        )

    def run(self, notebook: Notebook) -> None:
        name = self.name or DEFAULT_NAME
        fixed = self if self.fixed else notebook.fixed_meshes.get(name, self)
        with hold_interrupts():
            replace(self, gpus=fixed.gpus, shape=fixed.shape, hosts=fixed.hosts, idle=fixed.idle)._start(notebook)
            if self.fixed:
                notebook.fixed_meshes[name] = self

    def _start(self, notebook: Notebook) -> None:
        started = time.monotonic()
        session = notebook.session()
        if self.idle is not None and self.hosts is None:
            raise MeshError("--idle returns hosts: it needs --hosts")
        extent = self.shape if self.shape is not None else Extent.of(gpus=self.gpus) if self.gpus else None
        known = notebook.meshes.find(self.name)
        if known is not None and self._is_met_by(known, extent):
            notebook.bind(known)
            notebook.meshes.use(known.name)
            if known.hosts is not None:
                self._limit_idleness(notebook, known.hosts, 0.0)
            remedy = f"; {format_remedy(known, sorted(known.dead))}" if known.dead else ""
            print(f"{known.format_summary()}; already up{_mark_current(known)}{remedy}")
            return
        bar = StartProgress(notebook.shell)
        try:
            open_hosts = functools.partial(self._open_hosts, notebook, bar) if self.hosts is not None else None
            mesh = notebook.meshes.up(extent, self.name, bar, spares=self.spares, open_hosts=open_hosts)
            notebook.bind(mesh)
            notebook.meshes.use(mesh.name)
            if mesh.hosts is not None:
                self._limit_idleness(notebook, mesh.hosts, session.settings.host_idle)
        except BaseException:
            bar.stop()
            raise
        bar.done(f"{format_up(mesh, started)}{_mark_current(mesh)}")
        print_detached_runs()

    def _limit_idleness(self, notebook: Notebook, hosts: MeshHosts, default: float) -> None:
        """End the meshes on hosts that this verb has started once they are idle. A later mesh may change the time."""
        is_watched = hosts.idle > 0
        hosts.idle = self.idle or hosts.idle or (default if hosts.is_started_here else 0.0)
        if not is_watched:
            watch_hosts(notebook, hosts)

    def _is_met_by(self, known: NotebookMesh, extent: Extent | None) -> bool:
        """Whether a mesh that is up already has this shape and these hosts."""
        if known.session.has_lost_agent:
            return False
        if self.hosts is None or known.hosts is None:
            return self.hosts is None and extent in (None, known.extent)
        return self.hosts == known.hosts.text and extent in (None, known.per_host)

    def _open_hosts(self, notebook: Notebook, bar: StartProgress) -> MeshHosts:
        assert self.hosts is not None
        bar.count_hosts(0, 0)
        hosts = open_hosts(
            self.hosts,
            in_use={mesh.name: mesh.hosts for mesh in notebook.meshes if mesh.hosts is not None},
            variables=notebook.shell.user_ns,
            gpus_per_host=self.gpus if self.shape is None else self.shape.nelements,
            progress=bar.count_hosts,
        )
        if self.idle is not None and not hosts.is_started_here:
            raise MeshError(f"--idle returns hosts that %mesh up has started; {self.hosts} is a variable of yours")
        return hosts


class StartProgress:
    """A progress line with the number of hosts, then of ranks that are up; a quick start on this machine shows none."""

    def __init__(self, shell: Any) -> None:
        self._publisher = publisher_for(shell)
        self._shown = ""

    def __call__(self, ready: int, total: int) -> None:
        self._show(f"starting ranks {_bar(ready, total)}")

    def count_hosts(self, up: int, total: int) -> None:
        """Show how many hosts are up; 0 of 0 while their launcher has not named them."""
        self._show(f"starting hosts {_bar(up, total)}" if total else "waiting for hosts")

    def done(self, text: str) -> None:
        self._show(text, is_final=True) if self._shown else print(text)

    def stop(self) -> None:
        """Mark the line as unfinished; the reason is reported elsewhere."""
        if self._shown:
            self._show(f"{self._shown}; not completed", is_final=True)

    def _show(self, text: str, *, is_final: bool = False) -> None:
        if text != self._shown:
            self._publisher.publish([LiveDisplay({"text/plain": text}, bool(self._shown), is_final)])
            self._shown = text


def _mark_current(mesh: NotebookMesh) -> str:
    """Return the remark that this is the current mesh, where there are several."""
    return "; the current mesh" if mesh.label else ""


def _bar(ready: int, total: int) -> str:
    return f"{'█' * (20 * ready // total):░<20} {ready}/{total}"


@dataclass(frozen=True)
class UseVerb(Verb):
    """Make this mesh the default of cells and verbs that name none."""

    word = "use"
    description = "Choose the current mesh, the default of cells and verbs."

    name: str

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument("name", metavar="NAME", type=mesh_name, help="mesh to choose")

    def run(self, notebook: Notebook) -> None:
        print(f"{notebook.meshes.use(self.name).format_summary()}; the current mesh")


@dataclass(frozen=True)
class DownVerb(Verb):
    """Stop a mesh (None: the current mesh), or `every` mesh; `now` does not wait for running code."""

    word = "down"
    description = "Stop a mesh. Hosts that %mesh up has started end with the last mesh on them."

    name: str | None = None
    now: bool = False
    every: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_mesh_name(parser, "mesh to stop (default: the current mesh)")
        parser.add_argument("--now", action="store_true", help="do not wait for running code")
        parser.add_argument("--all", dest="every", action="store_true", help="stop all meshes")

    def run(self, notebook: Notebook) -> None:
        notebook.session()
        if not self.every:
            self._stop(notebook, self.name)
            return
        if self.name is not None:
            raise UsageError("%mesh down: a name and --all cannot be combined")
        if not len(notebook.meshes):
            notebook.meshes.get()  # raises
        # The current one last: the others need no new current mesh.
        current = notebook.meshes.get()
        for mesh in [*(mesh for mesh in notebook.meshes if mesh is not current), current]:
            self._stop(notebook, mesh.name)

    def _stop(self, notebook: Notebook, name: str | None) -> None:
        if not self.now:
            mesh = notebook.meshes.get(name).name
            for job in [job for job in notebook.jobs if job.mesh == mesh and not job.done()]:
                print(
                    f"waiting for {job.title} (%mesh cancel {job.number} interrupts it, %mesh down --now does not wait)"
                )
                job.wait()  # Ctrl-C ends the wait, and nothing has been stopped then
        before = notebook.meshes.get()
        print(f"{notebook.meshes.down(name, now=self.now).name} is down")
        if len(notebook.meshes) and (current := notebook.meshes.get()) is not before:
            print(f"the current mesh is now {current.name}")


@dataclass(frozen=True)
class ResizeVerb(Verb):
    """Resize a mesh (None: the current mesh) to `gpus` workers in its last dimension, or to these sizes."""

    word = "resize"
    description = "Add ranks to a mesh, or remove some; the others keep their state."

    gpus: int | None = None
    shape: Extent | None = None
    name: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_mesh_name(parser, "mesh to resize (default: the current mesh)")
        add_size(parser, required=True)

    def run(self, notebook: Notebook) -> None:
        mesh = notebook.meshes.get(self.name)
        sizes = dict(self.shape) if self.shape is not None else {"gpus": self.gpus or 1}

        def follow() -> None:
            if any(known is mesh for known in notebook.meshes):  # the mesh may have gone down meanwhile
                notebook.bind(mesh)

        print(lifecycle.resize(mesh, sizes, follow))


@dataclass(frozen=True)
class HealVerb(Verb):
    """Restart the dead ranks of a mesh (None: the current mesh)."""

    word = "heal"
    description = "Restart the dead ranks of a mesh."

    name: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_mesh_name(parser, "mesh to heal (default: the current mesh)")

    def run(self, notebook: Notebook) -> None:
        print(lifecycle.heal(notebook.meshes.get(self.name)))


@dataclass(frozen=True)
class RestartVerb(Verb):
    """End these ranks, even busy ones, and restart them."""

    word = "restart"
    description = "Kill ranks, even busy ones, and restart them."

    selection: str = "all"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_selection(parser)

    def run(self, notebook: Notebook) -> None:
        print(lifecycle.restart(*notebook.meshes.ranks_of(self.selection)))
