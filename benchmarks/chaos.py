"""Checks that work survives faults: an elastic job computes a known sum while processes are killed and stopped.

    python benchmarks/chaos.py [--minutes N | --seconds N] [--faults N] [--seed N] [--hosts N] [--respawn] [--json FILE]

The controller assigns numbered pieces of work to the ranks of a mesh; each rank requests half of each piece from
another rank. A lost piece is assigned again. A mesh that has lost a rank is healed, by the controller or, with
`--respawn`, by itself, while the other ranks go on. Between the parts of a run all work comes to rest, and is compared
with the state after the warm-up: nothing may have grown. The benchmark fails, with the reason, if the sum is wrong, an
answer does not arrive, an unexpected error is raised, or resources grow or are left behind. The same seed makes the
same faults.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import faulthandler
import gc
import os
import queue
import statistics
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import psutil
from report import Report, json_option
from soak import REST_PATIENCE, SHORT_PATIENCE, Footprint, NoAnswer, ResourceUse, find_growth, footprint, put_growth

import meshbook
from meshbook import Actor, ActorError, Restarts, SupervisionError, close_session, context, endpoint, this_host
from meshbook.hosts import command
from meshbook.runtime.hosts.session import current_session
from meshbook.testing import ChaosReport, chaos

RANKS, SPARES = 4, 1
NUMBERS = 2000  # of one piece
WINDOW = 4  # pieces that a rank has at a time
PARTS = 10
WARM_SECONDS = 1.0
SHARES = {"kill": 0.4, "stop": 0.25, "drop": 0.2, "delay": 0.15}  # of all faults
PATIENCE = 60.0  # seconds after which an answer counts as lost
MARK = f"MESHBOOK_CHAOS_{uuid.uuid4().hex}"


class Half(Actor):
    """Adds up the halves that other ranks request."""

    @endpoint
    def add(self, first: int, last: int) -> int:
        return sum(range(first, last))

    @endpoint
    def here(self) -> None:
        """Answer."""


class Adder(Actor):
    """Adds up pieces, with half of each from another rank."""

    def __init__(self, halves: Any) -> None:
        self.halves = halves

    @endpoint
    def add(self, piece: int, partner: int) -> int:
        first = piece * NUMBERS
        other = self.halves.slice(gpus=partner).add.call_one(first + NUMBERS // 2, first + NUMBERS)
        return sum(range(first, first + NUMBERS // 2)) + int(other.get())

    @endpoint
    def here(self) -> None:
        """Answer."""


class AsyncAdder(Actor):
    """An adder on an event loop."""

    def __init__(self, halves: Any) -> None:
        self.halves = halves

    @endpoint
    async def add(self, piece: int, partner: int) -> int:
        first = piece * NUMBERS
        other = self.halves.slice(gpus=partner).add.call_one(first + NUMBERS // 2, first + NUMBERS)
        return sum(range(first, first + NUMBERS // 2)) + int(await other)

    @endpoint
    async def here(self) -> None:
        """Answer."""


class Tally:
    """The set of done pieces, stored compactly: otherwise this program's memory would grow."""

    def __init__(self) -> None:
        self.sum = 0
        self.count = 0
        self._first = 0  # the first piece that is not done
        self._others: set[int] = set()  # pieces after it that are done

    def note(self, piece: int, found: int) -> bool:
        """Record a piece; returns whether it was not done before."""
        if piece < self._first or piece in self._others:
            return False
        self.sum, self.count = self.sum + found, self.count + 1
        self._others.add(piece)
        while self._first in self._others:
            self._others.remove(self._first)
            self._first += 1
        return True


class WorkUnderFaults:
    """The pieces of work: which are still to do, which rank has them, and their results."""

    def __init__(self, hosts: int, policy: Literal["raise", "respawn"]) -> None:
        self.hosts = hosts
        self._heals_itself = policy == "respawn"
        where = this_host() if hosts == 1 else command({f"h{number}": [] for number in range(hosts)})
        self.procs = where.spawn_procs(
            per_host={"gpus": RANKS // hosts},
            spares=SPARES,
            name="chaos",
            on_failure=policy,
            restarts=Restarts(most=1_000_000),
        )
        self.halves = self._spawn(Half)
        self.adders = [self._spawn(kind, self.halves) for kind in (Adder, AsyncAdder)]
        self._meshes = {"halves": self.halves, "sync": self.adders[0], "async": self.adders[1]}
        self.done = Tally()
        self.wrong: list[str] = []
        self.lost = 0  # pieces lost, with repetitions
        self.heals: list[float] = []  # seconds of each
        self.slowest = 0.0  # seconds of the slowest piece
        self._next = 0
        self._again: collections.deque[int] = collections.deque()
        self._out: collections.Counter[int] = collections.Counter()  # pieces by rank
        self._unavailable: set[int] = set()  # ranks that wait for a heal
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._healing = False

    def work_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._assign_all(new=True)
            self._take_event()

    def rest(self) -> None:
        """Wait until all assigned pieces are done, and the mesh is healthy."""
        for rank in range(RANKS):  # a rank without pieces may have died unnoticed
            self._assign(rank, self._next_piece())
        while self._healing or self._out.total() or self._again:
            self._take_event()
            self._assign_all(new=False)

    def _spawn(self, kind: type[Actor], *arguments: Any) -> Any:
        """Spawn one on each rank, on all hosts."""
        return self.procs.spawn(kind.__name__, kind, *arguments).flatten("gpus")  # type: ignore[attr-defined]

    def warm_up(self) -> None:
        """Let each rank work, and each die and be healed once, so that every connection exists."""
        self.procs.initialized.get(PATIENCE)
        for rank in range(RANKS):
            self.work_for(WARM_SECONDS / RANKS)
            self.procs.flatten("gpus").slice(gpus=rank).kill().get(PATIENCE)
            self.work_for(WARM_SECONDS / RANKS)
            self.rest()
        self.lost, self.heals, self.slowest = 0, [], 0.0

    # -- assignment ----------------------------------------------------------

    def _assign_all(self, *, new: bool) -> None:
        for rank in range(RANKS):
            while rank not in self._unavailable and self._out[rank] < WINDOW and (self._again or new):
                self._assign(rank, self._again.popleft() if self._again else self._next_piece())

    def _next_piece(self) -> int:
        self._next += 1
        return self._next - 1

    def _assign(self, rank: int, piece: int) -> None:
        partner = (rank + 1 + piece % (RANKS - 1)) % RANKS
        begun = time.monotonic()
        answer = self.adders[piece % 2].slice(gpus=rank).add.call_one(piece, partner)
        self._out[rank] += 1
        answer.when_done(lambda: self._events.put((rank, piece, begun, answer)))

    # -- results -------------------------------------------------------------

    def _take_event(self) -> None:
        try:
            event = self._events.get(timeout=PATIENCE)
        except queue.Empty:
            faulthandler.dump_traceback(all_threads=True)
            raise NoAnswer(f"nothing came within {PATIENCE:g} s: {self._describe()}") from None
        if len(event) == 2:
            self._healed(*event)
        else:
            self._answered(*event)

    def _describe(self) -> str:
        """Describe which actors answer now, and all processes: to tell lost messages from stuck actors."""
        answers = {
            f"{name} {rank}": mesh.slice(gpus=rank).here.call_one()
            for name, mesh in self._meshes.items()
            for rank in range(RANKS)
        }
        time.sleep(SHORT_PATIENCE)  # several futures, and no event that covers all of them
        silent = [name for name, answer in answers.items() if not answer.done()]
        processes = [f"{each.pid} {each.status()}" for each in psutil.Process().children(recursive=True)]
        return (
            f"pieces assigned: {dict(self._out)}; ranks to heal: {self._unavailable or 'none'}; "
            f"healing: {self._healing}; "
            f"silent: {', '.join(silent) or 'none'}; processes: {', '.join(processes)}"
        )

    def _answered(self, rank: int, piece: int, begun: float, answer: Any) -> None:
        self._out[rank] -= 1
        self.slowest = max(self.slowest, time.monotonic() - begun)
        error = answer.exception()
        if error is None:
            self._note(piece, answer.get())
            return
        self.lost += 1
        self._again.append(piece)
        if isinstance(error, SupervisionError):
            self._lost(rank)
        elif not (isinstance(error, ActorError) and isinstance(error.exception, SupervisionError)):
            self.wrong.append(f"piece {piece} on rank {rank}: {error!r}")
        if not self._heals_itself:
            self._heal()

    def _lost(self, rank: int) -> None:
        if self._heals_itself:
            time.sleep(0.001)  # calls to a restarting rank wait for it; the restart begins a moment later
        else:
            self._unavailable.add(rank)

    def _note(self, piece: int, found: int) -> None:
        if not self.done.note(piece, found):
            self.wrong.append(f"piece {piece} was done twice")

    def _heal(self) -> None:
        if not self._healing:
            self._healing = True
            begun = time.monotonic()
            healed = self.procs.heal()
            healed.when_done(lambda: self._events.put((begun, healed)))

    def _healed(self, begun: float, healed: Any) -> None:
        self._healing = False
        error = healed.exception()
        if error is None:
            self._unavailable.clear()  # the next piece detects ranks that have died since
            if healed.get():
                self.heals.append(time.monotonic() - begun)
        elif isinstance(error, SupervisionError):
            self._heal()  # another rank died during the heal
        else:
            self.wrong.append(f"heal() raised {error!r}")

    def check(self) -> list[str]:
        """Return the errors found in the results."""
        count = self._next * NUMBERS
        found, due = self.done.sum, count * (count - 1) // 2
        missing = self._next - self.done.count
        sums = [] if found == due else [f"the sum is {found} instead of {due}, {missing} pieces are missing"]
        return self.wrong + sums


# -- faults ------------------------------------------------------------------------


def work_under_faults(job: WorkUnderFaults, seconds: float, faults: int, seed: int) -> ChaosReport:
    """Work under faults for so long, and then until all of it is done."""
    rates = {kind: share * faults / seconds for kind, share in SHARES.items()}
    with chaos(job.procs, **rates, seed=seed) as done:
        job.work_for(seconds)
    job.rest()
    return done


# -- checks ------------------------------------------------------------------------


def measure(job: WorkUnderFaults) -> ResourceUse:
    """Measure the controller, all agents and all fork servers; workers change."""
    gc.collect()
    controller = psutil.Process()
    agents = controller.children()
    servers = [server for agent in agents for server in agent.children()]
    return ResourceUse(
        footprints={
            "controller": footprint(controller),
            "agent": sum_of(agents),  # of all hosts: connections move from one to another
            "fork server": sum_of(servers),
        },
        processes=len(controller.children(recursive=True)),
        files=len(list(current_session().folder.path.iterdir())),
        open_calls=len(context().actor_instance.node.table),
        messages=job.done.count,
    )


def with_connections(warm: ResourceUse, measured: ResourceUse) -> ResourceUse:
    """Return the measurement with the descriptors of a later one, if it has more: an agent may connect to a rank late.

    Descriptors that faults leak are found all the same: they also grow afterwards.
    """
    footprints = {
        name: dataclasses.replace(each, descriptors=max(each.descriptors, measured.footprints[name].descriptors))
        for name, each in warm.footprints.items()
    }
    return dataclasses.replace(warm, footprints=footprints)


def sum_of(processes: Sequence[psutil.Process]) -> Footprint:
    each = [footprint(process) for process in processes]
    return Footprint(*(sum(column) for column in zip(*map(dataclasses.astuple, each), strict=True)))


def measure_at_rest(job: WorkUnderFaults, warm: ResourceUse | None = None) -> ResourceUse:
    """Measure until nothing has grown, or the time is up: spares are replaced, and threads end, a little later."""
    end = time.monotonic() + REST_PATIENCE
    while True:
        is_full = job.procs.spares().get(PATIENCE) == SPARES * job.hosts
        measured = measure(job)
        is_ready = all_are_measured() if warm is None else not find_growth(measured, warm)
        if (is_full and is_ready) or time.monotonic() > end:
            return measured
        time.sleep(0.1)  # they end without an event


def all_are_measured() -> bool:
    """Return whether the agents have opened the page of each rank, as they do on its first measurement."""
    pages = [file for agent in psutil.Process().children() for file in agent.open_files() if ".vitals" in file.path]
    return len(pages) == RANKS


def put(report: Report, job: WorkUnderFaults, faults: collections.Counter[str]) -> None:
    for kind in SHARES:
        report.put(f"faults, {kind}, so far", faults[kind], "")
    report.put("faults, all, so far", faults.total(), "")
    report.put("heals, so far", len(job.heals), "")
    if job.heals:
        report.put("heal(), median", statistics.median(job.heals) * 1e3, "ms", "under 500")
        report.put("heal(), the longest so far", max(job.heals) * 1e3, "ms")
    report.put("the slowest piece so far", job.slowest, "s")
    report.put("pieces done, so far", job.done.count, "")
    report.put("pieces lost and done again, so far", job.lost, "")
    report.put("wrong", len(job.check()), "", "0")


def marked_processes() -> Iterator[str]:
    """Yield the processes that carry this run's mark, except this one."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile, or is another user's
            if process.pid != os.getpid() and process.environ().get(MARK) == "1":
                yield str(process)


def run(options: argparse.Namespace, seconds: float, report: Report) -> list[str]:
    """Work under faults for so long; returns the errors found."""
    try:
        found = run_parts(
            WorkUnderFaults(options.hosts, options.policy),
            seconds / PARTS,
            options.faults / PARTS,
            options.seed,
            report,
        )
    except NoAnswer as error:
        found = [str(error)]
    close_session()
    return found + [f"left behind: {process}" for process in marked_processes()]


def run_parts(job: WorkUnderFaults, seconds: float, faults: float, seed: int, report: Report) -> list[str]:
    done: collections.Counter[str] = collections.Counter()
    job.warm_up()
    warm, found = measure_at_rest(job), []
    for part in range(PARTS):
        count = round(faults * (part + 1)) - round(faults * part)
        done.update(work_under_faults(job, seconds, count, seed + part).counts())
        measured = measure_at_rest(job, warm)
        put(report, job, done)
        put_growth(report, measured, warm)
        found = job.check() + find_growth(measured, warm)
        print(f"part {part + 1} of {PARTS}: {done.total()} faults, {job.done.count} pieces", file=sys.stderr)
        if part < PARTS // 2:
            warm = with_connections(warm, measured)
        if job.wrong:
            break
    job.procs.stop().get(PATIENCE)
    return found


def main() -> int:
    parser = json_option(argparse.ArgumentParser(description="An elastic job under faults: right sum, nothing left."))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, help="instead of minutes")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--respawn", dest="policy", action="store_const", const="respawn", default="raise")
    parser.add_argument("--hosts", type=int, default=1, choices=(1, 2, 4), help="agents, joined as over a network")
    options = parser.parse_args()
    os.environ[MARK] = "1"
    meshbook.unhandled_fault_hook = lambda failure: None  # type: ignore[attr-defined]  # they are intended
    seconds = options.minutes * 60 if options.seconds is None else options.seconds
    report = Report()
    found = run(options, seconds, report)
    options.rounds = PARTS
    where = f"on {options.hosts} host{'s' * (options.hosts > 1)}, {SPARES} spare on each"
    heading = f"{RANKS} ranks {where}, some {options.faults} faults in {seconds:g} s, seed {options.seed}"
    report.present(heading, options)
    for trouble in found:
        print(f"FOUND: {trouble}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
