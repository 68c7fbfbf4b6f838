"""The line magics of ipyparallel and nbdistributed on meshes, and how they are loaded into a shell and unloaded.

`%px`, `%pxresult`, `%pxconfig`, `%autopx`; `%dist_init`, `%sync`, `%dist_status`, `%dist_mode`, …
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand

from meshbook.magics.compat.answers import values_of
from meshbook.magics.compat.stand_in import ROOT, make_modules
from meshbook.magics.compat.translation import (
    REFUSE,
    Rewriting,
    read_init,
    read_switch,
    refuse,
    translate_px,
    translate_pxconfig,
)
from meshbook.magics.extension import load as load_meshbook
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import HelpRequested
from meshbook.magics.variables.requests import RankRequest
from meshbook.runtime.cells.function_calls import Execute
from meshbook.runtime.formats import name_ranks


@magics_class
class ParallelMagics(Magics):
    """ipyparallel's magics; a cell's `%%px` is rewritten before it is a magic (`translation`)."""

    def __init__(self, shell: Any, notebook: Notebook, rewriting: Rewriting) -> None:
        super().__init__(shell)
        self._notebook = notebook
        self._rewriting = rewriting

    @no_var_expand  # type: ignore[untyped-decorator]
    @line_magic  # type: ignore[untyped-decorator]
    def px(self, line: str) -> Any:
        """Run one line on the ranks: `%px import numpy`. Return a job at once after `%pxconfig --noblock`."""
        defaults = self._rewriting.defaults
        if not defaults.block:
            return self.px_cell("", line)
        return self.shell.run_line_magic("on", f"{defaults.targets} {line}")

    @no_var_expand  # type: ignore[untyped-decorator]
    @cell_magic("px")  # type: ignore[untyped-decorator]
    def px_cell(self, line: str, cell: str) -> Any:
        """Run a cell on the ranks, and wait. Programs call it by `run_cell_magic`; a cell's own `%%px` is rewritten."""
        try:
            ours = translate_px(line, self._rewriting.defaults)
        except HelpRequested as asked:
            print(asked.text)
            return None
        return self.shell.run_cell_magic("mesh", ours, cell)

    @line_magic  # type: ignore[untyped-decorator]
    def autopx(self, line: str) -> None:
        """Run all cells on the ranks, as with `%%px`; the second time, run them in the notebook again."""
        is_on = self._notebook.mode.line is not None
        self.shell.run_line_magic(
            "mesh", "mode off" if is_on else f"mode on {translate_px('', self._rewriting.defaults)}"
        )

    @line_magic  # type: ignore[untyped-decorator]
    def pxresult(self, line: str) -> None:
        """Wait for the last `%%px --noblock`, and show its output and result."""
        self.shell.run_line_magic("mesh", f"result {line}")

    @no_var_expand  # type: ignore[untyped-decorator]
    @line_magic  # type: ignore[untyped-decorator]
    def pxconfig(self, line: str) -> None:
        """Set the defaults of %px and %%px: `%pxconfig --targets 0:2 --noblock`."""
        try:
            self._rewriting.defaults = translate_pxconfig(line, self._rewriting.defaults)
        except HelpRequested as asked:
            print(asked.text)


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


_LOADED = "__meshbook_compat__"  # a hidden name of the shell
# Extensions that a notebook may load at its start; this extension replaces them.
_OTHER_EXTENSIONS = (ROOT, "nbdistributed")


class Loaded:
    """The changes to one shell."""

    def __init__(self, shell: Any) -> None:
        notebook = load_meshbook(shell)
        self._shell = shell
        self._rewriting = Rewriting(lambda: notebook.mode.is_within)
        self._modules = make_modules(notebook, self._rewriting)
        self._before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == ROOT}
        self._extensions = {name for name in _OTHER_EXTENSIONS if name not in shell.extension_manager.loaded}
        shell.input_transformers_cleanup.insert(0, self._rewriting)
        shell.push({REFUSE: refuse, _LOADED: self}, interactive=False)
        shell.register_magics(ParallelMagics(shell, notebook, self._rewriting), DistributedMagics(shell, notebook))
        shell.extension_manager.loaded |= self._extensions
        self._replace(self._before, self._modules)

    def unload(self) -> None:
        """Undo the changes; the magics stay registered, those of the last extension that registered them."""
        self._shell.input_transformers_cleanup.remove(self._rewriting)
        self._shell.extension_manager.loaded -= self._extensions
        self._shell.drop_by_id({_LOADED: self})
        self._replace(self._modules, self._before)

    @staticmethod
    def _replace(old: Iterable[str], new: Mapping[str, ModuleType]) -> None:
        for name in old:
            sys.modules.pop(name, None)
        sys.modules.update(new)


def load(shell: Any) -> None:
    """Install into an IPython shell; loading twice changes nothing."""
    if _LOADED not in shell.user_ns_hidden:
        Loaded(shell)


def unload(shell: Any) -> None:
    """Uninstall from an IPython shell."""
    loaded: Loaded | None = shell.user_ns.pop(_LOADED, None)
    shell.user_ns_hidden.pop(_LOADED, None)
    if loaded is not None:
        loaded.unload()
