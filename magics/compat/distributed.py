"""nbdistributed's line magics on meshes: `%dist_init`, `%sync`, `%dist_status`, `%dist_mode`, …"""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class

from meshbook.magics.compat.answers import values_of
from meshbook.magics.compat.translation import read_init, read_switch
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import HelpRequested
from meshbook.magics.variables.requests import RankRequest
from meshbook.runtime.cells.function_calls import Execute
from meshbook.runtime.geometry.ranges import name_ranks

# Names that its cells use, beside those that each rank has: rank, world_size, device.
_NAMES = """
import torch
import torch.distributed as dist
gpu_id = local_rank if torch.cuda.is_available() else None
"""
_BARRIER = """
import torch.distributed as dist
if dist.is_initialized():
    dist.barrier()
"""


@magics_class
class DistributedMagics(Magics):
    """nbdistributed's line magics; `%%distributed` and `%%rank[0]` are rewritten before (`translation`)."""

    def __init__(self, shell: Any, notebook: Notebook) -> None:
        super().__init__(shell)
        self._notebook = notebook

    @line_magic  # type: ignore[untyped-decorator]
    def dist_init(self, line: str) -> None:
        """Start a mesh with a process group, and run all cells on it from now on: `%dist_init -n 4`."""
        try:
            asked = read_init(line)
        except HelpRequested as help_text:
            print(help_text.text)
            return
        self._mesh(f"up --gpus {asked.processes}")
        mesh = self._notebook.meshes.get()
        mesh.procs.init_process_group().get()
        _execute(mesh, _NAMES)
        self._mesh("mode on")

    @line_magic  # type: ignore[untyped-decorator]
    def dist_mode(self, line: str) -> None:
        """Set or show whether cells without a magic run on the mesh: `%dist_mode --enable`, `--disable`."""
        try:
            wanted = read_switch(line)
        except HelpRequested as help_text:
            print(help_text.text)
            return
        self._mesh("mode" if wanted is None else "mode on" if wanted else "mode off")

    @line_magic  # type: ignore[untyped-decorator]
    def sync(self, line: str) -> None:
        """Wait until all ranks reach this point, with a barrier if there is a process group."""
        mesh = self._notebook.meshes.get()
        _execute(mesh, _BARRIER)
        print(f"{name_ranks(range(mesh.extent.nelements))} are synchronized")

    @line_magic  # type: ignore[untyped-decorator]
    def dist_status(self, line: str) -> None:
        """Show the status of the mesh."""
        self._mesh("status")

    @line_magic  # type: ignore[untyped-decorator]
    def dist_debug(self, line: str) -> None:
        """Show the status of the mesh, and the stacks of its ranks."""
        self._mesh("status")
        self._mesh("stack")

    @line_magic  # type: ignore[untyped-decorator]
    def dist_shutdown(self, line: str) -> None:
        """Stop the mesh; cells run in the notebook again. `--nuclear` does not wait for running code."""
        self._mesh("mode off")
        self._mesh("down --now" if {"--nuclear", "-n"} & {*line.split()} else "down")

    @line_magic  # type: ignore[untyped-decorator]
    def dist_reset(self, line: str) -> None:
        """Stop the mesh at once, as `%dist_shutdown --nuclear`; `%dist_init` starts a new one."""
        self.dist_shutdown("--nuclear")

    @line_magic  # type: ignore[untyped-decorator]
    def dist_sync_ide(self, line: str) -> None:
        """Print that completion needs no synchronization."""
        print("completion queries the ranks themselves; there is nothing to synchronize")

    @line_magic  # type: ignore[untyped-decorator]
    def timeline_save(self, line: str) -> None:
        """Print the replacement: `%mesh trace`."""
        print("%mesh trace shows what each rank did in the last cell, and saves it with -o FILE")

    timeline_debug = timeline_clear = timeline_save

    def _mesh(self, line: str) -> None:
        self.shell.run_line_magic("mesh", line)


def _execute(mesh: NotebookMesh, source: str) -> None:
    requests = dict.fromkeys(range(mesh.extent.nelements), Execute(source, "<dist>"))
    values_of(RankRequest(mesh, requests, "prepare the ranks").wait())
