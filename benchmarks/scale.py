"""Measures calls on a simulated mesh of up to 4096 ranks: messages and time of the controller, and the latency.

    python benchmarks/scale.py [--rounds N] [--json FILE]
    python benchmarks/scale.py --processes 256     real worker processes of this machine instead

Each rank, each host agent and the controller is a node with the code of real ones, in this one process and without
threads: a discrete-event simulation. A message arrives `LATENCY` after it was sent. The handling of each message takes
the processor time that it takes here, on the simulated processor of its node: every node has its own. A host has
`PER_HOST` ranks. The direct calls are the same with casts switched off.

The calls are also made with a line of output of each rank, which travels with its reply.

A round reports the median of `CALLS` calls. All nodes share the caches of this machine, and the sends cost no system
call. So the processor times are those of the Python code in this process, and not those of a real controller.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import heapq
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from report import Aim, Report, json_option, seconds_of

from meshbook import Actor, close_session, endpoint, this_host
from meshbook.runtime.actor.context import CURRENT, Context, Instance
from meshbook.runtime.config import Settings
from meshbook.runtime.geometry import SCALAR, Extent
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.output import TELEMETRY, OutputChunk, OutputStore, TelemetryActor
from meshbook.runtime.transport import Accept
from meshbook.runtime.transport.io_loop import IoLoop
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address

RANKS = (8, 16, 64, 256, 1024, 4096)
PER_HOST = 8
LATENCY = 50e-6  # seconds
CALLS = 5  # per round
PROBE = "probe-0@controller"  # the key of an actor whose messages flow control counts
WITHOUT_CASTS = 256  # the most ranks that are called directly as well
MICRO = 1e6


class LineOfOutput:
    """Replaces the capture of a rank: each reply has a line of output."""

    def __init__(self, node: Node, controller: Address, rank: int) -> None:
        self._node = node
        self._controller = controller
        self._chunk = OutputChunk("cell", "mesh", rank, "stdout", f"rank {rank}\n")

    def keeps_for(self, call: object) -> bool:
        return True

    @contextlib.contextmanager
    def kept_output(self) -> Iterator[list[Buffer]]:
        frame = self._node.calls.pack_small(self._controller, TELEMETRY, "relayed", self._chunk)
        assert frame is not None
        yield [frame]


class Probe(Actor):
    """The actor of each rank."""

    @endpoint
    def add(self, value: int) -> int:
        return value + 1


class World:
    """The simulated time, and the events to come."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, SimulatedTransport, Callable[[], object]]] = []
        self._order = itertools.count()
        self.transports: dict[str, SimulatedTransport] = {}

    def at(self, moment: float, transport: SimulatedTransport, event: Callable[[], object]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), transport, event))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Handle events in order until `is_over`, or until none is left."""
        while self._events and not is_over():
            moment, _, transport, event = heapq.heappop(self._events)
            self.now = transport.work(moment, event)


class SimulatedTransport:
    """The `Transport` of a simulated node, and its loop. The node has one processor."""

    def __init__(self, node: str, host: str, world: World) -> None:
        self.address = Address(node, f"sim://{host}/{node}")
        self.greeting: Buffer = b""
        self.accept: Accept = lambda frame: None
        self.busy = 0.0  # seconds of processor time
        self._free_at = 0.0
        self._start = self._began = 0.0  # of the event that is handled: in simulated time, and in processor time
        self._world = world
        self._greeted: set[str] = set()
        self.close_in_child: list[Any] = []
        world.transports[node] = self

    def work(self, moment: float, event: Callable[[], object]) -> float:
        """Handle an event once the processor is free; return the time of its end."""
        self._start, self._began = max(moment, self._free_at), time.thread_time()
        event()
        taken = time.thread_time() - self._began
        self.busy += taken
        self._free_at = self._start + taken
        return self._free_at

    @property
    def _present(self) -> float:
        return self._start + time.thread_time() - self._began

    # -- the transport ---------------------------------------------------------------------

    @property
    def loop(self) -> IoLoop:
        return cast("IoLoop", self)

    def send(self, to: Address, frame: Buffer) -> None:
        world, receiver = self._world, self._world.transports[to.node]
        frames = [frame] if to.node in self._greeted else [self.greeting, frame]
        self._greeted.add(to.node)
        for each in frames:
            world.at(self._present + LATENCY, receiver, lambda each=each: receiver.accept(each))

    send_soon = send

    def start(self) -> None:
        """Do nothing: there is no thread."""

    close = start

    def forget(self, node: str) -> None:
        """Do nothing: nodes do not end here."""

    def release(self, to: Address, *, anew: bool) -> None:
        """Do nothing: no node is replaced."""

    def have_left(self, to: Address) -> bool:
        return True

    # -- the loop --------------------------------------------------------------------------

    is_current = True

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._world.at(self._present, self, callback)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> None:
        self._world.at(self._present + seconds, self, callback)

    def run(self, callback: Callable[[], Any]) -> Any:
        return callback()


class SimulatedMesh:
    """A controller, and so many ranks on hosts with agents. With `casts`, agents relay; with `prints`, ranks print."""

    def __init__(self, ranks: int, *, casts: bool, prints: bool = False) -> None:
        self.world = World()
        settings = Settings(spans=0, cast_ranks=1 if casts else 0)

        def node(name: str, host: str) -> Node:
            return Node(cast("Any", SimulatedTransport(name, host, self.world)), "run", settings)

        self.controller = node("controller", "host-0")
        self.transport = self.world.transports["controller"]
        self.context = Context(Instance("client", "client", SCALAR.point(0), self.controller))
        self.lines: list[Any] = []  # the output that has arrived
        output = OutputStore()
        output.set_default(self.lines.append)
        telemetry = TelemetryActor(output, cast("Any", None), cast("Any", None))
        self.controller.actors.host_inline(TELEMETRY, telemetry)
        self.prints = prints
        self.nodes = []
        targets = []
        for rank in range(ranks):
            host = f"host-{rank // PER_HOST}"
            if not rank % PER_HOST:
                agent = node(f"agent-{host}", host)
                self.nodes.append(agent)
                self.controller.casts.add_agent(agent.address)
            worker = node(f"worker-{rank}", host)
            worker.actors.host_inline(PROBE, Probe())
            if prints:
                worker.replies.capture = cast("Any", LineOfOutput(worker, self.controller.address, rank))
            self.nodes.append(worker)
            targets.append(Target(worker.address, PROBE))
        extent = Extent.of(gpus=ranks)
        self.probes: Any = ActorMesh(PROBE, Probe, targets, extent.region)

    def call(self) -> tuple[float, float, int]:
        """Call all ranks; return the latency, the controller's processor time, and its messages both ways."""
        world, transport, controller = self.world, self.transport, self.controller
        made: list[Any] = []
        token = CURRENT.set(self.context)
        try:
            sent, received, *_ = controller.traffic()
            start, busy = world.now, transport.busy
            world.at(start, transport, lambda: made.append(self.probes.add.call(1)))
            world.run(lambda: bool(made) and made[0].done())
            latency, taken = world.now - start, transport.busy - busy
            world.run(lambda: False)  # the timers that are left
            sent_now, received_now, *_ = controller.traffic()
            assert set(made[0].get().values()) == {2}
            assert len(self.lines) == (len(made[0].get()) if self.prints else 0)
            self.lines.clear()
            return latency, taken, sent_now - sent + received_now - received
        finally:
            CURRENT.reset(token)


def measure(report: Report, ranks: int, *, casts: bool, prints: bool) -> None:
    mesh = SimulatedMesh(ranks, casts=casts, prints=prints)
    mesh.call()  # with greetings and marks
    gc.collect()
    gc.freeze()  # the simulated nodes are not part of the controller
    calls = [mesh.call() for _ in range(CALLS)]
    gc.unfreeze()
    latency, taken, messages = (statistics.median(figures) for figures in zip(*calls, strict=True))
    outside = statistics.median(each - busy for each, busy, _ in calls)
    what = f"{ranks} ranks, {'casts' if casts else 'direct'}{' with output' if prints else ''}"
    report.put(f"{what}: controller's messages", messages, "messages", Aim(32) if casts else "")
    aim = Aim(5) if casts and ranks >= 64 and not prints else ""
    report.put(f"{what}: controller's time per rank", taken / ranks * MICRO, "us", aim)
    report.put(f"{what}: latency", latency * 1e3, "ms")
    report.put(f"{what}: controller's wait", outside * 1e3, "ms")


def draw(report: Report, file: Path) -> None:
    """Draw the latency and the controller's time of a cast over the number of ranks."""
    from matplotlib import pyplot  # heavy, and only needed for the picture

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for way, ranks in (("casts", RANKS), ("direct", tuple(each for each in RANKS if each <= WITHOUT_CASTS))):
        latency = [report.median(f"{each} ranks, {way}: latency") for each in ranks]
        share = [report.median(f"{each} ranks, {way}: controller's time per rank") for each in ranks]
        outside = [report.median(f"{each} ranks, {way}: controller's wait") for each in ranks]
        left.plot(ranks, latency, marker="o", label=way)
        left.plot(ranks, outside, marker=".", linestyle=":", label=f"{way}, controller's wait")
        right.plot(ranks, share, marker="o", label=way)
    for axes, title in ((left, "latency of a call on all ranks, ms"), (right, "controller's time per rank, µs")):
        axes.set(xscale="log", xlabel="ranks", title=title, ylim=(0, None))
        axes.set_xticks(RANKS, map(str, RANKS))
        axes.legend()
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def measure_processes(report: Report, count: int) -> None:
    """Measure a mesh of real processes on this machine: up, a call on all, down."""
    meshes: list[Any] = []

    def start() -> None:
        procs = this_host().spawn_procs(per_host={"gpus": count})
        probes: Any = procs.spawn(PROBE, Probe)
        probes.add.call(1).get()
        meshes.extend((procs, probes))

    report.put(f"{count} processes, up", seconds_of(start), "s", Aim(8))
    procs, probes = meshes
    for _ in range(CALLS):
        report.put(f"{count} processes, a call on all", seconds_of(lambda: probes.add.call(1).get()), "s", Aim(0.1))
    report.put(f"{count} processes, down", seconds_of(lambda: procs.stop().get()), "s", Aim(1.5))
    close_session()


def main() -> None:
    parser = json_option(argparse.ArgumentParser(description="Calls on thousands of simulated ranks."))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=0, help="measure so many real worker processes instead")
    options = parser.parse_args()
    report = Report()
    for _ in range(options.rounds):
        if options.processes:
            measure_processes(report, options.processes)
            continue
        for ranks in RANKS:
            for prints in (False, True):
                measure(report, ranks, casts=True, prints=prints)
                if ranks <= WITHOUT_CASTS:
                    measure(report, ranks, casts=False, prints=prints)
    report.present("calls on simulated ranks" if not options.processes else "real processes", options)
    if options.json and not options.processes:
        draw(report, options.json.with_suffix(".svg"))


if __name__ == "__main__":
    main()
