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
from meshbook.magics.verbs.base import Verb
from meshbook.runtime.actor.context import CURRENT, Context, current_origin
from meshbook.runtime.geometry.ranges import name_ranks
from meshbook.runtime.hosts.attaching import AttachedSession, attach
from meshbook.runtime.hosts.detached_runs import choose, clock, detached_runs, format_runs
from meshbook.runtime.hosts.detaching import DetachError


@dataclass(frozen=True)
class AttachVerb(Verb):
    """Attach to the run with this name: its id or the name of one of its meshes; None: the only detached run."""

    word = "attach"
    description = (
        "Take over meshes that %mesh detach has left, from this notebook, another one, or one that has ended. They are "
        "there with their variables, actors and jobs, what they have printed (%mesh log), and who has died."
    )

    name: str | None = None
    list: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "name", metavar="RUN", nargs="?", help="the run, or a mesh of it (default: the only one that is detached)"
        )
        parser.add_argument("-l", "--list", action="store_true", help="list the runs that are detached on this host")

    def run(self, notebook: Notebook) -> None:
        runs = detached_runs()
        if self.list:
            print(format_runs(runs) or "no run is detached: %mesh detach leaves the meshes of a notebook to themselves")
            return
        try:
            self._attach(notebook)
        except (DetachError, RuntimeError) as error:
            raise MeshError(str(error)) from error

    def _attach(self, notebook: Notebook) -> None:
        if len(notebook.meshes):
            names = ", ".join(mesh.name for mesh in notebook.meshes)
            raise MeshError(f"{names} is up in this notebook: %mesh down first, or %mesh detach, or another notebook")
        arrival = AttachedNotebook(notebook)
        status = choose(self.name or "")
        # Flushed, so that it precedes the output of the run's jobs.
        print(f"attaching to run {status.run}, detached since {clock(status.since)}", flush=True)
        session = attach(status, present_notebook(), arrival.prepare)
        CURRENT.set(Context(session.context.actor_instance, origin=current_origin()))
        session.forwarder.screen = notebook.screen
        arrival.bind()
        print("\n".join(_tell(session, arrival)))
        if notebook.detaches_for is not None:
            print("  detached again when this notebook ends: %mesh detach --at-exit off keeps it from that")


def _tell(session: AttachedSession, arrival: AttachedNotebook) -> Iterator[str]:
    for mesh in arrival.meshes:
        yield from state_of(mesh)
        if ranks := [rank for rank, address in enumerate(mesh.procs.nodes) if address.node in session.dropped]:
            yield f"  {name_ranks(ranks)} wrote more than is kept while nobody is there: the oldest of it is gone"
    for job in arrival.jobs:
        yield f"  {job!r}"
    if arrival.bound:
        yield f"  variables: {', '.join(sorted(arrival.bound))}"
    for what in (*session.lost, *arrival.lost):
        yield f"  not to be had here: {what}"


def present_notebook() -> str:
    """Return a description of this process, which other notebooks show as the holder of the run."""
    return f"a notebook (pid {os.getpid()})"
