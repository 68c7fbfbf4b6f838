"""What a fault costs: until a caller knows of a death, until a mesh is healed, until an interrupted cell is over.

    python benchmarks/faults.py [--rounds N] [--json FILE]

The bare limit of a death is a child of this very process, which has torch as workers have, and whose end a pidfd tells:
most of it is the time in which the system takes the child's memory apart, before it tells anybody. Dask and Ray stand
beside it where they are installed. Healing is from the SIGKILL of one rank of eight until a call of all is answered
again; interrupts are through a real kernel, from the request to the kernel's idle.
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
import torch.distributed  # noqa: F401  # for the bare child to have it
from cells import Notebook
from report import Report, arguments

import meshbook
from meshbook import Actor, ProcMesh, SupervisionError, close_session, endpoint, this_host

RANKS = 8
TIMES = 15  # deaths of one median
SETTLED = 0.05  # seconds until a call certainly waits
SURELY_RUNS = 0.5  # seconds until a cell does
PREPARE = "%%mesh\nimport time, torch, torch.distributed as dist"
JOIN = "%%mesh\ndist.init_process_group('gloo')"  # again after each time that its groups were broken
CELLS = {  # what a cell does: its source, and the interrupts that it takes
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


# -- until a caller knows ----------------------------------------------------------


def bare_death() -> float:
    """A child that sleeps is killed; until `poll` tells of its end."""
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
    """The same of a worker, for a thread that waits by `.get()`."""
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
    """The same for a coroutine that awaits."""
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


def put_median(report: Report, name: str, die: Callable[[], float], aim: str = "", times: int = TIMES) -> float:
    middle = statistics.median(die() for _ in range(times))
    report.put(name, middle * 1e3, "ms", aim)
    return middle


def measure_deaths(report: Report, mesh: ProcMesh, members: Any) -> None:
    limit = put_median(report, "SIGKILL, bare pidfd, torch in the process", bare_death)
    known = put_median(report, "SIGKILL, until a waiting caller knows", lambda: death(mesh, members), "under 10; 5")
    report.put("SIGKILL, ratio", known / limit, "x bare")
    coroutine = "SIGKILL, until an awaiting caller knows"
    put_median(report, coroutine, lambda: asyncio.run(awaited_death(mesh, members)), "under 10; 5")


def measure_others(report: Report) -> None:
    """In the same run, and not at the same time: their helper processes are never quite idle."""
    for name, start in {"Dask": peers.dask, "Ray": peers.ray}.items():
        with start() as die:
            if die is None:
                print(f"{name} is not installed: n/a", file=sys.stderr)
            else:
                put_median(report, f"SIGKILL, {name}", die, times=5)


# -- until a mesh is healed --------------------------------------------------------


def healing(mesh: ProcMesh, members: Any, spares: int) -> tuple[float, float]:
    """One rank of all is killed: seconds until all answer again, and of them those from `heal()` on."""
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
        taken = [healing(mesh, members, spares) for _ in range(TIMES // 3)]
        suffix = " with a spare" if spares else ""
        whole = f"SIGKILL, until all {RANKS} answer again{suffix}"
        report.put(whole, statistics.median(each[0] for each in taken) * 1e3, "ms", "under 500")
        report.put(f"heal() alone{suffix}", statistics.median(each[1] for each in taken) * 1e3, "ms")


# -- until an interrupted cell is over ---------------------------------------------


def measure_interrupts(report: Report, notebook: Notebook) -> None:
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


def open_notebook() -> Notebook:
    notebook = Notebook("meshbook")
    notebook.run_well("%mesh up --gpus 4")
    notebook.run_well(PREPARE)
    return notebook


def main() -> None:
    options = arguments("Deaths, healing and interrupts.", rounds=5)
    meshbook.unhandled_fault_hook = lambda failure: None  # type: ignore[attr-defined]  # each of them is on purpose
    report = Report()
    measure_others(report)
    meshes: dict[int, tuple[ProcMesh, Any]] = {}
    for spares in (0, 1):
        mesh = this_host().spawn_procs(per_host={"gpus": RANKS}, spares=spares)
        meshes[spares] = mesh, mesh.spawn("members", Member)
    notebook = open_notebook()
    for _ in range(options.rounds):
        measure_deaths(report, *meshes[0])
        measure_healing(report, meshes)
        measure_interrupts(report, notebook)
    notebook.close()
    close_session()
    report.present(f"faults, medians of {TIMES}", options)


if __name__ == "__main__":
    main()
