"""The actor that looks into a rank's namespace beside its cells: for completion and inspection.

Not a part of `CellControl`: looking at an object runs code of its class, which may hang, and interrupts must not wait
for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint

# Before all that imports IPython: the thread of the cell actor imports it, too, where the fork server has not, and of
# two threads that come to a package with circles by different modules one finds half of it. So this one waits there.
from meshbook.runtime.cells import actor as _first  # noqa: F401
from meshbook.runtime.cells.background_threads import BackgroundThreads
from meshbook.runtime.cells.completing import Match, complete, make_completer
from meshbook.runtime.cells.inspecting import Inspected, inspect_name
from meshbook.runtime.cells.shell import RankShell
from meshbook.runtime.cells.snapshot import Snapshot, take_snapshot

if TYPE_CHECKING:
    from IPython.core.completer import IPCompleter

WITHIN = 0.12  # seconds: who asks waits for 0.15


class CellInspection(Actor):
    """Looks at what cells have made, while one runs. Each look has a limit of time."""

    def __init__(self) -> None:
        self._aside = BackgroundThreads("inspection")
        self._completer: IPCompleter | None = None

    @endpoint
    def complete(self, source: str) -> list[Match] | None:
        """What may stand at the end of the source; None where finding that takes too long."""
        try:
            return self._aside.run(lambda: self._complete(source), WITHIN)
        except TimeoutError:
            return None

    @endpoint
    def inspect(self, name: str, detail: int, omitted: tuple[str, ...], whole: bool) -> Inspected | None:
        """What stands under a name, `whole` or only so that ranks can be compared; None where that takes too long."""
        try:
            return self._aside.run(lambda: _inspect(name, detail, omitted, whole), WITHIN)
        except TimeoutError:
            return None

    @endpoint
    def snapshot(self) -> Snapshot | None:
        """What there is at present; None where looking takes too long."""
        try:
            return self._aside.run(_snapshot, WITHIN)
        except TimeoutError:
            return None

    def _complete(self, source: str) -> list[Match]:
        if not RankShell.initialized():
            return []
        if self._completer is None:
            self._completer = make_completer(RankShell.instance())
        return complete(self._completer, source, len(source))


def _inspect(name: str, detail: int, omitted: tuple[str, ...], whole: bool) -> Inspected:
    if not RankShell.initialized():
        return Inspected()
    return inspect_name(RankShell.instance(), name, detail, omitted, whole=whole)


def _snapshot() -> Snapshot:
    if not RankShell.initialized():
        return Snapshot()
    shell = RankShell.instance()
    return take_snapshot(shell.user_ns, shell.names())
