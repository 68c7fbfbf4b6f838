"""A mesh cell before it runs: its options, its mesh and its ranks. `execution` runs it.

`CellProgress` is the progress of a cell as plain data, with which another notebook can finish the cell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshbook.magics.cells.admission import StartWave
from meshbook.magics.cells.push_pull import CellTransfers
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.output.model import OutputLimits
from meshbook.magics.output.publisher import Publisher
from meshbook.magics.prompts.broker import UNASKED, PromptPolicy
from meshbook.magics.syntax.cell_options import CellOptions
from meshbook.runtime.cells.outcome import CellOutcome
from meshbook.runtime.geometry import Region
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.telemetry.output import Chunk

LIMITS = OutputLimits()


@dataclasses.dataclass(frozen=True)
class PreparedCell:
    """A mesh cell with resolved options: its ranks, and the publisher of its output.

    Only the output of the ranks in `shown` is printed (None: all). The ranks in `first` finish before the others begin.
    """

    session: Session
    mesh: NotebookMesh
    region: Region
    options: CellOptions
    publisher: Publisher
    number: int
    shown: frozenset[int] | None = None
    first: frozenset[int] = frozenset()
    transfers: CellTransfers | None = None  # of --push and --pull
    limits: OutputLimits = LIMITS
    label: str = ""  # the prefix of its ranks in output: the name of the mesh, if there are several
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the notebook
    by_mode: bool = False  # the mode sent it to the ranks; the cell has no %%mesh line
    policy: PromptPolicy = UNASKED  # how prompts of its ranks are answered

    @property
    def opens_debugger(self) -> bool:
        """Whether a failing rank opens the debugger. Without a keyboard the rank only fails."""
        return self.options.on_error == "debug" and not self.policy.keyboard.refusal


@dataclass(frozen=True)
class CellProgress:
    """The progress of a cell that another notebook began, by rank.

    `failed` is in order of failure. `waves` have not begun. `calls` are the numbers under which running ranks will
    answer. `written` is the output so far. `began` is in seconds since 1970.
    """

    origin: str
    source: str
    outcomes: dict[int, CellOutcome]
    failed: tuple[int, ...]
    waves: tuple[StartWave, ...]
    calls: dict[int, int]
    written: list[Chunk]
    began: float

    def place_of(self, rank: int) -> int:
        """The sort key of an ended rank: failed ranks first, in order of failure."""
        return self.failed.index(rank) if rank in self.failed else len(self.failed)
