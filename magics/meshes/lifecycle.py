"""The operations that change the ranks of a mesh: `%mesh heal`, `restart`, `interrupt`, `resize`, `drain`, `join`.

Each returns a text that reports what was done. They block the calling thread, so they work both in a cell and beside
one in a subshell.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from meshbook.magics.cells.rank_errors import format_dead, format_lost, format_stuck
from meshbook.magics.cells.supervision import ABORT_WITHIN
from meshbook.magics.errors import MeshError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.meshes.whereabouts import (
    RankWhereabouts,
    answers_of,
    ask_ranks,
    collect_whereabouts,
    count_ranks,
    format_remaining,
    format_whereabouts,
)
from meshbook.magics.results.error_groups import HOW_TO_INITIALIZE
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.interrupts import allow_interrupts, hold_interrupts
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.host_ownership import when_ended
from meshbook.runtime.mesh.hosts import HostMesh

DEATH_WITHIN = 10.0  # seconds for a killed process to exit: one that is stuck in the operating system may never exit
INTERRUPTED_WITHIN = 1.0  # seconds for a rank that a cell ended without to react to one more interrupt
FREED_WITHIN = 10.0  # seconds for ranks to leave their collective after their process groups were broken
ENDS_WITHIN = 3.0  # seconds for ranks that have left it, or were in none, to end their cell
PAUSE = 0.02  # between polls of ranks that are about to end their cell
MOMENT = 1.0  # seconds until a verb prints what it waits for
T = TypeVar("T")


def heal(mesh: NotebookMesh) -> str:
    """Restart the dead ranks, and those that have lost their CUDA context. Raises MeshError if that fails."""
    if useless := sorted(mesh.lost_contexts.keys() - mesh.dead.keys()):
        return restart(mesh, useless, "%mesh heal")
    return _heal(mesh)


def _heal(mesh: NotebookMesh) -> str:
    started = time.monotonic()
    try:
        with hold_interrupts(f"the heal of {mesh.name} continues"):
            healing = mesh.procs.heal()
            with allow_interrupts():
                healed = healing.get()
    except (MeshbookError, RuntimeError) as error:
        raise MeshError(f"{mesh.name} could not be healed: {error}") from error
    if not healed and mesh.stuck:
        return f"no rank of {mesh.name} is dead; {format_stuck(mesh, mesh.stuck)}"
    if not healed:
        return f"all {mesh.extent.nelements} ranks of {mesh.name} are alive"
    return "\n".join(_format_healed(mesh, healed, time.monotonic() - started))


def _format_healed(mesh: NotebookMesh, healed: Sequence[int], seconds: float) -> Iterable[str]:
    """Yield one line for ranks that lost the same variables."""
    lost: dict[tuple[str, ...], list[int]] = {}
    for rank in healed:
        lost.setdefault(mesh.lost.get(rank, ()), []).append(rank)
    for names, ranks in lost.items():
        yield f"restarted {count_ranks(ranks)} in {seconds:.2f} s; {format_lost(names, many=len(ranks) > 1)}"


def resize(mesh: NotebookMesh, sizes: Mapping[str, int], follow: Callable[[], None]) -> str:
    """Resize the mesh to these sizes, and then call `follow`, even if the caller no longer waits.

    Raises MeshError if the resize fails. Ctrl-C ends the waiting, not the resize.
    """
    started = time.monotonic()
    try:
        with hold_interrupts():
            _complete("the resize", mesh, mesh.procs.resize(**sizes).initialized, follow)
    except (MeshbookError, RuntimeError, ValueError) as error:
        raise MeshError(f"{mesh.name} could not be resized: {error}") from error
    return f"{mesh.format_summary()}; resized in {time.monotonic() - started:.2f} s"


def _complete(change: str, mesh: NotebookMesh, resized: Future[bool], follow: Callable[[], None]) -> None:
    """Wait for a change of ranks, and then call `follow`, also if the change fails or the wait is interrupted.

    After a second, print what it waits for: each rank is resized between two cells.
    """
    try:
        with allow_interrupts():
            with contextlib.suppress(TimeoutError):
                resized.get(MOMENT)
            if not resized.done() and (working := "; ".join(mesh.at_work())):
                print(f"waiting for running cells: {working} (Ctrl-C stops the wait, not {change})")
            resized.get()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            print(f"{change} of {mesh.name} continues; see %mesh status")
        resized.when_done(follow)
        raise
    follow()


def drain(mesh: NotebookMesh, hosts: Sequence[str], *, now: bool, follow: Callable[[], None]) -> None:
    """Remove these hosts from the mesh once their ranks run no cell; with `now`, interrupt the cells.

    Raises MeshError if that fails; Ctrl-C while cells run leaves everything as it is.
    """
    try:
        machines = mesh.procs.host_mesh
        machines.without(hosts)
        nodes = [
            (node.node, rank)
            for node, rank, host in zip(mesh.procs.nodes, mesh.procs.region.ranks(), mesh.procs.host_ranks, strict=True)
            if machines.names[host] in hosts
        ]
        ranks = [rank for _, rank in nodes if rank not in mesh.dead]
        if now and ranks:
            wait_for(_interrupt(mesh, ranks))
        _wait_idle(mesh, {node for node, rank in nodes if rank in ranks}, ENDS_WITHIN if now else math.inf)
        with hold_interrupts():
            _complete("the drain", mesh, mesh.procs.drain(*hosts).initialized, follow)
    except (MeshbookError, RuntimeError, ValueError) as error:
        raise MeshError(f"{mesh.name}: {error}") from error


def _wait_idle(mesh: NotebookMesh, nodes: set[str], seconds: float) -> None:
    """Wait until these processes run no cell, so long at most; after a second, print what for."""
    started, is_noted = time.monotonic(), False
    while time.monotonic() < started + seconds:
        working = [title for title, busy in mesh.queues.at_work().items() if not nodes.isdisjoint(busy)]
        if not working:
            return
        if not is_noted and time.monotonic() > started + MOMENT:
            is_noted = True
            print(f"waiting for {', '.join(working)} (Ctrl-C stops the wait; --now interrupts)")
        time.sleep(PAUSE)


def join(meshes: Sequence[NotebookMesh], machines: HostMesh, follow: Callable[[NotebookMesh], None]) -> None:
    """Add these hosts to meshes that share theirs, and then call `follow` with each, even if the caller waits no more.

    Raises MeshError if that fails. Ctrl-C ends the waiting, not the join.
    """
    begun = []
    try:
        with hold_interrupts():
            try:
                for mesh in meshes:
                    begun.append((mesh, mesh.procs.join(machines).initialized))
                while begun:
                    mesh, joined = begun.pop(0)
                    _complete("the join", mesh, joined, functools.partial(follow, mesh))
            finally:  # after an error or interrupt, the others continue
                for mesh, joined in begun:
                    joined.when_done(functools.partial(follow, mesh))
    except (MeshbookError, RuntimeError, ValueError) as error:
        names = ", ".join(mesh.name for mesh in meshes)
        raise MeshError(f"{names}: {error}") from error


def interrupt(mesh: NotebookMesh, ranks: Sequence[int]) -> str:
    """Raise KeyboardInterrupt in the cells on these ranks, and cancel the endpoints that actors run there.

    Returns which ran any, and which do not answer.
    """
    interrupted, endpoints, whereabouts = wait_for(_interrupt(mesh, _alive(mesh, ranks)))
    parts = [f"interrupted {count_ranks(interrupted)}"] if interrupted else []
    parts += [f"interrupted {name} on {count_ranks(where)}" for name, where in endpoints.items()]
    parts += [format_whereabouts(whereabouts)] if whereabouts else []
    unresponsive = [rank for rank, where in whereabouts.items() if where.said is None]
    advice = (
        f"\nrestart ranks that do not answer with %mesh interrupt{_selector(mesh, unresponsive)} --kill"
        if unresponsive
        else ""
    )
    if (stuck := mesh.stuck & set(interrupted)) and not _wait_freed(mesh, stuck, INTERRUPTED_WITHIN):
        advice += f"\n{format_stuck(mesh, mesh.stuck & stuck)}"
    return "; ".join(parts) + advice


def break_groups(mesh: NotebookMesh, ranks: Sequence[int]) -> str:
    """Break the process groups of the mesh, so that these ranks leave the collective in which they wait.

    This breaks the groups of all ranks, since a part of a group is of no use. The ranks keep their variables.
    """
    alive = _alive(mesh, ranks)
    mesh.breaks += 1
    broken, running = wait_for(_break_groups(mesh, alive))
    mesh.note_broken("%mesh interrupt --break")
    groups = f"broke process groups ({', '.join(sorted(broken))}): {HOW_TO_INITIALIZE}"
    parts = [groups if broken else f"{mesh.name} has no process group"]
    if running:
        parts.append(f"{format_remaining(running)}; restart with %mesh interrupt{_selector(mesh, running)} --kill")
    else:
        parts.append(f"{name_ranks(ranks)} {'runs' if len(ranks) == 1 else 'run'} no cell")
    return "\n".join(parts)


async def _break_groups(mesh: NotebookMesh, ranks: Sequence[int]) -> tuple[set[str], Mapping[int, RankWhereabouts]]:
    """Return the names of the broken groups, and the whereabouts of ranks that still run a cell after that."""
    answers = await answers_of(ask_ranks(mesh, ranks).abort_current.call_each(), ABORT_WITHIN)
    (others,) = await answers_of([mesh.procs.abort_process_groups()], ABORT_WITHIN)
    broken = {group for groups in (*answers, *(others or {}).values()) for group in groups or ()}
    started = time.monotonic()
    while True:
        whereabouts = await collect_whereabouts(mesh, ranks)
        running = {rank: where for rank, where in whereabouts.items() if where.said is None or not where.said.is_idle}
        is_stuck = any(where.said is None or where.is_waiting for where in running.values())
        if not running or time.monotonic() > started + (FREED_WITHIN if is_stuck else ENDS_WITHIN):
            return broken, running
        await asyncio.sleep(PAUSE)


def _wait_freed(mesh: NotebookMesh, ranks: Collection[int], seconds: float) -> bool:
    """Whether these ranks, which a cell ended without, answer within this time."""
    end = time.monotonic() + seconds
    while mesh.stuck.intersection(ranks) and time.monotonic() < end:
        time.sleep(PAUSE)
    return not mesh.stuck.intersection(ranks)


async def _interrupt(
    mesh: NotebookMesh, ranks: Sequence[int]
) -> tuple[list[int], Mapping[str, list[int]], Mapping[int, RankWhereabouts]]:
    """Return the ranks whose cells were interrupted, those of each cancelled endpoint, and where the others are."""
    control = ask_ranks(mesh, ranks)
    asked = control.interrupt_current.call_each(), control.interrupt_endpoints.call_each()
    answers, names = [await answers_of(each) for each in asked]
    interrupted = [rank for rank, answer in zip(ranks, answers, strict=True) if answer]
    endpoints: dict[str, list[int]] = {}
    for rank, cancelled in zip(ranks, names, strict=True):
        for name in cancelled or ():
            endpoints.setdefault(name, []).append(rank)
    others = set(ranks).difference(interrupted, *endpoints.values())
    return interrupted, endpoints, await collect_whereabouts(mesh, others)


def kill_busy(mesh: NotebookMesh, ranks: Sequence[int]) -> str:
    """Kill and restart those of these ranks that run a cell or do not answer."""
    whereabouts = wait_for(collect_whereabouts(mesh, _alive(mesh, ranks)))
    busy = sorted(rank for rank, where in whereabouts.items() if where.said is None or not where.said.is_idle)
    if not busy:
        return f"{name_ranks(ranks)} of {mesh.name} {'is' if len(ranks) == 1 else 'are'} idle; nothing was killed"
    return restart(mesh, busy, "%mesh interrupt --kill")


def restart(mesh: NotebookMesh, ranks: Sequence[int], sender: str = "%mesh restart") -> str:
    """Kill these ranks whatever they run, and restart them with all other dead ranks.

    Cells that run there report `sender` as the cause.
    """
    living = mesh.procs._with_region(mesh.procs.region.pick(ranks))
    ended = when_ended(current_node(), [address.node for address in living.nodes])
    living.kill(sender=sender)
    try:
        ended.get(timeout=DEATH_WITHIN)
    except TimeoutError:
        raise MeshError(f"{name_ranks(ranks)} of {mesh.name} did not exit within {DEATH_WITHIN:g} s after SIGKILL")
    return _heal(mesh)


def _alive(mesh: NotebookMesh, ranks: Iterable[int]) -> list[int]:
    """Return the ranks that are not dead. Raises MeshError if none is left."""
    if alive := sorted(set(ranks) - mesh.dead.keys()):
        return alive
    raise MeshError(format_dead(mesh, sorted(ranks)))


def _selector(mesh: NotebookMesh, ranks: Iterable[int]) -> str:
    return mesh.selector(",".join(map(str, ranks)))


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine in a new event loop on another thread, since this thread may already run a loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()
