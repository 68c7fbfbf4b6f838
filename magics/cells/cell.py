"""A mesh cell before it runs: what its line asked for, and where. Not for running it (`run`).

How far a cell is, as plain data: so that another notebook can see it to its end.
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
    """A mesh cell whose line was understood: on which ranks it runs and how, and where it is shown.

    Of what `shown` ranks write (None: all) it prints; those of `first` are to be done before the others begin.
    """

    session: Session
    mesh: NotebookMesh
    region: Region
    options: CellOptions
    publisher: Publisher
    number: int
    shown: frozenset[int] | None = None
    first: frozenset[int] = frozenset()
    transfers: CellTransfers | None = None  # of variables, with it
    limits: OutputLimits = LIMITS
    label: str = ""  # what stands before its ranks in output: the name of the mesh, where there are several
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the notebook
    by_mode: bool = False  # it runs on ranks without saying so itself
    policy: PromptPolicy = UNASKED  # how a person is asked for what its ranks want to know

    @property
    def opens_debugger(self) -> bool:
        """Whether a rank that fails is looked at; where nobody can be asked, what fails only ends."""
        return self.options.on_error == "debug" and not self.policy.keyboard.refusal


@dataclass(frozen=True)
class CellProgress:
    """A cell that was begun by another notebook, by the ranks it is on.

    `failed` are in the order in which they did, `waves` are still to begin, `calls` are the numbers under which those
    that run will answer. `written` is the output so far; it began at `began`, in seconds since 1970.
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
        """Where a rank stands among those that have ended: the failed ones first, in their order."""
        return self.failed.index(rank) if rank in self.failed else len(self.failed)
