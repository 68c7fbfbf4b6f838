"""What `%%mesh --push a,b --pull c` moves: with a cell there, and with its outcomes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.syntax.variable_specs import PullSpec
from meshbook.magics.variables import operations
from meshbook.magics.variables.requests import VariableError, carry_out_in_loop, of_a_line, raise_refusals
from meshbook.runtime.cells.outcome import CellOutcome
from meshbook.runtime.cells.transfer import Transfer


class CellTransfers:
    """Of one cell on these ranks, from and to a namespace. VariableError for what is wrong before it runs.

    `in_turns`: some ranks have their turn later, and are to get what the others got.
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
        # Ranks are told the names that all of them give once, and the others each to its own.
        common = tuple(name for name, sources in self._sources.items() if len(sources) == len(ranks))
        rare = operations.names_by_rank({name: self._sources[name] for name in self._sources.keys() - set(common)})
        limit = operations.MOST_UNASKED / max(len(ranks), 1)
        parcel = operations.pack_all(mesh, pushed) if pushed else None
        self.there = Transfer(parcel.copied() if parcel and in_turns else parcel, common, rare, limit)
        self._answers: dict[int, Any] = {}

    def take(self, rank: int, outcome: CellOutcome) -> CellOutcome:
        """Take out of an outcome what came with it, so that the result of the cell does not keep it alive."""
        if outcome.pulled is None:
            return outcome
        self._answers[rank] = outcome.pulled
        return msgspec.structs.replace(outcome, pulled=None)

    def leave(self) -> tuple[Transfer, dict[int, Any]]:
        """What travels with the cell, and what has come back: for another notebook that goes on with it."""
        return self.there, dict(self._answers)

    def resume(self, there: Transfer, answers: dict[int, Any]) -> None:
        """Go on with what another notebook has left."""
        self.there = there
        self._answers |= answers

    async def complete(self, ask: operations.Ask) -> None:
        """Set here what was pulled, all of it or nothing, once the cell went well everywhere."""
        answers, self._answers = self._answers, {}
        with of_a_line():
            try:
                raise_refusals(f"pull {', '.join(self._sources)}", answers)
                steps = operations.collect(self._mesh, self._wanted, self._sources, answers, ask=ask)
                self._namespace.update(await carry_out_in_loop(steps))
            except VariableError as error:
                raise VariableError(f"the cell ran, but nothing was pulled: {error}") from None
