"""The transfers of `%%mesh --push a,b --pull c`: pushed values travel with the cell, pulled ones with its outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from meshbook.magics.errors import VariableError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.syntax.argparsing import PullSpec
from meshbook.magics.variables import operations
from meshbook.magics.variables.requests import as_usage_errors, raise_refusals, run_steps_async
from meshbook.runtime.cells.outcome import CellOutcome
from meshbook.runtime.cells.variables import VariableTransfer


class CellTransfers:
    """The transfers of one cell on these ranks, from and to a namespace. Raises VariableError before the cell runs.

    `in_turns`: some ranks begin later, and must get the same values as the first.
    """

    def __init__(
        self,
        mesh: NotebookMesh,
        ranks: Sequence[int],
        namespace: dict[str, Any],
        pushed: Mapping[str, Any],
        pulled: Sequence[PullSpec],
        *,
        in_turns: bool = False,
    ) -> None:
        self._mesh = mesh
        self._namespace = namespace
        self._wanted = pulled
        self._sources = {each.name: operations.sources_of(each, ranks, mesh) for each in pulled}
        # Names that all ranks return are sent once; the others each to its own rank.
        common = tuple(name for name, sources in self._sources.items() if len(sources) == len(ranks))
        rare = operations.names_by_rank({name: self._sources[name] for name in self._sources.keys() - set(common)})
        limit = operations.CONFIRM_ABOVE / max(len(ranks), 1)
        parcel = operations.pack_all(mesh, pushed) if pushed else None
        self.there = VariableTransfer(parcel.copied() if parcel and in_turns else parcel, common, rare, limit)
        self._answers: dict[int, Any] = {}

    def take(self, rank: int, outcome: CellOutcome) -> CellOutcome:
        """Remove the pulled values from an outcome, so that the result of the cell does not keep them alive."""
        if outcome.pulled is None:
            return outcome
        self._answers[rank] = outcome.pulled
        return msgspec.structs.replace(outcome, pulled=None)

    def leave(self) -> tuple[VariableTransfer, dict[int, Any]]:
        """Return the payload of the cell and the answers so far, for another notebook that finishes the cell."""
        return self.there, dict(self._answers)

    def resume(self, there: VariableTransfer, answers: dict[int, Any]) -> None:
        """Continue with the state that another notebook saved by `leave`."""
        self.there = there
        self._answers |= answers

    async def complete(self, ask: operations.Ask) -> None:
        """Set the pulled variables, all or none, after a cell without errors."""
        answers, self._answers = self._answers, {}
        with as_usage_errors():
            try:
                raise_refusals(f"pull {', '.join(self._sources)}", answers)
                steps = operations.collect(self._mesh, self._wanted, self._sources, answers, ask=ask)
                self._namespace.update(await run_steps_async(steps))
            except VariableError as error:
                raise VariableError(f"the cell ran, but nothing was pulled: {error}") from None
