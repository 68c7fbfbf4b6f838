"""`%mesh up`: start a mesh, and show the progress."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from meshbook.magics.cells.detach import print_detached_runs
from meshbook.magics.cells.rank_errors import format_remedy
from meshbook.magics.meshes.registry import format_up
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.messages import LiveDisplay
from meshbook.magics.output.publisher import publisher_for
from meshbook.magics.syntax.argparsing import Parser, count, variable
from meshbook.magics.verbs.base import Verb, add_size
from meshbook.runtime.geometry import Extent


@dataclass(frozen=True)
class UpVerb(Verb):
    """Start a mesh of `gpus` workers, or of this shape; the default of both is None. A mesh that is up stays."""

    word = "up"
    description = "Start a mesh. A mesh of this name and shape that is already up stays as it is."

    gpus: int | None = None
    shape: Extent | None = None
    name: str | None = None
    spares: int = 0

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

    def run(self, notebook: Notebook) -> None:
        started = time.monotonic()
        notebook.session()
        extent = self.shape if self.shape is not None else Extent.of(gpus=self.gpus) if self.gpus else None
        known = notebook.meshes.find(self.name)
        if known is not None and extent in (None, known.extent) and not known.session.has_lost_agent:
            notebook.bind(known)
            remedy = f"; {format_remedy(known, sorted(known.dead))}" if known.dead else ""
            print(f"{known.describe()}; already up{remedy}")
            return
        bar = _Progress(notebook.shell)
        try:
            mesh = notebook.meshes.up(extent, self.name, bar, spares=self.spares)
        except BaseException:
            bar.stop()
            raise
        notebook.bind(mesh)
        current = notebook.meshes.get().name
        also = f"\nthe current mesh is {current}; choose this one with %mesh use {mesh.name}"
        bar.done(f"{format_up(mesh, started)}{also if mesh.name != current else ''}")
        print_detached_runs()


class _Progress:
    """A progress line with the number of ranks that are up; a quick start shows none."""

    def __init__(self, shell: Any) -> None:
        self._publisher = publisher_for(shell)
        self._shown = ""

    def __call__(self, ready: int, total: int) -> None:
        bar = "█" * (20 * ready // total)
        self._show(f"starting ranks {bar:░<20} {ready}/{total}")

    def done(self, text: str) -> None:
        self._show(text, is_final=True) if self._shown else print(text)

    def stop(self) -> None:
        """Mark the line as unfinished; the reason is reported elsewhere."""
        if self._shown:
            self._show(f"{self._shown}; the mesh did not start", is_final=True)

    def _show(self, text: str, *, is_final: bool = False) -> None:
        if text != self._shown:
            self._publisher.publish([LiveDisplay({"text/plain": text}, bool(self._shown), is_final)])
            self._shown = text
