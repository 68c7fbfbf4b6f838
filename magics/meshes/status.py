"""The text of `%mesh status`: the state of a mesh, the resources its ranks use, and ranks without a heartbeat."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from meshbook.magics.cells.rank_errors import format_lost, format_lost_contexts, format_stuck
from meshbook.magics.meshes.lifecycle import wait_for
from meshbook.magics.meshes.mesh_hosts import format_hosts
from meshbook.magics.meshes.registry import NotebookMesh, format_task
from meshbook.magics.meshes.whereabouts import (
    RankWhereabouts,
    answers_of,
    ask_ranks,
    collect_whereabouts,
    format_whereabouts,
)
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.formats import format_bytes, format_elapsed, name_ranks
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.node.execution import RunningEndpoint
from meshbook.runtime.telemetry.vitals import STALE_AFTER, Vitals

MOST_EVENTS = 5
SOON = 1.0  # seconds until a status is shown without the missing answer


def state_of(mesh: NotebookMesh, seconds: Mapping[str, float] = MappingProxyType({})) -> Iterator[str]:
    """Yield a line for the mesh, and one for each task and for each rank that is not well or has been restarted.

    `seconds` are the durations of the tasks, by title.
    """
    yield mesh.format_summary()
    if mesh.hosts is not None:
        yield from format_hosts(mesh.procs, mesh.session)
    if mesh.spares:
        yield f"  {_count_spares(mesh)} of {mesh.spares} spares are warm"
    for rank, report in sorted(mesh.dead.items()):
        pid = f" (pid {report.pid})" if report.pid else ""
        yield f"  rank {rank}{pid} is dead: {report.cause}"
    if useless := sorted(mesh.lost_contexts.keys() - mesh.dead.keys()):
        yield f"  {format_lost_contexts(mesh, useless)}"
    yield from _format_work(mesh, seconds)
    if mesh.stuck:
        yield f"  {format_stuck(mesh, mesh.stuck)}"
    for rank, lost in sorted(mesh.lost.items()):
        missing = [name for name in lost if name not in mesh.names.get(rank, ())]
        if rank not in mesh.dead and (missing or not lost):
            yield f"  rank {rank} was restarted; {format_lost(missing)}"


def _format_work(mesh: NotebookMesh, seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield `  ranks 0-1 run job 7 of cell 12 · 00:06 · 2 ranks [0-1] in barrier (cell 12:3)` for each task.

    Then yield `  ranks 0-1 run trainer.step(), called in cell 12 · 00:06` for each endpoint.
    """
    tasks = mesh.tasks
    whereabouts, endpoints = wait_for(
        _look_at_work(mesh, [rank for ranks in tasks.values() for rank in ranks], set(mesh.rank_of.values()))
    )
    for title, ranks in tasks.items():
        since = [format_elapsed(seconds[title])] if title in seconds else []
        places = format_whereabouts({rank: whereabouts[rank] for rank in ranks})
        yield f"  {' · '.join([format_task(title, ranks), *since, places])}"
    running: dict[str, dict[int, float]] = {}
    for rank, each in endpoints.items():
        for endpoint in each:
            running.setdefault(str(endpoint), {})[rank] = endpoint.seconds
    for title, seconds_of in running.items():
        yield f"  {format_task(title, list(seconds_of))} · {format_elapsed(max(seconds_of.values()))}"


async def _look_at_work(
    mesh: NotebookMesh, busy: Iterable[int], ranks: Iterable[int]
) -> tuple[Mapping[int, RankWhereabouts], Mapping[int, Sequence[RunningEndpoint]]]:
    """Return where the busy ranks are in their cells, and the endpoints that the living ranks run."""
    living = sorted(set(ranks) - mesh.dead.keys())
    asked = ask_ranks(mesh, living).endpoints.call_each() if living else []
    whereabouts = await collect_whereabouts(mesh, busy)
    return whereabouts, {rank: each or () for rank, each in zip(living, await answers_of(asked), strict=True)}


def _count_spares(mesh: NotebookMesh) -> str:
    """Return the number of warm spares, which only the host has."""
    try:
        return str(mesh.procs.spares().get(timeout=SOON))
    except (TimeoutError, MeshbookError):
        return "?"


def others_of(session: Session, meshes: Iterable[NotebookMesh], variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each mesh of processes that the notebook has started by code, under the names it has there.

    Cells do not run on these: only `%mesh up` starts the actors for them.
    """
    of_cells = {mesh.procs.name for mesh in meshes}
    for owned in session.node.ledger.processes():
        if owned.key in of_cells or owned.owner:
            continue
        procs: ProcMesh = owned.handle()
        names = [name for name, value in variables.items() if not name.startswith("_") and _is_on(value, procs.name)]
        shape = ", ".join(f"{label}={size}" for label, size in procs.extent.items())
        count = procs.extent.nelements
        state = "; stopping" if procs.is_stopped else ""
        state += f"; {len(owned.failed)} failed" if owned.failed else ""
        title = f"{', '.join(names) or procs.name}: {count} {'rank' if count == 1 else 'ranks'} ({shape})"
        yield f"{title}, started by code; cells cannot run there{state}"


def _is_on(value: Any, procs: str) -> bool:
    """Whether a variable is a mesh of these processes, or of tensors on them."""
    if isinstance(value, ProcMesh):
        return bool(value.name == procs)
    is_of_tensors = type(value).__module__.startswith("meshbook.runtime.tensor.") and hasattr(value, "engine")
    return is_of_tensors and value.engine.procs.name == procs


def vitals_of(mesh: NotebookMesh) -> Iterator[str]:
    """Yield the resources that its ranks use, as last measured; nothing in the first second."""
    known = mesh.session.history.vitals([address.node for address in mesh.procs.nodes])
    yield from format_vitals(known, mesh.dead)


def history_of(mesh: NotebookMesh) -> Iterator[str]:
    """Yield the last events of the mesh, if there are any."""
    if events := [event for event in mesh.session.events if event.procs == mesh.procs.name][-MOST_EVENTS:]:
        yield "  last events:"
        yield from (f"    {event}" for event in events)


ALIKE = 1.1  # the largest ratio of maximum to minimum for amounts that are shown as one


def format_vitals(vitals: Vitals, dead: Collection[int]) -> Iterator[str]:
    """Yield `  uses 3.9 cores, 44 MB of memory per rank`, and a line for ranks that hang, as far as measured."""
    cpu = [cores for cores in _floats(vitals, "cpu") if not math.isnan(cores)]
    uses = [f"{sum(cpu):.1f} cores"] if cpu else []
    memory = list(_format_amounts(_floats(vitals, "memory"), "memory"))
    uses += memory
    of_gpus = _floats(vitals, "gpu_memory")
    if any(amount > 0 for amount in of_gpus):
        uses += _format_amounts(of_gpus, "GPU memory")
    if free := [amount for amount in _floats(vitals, "gpu_free") if not math.isnan(amount)]:
        uses.append(f"at least {format_bytes(min(free))} of it free on each GPU")
    if uses:
        remark = "; shared memory is divided among the ranks" if memory and len(vitals.age) > 1 else ""
        yield f"  uses {', '.join(uses)}{remark}"
    ages = {rank: age for rank, age in enumerate(vitals.age.tolist()) if STALE_AFTER < age < math.inf}
    silent = [rank for rank in ages if rank not in dead]
    if silent:
        verb, since = ("has", "for") if len(silent) == 1 else ("have", "for up to")
        longest = format_elapsed(max(ages[rank] for rank in silent))
        yield f"  {name_ranks(silent)} {verb} sent no heartbeat {since} {longest}; see %mesh stack"


def _floats(vitals: Vitals, metric: str) -> list[float]:
    return vitals.metrics[metric].tolist()  # type: ignore[index, no-any-return]


def _format_amounts(amounts: Sequence[float], of_what: str) -> Iterator[str]:
    """Yield `180 MB of memory per rank`, or `180 MB to 1.4 GB of memory per rank (most: rank 2)`."""
    known = {rank: amount for rank, amount in enumerate(amounts) if not math.isnan(amount)}
    if not known:
        return
    least, most = min(known.values()), max(known.values())
    if most <= least * ALIKE:
        yield f"{format_bytes(most)} of {of_what} per rank"
    else:
        first = max(known, key=lambda rank: known[rank])
        yield f"{format_bytes(least)} to {format_bytes(most)} of {of_what} per rank (most: rank {first})"
