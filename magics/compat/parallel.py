"""ipyparallel's line magics, as what they are here: `%px`, `%pxresult`, `%pxconfig`, `%autopx`."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand

from meshbook.magics.compat.rewriting import Rewriting
from meshbook.magics.compat.translation import translate_pxconfig
from meshbook.magics.notebook import Notebook
from meshbook.magics.parsing import HelpAsked


@magics_class
class ParallelMagics(Magics):
    """Those of ipyparallel; `%%px` is rewritten before it is one (`rewriting`)."""

    def __init__(self, shell: Any, notebook: Notebook, rewriting: Rewriting) -> None:
        super().__init__(shell)
        self._notebook = notebook
        self._rewriting = rewriting

    @no_var_expand  # type: ignore[untyped-decorator]
    @line_magic  # type: ignore[untyped-decorator]
    def pxconfig(self, line: str) -> None:
        """What %px and %%px do unless they say otherwise: `%pxconfig --targets 0:2 --noblock`."""
        try:
            self._rewriting.defaults = translate_pxconfig(line, self._rewriting.defaults)
        except HelpAsked as asked:
            print(asked.text)

    @line_magic  # type: ignore[untyped-decorator]
    def pxresult(self, line: str) -> None:
        """Wait for the last `%%px --noblock`, and show what came of it."""
        self.shell.run_line_magic("mesh", f"result {line}")
