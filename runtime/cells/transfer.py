"""Variables sent with a cell: set before its source runs, and returned with its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from meshbook.runtime.cells.failures import format_interrupt
from meshbook.runtime.cells.interrupts import INTERRUPTS
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, RankError
from meshbook.runtime.cells.packed_values import PackedValues
from meshbook.runtime.cells.variables import Namespace, PullRequest, PushRequest

_NOTHING = CellCost(wall=0.0, cpu=0.0, peak_rss=0)


@dataclass(frozen=True)
class Transfer:
    """The variables to set, and the names to return: on every rank (`pulled`), and on some ranks (`pulled_at`).

    It is part of the cell, so no other message comes between, and one interrupt ends both.
    """

    pushed: PackedValues | None = None
    pulled: tuple[str, ...] = ()
    pulled_at: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    limit: float = 0  # bytes that one rank may send without confirmation

    def around(self, run: Callable[[], CellOutcome], namespace: Namespace, rank: int, origin: str) -> CellOutcome:
        """Set the variables, run the cell and pull.

        If a variable cannot be set, the cell does not run. If the cell fails, it pulls nothing.
        """
        try:
            with INTERRUPTS.during(origin), INTERRUPTS.user_code():
                refused = None if self.pushed is None else PushRequest(self.pushed).handle(namespace)
            if refused is not None:
                text = f"the cell did not run because its variables were not pushed: {refused.reason}"
                return CellOutcome(_NOTHING, error=RankError("raised", "VariableError", text))
        except KeyboardInterrupt as error:
            return CellOutcome(_NOTHING, error=format_interrupt(error))
        return self._taken_along(run(), namespace, rank, origin)

    def _taken_along(self, outcome: CellOutcome, namespace: Namespace, rank: int, origin: str) -> CellOutcome:
        names = (*self.pulled, *self.pulled_at.get(rank, ()))
        if outcome.error is not None or not names:
            return outcome
        try:
            with INTERRUPTS.during(origin), INTERRUPTS.user_code():
                return msgspec.structs.replace(outcome, pulled=PullRequest(names, self.limit).handle(namespace))
        except KeyboardInterrupt as error:
            return msgspec.structs.replace(outcome, error=format_interrupt(error))


NO_TRANSFER = Transfer()
