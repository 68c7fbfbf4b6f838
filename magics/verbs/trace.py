"""`%mesh trace`: show the activity of every process during a cell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshbook.magics.errors import MeshError
from meshbook.magics.meshes import lifecycle
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.publisher import Display, publisher_for
from meshbook.magics.syntax.argparsing import Parser, count, selector
from meshbook.magics.tracing.chrome_trace import write_trace
from meshbook.magics.tracing.collect import Trace, ranks_of, take_trace
from meshbook.magics.tracing.timeline_svg import Timeline
from meshbook.magics.verbs import Verb
from meshbook.runtime.formats import format_bytes


@dataclass(frozen=True)
class TraceVerb(Verb):
    """Show or save the trace of these ranks (None: all processes) in a cell: by its number, or one of the last."""

    word = "trace"
    description = (
        "Show what each rank did in the last cell that used a mesh: running, in a collective, waiting and for which "
        "rank, idle. Recording is always on. `with meshbook.span('load'): ...` adds spans of your own."
    )

    selection: str | None = None
    out: str | None = None
    cell: int | None = None
    last: int = 1

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "selection",
            metavar="SEL",
            nargs="?",
            type=selector,
            help="show only these ranks (default: all processes that took part)",
        )
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--cell", metavar="N", type=count, help="show cell In[N]")
        which.add_argument("--last", metavar="N", type=count, default=1, help="show the last N cells (default: 1)")
        parser.add_argument(
            "-o",
            "--out",
            metavar="FILE",
            help="save the whole trace as Chrome trace JSON (.json or .json.gz), for ui.perfetto.dev or chrome://tracing",
        )

    def run(self, notebook: Notebook) -> None:
        trace = self._take(notebook)
        timeline = Timeline(trace)
        bundle = {"text/plain": timeline.text(), "text/html": timeline.html()}
        publisher_for(notebook.shell).publish([Display(bundle, {})])
        if self.out is not None:
            self._save(trace, Path(self.out).expanduser())

    def _take(self, notebook: Notebook) -> Trace:
        only: set[str] | None = None
        if self.selection is not None:
            mesh, ranks = notebook.meshes.ranks_of(self.selection)
            only = {mesh.procs.nodes[rank].node for rank in ranks}
        times = notebook.cell_times.known(notebook.cell_number)
        named = ranks_of(list(notebook.meshes))
        taken = take_trace(notebook.session(), times, named, only=only, number=self.cell, last=self.last)
        return lifecycle.wait_for(taken)

    def _save(self, trace: Trace, path: Path) -> None:
        try:
            size = write_trace(trace, path)
        except OSError as error:
            raise MeshError(f"cannot save the trace as {path}: {error.strerror or error}") from error
        print(f"saved as {path} ({format_bytes(size)}); open it in https://ui.perfetto.dev")
