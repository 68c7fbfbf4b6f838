"""A mesh cell before it runs: what its line asked for, and where. Not for running it (`run`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from meshbook.magics.meshes import NotebookMesh
from meshbook.magics.options import CellOptions
from meshbook.magics.output import OutputLimits
from meshbook.magics.prompting import UNASKED, PromptPolicy
from meshbook.magics.publisher import Publisher
from meshbook.magics.transfers import CellTransfers
from meshbook.runtime.geometry import Region
from meshbook.runtime.hosts.session import Session

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
