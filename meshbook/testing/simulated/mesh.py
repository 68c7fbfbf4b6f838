"""`fake_mesh`: a simulated mesh that a dashboard shows like a real one."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from meshbook.runtime.telemetry.logbook import Logbook
from meshbook.runtime.telemetry.vitals import METRICS, Activity, ActorLoad, Metric, ProcessDetail
from meshbook.testing.simulated.faults import Kind, SimulatedFault, SimulatedFaults
from meshbook.testing.simulated.log_texts import FakeLogWriter, failure_output, place, stacks_of
from meshbook.testing.simulated.logged_curves import FakeCurves
from meshbook.testing.simulated.measures import Measures
from meshbook.testing.simulated.training import Training, timeline_of
from meshbook.widgets.protocol import TimelineReply
from meshbook.widgets.source import (
    CellFacts,
    MeshEvent,
    MeshFacts,
    MeshSnapshot,
    PausedRanks,
    ProgressBar,
    RankConditions,
    Stacks,
)

if TYPE_CHECKING:  # only a notebook has it
    from meshbook.widgets.dashboard import MeshDashboard

QUANTUM = 0.25  # seconds: time advances in steps of this length
STEPS = 100  # of the training in a cell
REST = 3.0  # seconds between the end of a cell and the next one
FAULT_RATE = 1 / 40  # per second
EPOCH = 1_700_000_000.0  # start of the simulated time, in seconds since 1970
EVENTS = 100  # events that are kept


def fake_mesh(size: int = 4096, *, per_host: int = 8, seed: int = 0, faults: float = FAULT_RATE) -> FakeMesh:
    """Return a mesh of `size` simulated ranks that train, straggle, die and heal: for tests, demos and benchmarks.

        mesh = fake_mesh(4096)
        mesh.dashboard()  # in a notebook: live, in real time
        mesh.charts("train")  # and its curves: of a straggler and a diverging rank, too

        mesh = fake_mesh(64, faults=0)
        mesh.advance(10.0)  # in a test: ten seconds later, at once
        mesh.kill(3)
        look = mesh.look()

    It is a `meshbook.widgets.source.Source`. Hosts have `per_host` ranks. The same seed and the same calls give the
    same mesh. `faults`: mean number of faults of the mesh per second; these end after some seconds. Raises ValueError
    if `size` is not a multiple of `per_host`, except for a mesh of a single host.
    """
    return FakeMesh(size, per_host=per_host, seed=seed, faults=faults)


P = ParamSpec("P")
R = TypeVar("R")


def alone(method: Callable[Concatenate[FakeMesh, P], R]) -> Callable[Concatenate[FakeMesh, P], R]:
    """Decorate a method of a mesh so that one thread at a time runs it."""

    @functools.wraps(method)
    def guarded(self: FakeMesh, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return guarded


class FakeMesh:
    """A simulated mesh; `fake_mesh` makes one. Only `advance` moves its time. Any thread may use it."""

    def __init__(self, size: int, *, per_host: int, seed: int, faults: float) -> None:
        self._lock = threading.RLock()  # guards all attributes; a dashboard has threads of its own
        self._dashboard: Any = None
        self._backend: Any = None
        self.facts = facts_of(size, per_host)
        rng = np.random.default_rng(seed)
        self._ticks = 0
        self._faults = SimulatedFaults(size, faults, rng)
        self._training = Training(size, rng)
        self.curves = FakeCurves(size, seed, STEPS)
        self._measures = Measures(size, rng)
        self._beats = rng.random(size)  # when in each second a rank sends its heartbeat
        self.nodes = {f"fake.{rank}": rank for rank in range(size)}
        self.logbook = Logbook(clock=lambda: EPOCH + self.seconds)
        self._writer = FakeLogWriter(self.logbook, list(self.nodes))
        self._events: deque[MeshEvent] = deque(maxlen=EVENTS)
        self._stacks: Stacks | None = None
        self._cell = 0
        self._ended_at: float | None = None  # None while it runs
        self._begin_cell()

    def __len__(self) -> int:
        return self.facts.size

    def __repr__(self) -> str:
        dims = ", ".join(f"{name}={size}" for name, size in self.facts.dims)
        return f"<a simulated mesh ({dims}) after {self.seconds:g} s>"

    def dashboard(self) -> MeshDashboard:
        """Return a live dashboard of the mesh: time passes while a view is open, and the buttons work."""
        if self._dashboard is None or self._dashboard.comm is None:  # it was closed
            self._dashboard = self._make_view(None)
        shown: MeshDashboard = self._dashboard
        return shown

    def charts(self, *metrics: str) -> MeshDashboard:
        """Return live charts of these metrics, as `%mesh curves` shows them; without names, of all."""
        return self._make_view(metrics)

    def _make_view(self, metrics: Sequence[str] | None) -> MeshDashboard:
        # Only a notebook has widgets, and their import takes a quarter of a second.
        from meshbook.testing.simulated.backend import FakeBackend
        from meshbook.widgets.dashboard import MeshDashboard

        self._backend = self._backend or FakeBackend(self)  # one clock for all views
        return MeshDashboard(self._backend, metrics)

    # -- time ----------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds since the mesh was made."""
        return self._ticks * QUANTUM

    @alone
    def advance(self, seconds: float) -> float:
        """Advance the time by whole quarters of a second; returns the seconds that passed."""
        quarters = int(seconds / QUANTUM + 1e-6)
        for _ in range(quarters):
            self._ticks += 1
            self._pass(self.seconds)
        return quarters * QUANTUM

    def _pass(self, now: float) -> None:
        self._end_faults(self._faults.end_due(now))
        if (fault := self._faults.draw(now, QUANTUM)) is not None:
            self._start_fault(fault)
        if self._ended_at is None:
            self._train(now)
        elif now - self._ended_at >= REST:
            self._begin_cell()
        self._measures.measure(self._activity(), self._training.took, now)
        if now.is_integer():
            self._measures.keep()

    def _train(self, now: float) -> None:
        before = self._training.count
        self._training.advance(now)
        if before != self._training.count:
            self._writer.write_step(self._training.count, self._training.took)
            self.curves.log_step(self._cell, EPOCH + now)
        if self._training.count >= STEPS:
            self.interrupt()

    def _begin_cell(self) -> None:
        self._cell, self._ended_at = self._cell + 1, None
        self._training.begin(self.seconds)
        for rank in self._faults.by_rank:
            self._training.hold(rank)
        self._writer.begin_cell(self._cell)

    # -- actions -------------------------------------------------------------------

    def kill(self, ranks: int | Iterable[int]) -> None:
        """Kill ranks; they stay dead until `heal`."""
        self.break_down("killed", ranks)

    @alone
    def break_down(self, kind: Kind, ranks: int | Iterable[int]) -> None:
        """Make ranks `killed`, `failed` (an error), `silent` (no heartbeat) or `paused`, until `heal`."""
        for rank in _listed(ranks, len(self)):
            self._start_fault(self._faults.add(kind, rank, self.seconds))

    @alone
    def heal(self) -> list[int]:
        """End all faults of ranks; returns the ranks. Those that were killed are starting for two seconds."""
        ended = self._faults.end_due(self.seconds, list(self._faults.by_rank))
        self._end_faults(ended)
        return sorted(fault.rank for fault in ended)

    @alone
    def interrupt(self) -> int | None:
        """End the cell; returns its number, or None if none runs. The next one begins after three seconds."""
        if self._ended_at is not None:
            return None
        self._ended_at = self.seconds
        self._writer.end_cell()
        return self._cell

    @alone
    def write(self, rank: int, text: str, stream: str = "stdout") -> None:
        """Write a line of a rank, in the present cell."""
        self._writer.write(_listed(rank, len(self))[0], text, stream)

    @alone
    def take_stacks(self) -> None:
        """Take the stacks of the ranks: the `stacks` of the next snapshot."""
        self._stacks = stacks_of(time_of_day(self.seconds), self._activity(), self._faults)

    def _start_fault(self, fault: SimulatedFault) -> None:
        self._training.hold(fault.rank)
        self._writer.write(fault.rank, *failure_output(fault.kind))
        if fault.kind == "killed":
            self._note("failed", fault.rank, "killed by SIGKILL")

    def _end_faults(self, faults: Iterable[SimulatedFault]) -> None:
        for fault in faults:
            if fault.kind != "killed":  # a killed rank is only starting now
                self._training.release([fault.rank], self.seconds)
            if fault.kind == "starting":
                self._note("healed", fault.rank, f"dead for {self.seconds - fault.since:.0f} s")

    def _note(self, kind: str, rank: int, text: str) -> None:
        self._events.append(MeshEvent(time_of_day(self.seconds), kind, (rank,), text))

    # -- the source of a dashboard (`meshbook.widgets.source.Source`) ----------------

    @alone
    def snapshot(self) -> MeshSnapshot:
        """Return the present state of the mesh."""
        runs, of = self._ended_at is None, self._faults.of
        done = self._training.count / STEPS
        seconds = self.seconds - self._training.first
        text = f"train {done:4.0%} {self._training.count}/{STEPS}"
        return MeshSnapshot(
            self.facts,
            self._measures.vitals(self._activity(), self._age()),
            RankConditions(dead=of("killed"), starting=of("starting"), error=of("failed"), paused=of("paused")),
            cell=CellFacts(self._cell, f"cell {self._cell}", seconds, range(len(self))) if runs else None,
            pauses=[
                PausedRanks((rank,), "in the debugger", place(self._cell)) for rank in sorted(self._faults.of("paused"))
            ],
            bars=[ProgressBar(text, done, range(len(self)), done, done)] if runs else [],
            events=tuple(self._events),
            stacks=self._stacks,
            curves=self.curves.version,
        )

    @alone
    def series(self, ranks: Sequence[int], metrics: Sequence[Metric]) -> Any:
        """Return the last five minutes of these ranks: float32 of the shape [ranks, metrics, 300], the newest last."""
        return self._measures.series(ranks, metrics)

    @alone
    def details(self, ranks: Sequence[int]) -> Sequence[ProcessDetail | None]:
        """Return what these ranks report as text; None for a dead rank."""
        activity, dead = self._activity(), self._faults.of("killed")
        return [None if rank in dead else self._detail(rank, Activity(activity[rank])) for rank in ranks]

    @alone
    def timeline(self) -> TimelineReply:
        """Return the last steps of the last cell, as the protocol's reply to "timeline"."""
        return timeline_of(self._cell, self._training.steps)

    def _activity(self) -> npt.NDArray[np.uint8]:
        if self._ended_at is not None:
            return np.zeros(len(self), np.uint8)
        return self._training.activity(self.seconds)

    def _age(self) -> npt.NDArray[np.float32]:
        age = ((self.seconds + self._beats) % 1.0).astype(np.float32)
        for kind in ("silent", "killed"):
            for rank in self._faults.of(kind):
                age[rank] += self.seconds - self._faults.by_rank[rank].since
        return age

    def _detail(self, rank: int, activity: Activity) -> ProcessDetail:
        waits = activity is Activity.IN_COLLECTIVE
        loader = ActorLoad("loader", int(self._measures.now[METRICS.index("queued"), rank]), "next_batch")
        return ProcessDetail(
            f"fake.{rank}",
            20_000 + rank,
            self.facts.hosts[self.facts.host_of[rank]],
            (loader, ActorLoad("trainer", 0, "step" if activity is Activity.RUNNING else "")),
            "all_reduce" if waits else "",
            "in the debugger" if rank in self._faults.of("paused") else "",
        )


def facts_of(size: int, per_host: int) -> MeshFacts:
    """Return a mesh of so many ranks, on as many hosts as needed."""
    per_host = min(size, per_host)
    if size < 1 or per_host < 1 or size % per_host:
        raise ValueError(f"{size} ranks cannot be spread evenly over hosts of {per_host}")
    hosts = tuple(f"node{host:03d}" for host in range(size // per_host))
    dims = (("hosts", len(hosts)), ("gpus", per_host))
    return MeshFacts("fake", dims, hosts, tuple(rank // per_host for rank in range(size)))


def time_of_day(seconds: float) -> str:
    """Return the time of day, so many seconds after the start."""
    return time.strftime("%H:%M:%S", time.gmtime(EPOCH + seconds))


def _listed(ranks: int | Iterable[int], size: int) -> list[int]:
    listed = [ranks] if isinstance(ranks, int) else list(ranks)
    if wrong := [rank for rank in listed if not 0 <= rank < size]:
        raise ValueError(f"invalid rank {wrong[0]}; the mesh has {size} ranks")
    return listed
