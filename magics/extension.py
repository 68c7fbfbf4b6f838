"""`%load_ext meshbook`: installs magics, hooks and completion, in our kernel and in a stock one alike."""

from __future__ import annotations

import threading
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand

from meshbook.magics.cells.background import BackgroundLoop
from meshbook.magics.cells.jobs import Jobs
from meshbook.magics.cells.runner import CellRunner
from meshbook.magics.dashboard import DashboardRegistry
from meshbook.magics.dashboard.status_feed import StatusFeed
from meshbook.magics.errors import UsageError
from meshbook.magics.introspection.completer import NotebookCompleter
from meshbook.magics.introspection.inspector import Inspector
from meshbook.magics.introspection.ranks import RankNames
from meshbook.magics.meshes.registry import MeshRegistry
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.actor_output import ActorOutputRouter
from meshbook.magics.output.publisher import send_any_text
from meshbook.magics.results.result import MeshResult
from meshbook.magics.shell.cell_interrupts import CellInterrupts
from meshbook.magics.shell.local_cells import LocalCells, UnhandledFaultDisplay, trim_tracebacks
from meshbook.magics.syntax.argparsing import HelpText, quoted
from meshbook.magics.syntax.mode import MeshMode
from meshbook.magics.syntax.settings import NotebookSettings
from meshbook.magics.syntax.transform import RUNNER, RUNNER_WITHIN, Transform
from meshbook.magics.tracing.collect import CellTimes
from meshbook.magics.tracing.profiler import ProfilerState
from meshbook.magics.verbs.verb_table import parse_verb
from meshbook.runtime.cells.shell import RankShell

_NOTEBOOK = "__meshbook__"  # in the shell's hidden names: the loaded Notebook


@magics_class
class MeshMagics(Magics):
    """`%%mesh`, `%mesh`, `%%here` and `%on`."""

    def __init__(self, shell: Any, notebook: Notebook, cells: CellRunner) -> None:
        super().__init__(shell)
        self._notebook = notebook
        self._cells = cells

    @no_var_expand  # type: ignore[untyped-decorator]
    @cell_magic("mesh")  # type: ignore[untyped-decorator]
    def run_within(self, line: str, cell: str) -> Any:
        """Run the cell on ranks of the mesh: `%%mesh [SEL] [options]`; see `%%mesh --help`."""
        return self._cells.run_within(line, cell)

    @no_var_expand  # type: ignore[untyped-decorator]
    @cell_magic("here")  # type: ignore[untyped-decorator]
    def run_here(self, line: str, cell: str) -> None:
        """Run the cell here, also where cells run on the mesh (`%mesh mode on`)."""
        if line.strip():
            raise UsageError(f"%%here takes no arguments, got {quoted(line.strip())}")
        self.shell.run_cell(cell)

    @no_var_expand  # type: ignore[untyped-decorator]
    @line_magic("on")  # type: ignore[untyped-decorator]
    def run_on(self, line: str) -> MeshResult | None:
        """Run one line on ranks, and wait: `%on SEL CODE`, as in `%on 0 print(loss)` or `losses = %on all loss`."""
        return self._cells.run_line(line)

    # Variables are expanded here, as in any line magic: a notebook with parameters has `%mesh up --gpus {ranks}`.
    @line_magic("mesh")  # type: ignore[untyped-decorator]
    def control(self, line: str) -> None:
        """Control the meshes of this notebook: `%mesh up --gpus 4`, `status`, `down`, `log`; see `%mesh --help`."""
        asked = parse_verb(line)
        if isinstance(asked, HelpText):
            print(asked.text)
        else:
            asked.run(self._notebook)


def load(shell: Any) -> Notebook:
    """Install into an IPython shell. Loading twice changes nothing."""
    known: Notebook | None = shell.user_ns_hidden.get(_NOTEBOOK)
    if known is not None:
        return known
    if isinstance(shell, RankShell):
        raise UsageError("meshbook cannot be loaded on a rank; load it in the notebook, in a cell without %%mesh")
    notebook = _compose(shell)
    cells = CellRunner(notebook)
    shell.register_magics(MeshMagics(shell, notebook, cells))
    shell.input_transformers_cleanup.append(Transform(lambda: notebook.mode.line_now, lambda: notebook.mode.is_within))
    shell.push({RUNNER: cells.run, RUNNER_WITHIN: cells.run_within, _NOTEBOOK: notebook}, interactive=False)
    notebook.mode.install()
    LocalCells(notebook).install()
    notebook.cell_times.install(shell)
    UnhandledFaultDisplay(notebook.screen).install()
    ranks = RankNames(notebook)
    NotebookCompleter(notebook, ranks).install()
    trim_tracebacks(shell)
    if getattr(shell, "kernel", None) is not None:
        send_any_text(shell.kernel.session)
        CellInterrupts(shell).install()
        Inspector(notebook, ranks).install()
        if (channel := shell.kernel.shell_channel_thread) is not None:  # a kernel within another process has none
            StatusFeed(notebook, channel.io_loop).install()
    # In the background, so that the fork server is warm at the first `%%mesh`.
    threading.Thread(target=notebook.session, name="meshbook warm-up", daemon=True).start()
    return notebook


def _compose(shell: Any) -> Notebook:
    background = BackgroundLoop()
    notebook = Notebook(
        shell,
        meshes=MeshRegistry(),
        screen=ActorOutputRouter(),
        cell_times=CellTimes(),
        profiling=ProfilerState(),
        mode=MeshMode(shell),
        settings=NotebookSettings(),
        background=background,
        jobs=Jobs(background),
    )
    notebook.dashboards = DashboardRegistry(notebook)
    notebook.meshes.open_dashboard = notebook.dashboards.open
    return notebook
