"""Measures faults: from a SIGKILL to the caller's exception, to a healed mesh, and from an interrupt to the cell's end.

    python benchmarks/faults.py [--rounds N] [--json FILE]

The base of a death is a child of this process, with torch loaded as in workers, and a pidfd: most of its time is the
system's, which frees the child's memory before it reports the end. Dask and Ray are measured too if they are installed.
Healing is from the SIGKILL of one rank of eight until a call of all is answered again. Interrupts go through a real
kernel, from the request to the kernel's idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import peers
import torch.distributed  # noqa: F401  # so that the bare child has it
from cells import TimedNotebook
from report import Aim, Report, arguments
from rounds import TURNS, Comparison, format_spread, run_rounds

import meshbook
from meshbook import Actor, ProcMesh, SupervisionError, close_session, endpoint, this_host

RANKS = 8
DEATHS = 16  # deaths per median
HEALINGS = 5
DEATHS_OF_PEERS = 5
KNOWN_WITHIN = Aim(5)  # milliseconds
SETTLED = 0.05  # seconds after which a call surely waits
SURELY_RUNS = 0.5  # seconds after which a cell surely runs
PREPARE = "%%mesh\nimport time, torch, torch.distributed as dist"
JOIN = "%%mesh\ndist.init_process_group('gloo')"  # needed again after its groups were broken
CELLS = {  # kind of cell: its source, and the interrupts that it needs
    "sleeps": ("time.sleep(600)", 1),
    "computes": ("x = torch.ones(200, 200)\nwhile True: x = torch.tanh(x @ x)", 1),
    "is stuck in a collective": ("dist.all_reduce(torch.ones(1)) if rank else time.sleep(600)", 2),
}


class Member(Actor):
    """The worker's side."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def sleep(self) -> None:
        time.sleep(600)


# -- from a death to the caller's exception ----------------------------------------


def bare_death() -> float:
    """Kill a sleeping child; returns the seconds until `poll` reports its end."""
    child = os.fork()
    if child == 0:
        signal.pause()
    descriptor = os.pidfd_open(child)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    time.sleep(SETTLED)
    begun = time.perf_counter()
    os.kill(child, signal.SIGKILL)
    poll.poll()
    taken = time.perf_counter() - begun
    os.waitpid(child, 0)
    os.close(descriptor)
    return taken


def death(mesh: ProcMesh, members: Any) -> float:
    """Kill a worker; returns the seconds until a thread that waits in `.get()` has the exception."""
    pid = members.slice(gpus=1).pid.call_one().get()
    waiting = members.slice(gpus=1).sleep.call_one()
    time.sleep(SETTLED)
    begun = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(SupervisionError):
        waiting.get()
    taken = time.perf_counter() - begun
    mesh.heal().get()
    return taken


async def awaited_death(mesh: ProcMesh, members: Any) -> float:
    """Kill a worker; returns the seconds until a coroutine that awaits has the exception."""
    pid = await members.slice(gpus=1).pid.call_one()
    waiting = members.slice(gpus=1).sleep.call_one()
    await asyncio.sleep(SETTLED)
    begun = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(SupervisionError):
        await waiting
    taken = time.perf_counter() - begun
    await mesh.heal()
    return taken


def compare_deaths(mesh: ProcMesh, members: Any) -> list[Comparison]:
    """Compare the times until a death is known. Each killed worker is healed before the next; healing is not timed."""
    count = range(DEATHS // TURNS)

    def compare(name: str, die: Callable[[], float]) -> Comparison:
        base, ours = (lambda: [bare_death() for _ in count]), (lambda: [die() for _ in count])
        return Comparison(name, base, ours, "ms", aim=KNOWN_WITHIN, base_name="bare pidfd")

    return [
        compare("SIGKILL to the exception, waiting", lambda: death(mesh, members)),
        compare("SIGKILL to the exception, awaiting", lambda: asyncio.run(awaited_death(mesh, members))),
    ]


def measure_others(report: Report) -> None:
    """Measure the other runtimes, in the same run but one at a time: their helper processes are never quite idle."""
    for name, start in {"Dask": peers.dask, "Ray": peers.ray}.items():
        with start() as die:
            if die is None:
                print(f"{name} is not installed: n/a", file=sys.stderr)
            else:
                taken = statistics.median(die() for _ in range(DEATHS_OF_PEERS))
                report.put(f"SIGKILL, {name}", taken * 1e3, "ms")


# -- from a death to a healed mesh --------------------------------------------------


def healing(mesh: ProcMesh, members: Any, spares: int) -> tuple[float, float]:
    """Kill one rank of all; returns the seconds until all answer again, and the part of them from `heal()` on."""
    while mesh.spares().get() < spares:
        time.sleep(SETTLED)
    pids = list(members.pid.call().get().values())
    waiting = members.slice(gpus=RANKS // 2).sleep.call_one()
    time.sleep(SETTLED)
    begun = time.perf_counter()
    os.kill(pids[RANKS // 2], signal.SIGKILL)
    with contextlib.suppress(SupervisionError):
        waiting.get()
    known = time.perf_counter()
    mesh.heal().get()
    after = list(members.pid.call().get().values())
    assert sum(one != other for one, other in zip(pids, after, strict=True)) == 1
    return time.perf_counter() - begun, time.perf_counter() - known


def measure_healing(report: Report, meshes: dict[int, tuple[ProcMesh, Any]]) -> None:
    for spares, (mesh, members) in meshes.items():
        taken = [healing(mesh, members, spares) for _ in range(HEALINGS)]
        suffix = " with a spare" if spares else ""
        whole = f"SIGKILL, until all {RANKS} answer again{suffix}"
        report.put(whole, statistics.median(each[0] for each in taken) * 1e3, "ms", "under 500")
        report.put(f"heal() alone{suffix}", statistics.median(each[1] for each in taken) * 1e3, "ms")


# -- from an interrupt to the end of the cell ---------------------------------------


def measure_interrupts(report: Report, notebook: TimedNotebook) -> None:
    notebook.run_well(JOIN)
    for what, (source, times) in CELLS.items():
        cell = notebook.start(f"%%mesh\n{source}")
        time.sleep(SURELY_RUNS)
        begun = time.perf_counter()
        for _ in range(times):
            notebook.interrupt()
        reply = notebook.wait(cell)
        name = f"{'interrupt' if times == 1 else f'{times} interrupts'} of a cell that {what}"
        report.put(name, (time.perf_counter() - begun) * 1e3, "ms", "at most 300")
        assert reply["status"] == "error", reply


def open_notebook() -> TimedNotebook:
    notebook = TimedNotebook("meshbook")
    notebook.run_well("%mesh up --gpus 4")
    notebook.run_well(PREPARE)
    return notebook


def main() -> None:
    options = arguments("Deaths, healing and interrupts.", rounds=7)
    meshbook.unhandled_fault_hook = lambda failure: None  # type: ignore[attr-defined]  # all of them are intended
    report = Report()
    measure_others(report)
    meshes: dict[int, tuple[ProcMesh, Any]] = {}
    for spares in (0, 1):
        mesh = this_host().spawn_procs(per_host={"gpus": RANKS}, spares=spares)
        meshes[spares] = mesh, mesh.spawn("members", Member)
    comparisons = compare_deaths(*meshes[0])
    with contextlib.closing(open_notebook()) as notebook:
        others = (lambda: measure_healing(report, meshes), lambda: measure_interrupts(report, notebook))
        run_rounds(report, comparisons, options.rounds, *others)
    close_session()
    report.present(f"faults, medians of {DEATHS}", options, format_spread(report, comparisons))


if __name__ == "__main__":
    main()
