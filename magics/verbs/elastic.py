"""`%mesh drain` and `join`: hosts that leave a running mesh, and hosts that are added to it."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

from meshbook.magics.errors import MeshError
from meshbook.magics.meshes import lifecycle
from meshbook.magics.meshes.mesh_hosts import MeshHosts, open_hosts
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser, host_name, hosts_text, mesh_name
from meshbook.magics.verbs import Verb
from meshbook.magics.verbs.start_stop import StartProgress
from meshbook.runtime.interrupts import hold_interrupts


@dataclass(frozen=True)
class DrainVerb(Verb):
    """Remove these hosts from a mesh (None: the current mesh); `now` interrupts what their ranks run."""

    word = "drain"
    description = (
        "Remove hosts from a mesh and return them to their launcher, once their ranks run no cell. The other ranks "
        "keep their state. Meshes that share the hosts are drained too. Example: %mesh drain gpu2"
    )

    hosts: list[str]
    name: str | None = None
    now: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "hosts", metavar="HOST", nargs="+", type=host_name, help="names of hosts, as %%mesh status shows them"
        )
        _add_name(parser)
        parser.add_argument("--now", action="store_true", help="interrupt the cells that run there")

    def run(self, notebook: Notebook) -> None:
        mesh, hosts = _mesh_with_hosts(notebook, self.name)
        started = time.monotonic()
        sharing = notebook.meshes.sharing(hosts)
        # After an interrupt, some may have been drained before.
        left = [each for each in sharing if not set(self.hosts).isdisjoint(each.procs.host_mesh.names)] or [mesh]
        for each in left:
            follow = functools.partial(_follow, notebook, each)
            lifecycle.drain(each, self.hosts, now=self.now, follow=follow)
        for each in sharing:
            print(f"{each.format_summary()}; drained in {time.monotonic() - started:.2f} s")


@dataclass(frozen=True)
class JoinVerb(Verb):
    """Start the hosts that `added` describes, and add them to a mesh (None: the current mesh)."""

    word = "join"
    description = (
        "Start hosts and add them to a mesh, each with as many ranks as the others have. The present ranks keep their "
        "state. Meshes that share the hosts get them too. Example: %mesh join ssh:gpu9"
    )

    added: str
    name: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "added", metavar="HOSTS", type=hosts_text, help="the hosts to start, as for %%mesh up --hosts"
        )
        _add_name(parser)

    def run(self, notebook: Notebook) -> None:
        mesh, hosts = _mesh_with_hosts(notebook, self.name)
        try:
            mesh.procs.host_mesh.check_elastic("join")
        except ValueError as error:
            raise MeshError(f"{mesh.name}: {error}") from error
        started = time.monotonic()
        bar = StartProgress(notebook.shell)
        try:
            with hold_interrupts():
                bar.count_hosts(0, 0)
                more = open_hosts(
                    self.added,
                    in_use={},
                    variables=notebook.shell.user_ns,
                    gpus_per_host=mesh.per_host.nelements,
                    progress=bar.count_hosts,
                )
                sharing = notebook.meshes.sharing(hosts)
                try:
                    lifecycle.join(sharing, more.machines, functools.partial(_follow, notebook))
                finally:
                    # From then on they end with the others.
                    if more.machines.ownership is hosts.machines.ownership:
                        hosts.joined.append(self.added)
                    else:
                        more.close()
        except BaseException:
            bar.stop()
            raise
        texts = [f"{each.format_summary()}; joined in {time.monotonic() - started:.2f} s" for each in sharing]
        bar.done("\n".join(texts))


def _add_name(parser: Parser) -> None:
    parser.add_argument(
        "--name", metavar="NAME", type=mesh_name, help="mesh whose hosts change (default: the current mesh)"
    )


def _mesh_with_hosts(notebook: Notebook, name: str | None) -> tuple[NotebookMesh, MeshHosts]:
    mesh = notebook.meshes.get(name)
    if mesh.hosts is None:
        raise MeshError(f"{mesh.name} runs on this machine alone; start a mesh on hosts with %mesh up --hosts")
    return mesh, mesh.hosts


def _follow(notebook: Notebook, mesh: NotebookMesh) -> None:
    """Do what is due once the mesh has changed, even if the verb was interrupted."""
    if mesh.hosts is not None:
        mesh.hosts.note_change(mesh.procs.host_mesh)
    if any(known is mesh for known in notebook.meshes):  # the mesh may have gone down meanwhile
        notebook.bind(mesh)
