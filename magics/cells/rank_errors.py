"""The errors of ranks without an answer (dead, killed, silent, skipped), and the check for such ranks before a cell.

For a NameError on a rank, `explain_missing` names the command that defines the name there. Errors that ranks raise are
made in `meshbook.runtime.cells.failures`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from meshbook.magics.errors import MeshError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.meshes.whereabouts import RankWhereabouts
from meshbook.magics.results.error_groups import HOW_TO_INITIALIZE
from meshbook.runtime.cells.outcome import Frame, RankError
from meshbook.runtime.errors import CallError, MeshbookError, ProcessDied
from meshbook.runtime.formats import format_ranks, name_ranks
from meshbook.runtime.geometry import Region
from meshbook.runtime.gpu_errors import is_context_lost
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh

MOST_NAMES = 12  # names that are listed; a namespace has hundreds


def error_of_lost(rank: int, error: MeshbookError) -> RankError:
    """The error of a rank that will not answer."""
    if not isinstance(error, ProcessDied):
        if isinstance(error, CallError):
            error.called_at = None  # the cell, as it was rewritten
        return RankError("died", type(error).__name__, str(error))
    report = error.report
    subject = f"rank {rank} (pid {report.pid})" if report.pid else f"rank {rank}"
    if report.ended_by:  # its signal and its last output do not matter then
        return RankError("died", "ProcessDied", f"{subject} was stopped during the cell by {report.ended_by}")
    name = f"{report.signal_name}: " if report.signal_name else ""
    # If no process saw it end, the hint's first line is the cause.
    hint = report.hint.splitlines()[report.returncode is None :]
    message = "\n".join([f"{subject} died during the cell: {name}{report.cause}", *hint])
    lines = ("last lines of its stderr:", *(f"    {line}" for line in report.stderr)) if report.stderr else ()
    return RankError("died", "ProcessDied", message, rendered=lines)


def error_of_silent(where: RankWhereabouts) -> RankError:
    """The error of a rank that the cell ends without."""
    if where.said is not None:
        message = "ignores interrupts and still runs the cell; use %mesh interrupt --break or --kill"
    else:
        message = f"does not answer{f': {where.trouble}' if where.trouble else ''}"
    return RankError("interrupted", "no answer", message, where.frames)


def error_of_skipped(why: str) -> RankError:
    """The error of a rank that did not run the cell, since the cell ended before its turn."""
    return RankError("skipped", "did not run", why, is_consequence=True)


def error_of_killed(outcome: str, lost: Sequence[str], frames: Sequence[Frame]) -> RankError:
    """The error of a rank that a person killed; `outcome` is the result of the heal, `lost` the names that it had."""
    return RankError("interrupted", "killed", f"was killed {outcome}; {format_lost(lost)}", tuple(frames))


def error_of_freed(error: RankError) -> RankError:
    """The error of a rank whose collective failed because a person has broken the process groups."""
    message = "was freed from its collective by %mesh interrupt --break"
    return RankError("interrupted", "KeyboardInterrupt", message, error.frames)


def format_lost(names: Sequence[str], *, many: bool = False) -> str:
    """Return `it lost 3 names: model, optimizer, step`; with `many`, `they lost 3 names`."""
    if not names:
        return "no names were lost"
    shown = ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
    return f"{'they' if many else 'it'} lost {len(names)} {'name' if len(names) == 1 else 'names'}: {shown}"


def check_able(mesh: NotebookMesh, region: Region) -> None:
    """Raise MeshError if a rank of the region is dead, or still busy with an earlier cell."""
    ranks = set(region.ranks())
    if mesh.is_stopped:
        raise MeshError(f"mesh {mesh.name} was stopped; start another one with %mesh up --name {mesh.name}")
    if dead := sorted(ranks & mesh.dead.keys()):
        causes = list(dict.fromkeys(mesh.dead[rank].cause for rank in dead))
        shown = ", ".join([*causes[:3], *(["…"] if len(causes) > 3 else [])])  # `%mesh status` lists all
        others = f", or run on the others with {_others(mesh, dead)}" if len(mesh.dead) < mesh.extent.nelements else ""
        raise MeshError(format_dead(mesh, dead, f" ({shown})") + ("" if mesh.session.has_lost_agent else others))
    if stuck := ranks & mesh.stuck:
        raise MeshError(f"{format_stuck(mesh, stuck)}; or run on the others with {_others(mesh, sorted(stuck))}")


def format_remedy(mesh: NotebookMesh, dead: Sequence[int]) -> str:
    """Return the command that restarts dead ranks."""
    return f"restart {name_ranks(dead)} with %mesh heal{mesh.selector()}"


def format_stuck(mesh: NotebookMesh, ranks: Collection[int]) -> str:
    """The ended cells that these ranks still run, and the commands that free them."""
    cells = sorted({mesh.busy[rank] for rank in ranks})
    what = f"cell {cells[0]}" if len(cells) == 1 else f"cells {', '.join(map(str, cells))}"
    verb, them = ("runs", "it") if len(ranks) == 1 else ("run", "them")
    return (
        f"{name_ranks(ranks)} of {mesh.name} still {verb} {what}, which ended without {them}; "
        f"to end a collective, use %mesh interrupt{mesh.selector()} --break; "
        f"to restart {them}, %mesh interrupt{mesh.selector()} --kill"
    )


def format_dead(mesh: NotebookMesh, dead: Sequence[int], cause: str = "") -> str:
    """Return `rank 3 of mesh is dead; restart it with %mesh heal`, with this text after `dead`."""
    verb, them = ("is", "it") if len(dead) == 1 else ("are", "them")
    if mesh.session.has_lost_agent:
        remedy = "the host agent has exited; start a new mesh with %mesh down, then %mesh up"
    else:
        remedy = f"restart {them} with %mesh heal{mesh.selector()}"
    return f"{name_ranks(dead)} of {mesh.name} {verb} dead{cause}; {remedy}"


def _others(mesh: NotebookMesh, ranks: Sequence[int]) -> str:
    but_these = f"!{','.join(map(str, ranks))}"
    return f"%%mesh{mesh.selector(but_these)}"


_NO_GROUP = re.compile(r"process group .*not (been )?initialized|could not resolve the process group", re.IGNORECASE)


def explain_broken(errors: Mapping[int, RankError], broken: Mapping[int, str]) -> str:
    """Return why ranks failed that use process groups which were broken earlier; "" if something else was the cause.

    `broken` has by what the groups of each rank were broken (`NotebookMesh.broken`).
    """
    failed = {rank: error for rank, error in errors.items() if error.kind != "interrupted"}
    if not failed or not all(
        rank in broken and (error.is_consequence or _NO_GROUP.search(error.message)) for rank, error in failed.items()
    ):
        return ""
    by = " and ".join(dict.fromkeys(broken[rank] for rank in failed))
    return f"the process groups of {name_ranks(failed)} were broken by {by}: {HOW_TO_INITIALIZE}"


_OF_GPU = re.compile(r"CUDA|HIP|NCCL|CU[A-Z]+_STATUS")


def note_lost_contexts(errors: Mapping[int, RankError], cell: int, mesh: NotebookMesh) -> Iterator[str]:
    """Record the ranks whose CUDA context is lost since this cell; yield the remedy if their errors are of the GPU."""
    for rank, error in errors.items():
        if is_context_lost(error.message):
            mesh.lost_contexts.setdefault(rank, cell)
    if ranks := [
        rank for rank, error in errors.items() if rank in mesh.lost_contexts and _OF_GPU.search(error.message)
    ]:
        yield format_lost_contexts(mesh, ranks)


def format_lost_contexts(mesh: NotebookMesh, ranks: Sequence[int]) -> str:
    """Return `rank 1 has lost its CUDA context in cell 9 or before, ...; restart it with %mesh restart 1`."""
    cells = sorted({mesh.lost_contexts[rank] for rank in ranks})
    verb, its, them = ("has", "its", "it") if len(ranks) == 1 else ("have", "their", "them")
    return (
        f"{name_ranks(ranks)} {verb} lost {its} CUDA context in cell {', '.join(map(str, cells))} or shortly before: "
        f"each later use of the GPU fails there. Save what is on the CPU, and restart {them} with "
        f"%mesh restart{mesh.selector(format_ranks(ranks))}; CUDA_LAUNCH_BLOCKING=1 shows the line of the cause"
    )


_NOT_DEFINED = re.compile(r"name '(\w+)' is not defined")


def explain_missing(errors: Mapping[int, RankError], mesh: NotebookMesh, variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each missing name that can be explained; `variables` are those of the notebook."""
    for name, ranks in _missing_names(errors).items():
        if lost := [rank for rank in ranks if name in mesh.lost.get(rank, ())]:
            yield f"{name_ranks(lost)} lost {name} in a restart; run the cell that defines it there again"
        elif mesh.added.keys() >= set(ranks) and (
            # A name that no rank has is a typing error.
            name in variables or any(name in names for names in mesh.names.values())
        ):
            added = f"%mesh resize added {name_ranks(ranks)} after the cells that define {name}"
            yield f"{added}; {_format_command(name, ranks, mesh, variables)}"
        elif name in variables:
            where = f"{name} is defined in the notebook, but not on {name_ranks(ranks)}"
            yield f"{where}; {_format_command(name, ranks, mesh, variables)}"


def _missing_names(errors: Mapping[int, RankError]) -> dict[str, list[int]]:
    """Return the ranks of each name in a NameError."""
    found: dict[str, list[int]] = {}
    for rank, error in errors.items():
        if error.type_name == "NameError" and (match := _NOT_DEFINED.match(error.message)):
            found.setdefault(match[1], []).append(rank)
    return found


def _format_command(name: str, ranks: Collection[int], mesh: NotebookMesh, variables: Mapping[str, Any]) -> str:
    chosen = "" if len(ranks) == mesh.extent.nelements else format_ranks(ranks)
    selector = mesh.selector(chosen)
    if name not in variables:
        return f"run the cell that defines {name} with %%mesh{selector}"
    if isinstance(variables[name], ProcMesh | ActorMesh | HostMesh):
        return "it is a handle for the notebook; use it in a cell there (%%here, if %mesh mode is on)"
    if isinstance(variables[name], ModuleType):
        return f"import it in a cell with %%mesh{selector}"
    return f"send it with %mesh push {name}{selector}"
