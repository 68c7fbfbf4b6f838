"""The kernel behind a bare page that shows a simulated mesh: it answers a view; the test advances time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from meshbook.magics.syntax.selectors import LastCell, parse, resolve
from meshbook.runtime.geometry import Slice
from meshbook.runtime.geometry.region import Region
from meshbook.runtime.telemetry.vitals import HISTORY_SECONDS
from meshbook.testing import fake_mesh
from meshbook.widgets.curve_charts import answer_curves
from meshbook.widgets.dashboard_model import DashboardModel, ModelUpdate
from meshbook.widgets.sections import answer_logs

if TYPE_CHECKING:
    from tests.browser.harness import Message


class Simulation:
    """A simulated mesh and the model of its dashboard; a `Kernel` of a bare page."""

    def __init__(self, ranks: int, **options: Any) -> None:
        self.mesh = fake_mesh(ranks, **options)
        self.model = DashboardModel(self.mesh, self._choose)

    def tick(self, seconds: float) -> ModelUpdate | None:
        """Let so much time pass; return what the views get."""
        self.mesh.advance(seconds)
        return self.model.tick(self.mesh.seconds)

    def __call__(self, content: dict[str, Any], buffers: list[bytes]) -> Iterator[Message]:
        if content["kind"] == "open":
            update = self.model.full(self.mesh.seconds)
            yield update.content, update.buffers
        elif "id" in content:
            fields, parts = self._answer(content)
            yield {"kind": "reply", "id": content["id"], "ok": True, **fields}, parts

    def _answer(self, content: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        match content["kind"]:
            case "history":
                series = self.mesh.series(content["ranks"], content["metrics"])
                return {"seconds": HISTORY_SECONDS, "shape": list(series.shape)}, [series.astype("<f4").tobytes()]
            case "logs":
                chosen = frozenset(self._choose(content["sel"]))
                nodes = {node: rank for node, rank in self.mesh.nodes.items() if rank in chosen}
                return answer_logs(self.mesh.logbook, nodes, content), []
            case "timeline":
                return self.mesh.timeline(), []
            case "curves":
                chosen = frozenset(self._choose(content["sel"])) if content["sel"] else None
                reply = answer_curves(self.mesh.curves, chosen, content)
                return dict(reply.content), list(reply.buffers)
            case "select":
                selected = self.model.select(content["sel"])
                return {"ranks": selected.section()["ranks"], "count": len(selected.ranks)}, []
            case _:
                return {"text": f"{content['action']}: nothing is done to a simulation here"}, []

    def _choose(self, sel: str) -> list[int]:
        facts = self.mesh.facts
        region = Region([name for name, _ in facts.dims], Slice.new_row_major([size for _, size in facts.dims]))
        return list(resolve(parse(sel or "all"), {facts.name: region}, facts.name, LastCell()).region.ranks())
