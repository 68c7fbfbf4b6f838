"""Progress bars of actors in an ordinary cell: an area for each mesh, in which those of all ranks are one."""

from __future__ import annotations

from collections.abc import Mapping

from meshbook.magics.area import render_area
from meshbook.magics.fitting import fit_details, fit_streams
from meshbook.magics.grouping import Block, Group, StreamName, group_blocks
from meshbook.magics.publications import LiveDisplay
from meshbook.magics.retention import TextBuffer
from meshbook.runtime.telemetry.forwarding import mesh_name
from meshbook.runtime.telemetry.lines import DrawnText

LINES = 20  # of each rank, the last ones
KEPT_CHARACTERS = 20_000
AREA_BYTES = 12_000


class ActorProgressBars:
    """The areas of one cell. Pure: what ranks draw comes in, what to publish comes out."""

    def __init__(self) -> None:
        self._meshes: dict[str, dict[StreamName, dict[int, TextBuffer]]] = {}
        self._shown: set[str] = set()
        self._changed: dict[str, None] = {}

    def add(self, drawn: DrawnText) -> None:
        """A rank draws its bars anew, or has done with them."""
        streams = self._meshes.setdefault(drawn.mesh, {"stdout": {}, "stderr": {}})
        capture = streams[drawn.stream].setdefault(drawn.rank, TextBuffer(KEPT_CHARACTERS))
        capture.add(drawn.text)
        capture.live = drawn.live
        self._changed[drawn.mesh] = None

    def take(self) -> list[LiveDisplay]:
        """The areas that have changed."""
        changed, self._changed = list(self._changed), {}
        return [self._draw(mesh) for mesh in changed]

    def _draw(self, mesh: str) -> LiveDisplay:
        groups = fit_streams({name: _group(captures) for name, captures in self._meshes[mesh].items()}, AREA_BYTES)
        is_new = mesh not in self._shown
        self._shown.add(mesh)
        area = render_area(fit_details(groups, AREA_BYTES), f"{mesh_name(mesh)}:")
        return LiveDisplay(area, update=not is_new, is_final=False, name=f"bars {mesh}")


def _group(captures: Mapping[int, TextBuffer]) -> list[Group]:
    return group_blocks({rank: Block(capture.last_lines(LINES)) for rank, capture in captures.items()})
