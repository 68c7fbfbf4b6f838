"""`%mesh attach`: take over the meshes of a detached run, or list such runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from meshbook.magics.cells.detach import AttachedNotebook
from meshbook.magics.errors import MeshError
from meshbook.magics.meshes.status import state_of
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.verbs import Verb
from meshbook.runtime.actor.context import CURRENT, Context, current_origin
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.hosts.attaching import AttachedSession, attach
from meshbook.runtime.hosts.detached_runs import choose, clock, detached_runs, format_runs
from meshbook.runtime.hosts.detaching import DetachError
from meshbook.runtime.interrupts import hold_interrupts


@dataclass(frozen=True)
class AttachVerb(Verb):
    """Attach to the run with this name: its id or the name of one of its meshes; None: the only detached run."""

    word = "attach"
    description = (
        "Take back meshes that %mesh detach left running, in this notebook or another one. Variables, actors, jobs, "
        "output (%mesh log) and the failures of ranks are kept."
    )

    name: str | None = None
    list: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "name",
            metavar="RUN",
            nargs="?",
            help="id of the run, or the name of one of its meshes (default: the only detached run)",
        )
        parser.add_argument("-l", "--list", action="store_true", help="list the detached runs of this host")

    def run(self, notebook: Notebook) -> None:
        runs = detached_runs()
        if self.list:
            print(
                format_runs(runs) or "no detached runs; %mesh detach leaves the meshes of a notebook running without it"
            )
            return
        try:
            self._attach(notebook)
        except (DetachError, RuntimeError) as error:
            raise MeshError(str(error)) from error

    def _attach(self, notebook: Notebook) -> None:
        if len(notebook.meshes):
            names = ", ".join(mesh.name for mesh in notebook.meshes)
            raise MeshError(
                f"this notebook already has {names}; run %mesh down or %mesh detach first, or use another notebook"
            )
        attached = AttachedNotebook(notebook)
        status = choose(self.name or "")
        # Flushed, so that it precedes the output of the run's jobs.
        print(f"attaching to run {status.run}, detached since {clock(status.since)}", flush=True)
        # The label of this process, which other notebooks show as the holder of the run.
        with hold_interrupts():
            session = attach(status, f"a notebook (pid {os.getpid()})", attached.prepare)
            CURRENT.set(Context(session.context.actor_instance, origin=current_origin()))
            session.forwarder.screen = notebook.screen
            attached.bind()
        print("\n".join(_format_attached(session, attached)))
        if notebook.detaches_for is not None:
            print("  detached again when this notebook ends (%mesh detach --at-exit off prevents this)")


def _format_attached(session: AttachedSession, attached: AttachedNotebook) -> Iterator[str]:
    for mesh in attached.meshes:
        yield from state_of(mesh)
        if ranks := [rank for rank, address in enumerate(mesh.procs.nodes) if address.node in session.dropped]:
            yield f"  {name_ranks(ranks)} wrote more output than is kept while detached; the oldest was discarded"
    for job in attached.jobs:
        yield f"  {job!r}"
    if attached.bound:
        yield f"  variables: {', '.join(sorted(attached.bound))}"
    for what in (*session.lost, *attached.lost):
        yield f"  not available here: {what}"
