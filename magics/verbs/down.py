"""`%mesh down`: stop a mesh."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.verbs.base import Verb, add_mesh_name


@dataclass(frozen=True)
class DownVerb(Verb):
    """Stop a mesh (None: the current mesh); `now` does not wait for running code."""

    word = "down"
    description = "Stop a mesh."

    name: str | None = None
    now: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_mesh_name(parser, "mesh to stop (default: the current mesh)")
        parser.add_argument("--now", action="store_true", help="do not wait for running code")

    def run(self, notebook: Notebook) -> None:
        notebook.session()
        if not self.now:
            _wait_for_jobs(notebook, notebook.meshes.get(self.name).name)
        before = notebook.meshes.get()
        print(f"{notebook.meshes.down(self.name, now=self.now).name} is down")
        if len(notebook.meshes) and (current := notebook.meshes.get()) is not before:
            print(f"the current mesh is now {current.name}")


def _wait_for_jobs(notebook: Notebook, mesh: str) -> None:
    """Wait for the jobs of a mesh; Ctrl-C ends the wait, and nothing has been stopped then."""
    running = [job for job in notebook.jobs if job.mesh == mesh and not job.done()]
    for job in running:
        print(f"waiting for {job.title} (%mesh cancel {job.number} interrupts it, %mesh down --now does not wait)")
        job.wait()
