"""The actor that reads a rank's namespace beside its cells: for completion and inspection.

Not a part of `CellControl`: inspecting an object runs code of its class, which may hang, and interrupts must not wait
for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint

# Before all other imports of IPython. The thread of the cell actor imports it, too, if the fork server has not. If two
# threads enter a package with circular imports by different modules, one sees a half-initialized module. With this
# import, the second thread waits here.
from meshbook.runtime.cells import actor as _first  # noqa: F401
from meshbook.runtime.cells.completion import Match, Snapshot, complete, make_completer, take_snapshot
from meshbook.runtime.cells.object_info import Inspected, inspect_name
from meshbook.runtime.cells.shell import RankShell
from meshbook.runtime.threads import BackgroundThreads

if TYPE_CHECKING:
    from IPython.core.completer import IPCompleter

WITHIN = 0.12  # seconds: the caller waits for 0.15


class CellInspection(Actor):
    """Inspects the objects of cells while a cell runs. Each request has a time limit."""

    def __init__(self) -> None:
        self._threads = BackgroundThreads("inspection")
        self._completer: IPCompleter | None = None

    @endpoint
    def complete(self, source: str) -> list[Match] | None:
        """Return the completions at the end of the source; None after the time limit."""
        try:
            return self._threads.run(lambda: self._complete(source), WITHIN)
        except TimeoutError:
            return None

    @endpoint
    def inspect(self, name: str, detail: int, omitted: tuple[str, ...], whole: bool) -> Inspected | None:
        """Inspect the object under a name, `whole` or only to compare ranks; None after the time limit."""

        def inspect() -> Inspected:
            if not RankShell.initialized():
                return Inspected()
            return inspect_name(RankShell.instance(), name, detail, omitted, whole=whole)

        try:
            return self._threads.run(inspect, WITHIN)
        except TimeoutError:
            return None

    @endpoint
    def snapshot(self) -> Snapshot | None:
        """Return a snapshot of the namespace; None after the time limit."""
        try:
            return self._threads.run(_snapshot, WITHIN)
        except TimeoutError:
            return None

    def _complete(self, source: str) -> list[Match]:
        if not RankShell.initialized():
            return []
        if self._completer is None:
            self._completer = make_completer(RankShell.instance())
        return complete(self._completer, source, len(source))


def _snapshot() -> Snapshot:
    if not RankShell.initialized():
        return Snapshot()
    shell = RankShell.instance()
    return take_snapshot(shell.user_ns, shell.names())
