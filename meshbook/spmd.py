"""`python -m meshbook.spmd --procs 4 train.py --lr 1`: a script on all cores or GPUs, as torchrun runs it.

The ranks are processes of this host, or with `--hosts slurm:4` of other hosts.
Programs import SPMDActor and setup_torch_elastic_env from here. `runtime/spmd/run_policy.py` decides when each action
is taken.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from meshbook import curves, hosts
from meshbook.runtime.actor.future import Future
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ExitReport, LaunchError, ProcessDied
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.geometry import MeshTrait
from meshbook.runtime.hosts.session import Session, close_session, replace_session
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh, handle_failures
from meshbook.runtime.resources import count_cores, count_gpus
from meshbook.runtime.spmd.printing import Printer
from meshbook.runtime.spmd.run_policy import Dismiss, EndRun, RunPolicy
from meshbook.runtime.spmd.spmd_actor import (
    AddrType,
    SPMDActor,
    setup_torch_elastic_env,
    setup_torch_elastic_env_async,
)
from meshbook.runtime.telemetry.points import HistoryError
from meshbook.runtime.threads import get_within

__all__ = ["AddrType", "SPMDActor", "setup_torch_elastic_env", "setup_torch_elastic_env_async"]

PROCS = "procs"  # the dimension of the mesh
LEAVE_SECONDS = 86_400.0  # threads and atexit hooks of a script may run long; Ctrl-C ends them sooner
SIGNALS = (signal.SIGINT, signal.SIGTERM)
T = TypeVar("T")
M = TypeVar("M", bound=MeshTrait)
Event = Callable[[float], None]  # an event of the run, called with its time


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if not (args.module or Path(args.script).is_file()):
        parser.error(f"no such file: {args.script}")
    script = (["-m"] if args.module else []) + [args.script, *args.args]
    try:
        session = begin_session()
        machines, per_host = choose_hosts(session, args.hosts, args.procs)
    except (LaunchError, OSError, ValueError) as error:
        close_session()
        print_line(str(error))
        return 1
    except KeyboardInterrupt:
        close_session()
        print_line("ended by SIGINT")
        return 128 + signal.SIGINT
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    policy = RunPolicy(machines.size() * per_host)
    printer = Printer(
        policy.size,
        {"stdout": sys.stdout, "stderr": sys.stderr},
        broken=lambda: events.put(partial(policy.signalled, signal.SIGPIPE)),
    )
    session.output.set_default(printer.take)
    try:
        with signals_to(events, policy):
            try:
                Run(session, machines, per_host, policy, events).follow(script)
            finally:
                if args.curves is not None:
                    write_curves(args.curves)
                close_session()  # its last request to the agents: earlier output has arrived with the reply
    except LaunchError as error:
        print_line(str(error))
        return 1
    finally:
        printer.close()
    for line in summary_lines(policy):
        print_line(line)
    return policy.status


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m meshbook.spmd",
        description="Run a script on every rank of a mesh, with the environment that torchrun gives it. "
        "Example: python -m meshbook.spmd --hosts slurm:4 --procs 8 train.py --lr 1e-3",
        epilog="The exit status is 0 on success. Otherwise it is the exit status of the script if it is the same on "
        "all failed ranks, else 1.",
    )
    parser.add_argument(
        "--procs",
        type=_positive_int,
        metavar="N",
        help="number of ranks on each host (default: one per GPU; without GPUs, one per CPU core of this host, or one "
        "on each of several hosts)",
    )
    parser.add_argument(
        "--hosts",
        metavar="HOSTS",
        help="run on other hosts, which have the script at the same path: slurm:4, slurm (this allocation), "
        "ssh:gpu1,gpu2, ray:4, local:2, cluster.toml or a name in hosts.toml (default: this host)",
    )
    parser.add_argument(
        "--curves",
        type=_path_of_curves,
        metavar="PATH",
        help="write what the ranks log by meshbook.log to PATH: a .parquet or .csv file, or a folder for TensorBoard",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run SCRIPT as a module")
    parser.add_argument("script", metavar="SCRIPT", help="a file, or with -m a module")
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="the script's arguments")
    return parser


def _positive_int(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, not {text!r}")
    return int(text)


def _path_of_curves(text: str) -> Path:
    if Path(text).suffix not in curves.SUFFIXES:
        raise argparse.ArgumentTypeError(f"a file must be .parquet or .csv, not {text!r}")
    return Path(text)


def choose_size() -> int:
    """Return the number of GPUs, or else of cores, and print it."""
    gpus = count_gpus()
    size, what = (gpus, "GPU") if gpus else (count_cores(), "CPU core")
    print_line(f"--procs {size}: one rank per {what}")
    return size


def begin_session() -> Session:
    """Start the session of this run."""
    # As under torchrun, nothing is imported before the script: it may set variables above `import torch`.
    settings = msgspec.structs.replace(Settings.from_environment(preload=""), stop_timeout=LEAVE_SECONDS)
    return replace_session(lambda: Session(settings))


def choose_hosts(session: Session, text: str | None, procs: int | None) -> tuple[HostMesh, int]:
    """Return the hosts of the run and the number of ranks on each. Raises what `hosts.start` raises."""
    if text is None:
        return session.host, procs or choose_size()
    found = hosts.start(text, gpus_per_host=procs)
    if procs is None:
        gpus = found.count_gpus().get()
        procs = max(1, gpus)
        print_line(f"--procs {procs}: one rank per {'GPU' if gpus else 'host'}")
    return found, procs


def print_line(text: str) -> None:
    """Print a text to stderr with the launcher's prefix."""
    with contextlib.suppress(OSError):
        for line in text.splitlines():
            print(f"meshbook.spmd: {line}", file=sys.stderr, flush=True)


def write_curves(path: Path) -> None:
    """Export the curves of the run, and print how many points there were, or why that failed."""
    try:
        print_line(f"{curves.export(path):,} points of curves written to {path}")
    except HistoryError as error:
        print_line(str(error))


@contextlib.contextmanager
def signals_to(events: queue.SimpleQueue[Event], policy: RunPolicy) -> Iterator[None]:
    """Queue Ctrl-C and SIGTERM as events while the block runs. Killing this process ends the run, too."""

    def note(number: int, frame: object) -> None:
        del frame
        events.put(partial(policy.signalled, number))

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Run:
    """The mesh of one run: starts it, queues its events, and carries out the actions of the `RunPolicy`."""

    def __init__(
        self,
        session: Session,
        machines: HostMesh,
        per_host: int,
        policy: RunPolicy,
        events: queue.SimpleQueue[Event],
    ) -> None:
        self._policy = policy
        self._events = events
        self._procs: ProcMesh = machines.spawn_procs(per_host={PROCS: per_host}, name="spmd")
        self._ranks = {address.node: rank for rank, address in enumerate(self._procs.nodes)}
        # Subscribe first, then query: an end in between is seen either way.
        session.node.peers.when_down.append(self._on_process_end)
        for report in filter(None, map(session.node.peers.report_of, self._ranks)):
            self._on_process_end(report)
        self._actors = self._procs.spawn_on_main("spmd", SPMDActor)
        for part in (self._procs, self._actors):
            handle_failures(part, lambda failure: True)  # the RunPolicy handles them

    def follow(self, script: Sequence[str]) -> None:
        """Run the script; returns when every process has ended."""
        first = cast(SPMDActor, _rank_of(cast(ActorMesh, self._actors), 0))
        rendezvous = first.get_rendezvous.call_one()
        rendezvous.when_done(lambda: self._events.put(lambda now: self._begin(rendezvous, script, now)))
        while not self._policy.is_over:
            self._act(time.monotonic())
            if (event := self._next_event()) is not None:
                event(time.monotonic())

    def _next_event(self) -> Event | None:
        """Return the next event; None if the policy's deadline passes first."""
        end = self._policy.deadline
        try:
            return self._events.get() if end is None else get_within(self._events, end - time.monotonic())
        except queue.Empty:
            return None

    def _act(self, now: float) -> None:
        for action in self._policy.actions(now):
            for rank in action.ranks:
                process = _rank_of(self._procs, rank)
                if isinstance(action, Dismiss):
                    process.dismiss("its script has ended")
                else:
                    process.kill(action.number)

    # -- events ----------------------------------------------------------------

    def _begin(self, rendezvous: Future[tuple[str, int]], script: Sequence[str], now: float) -> None:
        if (error := rendezvous.exception()) is not None:
            self._note_error(0, error, now)
        elif self._policy.begin():
            for rank, answer in enumerate(self._actors.run_script.call_each(*rendezvous.get(), script)):
                answer.when_done(partial(self._events.put, partial(self._note_answer, rank, answer)))

    def _note_answer(self, rank: int, answer: Future[EndRun], now: float) -> None:
        if (error := answer.exception()) is not None:
            self._note_error(rank, error, now)
        else:
            self._policy.script_ended(rank, answer.get(), now)

    def _note_error(self, rank: int, error: BaseException, now: float) -> None:
        if not isinstance(error, ProcessDied):  # the report of the process's end has the details
            self._policy.script_ended(rank, EndRun(1, str(error)), now)

    def _on_process_end(self, report: ExitReport) -> None:
        if (rank := self._ranks.get(report.node)) is not None:
            self._events.put(partial(self._policy.process_ended, rank, ending_of(report)))


def _rank_of(mesh: M, rank: int) -> M:
    return mesh.flatten("ranks").slice(ranks=rank)


def ending_of(report: ExitReport) -> EndRun:
    """Return how a process ended: its exit code, or 1 if it has none."""
    if report.returncode == 0:
        return EndRun(0)
    hint = report.hint.splitlines()[report.returncode is None :]
    stderr = ["its last lines on stderr:", *(f"    {line}" for line in report.stderr)] if report.stderr else []
    return EndRun(max(report.returncode or 1, 1), "\n".join([report.cause, *hint, *stderr]), died=True)


def summary_lines(policy: RunPolicy) -> Iterator[str]:
    """Yield the summary of a run that failed: which ranks failed, why, and which were stopped."""
    if policy.signal:
        yield f"ended by {signal.Signals(policy.signal).name}"
    interrupted = {rank: end.place for rank, end in policy.endings.items() if end.interrupted and end.place}
    for place, ranks in by_value(interrupted):
        yield f"{name_ranks(ranks)} interrupted at {place}"
    for end, ranks in by_value(policy.failures):
        if not end.interrupted:
            yield f"{name_ranks(ranks)} failed: {end.text}" + (f" ({end.place})" if end.place else "")
    if policy.stopped and not policy.signal:
        yield f"{name_ranks(policy.stopped)} {'was' if len(policy.stopped) == 1 else 'were'} stopped"


def by_value(found: Mapping[int, T]) -> list[tuple[T, list[int]]]:
    """Return each distinct value with its ranks, in the order of first appearance."""
    ranks: dict[T, list[int]] = {}
    for rank, value in found.items():
        ranks.setdefault(value, []).append(rank)
    return list(ranks.items())


def run_as_program(argv: Sequence[str] | None = None) -> int:
    """Run the command line as this process's only task; returns the exit status."""
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, or that of the command; `python train.py` would not have it
    status = main(argv)
    if status == 128 + signal.SIGPIPE:  # else Python would report the failed flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    sys.exit(run_as_program())
