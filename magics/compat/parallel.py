"""ipyparallel's line magics on meshes: `%px`, `%pxresult`, `%pxconfig`, `%autopx`."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand

from meshbook.magics.compat.translation import Rewriting, translate_px, translate_pxconfig
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import HelpRequested


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
        """Run one line on the ranks, and wait: `%px import numpy`."""
        return self.shell.run_line_magic("on", f"{self._rewriting.defaults.targets} {line}")

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
