"""`%mesh log`: what a rank wrote."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.meshes import MeshError
from meshbook.magics.notebook import Notebook
from meshbook.magics.parsing import Parser, count, rank
from meshbook.magics.verbs.verb import Verb


@dataclass(frozen=True)
class Log(Verb):
    """Show the last lines that a rank wrote."""

    word = "log"
    description = "Show what a rank wrote."

    rank: int
    lines: int = 100

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument("rank", metavar="RANK", type=rank, help="the rank, from 0")
        parser.add_argument(
            "-n",
            dest="lines",
            metavar="LINES",
            type=count,
            default=100,
            help="the last lines (default: %(default)s)",
        )

    def run(self, notebook: Notebook) -> None:
        mesh = notebook.meshes.get()
        if not 0 <= self.rank < mesh.extent.nelements:
            raise MeshError(f"{mesh.name} has no rank {self.rank}: it has 0 to {mesh.extent.nelements - 1}")
        lines = notebook.session().output.recent(mesh.procs.name, self.rank).splitlines()
        print("\n".join(lines[-self.lines :]) or f"rank {self.rank} of {mesh.name} has written nothing yet")
