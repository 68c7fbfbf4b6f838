"""A simulated mesh on a dashboard: its time passes while a view is open, and the buttons work."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshbook.magics.syntax.selectors import LastCell, parse, resolve
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.geometry import Extent
from meshbook.runtime.telemetry.vitals import Metric, ProcessDetail
from meshbook.widgets.curve_charts import answer_curves
from meshbook.widgets.sections import answer_logs
from meshbook.widgets.source import BackendReply, MeshSnapshot

if TYPE_CHECKING:  # the mesh makes these backends
    from meshbook.testing.simulated.logged_curves import FakeCurves
    from meshbook.testing.simulated.mesh import FakeMesh

LONGEST = 2.0  # seconds that pass at most between two snapshots


class FakeBackend:
    """The `DashboardBackend` of a simulated mesh. `clock` returns seconds, which drive the simulated time."""

    def __init__(self, mesh: FakeMesh, clock: Callable[[], float] = time.monotonic) -> None:
        self._mesh = mesh
        self._clock = clock
        self._looked_at = clock()

    # -- the source ----------------------------------------------------------------

    @property
    def source(self) -> FakeBackend:
        """The mesh, driven by this clock."""
        return self

    def snapshot(self) -> MeshSnapshot:
        """Return the present state of the mesh."""
        passed = self._clock() - self._looked_at
        self._looked_at += max(passed - LONGEST, 0.0)
        self._looked_at += self._mesh.advance(min(passed, LONGEST))
        return self._mesh.snapshot()

    def series(self, ranks: Sequence[int], metrics: Sequence[Metric]) -> Any:
        """Return the last five minutes of these ranks."""
        return self._mesh.series(ranks, metrics)

    def details(self, ranks: Sequence[int]) -> Sequence[ProcessDetail | None]:
        """Return what these ranks report as text."""
        return self._mesh.details(ranks)

    @property
    def curves(self) -> FakeCurves:
        """The curves that the ranks have logged."""
        return self._mesh.curves

    # -- requests of views -----------------------------------------------------------

    def watch(self, wake: Callable[[], object] | None) -> None:
        """Do nothing: time only advances in `snapshot`, so there is no event to report."""

    def select(self, selector: str) -> Collection[int]:
        """Return the ranks of a selector, as in `%%mesh`."""
        facts, known = self._mesh.facts, self._mesh.snapshot().conditions
        failed = frozenset(known.dead) | frozenset(known.error)
        extent = Extent([name for name, _ in facts.dims], [size for _, size in facts.dims])
        last = LastCell(failed=failed, ok=frozenset(range(facts.size)) - failed)
        return resolve(parse(selector), {facts.name: extent.region}, facts.name, last).region.ranks()

    def answer(self, request: Mapping[str, Any]) -> BackendReply:
        """Answer a request of a view; ValueError for requests that a simulated mesh does not support."""
        ranks = self.select(str(request.get("sel") or "all"))
        match request.get("kind"):
            case "act":
                return BackendReply({"text": self._act(str(request.get("action")), ranks)})
            case "logs":
                nodes = {node: rank for node, rank in self._mesh.nodes.items() if rank in set(ranks)}
                return BackendReply(answer_logs(self._mesh.logbook, nodes, request))
            case "timeline":
                return BackendReply(self._mesh.timeline())
            case "curves":
                return answer_curves(self._mesh.curves, frozenset(ranks) if request.get("sel") else None, request)
            case kind:
                raise ValueError(f"a simulated mesh does not support the request {kind!r}")

    def _act(self, action: str, ranks: Collection[int]) -> str:
        match action:
            case "interrupt":
                cell = self._mesh.interrupt()
                return "nothing runs" if cell is None else f"interrupted cell {cell}"
            case "kill":
                self._mesh.kill(ranks)
                return f"killed {name_ranks(ranks)}; restart them with Heal"
            case "restart":
                self._mesh.kill(ranks)
                self._mesh.heal()
                return f"restarted {name_ranks(ranks)}"
            case "heal":
                healed = self._mesh.heal()
                return f"healed {name_ranks(healed)}" if healed else "no dead ranks"
            case "stacks":
                self._mesh.take_stacks()
                return "took the stacks"
            case _:
                raise ValueError(f"a simulated mesh does not support the action {action!r}")
