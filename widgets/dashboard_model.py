"""The dashboard's model: the state of a mesh as the messages that its views need. Pure: time is passed in.

    model = DashboardModel(source, choose)
    update = model.tick(now)        # four times a second: what has changed, or None
    update = model.full(now)        # a view was opened: everything
    model.show("memory"); model.select("failed")

The model reads its source at each tick and remembers what it has sent to the views, which all have the same state. Its
owner calls it from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import cast

import numpy as np

from meshbook.runtime.formats import format_ranks
from meshbook.widgets.grid_metrics import KINDS, MetricScale, values_of
from meshbook.widgets.host_sums import roll_up
from meshbook.widgets.protocol import (
    CHANNELS,
    CellSection,
    Channel,
    ChannelSection,
    RankState,
    Sections,
    SelectedSection,
    StateMessage,
)
from meshbook.widgets.sections import (
    MOST_PROCESSES,
    bars_section,
    cell_section,
    counts_on,
    events_section,
    mesh_section,
    pauses_section,
    stacks_section,
    topology_section,
    worst_section,
)
from meshbook.widgets.sent_grid import PackedArrays, SentGrid
from meshbook.widgets.source import MeshFacts, MeshSnapshot, Source
from meshbook.widgets.states import States, count_unhealthy, counts_of, states_of
from meshbook.widgets.worst import StragglerDetector, lag_of, metric_of, worst_of

Choose = Callable[[str], Collection[int]]
SLOWLY = 1.0  # seconds between two states of the sections that are long or expensive
HOSTS_A_SECOND = 128  # hosts sent per second; meshes with more hosts send this section less often
_AT_WORK = (RankState.RUNNING, RankState.IN_COLLECTIVE, RankState.STARTING)
# These sections change all the time, also while the mesh is at rest.
_MEASURED = {"channel", "worst", "hosts", "topology"}


@dataclass(frozen=True)
class ModelUpdate:
    """One message for all views. `eventful`: it has more than new measurements of a mesh at rest."""

    content: StateMessage
    buffers: list[bytes]
    eventful: bool


@dataclass(frozen=True)
class SelectedRanks:
    """The ranks that all views have selected, and their selector."""

    sel: str = ""
    ranks: tuple[int, ...] = ()

    def section(self) -> SelectedSection:
        """Return the selection as a section of the protocol."""
        return {"sel": self.sel, "ranks": format_ranks(self.ranks), "count": len(self.ranks)}


class DashboardModel:
    """Compares a mesh with the state that its views have, and makes the next message for them."""

    def __init__(self, source: Source, choose: Choose) -> None:
        """Initialize; `choose` returns the ranks of a selector, and raises an error whose text is fit for the user."""
        self._source = source
        self._choose = choose
        self._mesh: MeshFacts | None = None
        self._stragglers = StragglerDetector(0)
        self._seq = 0
        self.selected = SelectedRanks()
        self.busy = False  # whether anything ran at the last tick
        self._show("state")
        self._forget()

    @property
    def channel(self) -> Channel:
        """The metric that colours the grid."""
        return self._channel

    def show(self, channel: str) -> None:
        """Show this channel in the grid from the next tick on; ValueError if there is no channel of that name."""
        known = next((each for each in CHANNELS if each == channel), None)
        if known is None:
            raise ValueError(f"unknown channel {channel!r}; choose from {', '.join(CHANNELS)}")
        if known != self._channel:
            self._show(known)
            self._grid.values = None
            self._due_at.pop("worst", None)

    def select(self, sel: str) -> SelectedRanks:
        """Select the ranks of a selector, none if it is empty or invalid; raises what `choose` raises."""
        self.selected = SelectedRanks()
        ranks = self._choose(sel) if sel.strip() else ()
        self.selected = SelectedRanks(sel.strip(), tuple(sorted(int(rank) for rank in ranks)))
        self._due_at.pop("topology", None)
        return self.selected

    def tick(self, now: float) -> ModelUpdate | None:
        """Return what has changed since the last update, or None; everything if the mesh was replaced."""
        try:
            return self._update(self._source.snapshot(), now)
        except Exception:
            self._forget()  # arrays packed before the error are never sent
            raise

    def full(self, now: float) -> ModelUpdate:
        """Return the full state, for a new view."""
        self._forget()
        update = self._update(self._source.snapshot(), now)
        assert update is not None  # after _forget() the update always has the mesh
        return update

    def _show(self, channel: Channel) -> None:
        self._channel: Channel = channel
        self._scale = MetricScale(channel)

    def _forget(self) -> None:
        """Treat nothing as sent any more."""
        self._grid = SentGrid()
        self._sent: Sections = {}
        self._cell_sent_at = 0.0
        self._due_at: dict[str, float] = {}
        self._unhealthy_count = 0

    def _update(self, snapshot: MeshSnapshot, now: float) -> ModelUpdate | None:
        if snapshot.mesh is not self._mesh and snapshot.mesh != self._mesh:
            self._begin(snapshot.mesh)
        is_full = not self._sent
        states = states_of(snapshot)
        self._stragglers.follow(states, now)
        self.busy = snapshot.cell is not None or bool(np.isin(states, _AT_WORK).any())
        packed, channel = self._colour(snapshot, states, now)
        found: Sections = {"channel": channel} | self._at_once(snapshot, states) | self._slow(snapshot, states, now)
        news = self._news(found, now)
        if not news and not packed.names:
            return None
        self._seq += 1
        content: StateMessage = {
            "kind": "state",
            "seq": self._seq,
            "full": is_full,
            "buffers": list(packed.names),
            **news,
        }
        eventful = self.busy or bool(news.keys() - _MEASURED) or any("state" in name for name in packed.names)
        return ModelUpdate(content, list(packed.buffers), eventful)

    def _begin(self, mesh: MeshFacts) -> None:
        if self._mesh is None or self._mesh.dims != mesh.dims:
            self.selected = SelectedRanks()  # the rank numbers have changed
            self._stragglers = StragglerDetector(mesh.size)
        self._mesh = mesh
        self._show(self._channel)
        self._forget()

    def _colour(self, snapshot: MeshSnapshot, states: States, now: float) -> tuple[PackedArrays, ChannelSection]:
        """Return the arrays that colour the grid, and the channel with its scale."""
        values = values_of(self._channel, snapshot.vitals, states)
        least = lag_of(snapshot.vitals, states) if self._channel == "skew" else 0.0
        low, high = self._scale.follow(values, now, least)
        packed = self._grid.pack(states, None if self._channel == "state" else values, high - low)
        return packed, {"name": self._channel, "unit": KINDS[self._channel].unit, "low": low, "high": high}

    def _at_once(self, snapshot: MeshSnapshot, states: States) -> Sections:
        """Return the sections that are cheap to compute."""
        mesh: Sections = {} if "mesh" in self._sent else {"mesh": mesh_section(snapshot.mesh)}
        return mesh | {
            "counts": counts_of(states),
            "cell": cell_section(snapshot.cell),
            "pauses": pauses_section(snapshot.pauses),
            "bars": bars_section(snapshot.bars),
            "events": events_section(snapshot.events),
            "stacks": stacks_section(snapshot.stacks),
            "selected": self.selected.section(),
            "curves": snapshot.curves,
        }

    def _slow(self, snapshot: MeshSnapshot, states: States, now: float) -> Sections:
        """Return the sections that are due among those that are long or change with every measurement."""
        slow: Sections = {}
        before, self._unhealthy_count = self._unhealthy_count, count_unhealthy(states)
        if self._is_due("worst", now) or before != self._unhealthy_count:
            worst = worst_of(self._channel, snapshot.vitals, states, self._stragglers.stragglers())
            metric = metric_of(self._channel, snapshot.vitals)
            histories = self._source.series([each.rank for each in worst], [metric])
            slow["worst"] = worst_section(worst, np.asarray(histories)[:, 0])
        if self._is_due("topology", now):
            size = snapshot.mesh.size
            chosen = self.selected.ranks or range(size)
            ranks = [rank for rank in chosen[:MOST_PROCESSES] if rank < size]
            slow["topology"] = topology_section(snapshot.mesh, ranks, self._source.details(ranks))
        if self._is_due("hosts", now, max(SLOWLY, len(snapshot.mesh.hosts) / HOSTS_A_SECOND)):
            slow["hosts"] = roll_up(snapshot.mesh, snapshot.vitals, states)
        return slow

    def _is_due(self, section: str, now: float, every: float = SLOWLY) -> bool:
        if now < self._due_at.get(section, now):
            return False
        self._due_at[section] = now + every
        return True

    def _news(self, found: Sections, now: float) -> Sections:
        """Return the sections that the views do not have yet, and mark them as sent."""
        news = {name: section for name, section in found.items() if not self._is_sent(name, section, now)}
        if "cell" in news:
            self._cell_sent_at = now
        sections = cast(Sections, news)
        self._sent |= sections
        return sections

    def _is_sent(self, name: str, section: object, now: float) -> bool:
        if name == "cell" and "cell" in self._sent:
            return counts_on(self._sent["cell"], cast("CellSection | None", section), now - self._cell_sent_at)
        return name in self._sent and self._sent.get(name) == section
