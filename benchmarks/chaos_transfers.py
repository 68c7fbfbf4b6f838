"""Checks that bulk data survives faults: random transfers by every backend while owners drop memory and die.

    python benchmarks/chaos_transfers.py [--transfers N] [--seed N] [--kills X] [--stops X] [--json FILE]

Five processes, the controller among them, share memory and read and write that of the others, each by one backend;
large arrays go to endpoints and back meanwhile. Every byte is compared (`shared_regions.py`). Owners drop memory, and
share other memory; `meshbook.testing.chaos` kills and stops processes, which respawn by themselves. Outdated handles
are used, too: they must raise. In the end all work comes to rest, and is compared with the state after the warm-up.
The benchmark fails, with the reason, if a byte is wrong, an answer does not arrive, an unexpected error is raised, or
descriptors, threads, memory or files have grown. The same seed gives the same transfers and faults.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import faulthandler
import gc
import queue
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from report import Report, json_option
from shared_regions import (
    LARGEST,
    SLOT,
    MoverActor,
    Outcomes,
    OwnedRegions,
    Owner,
    OwnerActor,
    RegionTransfer,
    RegionTransfers,
    SharedRegion,
    pattern,
)
from soak import REST_PATIENCE, Footprint, NoAnswer, ResourceUse, find_growth, footprint, put_growth

from meshbook import Restarts, SupervisionError, close_session, context, this_host
from meshbook.runtime.config import OVERRIDES
from meshbook.runtime.errors import ActorError
from meshbook.runtime.hosts.session import current_session
from meshbook.testing import chaos

WAYS = {"process memory": 2, "host agent": 1, "message": 1}  # and how many workers move by it
WORKERS = sum(WAYS.values())
CONTROLLER = WORKERS  # its number among those that share and move
SPARE = 6  # cached connections, segments and threads: how many depends on how many were used at once
SPARE_MEMORY = 64.0  # MiB of those
ALL = -1  # the reader of memory that all may read
BATCH = 40  # tasks of one call
PATIENCE = 60.0  # seconds after which an answer counts as lost
ECHOES, DROPS, LOST = "arrays to an endpoint and back", "buffers dropped", "calls lost with a process"
WRITES, OUTDATED = 0.3, 0.05  # shares of all tasks
Answer = tuple[str, int, Any]  # the request, its process, and the future


@dataclass
class MovingWorker:
    """A worker."""

    procs: Any  # its slice
    owner_actor: Any
    mover: Any


class TransfersUnderFaults:
    """The processes, the memory that they share, and the requests to them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.meshes = [self._spawn(way, count) for way, count in WAYS.items()]
        parts = [mesh.slice(gpus=rank) for mesh in self.meshes for rank in range(len(mesh))]
        self.peers = [
            MovingWorker(
                part, part.spawn("owner_actor", OwnerActor, number, WORKERS + 1), part.spawn("mover", MoverActor)
            )
            for number, part in enumerate(parts)
        ]
        self._own, self._transfers = Owner(CONTROLLER, WORKERS + 1), RegionTransfers()
        self._regions: dict[int, OwnedRegions] = {CONTROLLER: self._own.regions()}
        self._outdated: collections.deque[tuple[SharedRegion, int]] = collections.deque(
            maxlen=20
        )  # with its slot's owner
        self._events: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._asked: collections.Counter[tuple[str, int]] = collections.Counter()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []

    def _spawn(self, way: str, count: int) -> Any:
        restarts = Restarts(most=1_000_000)
        with OVERRIDES.during({"rdma_backends": f"{way},same process"}):
            return this_host().spawn_procs({"gpus": count}, name="chaos", on_failure="respawn", restarts=restarts)

    @property
    def transfers(self) -> int:
        return self.outcomes["done"] + self.outcomes["dropped"] + self.outcomes["gone"]

    # -- requests ------------------------------------------------------------

    def move(self, count: int) -> None:
        """Try so many more transfers."""
        end = self.transfers + count
        while self.transfers < end and not self.wrong:
            for number in range(WORKERS):
                self._keep_busy(number)
            if self._random.random() < 0.2:
                self._take_outcomes(self._transfers.do(self._tasks(CONTROLLER, BATCH // 4)))
                self._renew_own()
            self._take_event()

    def open_connections(self) -> None:
        """Let each move the largest memory of each, send arrays, and share other memory."""
        for number in range(WORKERS):
            self._ask("regions", number, self.peers[number].owner_actor.regions.call_one())
        self.rest()
        for number in range(WORKERS):
            self._ask("do", number, self.peers[number].mover.do.call_one(self._every_task(number)))
            self._echo(number, LARGEST)
            self._renew(number)
        self._take_outcomes(self._transfers.do(self._every_task(CONTROLLER)))
        self._renew_own()
        self.rest()

    def rest(self) -> None:
        """Receive all pending answers."""
        while self._asked.total():
            self._take_event()

    def _keep_busy(self, number: int) -> None:
        if number not in self._regions and not self._asked["regions", number]:
            self._ask("regions", number, self.peers[number].owner_actor.regions.call_one())
        if not self._asked["do", number]:
            self._ask("do", number, self.peers[number].mover.do.call_one(self._tasks(number, BATCH)))
        if not self._asked["echo", number] and self._random.random() < 0.1:
            self._echo(number, self._size(LARGEST))
        if not self._asked["renew", number] and self._random.random() < 0.2:
            self._renew(number)

    def _ask(self, what: str, number: int, future: Any) -> None:
        self._asked[what, number] += 1
        future.when_done(lambda: self._events.put((what, number, future)))

    def _echo(self, number: int, size: int) -> None:
        key = self._random.randrange(1000)
        sent = pattern(key, 0, size).copy()
        answer = self.peers[number].mover.echo.call_one(sent)
        sent.fill(0)  # a change after sending must have no effect
        checked = answer.then(lambda value: bool(np.array_equal(value, pattern(key, 0, size))))
        self._ask("echo", number, checked)

    def _renew(self, number: int) -> None:
        is_slot = self._random.random() < 0.5
        index = self._random.randrange(WORKERS + 1 if is_slot else 3)
        self._ask("renew", number, self.peers[number].owner_actor.renew.call_one(index, is_slot))

    def _renew_own(self) -> None:
        self._put_back(CONTROLLER)
        regions, wrong = self._own.renew(self._random.randrange(3), is_slot=False)
        self._regions[CONTROLLER] = regions
        self.wrong += wrong

    def _tasks(self, mover: int, count: int) -> list[RegionTransfer]:
        return [self._task(mover) for _ in range(count)]

    def _task(self, mover: int) -> RegionTransfer:
        is_write = self._random.random() < WRITES
        if self._outdated and self._random.random() < OUTDATED:
            region, whose = self._random.choice(self._outdated)
            if whose in (mover, ALL):
                return self._part(region, is_write=whose == mover)
        regions = self._regions[self._random.choice(sorted(self._regions))]
        return self._part(regions.slots[mover] if is_write else self._random.choice(regions.shared), is_write=is_write)

    def _part(self, region: SharedRegion, *, is_write: bool) -> RegionTransfer:
        whole = region.buffer.size()
        size = self._size(whole)
        return RegionTransfer(region, self._random.randrange(whole - size + 1), size, is_write)

    def _size(self, most: int) -> int:
        """Return a random size, mostly small: all powers of two are equally likely."""
        return max(1, min(most, int(2 ** self._random.uniform(0, most.bit_length()))))

    def _every_task(self, mover: int) -> list[RegionTransfer]:
        all_regions = self._regions.values()
        reads = [
            RegionTransfer(region, 0, region.buffer.size(), False)
            for regions in all_regions
            for region in regions.shared
        ]
        return [*reads, *(RegionTransfer(regions.slots[mover], 0, SLOT, True) for regions in all_regions)]

    # -- answers -------------------------------------------------------------

    def _take_event(self) -> None:
        try:
            what, number, future = self._events.get(timeout=PATIENCE)
        except queue.Empty:
            faulthandler.dump_traceback(all_threads=True)
            waits = ", ".join(f"{what} of {number}" for what, number in +self._asked)
            raise NoAnswer(f"nothing came within {PATIENCE:g} s; asked: {waits}") from None
        self._asked[what, number] -= 1
        error = future.exception()
        if error is None:
            self._take_answer(what, number, future.get())
        elif isinstance(error, SupervisionError) or _is_of_a_death(error):
            self.outcomes[LOST] += 1
            self._forget(number)
            time.sleep(0.001)  # calls to a restarting rank wait for it; the restart begins a moment later
        else:
            self.wrong.append(f"{what} of {number}: {error!r}")

    def _take_answer(self, what: str, number: int, answer: Any) -> None:
        if what == "do":
            self._take_outcomes(answer)
        elif what == "echo":
            self.outcomes[ECHOES] += 1
            self.wrong += [] if answer else [f"an array came back from {number} as another one"]
        elif what == "regions":
            self._regions[number] = answer
        else:
            self._put_back(number)
            self._regions[number], wrong = answer
            self.outcomes[DROPS] += 1
            self.wrong += wrong

    def _take_outcomes(self, outcomes: Outcomes) -> None:
        self.outcomes.update(outcomes.counts)
        self.wrong += outcomes.wrong
        for owner in outcomes.gone:
            self._forget(owner)

    def _put_back(self, owner: int) -> None:
        """Remember memory that the owner has shared until now: its handles may be outdated."""
        if (regions := self._regions.get(owner)) is not None:
            self._outdated.append((self._random.choice(regions.shared), ALL))
            whose = self._random.randrange(WORKERS + 1)
            self._outdated.append((regions.slots[whose], whose))

    def _forget(self, owner: int) -> None:
        """Forget the memory of an owner that has died; its replacement shares other memory."""
        if owner != CONTROLLER:
            self._put_back(owner)
            self._regions.pop(owner, None)


def _is_of_a_death(error: BaseException) -> bool:
    """Return whether an endpoint raised because another process had died."""
    return isinstance(error, ActorError) and isinstance(error.exception, SupervisionError)


# -- checks ------------------------------------------------------------------------


def measure(job: TransfersUnderFaults) -> ResourceUse:
    """Measure all processes of the run; of the workers the largest footprint, since they change."""
    gc.collect()
    controller = psutil.Process()
    (agent,) = controller.children()
    (server,) = agent.children()
    workers = [footprint(psutil.Process(peer.mover.pid.call_one().get(PATIENCE))) for peer in job.peers]
    return ResourceUse(
        footprints={
            "controller": footprint(controller),
            "agent": footprint(agent),
            "fork server": footprint(server),
            "worker that takes most": most_of(workers),
        },
        processes=len(controller.children(recursive=True)),
        files=len(list(current_session().folder.path.iterdir())),
        open_calls=len(context().actor_instance.node.table),
        messages=job.transfers,
    )


def most_of(prints: list[Footprint]) -> Footprint:
    return Footprint(
        max(each.memory for each in prints),
        max(each.descriptors for each in prints),
        max(each.threads for each in prints),
    )


def allowed(warm: ResourceUse) -> ResourceUse:
    """Return the allowed resources."""
    footprints = {
        name: Footprint(seen.memory + SPARE_MEMORY, seen.descriptors + SPARE, seen.threads + SPARE)
        for name, seen in warm.footprints.items()
    }
    return dataclasses.replace(warm, footprints=footprints)


def measure_at_rest(job: TransfersUnderFaults, most: ResourceUse) -> ResourceUse:
    """Measure until no limit is exceeded, or the time is up: connections and threads end a little later."""
    end = time.monotonic() + REST_PATIENCE
    while True:
        measured = measure(job)
        if not find_growth(measured, most) or time.monotonic() > end:
            return measured
        time.sleep(0.2)  # they end without an event


# -- the run -----------------------------------------------------------------------


def run(options: argparse.Namespace, report: Report) -> list[str]:
    """Run the benchmark; returns the errors found."""
    try:
        found = run_parts(TransfersUnderFaults(options.seed), options, report)
    except NoAnswer as error:
        found = [str(error)]
    close_session()
    return found + [f"left behind: {process}" for process in psutil.Process().children(recursive=True)]


def run_parts(job: TransfersUnderFaults, options: argparse.Namespace, report: Report) -> list[str]:
    warm_up(job)
    warm, before = measure(job), job.outcomes.copy()
    done: collections.Counter[str] = collections.Counter()
    found: list[str] = []
    for part in range(options.parts):
        begun = time.monotonic()
        with faults(job, options, part) as injected:
            job.move(options.transfers // options.parts)
            job.rest()
        report.put("time of a part", time.monotonic() - begun, "s")
        for each in injected:
            done.update(each.counts())
        if not job.wrong:
            job.open_connections()
        measured = measure_at_rest(job, allowed(warm))
        put(report, job, job.outcomes - before, done)
        put_growth(report, measured, warm)
        found = job.wrong + find_growth(measured, allowed(warm))
        if job.wrong:
            break
    return found


def put(
    report: Report, job: TransfersUnderFaults, outcomes: collections.Counter[str], faults: collections.Counter[str]
) -> None:
    for name in ("done", "dropped", "gone"):
        report.put(f"transfers, {name}, so far", outcomes[name], "")
    for name in (ECHOES, DROPS, LOST):
        report.put(f"{name}, so far", outcomes[name], "")
    for kind in ("kill", "stop", "drop"):
        report.put(f"faults, {kind}, so far", faults[kind], "")
    report.put("wrong", len(job.wrong), "", "0")


def warm_up(job: TransfersUnderFaults) -> None:
    """Let each process do everything, die, be healed and do everything again, so that every connection exists."""
    job.open_connections()
    for peer in job.peers:
        peer.procs.kill().get(PATIENCE)
    job.move(20 * BATCH)
    job.rest()
    job.open_connections()
    job.open_connections()


@contextlib.contextmanager
def faults(job: TransfersUnderFaults, options: argparse.Namespace, part: int) -> Iterator[list[Any]]:
    """While the block runs, kill and stop processes, and cut their message links for a while."""
    with contextlib.ExitStack() as stack:
        seed = options.seed * 1000 + part * len(job.meshes)
        kills, stops = options.kills / len(job.meshes), options.stops / len(job.meshes)
        yield [
            stack.enter_context(chaos(mesh, kill=kills, stop=stops, drop=stops / 2, seed=seed + number))
            for number, mesh in enumerate(job.meshes)
        ]


def main() -> int:
    parser = json_option(argparse.ArgumentParser(description="Random transfers under faults; every byte is compared."))
    parser.add_argument("--transfers", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=float, default=1.0, help="a second, over all processes")
    parser.add_argument("--stops", type=float, default=1.0, help="the same; and half as many cut links")
    options = parser.parse_args()
    options.rounds = options.parts
    report = Report()
    found = run(options, report)
    report.present(f"{options.transfers:,} transfers under faults, seed {options.seed}", options)
    for trouble in found[:20]:
        print(f"FOUND: {trouble}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
