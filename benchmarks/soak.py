"""Checks that nothing is lost and nothing accumulates: sixteen actors, some minutes of random work.

    python benchmarks/soak.py [--minutes N | --seconds N] [--seed N] [--json FILE]

The work: calls, broadcasts, streams and slices, messages between actors, temporary actors and nested meshes. Every
sender numbers its messages for each receiver, and receivers check the numbers. After a warm-up, and then at each check,
the work comes to rest, and nothing may have grown: memory beyond TOLERANCE, descriptors, threads, processes, pending
calls. The benchmark fails, with the reason, if it finds one of these.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import gc
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
from report import Report, json_option
from soak_messages import AsyncPeer, Audit, NumberedMessage, Outbox, SyncPeer, TemporaryActor

from meshbook import ActorMesh, SupervisionError, close_session, context, this_host
from meshbook.runtime.hosts.session import current_session

TEAMS = {
    "a": SyncPeer,
    "b": SyncPeer,
    "c": SyncPeer,
    "d": AsyncPeer,
}  # of four each; an actor only waits for later teams
SHAPE = {"x": 2, "y": 2}
WARM_PART, WARM_SECONDS = 0.2, 60.0
CHECKS = 10
WINDOW = 100  # pending answers at most
PATIENCE = 60.0  # seconds after which an answer counts as lost
SHORT_PATIENCE = 5.0  # seconds after which a process counts as silent
REST_PATIENCE = 5.0  # seconds until sockets are closed and threads have ended
TOLERANCE = 16.0  # MiB of growth per process: an allocator never returns all of its memory
MIB = 1 << 20


class NoAnswer(Exception):
    """A request was not answered; the text names it, and the actors that do answer."""


class Work:
    """The teams and the random work on them; one seed determines it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.host = this_host()
        self.procs = self.host.spawn_procs(per_host=SHAPE, name="soak")
        self.teams: dict[str, Any] = {name: self.procs.spawn(name, cls, name) for name, cls in TEAMS.items()}
        self.outbox = Outbox("controller")
        self.done: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self._open: list[tuple[Any, Any, str]] = []  # a future, its expected value, its description
        self._kinds: dict[Callable[[], None], int] = {
            self.call: 30,
            self.call_one: 20,
            self.broadcast: 20,
            self.stream: 10,
            self.let_broadcast: 10,
            self.let_call: 5,
            self.use_temporary_actors: 3,
            self.use_temporary_mesh: 1,
            self.let_spawn: 1,
        }

    def open_connections(self) -> None:
        """Let each actor send to each, and each process spawn processes, so that every connection exists."""
        for sender in self.teams.values():
            for name, team in self.teams.items():
                self.wait(sender.broadcast_to.call(name, team, 1), "a first message")
        self.wait(self.teams["a"].spawn_nested.call(2), "a first nested mesh")
        for kind in self._kinds:
            kind()
        self.rest()

    def step(self) -> None:
        """Do one random action; wait for some answer if many are pending."""
        (kind,) = self._random.choices(list(self._kinds), list(self._kinds.values()))
        kind()
        self.done[kind.__name__] += 1
        while len(self._open) > WINDOW:
            self._take_answer(self._random.randrange(len(self._open)))

    def rest(self) -> None:
        """Receive all pending answers."""
        while self._open:
            self._take_answer(-1)

    def wait(self, future: Any, what: str) -> Any:
        """Return the answer; raises NoAnswer if none arrives."""
        try:
            return future.get(timeout=PATIENCE)
        except TimeoutError:
            faulthandler.dump_traceback(all_threads=True)
            raise NoAnswer(f"{what}: no answer within {PATIENCE:g} s; {self._describe_answers(future)}") from None

    def _describe_answers(self, future: Any) -> str:
        """Describe which actors answer now: it tells a lost message, a stuck actor and a stuck process apart."""
        asked = {
            f"{name} {rank}": answer
            for name, team in self.teams.items()
            for rank, answer in enumerate(team.receive.call_each(self._next_message(name, team)))
        }
        end = time.monotonic() + SHORT_PATIENCE
        while time.monotonic() < end and not all(answer.done() for answer in asked.values()):
            time.sleep(0.01)  # several futures, and no event that covers all of them
        silent = [name for name, answer in asked.items() if not answer.done()]
        return (
            f"silent peers: {', '.join(silent) or 'none'}; meanwhile it is {'there' if future.done() else 'not there'}"
        )

    def _take_answer(self, index: int) -> None:
        future, expected, what = self._open.pop(index)
        self._compare(self.wait(future, what), expected, what)

    def _compare(self, found: Any, expected: Any, what: str) -> None:
        found = list(found.values()) if hasattr(found, "values") else found
        if found != expected:
            self.wrong.append(f"{what} gave {found} instead of {expected}")

    def _pick(self, teams: str = "abcd") -> tuple[str, Any]:
        team = self._random.choice(teams)
        return team, self._cut(self.teams[team])

    def _cut(self, mesh: Any) -> Any:
        """Return the mesh, or a part of it."""
        cuts = {dim: self._random.choice((None, 0, 1, slice(0, 1), slice(1, 2))) for dim in SHAPE}
        return mesh.slice(**{dim: cut for dim, cut in cuts.items() if cut is not None})

    def _next_message(self, team: str, part: ActorMesh) -> NumberedMessage:
        return self.outbox.next_message(team, part.region.ranks())

    # -- messages ----------------------------------------------------------------

    def call(self) -> None:
        team, part = self._pick()
        message = self._next_message(team, part)
        self._open.append((part.receive.call(message), list(message.numbers.items()), f"call of {team}"))

    def call_one(self) -> None:
        team, rank = self._random.choice("abcd"), {dim: self._random.randrange(2) for dim in SHAPE}
        one = self.teams[team].slice(**rank)
        for _ in range(self._random.randrange(1, 20)):
            message = self._next_message(team, one)
            ((rank_and_number),) = message.numbers.items()
            self._open.append((one.receive.call_one(message), rank_and_number, f"call_one of {team}"))

    def broadcast(self) -> None:
        team, part = self._pick()
        for _ in range(self._random.randrange(1, 20)):
            part.receive.broadcast(self._next_message(team, part))

    def stream(self) -> None:
        team, part = self._pick()
        message = self._next_message(team, part)
        answers = sorted(self.wait(answer, f"stream of {team}") for answer in part.receive.stream(message))
        self._compare(answers, sorted(message.numbers.items()), f"stream of {team}")

    def let_broadcast(self) -> None:
        (_, senders), (team, part) = self._pick(), self._pick()
        answered = senders.broadcast_to.call(team, part, self._random.randrange(1, 10))
        self._open.append((answered, [None] * len(senders), "broadcasts by peers"))

    def let_call(self) -> None:
        sender = self._random.choice("abc")
        senders = self._cut(self.teams[sender])
        team, part = self._pick("abcd".partition(sender)[2])
        self._open.append((senders.call_peers.call(team, part), [True] * len(senders), "calls by peers"))

    # -- temporary actors and meshes ---------------------------------------------

    def use_temporary_actors(self) -> None:
        """Spawn actors on the existing processes, for a while."""
        temporary: Any = self._cut(self.procs).spawn("temporary", TemporaryActor)
        self._compare(self.wait(temporary.echo.call(7), "temporary actors"), [7] * len(temporary), "temporary actors")
        self.wait(temporary.stop(), "the stop of temporary actors")
        try:
            self.wait(temporary.echo.call(8), f"stopped actors, {temporary.region}")
        except SupervisionError:
            return
        self.wrong.append("stopped actors answered")

    def use_temporary_mesh(self) -> None:
        """Spawn a mesh with processes of its own, for a while."""
        procs = self.host.spawn_procs(per_host={"gpus": 2}, name="temporary")
        temporary: Any = procs.spawn("temporary", TemporaryActor)
        self._compare(self.wait(temporary.echo.call(9), "a temporary mesh"), [9, 9], "a temporary mesh")
        self.wait(procs.stop(), "the stop of a temporary mesh")

    def let_spawn(self) -> None:
        depth = self._random.choice((1, 1, 2))
        one = self.teams[self._random.choice("abc")].slice(x=self._random.randrange(2), y=self._random.randrange(2))
        self._open.append((one.spawn_nested.call_one(depth), 2 * depth, "nested meshes"))


# -- checks ----------------------------------------------------------------------


@dataclass(frozen=True)
class Footprint:
    """The resources of one process."""

    memory: float  # MiB, resident
    descriptors: int
    threads: int


@dataclass(frozen=True)
class ResourceUse:
    """The state of the run while the work is at rest."""

    footprints: dict[str, Footprint]  # by the role of the process in the run
    processes: int
    files: int  # in the run's folder
    open_calls: int
    messages: int


def settle(work: Work) -> list[Audit]:
    """Wait until all messages have been received, and return the peers' audits; lost messages are recorded as wrong."""
    work.rest()
    end = time.monotonic() + PATIENCE
    while True:
        audits = [audit for team in work.teams.values() for audit in work.wait(team.audit.call(), "an audit").values()]
        missing = find_missing(audits, work.outbox)
        if not missing or time.monotonic() > end:
            work.wrong += missing + [f"{audit.name}: {fault}" for audit in audits for fault in audit.faults]
            return audits
        time.sleep(0.01)  # other processes still send messages, and no event marks the last one


def find_missing(audits: list[Audit], outbox: Outbox) -> list[str]:
    """Return the messages that were sent and have not been received."""
    received = {audit.name: audit.received for audit in audits}
    sent = {"controller": outbox.sent, **{audit.name: audit.sent for audit in audits}}
    return [
        f"{team} {rank} got {got} of {count} messages of {sender}"
        for sender, counts in sent.items()
        for (team, rank), count in counts.items()
        if (got := received[f"{team} {rank}"].get(sender, 0)) != count
    ]


def measure(work: Work) -> ResourceUse:
    audits = settle(work)
    gc.collect()
    controller = psutil.Process()
    (agent,) = controller.children()
    (server,) = agent.children()
    named = {"controller": controller, "agent": agent, "fork server": server}
    named |= {f"worker {index}": psutil.Process(pid) for index, pid in enumerate(sorted({each.pid for each in audits}))}
    return ResourceUse(
        footprints={name: footprint(process) for name, process in named.items()},
        processes=len(controller.children(recursive=True)),
        files=len(list(current_session().folder.path.iterdir())),
        open_calls=len(context().actor_instance.node.table) + sum(audit.open_calls for audit in audits),
        messages=sum(sum(audit.received.values()) for audit in audits),
    )


def footprint(process: psutil.Process) -> Footprint:
    return Footprint(process.memory_info().rss / MIB, process.num_fds(), process.num_threads())


def measure_at_rest(work: Work, warm: ResourceUse) -> ResourceUse:
    """Check until nothing has grown, or the time is up: sockets close and threads end a little later."""
    end = time.monotonic() + REST_PATIENCE
    while True:
        measured = measure(work)
        if not find_growth(measured, warm) or time.monotonic() > end:
            return measured
        time.sleep(0.1)  # sockets and threads of other processes end without an event


def find_growth(measured: ResourceUse, warm: ResourceUse) -> list[str]:
    """Return what has grown since the warm-up."""
    found = []
    for name, now in measured.footprints.items():
        before = warm.footprints[name]
        if now.memory - before.memory > TOLERANCE:
            found.append(f"the {name} grew from {before.memory:.1f} to {now.memory:.1f} MiB")
        if now.descriptors > before.descriptors:
            found.append(f"the {name} has {now.descriptors} descriptors instead of {before.descriptors}")
        if now.threads > before.threads:
            found.append(f"the {name} has {now.threads} threads instead of {before.threads}")
    if measured.processes != warm.processes:
        found.append(f"there are {measured.processes} processes instead of {warm.processes}")
    if measured.files > warm.files:
        found.append(f"there are {measured.files} files in the run's folder instead of {warm.files}")
    if measured.open_calls:
        found.append(f"{measured.open_calls} calls wait for an answer")
    return found


def put(report: Report, work: Work, measured: ResourceUse, warm: ResourceUse) -> None:
    put_growth(report, measured, warm)
    report.put("lost, reordered or wrong", len(work.wrong), "", "0")
    report.put("messages received so far", measured.messages, "")
    for kind in ("use_temporary_actors", "use_temporary_mesh", "let_spawn"):
        report.put(f"{kind}, so far", work.done[kind], "")


def put_growth(report: Report, measured: ResourceUse, warm: ResourceUse) -> None:
    """Report the growth since the warm-up."""
    pairs = {name: (now, warm.footprints[name]) for name, now in measured.footprints.items()}
    growth = {name: now.memory - before.memory for name, (now, before) in pairs.items()}
    aim = f"at most {TOLERANCE:g}"
    for name in ("controller", "agent", "fork server"):
        report.put(f"growth of the {name}", growth[name], "MiB", aim)
    if workers := [growth[name] for name in growth if "worker" in name]:
        report.put("growth of a worker, the most", max(workers), "MiB", aim)
    report.put(
        "descriptors, more", sum(now.descriptors - before.descriptors for now, before in pairs.values()), "", "0"
    )
    report.put("threads, more", sum(now.threads - before.threads for now, before in pairs.values()), "", "0")
    report.put("processes, more", measured.processes - warm.processes, "", "0")
    report.put("files of the run, more", measured.files - warm.files, "", "0")
    report.put("calls that wait for an answer", measured.open_calls, "", "0")


def soak(seconds: float, seed: int, report: Report) -> list[str]:
    """Work for so long; returns the errors found."""
    try:
        found = run_checks(Work(seed), seconds, report)
    except NoAnswer as error:
        found = [str(error)]
    close_session()
    left = [str(process) for process in psutil.Process().children(recursive=True)]
    return found + [f"left behind: {process}" for process in left]


def run_checks(work: Work, seconds: float, report: Report) -> list[str]:
    warm_seconds = min(seconds * WARM_PART, WARM_SECONDS)
    work.open_connections()
    work_for(work, warm_seconds)
    warm, found = measure(work), []
    for _ in range(CHECKS):
        work_for(work, (seconds - warm_seconds) / CHECKS)
        measured = measure_at_rest(work, warm)
        put(report, work, measured, warm)
        found = find_growth(measured, warm)
        if work.wrong:
            break
    work.wait(work.procs.stop(), "the stop of everything")
    return work.wrong + found


def work_for(work: Work, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        work.step()


def main() -> int:
    parser = json_option(
        argparse.ArgumentParser(description="Sixteen actors, random work; nothing lost, nothing grown.")
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, help="instead of minutes")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    seconds = options.minutes * 60 if options.seconds is None else options.seconds
    report = Report()
    found = soak(seconds, options.seed, report)
    options.rounds = CHECKS
    report.present(f"sixteen actors, {seconds:g} s of random work, seed {options.seed}", options)
    for trouble in found:
        print(f"FOUND: {trouble}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
