"""Whether anything is lost, and whether anything piles up: sixteen actors, some minutes of random work.

    python benchmarks/soak.py [--minutes N | --seconds N] [--seed N] [--json FILE]

Calls, casts, streams and slices, letters among the actors themselves, guests, meshes that come and go, nested ones.
Every sender numbers its messages for each receiver, and receivers check. After a warm-up, and then at every look, the
work is let come to rest, and nothing may have grown: memory beyond TOLERANCE, descriptors, threads, processes, calls
that wait for an answer. Fails, and says why, where it finds one of these.
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
from letters import AsyncPeer, Audit, Guest, Letter, Outbox, Peer
from report import Report, json_option

from meshbook import ActorMesh, SupervisionError, close_session, context, this_host
from meshbook.runtime.hosts.session import current_session

TEAMS = {"a": Peer, "b": Peer, "c": Peer, "d": AsyncPeer}  # of four each; who waits, waits for a later one
SHAPE = {"x": 2, "y": 2}
WARM_PART, WARM_SECONDS = 0.2, 60.0
LOOKS = 10
WINDOW = 100  # answers that may be outstanding
PATIENCE = 60.0  # seconds until what should have come counts as lost
SHORT_PATIENCE = 5.0  # until a process that is asked whether it answers at all does not
REST_PATIENCE = 5.0  # until sockets are closed and threads have ended
TOLERANCE = 16.0  # MiB that one process may grow by: an allocator never gives back all that it took
MIB = 1 << 20


class Hung(Exception):
    """Something was not answered; the text says what, and who answers other questions."""


class Work:
    """The teams, and what is done with them; what is random comes from one seed."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.host = this_host()
        self.procs = self.host.spawn_procs(per_host=SHAPE, name="soak")
        self.teams: dict[str, Any] = {name: self.procs.spawn(name, cls, name) for name, cls in TEAMS.items()}
        self.outbox = Outbox("controller")
        self.done: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self._open: list[tuple[Any, Any, str]] = []  # a future, its value, what it was
        self._kinds: dict[Callable[[], None], int] = {
            self.call: 30,
            self.call_one: 20,
            self.cast: 20,
            self.stream: 10,
            self.let_cast: 10,
            self.let_call: 5,
            self.invite: 3,
            self.come_and_go: 1,
            self.let_nest: 1,
        }

    def touch_everything(self) -> None:
        """Let each write to each, and each process have processes of its own: so that every connection is made."""
        for sender in self.teams.values():
            for name, team in self.teams.items():
                self.wait(sender.cast_on.call(name, team, 1), "a first letter")
        self.wait(self.teams["a"].nest.call(2), "a first nested mesh")
        for kind in self._kinds:
            kind()
        self.rest()

    def step(self) -> None:
        """Do one thing; wait for some answer where many are outstanding."""
        (kind,) = self._dice.choices(list(self._kinds), list(self._kinds.values()))
        kind()
        self.done[kind.__name__] += 1
        while len(self._open) > WINDOW:
            self._take_answer(self._dice.randrange(len(self._open)))

    def rest(self) -> None:
        """Take all answers that are outstanding."""
        while self._open:
            self._take_answer(-1)

    def wait(self, future: Any, what: str) -> Any:
        """The answer; Hung where none comes."""
        try:
            return future.get(timeout=PATIENCE)
        except TimeoutError:
            faulthandler.dump_traceback(all_threads=True)
            raise Hung(f"{what}: no answer within {PATIENCE:g} s; {self._describe_answers(future)}") from None

    def _describe_answers(self, future: Any) -> str:
        """Who answers now: so that a lost message, a stuck actor and a stuck process can be told apart."""
        asked = {
            f"{name} {rank}": answer
            for name, team in self.teams.items()
            for rank, answer in enumerate(team.take.call_each(self._write(name, team)))
        }
        end = time.monotonic() + SHORT_PATIENCE
        while time.monotonic() < end and not all(answer.done() for answer in asked.values()):
            time.sleep(0.01)  # several futures, and no one thing that tells of all of them
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
        team = self._dice.choice(teams)
        return team, self._cut(self.teams[team])

    def _cut(self, mesh: Any) -> Any:
        """The mesh, or a part of it."""
        cuts = {dim: self._dice.choice((None, 0, 1, slice(0, 1), slice(1, 2))) for dim in SHAPE}
        return mesh.slice(**{dim: cut for dim, cut in cuts.items() if cut is not None})

    def _write(self, team: str, part: ActorMesh) -> Letter:
        return self.outbox.write(team, part.region.ranks())

    # -- letters -----------------------------------------------------------------

    def call(self) -> None:
        team, part = self._pick()
        letter = self._write(team, part)
        self._open.append((part.take.call(letter), list(letter.numbers.items()), f"call of {team}"))

    def call_one(self) -> None:
        team, rank = self._dice.choice("abcd"), {dim: self._dice.randrange(2) for dim in SHAPE}
        one = self.teams[team].slice(**rank)
        for _ in range(self._dice.randrange(1, 20)):
            letter = self._write(team, one)
            ((rank_and_number),) = letter.numbers.items()
            self._open.append((one.take.call_one(letter), rank_and_number, f"call_one of {team}"))

    def cast(self) -> None:
        team, part = self._pick()
        for _ in range(self._dice.randrange(1, 20)):
            part.take.broadcast(self._write(team, part))

    def stream(self) -> None:
        team, part = self._pick()
        letter = self._write(team, part)
        answers = sorted(self.wait(answer, f"stream of {team}") for answer in part.take.stream(letter))
        self._compare(answers, sorted(letter.numbers.items()), f"stream of {team}")

    def let_cast(self) -> None:
        (_, senders), (team, part) = self._pick(), self._pick()
        answered = senders.cast_on.call(team, part, self._dice.randrange(1, 10))
        self._open.append((answered, [None] * len(senders), "letters cast on"))

    def let_call(self) -> None:
        sender = self._dice.choice("abc")
        senders = self._cut(self.teams[sender])
        team, part = self._pick("abcd".partition(sender)[2])
        self._open.append((senders.call_on.call(team, part), [True] * len(senders), "letters called on"))

    # -- what comes and goes -----------------------------------------------------

    def invite(self) -> None:
        """Actors on the standing processes, for a while."""
        guests: Any = self._cut(self.procs).spawn("guests", Guest)
        self._compare(self.wait(guests.greet.call(7), "guests"), [7] * len(guests), "guests")
        self.wait(guests.stop(), "the stop of guests")
        try:
            self.wait(guests.greet.call(8), f"guests that were stopped, {guests.region}")
        except SupervisionError:
            return
        self.wrong.append("guests that were stopped answered")

    def come_and_go(self) -> None:
        """A mesh of its own processes, for a while."""
        procs = self.host.spawn_procs(per_host={"gpus": 2}, name="guests")
        guests: Any = procs.spawn("guests", Guest)
        self._compare(self.wait(guests.greet.call(9), "a mesh that came"), [9, 9], "a mesh that came")
        self.wait(procs.stop(), "the stop of a mesh")

    def let_nest(self) -> None:
        depth = self._dice.choice((1, 1, 2))
        one = self.teams[self._dice.choice("abc")].slice(x=self._dice.randrange(2), y=self._dice.randrange(2))
        self._open.append((one.nest.call_one(depth), 2 * depth, "nested meshes"))


# -- looking ---------------------------------------------------------------------


@dataclass(frozen=True)
class Footprint:
    """What one process takes."""

    memory: float  # MiB, resident
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Sight:
    """What was seen when the work had come to rest."""

    footprints: dict[str, Footprint]  # by the process's part in the run
    processes: int
    files: int  # in the run's folder
    open_calls: int
    letters: int


def settle(work: Work) -> list[Audit]:
    """Wait until every letter has been taken; what the peers say then. Lost ones are noted as wrong."""
    work.rest()
    end = time.monotonic() + PATIENCE
    while True:
        audits = [audit for team in work.teams.values() for audit in work.wait(team.audit.call(), "an audit").values()]
        missing = find_missing(audits, work.outbox)
        if not missing or time.monotonic() > end:
            work.wrong += missing + [f"{audit.name}: {fault}" for audit in audits for fault in audit.faults]
            return audits
        time.sleep(0.01)  # letters are under way between others: nothing tells when the last has come


def find_missing(audits: list[Audit], outbox: Outbox) -> list[str]:
    """Which letters were sent and have not been taken."""
    received = {audit.name: audit.received for audit in audits}
    sent = {"controller": outbox.sent, **{audit.name: audit.sent for audit in audits}}
    return [
        f"{team} {rank} got {got} of {count} letters of {sender}"
        for sender, counts in sent.items()
        for (team, rank), count in counts.items()
        if (got := received[f"{team} {rank}"].get(sender, 0)) != count
    ]


def look(work: Work) -> Sight:
    audits = settle(work)
    gc.collect()
    controller = psutil.Process()
    (agent,) = controller.children()
    (server,) = agent.children()
    named = {"controller": controller, "agent": agent, "fork server": server}
    named |= {f"worker {index}": psutil.Process(pid) for index, pid in enumerate(sorted({each.pid for each in audits}))}
    return Sight(
        footprints={name: footprint(process) for name, process in named.items()},
        processes=len(controller.children(recursive=True)),
        files=len(list(current_session().folder.path.iterdir())),
        open_calls=context().actor_instance.node.calls.pending + sum(audit.open_calls for audit in audits),
        letters=sum(sum(audit.received.values()) for audit in audits),
    )


def footprint(process: psutil.Process) -> Footprint:
    return Footprint(process.memory_info().rss / MIB, process.num_fds(), process.num_threads())


def look_at_rest(work: Work, warm: Sight) -> Sight:
    """Look until everything is as it was, or patience has ended: sockets close and threads end a little later."""
    end = time.monotonic() + REST_PATIENCE
    while True:
        sight = look(work)
        if not grown(sight, warm) or time.monotonic() > end:
            return sight
        time.sleep(0.1)  # sockets and threads of others end in their own time, and tell nobody


def grown(sight: Sight, warm: Sight) -> list[str]:
    """What there is more of than there was when it was warm."""
    found = []
    for name, now in sight.footprints.items():
        before = warm.footprints[name]
        if now.memory - before.memory > TOLERANCE:
            found.append(f"the {name} grew from {before.memory:.1f} to {now.memory:.1f} MiB")
        if now.descriptors > before.descriptors:
            found.append(f"the {name} has {now.descriptors} descriptors instead of {before.descriptors}")
        if now.threads > before.threads:
            found.append(f"the {name} has {now.threads} threads instead of {before.threads}")
    if sight.processes != warm.processes:
        found.append(f"there are {sight.processes} processes instead of {warm.processes}")
    if sight.files > warm.files:
        found.append(f"there are {sight.files} files in the run's folder instead of {warm.files}")
    if sight.open_calls:
        found.append(f"{sight.open_calls} calls wait for an answer")
    return found


def put(report: Report, work: Work, sight: Sight, warm: Sight) -> None:
    put_growth(report, sight, warm)
    report.put("lost, reordered or wrong", len(work.wrong), "", "0")
    report.put("letters taken so far", sight.letters, "")
    for kind in ("invite", "come_and_go", "let_nest"):
        report.put(f"{kind}, so far", work.done[kind], "")


def put_growth(report: Report, sight: Sight, warm: Sight) -> None:
    """What there is more of than there was when it was warm."""
    pairs = {name: (now, warm.footprints[name]) for name, now in sight.footprints.items()}
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
    report.put("processes, more", sight.processes - warm.processes, "", "0")
    report.put("files of the run, more", sight.files - warm.files, "", "0")
    report.put("calls that wait for an answer", sight.open_calls, "", "0")


def soak(seconds: float, seed: int, report: Report) -> list[str]:
    """Work for so long; what was found to be wrong."""
    try:
        found = look_on(Work(seed), seconds, report)
    except Hung as hung:
        found = [str(hung)]
    close_session()
    left = [str(process) for process in psutil.Process().children(recursive=True)]
    return found + [f"left behind: {process}" for process in left]


def look_on(work: Work, seconds: float, report: Report) -> list[str]:
    warm_seconds = min(seconds * WARM_PART, WARM_SECONDS)
    work.touch_everything()
    work_for(work, warm_seconds)
    warm, found = look(work), []
    for _ in range(LOOKS):
        work_for(work, (seconds - warm_seconds) / LOOKS)
        sight = look_at_rest(work, warm)
        put(report, work, sight, warm)
        found = grown(sight, warm)
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
    options.rounds = LOOKS
    report.present(f"sixteen actors, {seconds:g} s of random work, seed {options.seed}", options)
    for trouble in found:
        print(f"FOUND: {trouble}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
