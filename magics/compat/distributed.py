"""nbdistributed's line magics, as what they are here: `%dist_init`, `%sync`, `%dist_status`, `%dist_shutdown`, …"""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class

from meshbook.magics.notebook import Notebook


@magics_class
class DistributedMagics(Magics):
    """Those of nbdistributed; `%%distributed` and `%%rank[0]` are rewritten before they are ones (`rewriting`)."""

    def __init__(self, shell: Any, notebook: Notebook) -> None:
        super().__init__(shell)
        self._notebook = notebook

    @line_magic  # type: ignore[untyped-decorator]
    def dist_status(self, line: str) -> None:
        """How the mesh is."""
        self.shell.run_line_magic("mesh", "status")
