"""Errors of ranks without an answer, and which ranks can run a cell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.magics.cells.rank_errors import (
    check_able,
    error_of_lost,
    explain_broken,
    format_lost,
    format_stuck,
    note_lost_contexts,
)
from meshbook.magics.errors import MeshError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.results.error_groups import HOW_TO_INITIALIZE
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.errors import ExitReport, ProcessDied
from meshbook.runtime.geometry import Extent


def mesh_of(
    count: int, dead: dict[int, ExitReport], busy: dict[int, int] | None = None, *, has_lost_agent: bool = False
) -> NotebookMesh:
    procs: Any = SimpleNamespace(extent=Extent.of(gpus=count), nodes=[], is_stopped=False)
    session: Any = SimpleNamespace(has_lost_agent=has_lost_agent)
    parts: Any = None
    return NotebookMesh("mesh", procs, parts, parts, parts, session, has_gpus=False, dead=dead, busy=busy or {})


@pytest.mark.parametrize(
    ("dead", "busy", "ranks", "said"),
    [
        ([], {}, [0, 1, 2, 3], None),
        ([3], {2: 5}, [0, 1], None),
        (
            [3, 1],
            {},
            [0, 1, 2, 3],
            "ranks 1,3 of mesh are dead (Killed(sig=9)); restart them with %mesh heal, "
            "or run on the others with %%mesh !1,3",
        ),
        ([0, 1, 2, 3], {}, [0], "rank 0 of mesh is dead (Killed(sig=9)); restart it with %mesh heal"),
        (
            [3],
            {1: 5},
            [1, 3],
            "rank 3 of mesh is dead (Killed(sig=9)); restart it with %mesh heal, or run on the others with %%mesh !3",
        ),
        (
            [],
            {1: 5, 2: 5},
            [0, 1, 2],
            "ranks 1-2 of mesh still run cell 5, which ended without them; to end a collective, use %mesh interrupt "
            "--break; to restart them, %mesh interrupt --kill; "
            "or run on the others with %%mesh !1,2",
        ),
    ],
)
def test_the_dead_and_the_busy_are_refused(
    dead: list[int], busy: dict[int, int], ranks: list[int], said: str | None
) -> None:
    mesh = mesh_of(4, {rank: ExitReport("", 1, -9) for rank in dead}, busy)
    region = Extent.of(gpus=4).region.pick(ranks)
    if said is None:
        check_able(mesh, region)
        return
    with pytest.raises(MeshError) as caught:
        check_able(mesh, region)
    assert str(caught.value) == said


def test_ranks_that_ended_in_different_ways_are_reported_with_all_of_them() -> None:
    dead = {0: ExitReport("", 1, -9), 1: ExitReport("", 2, 3), 2: ExitReport("", 3, 3)}
    mesh = mesh_of(4, dead)
    with pytest.raises(MeshError, match=r"^ranks 0-2 of mesh are dead \(Killed\(sig=9\), exit code 3\); "):
        check_able(mesh, mesh.extent.region)


def test_a_stopped_mesh_is_refused() -> None:
    mesh = mesh_of(2, {})
    mesh.procs.is_stopped = True  # type: ignore[misc]
    with pytest.raises(MeshError, match=r"^mesh mesh was stopped; start another one with %mesh up --name mesh$"):
        check_able(mesh, mesh.extent.region)


def test_where_there_are_several_meshes_commands_name_theirs() -> None:
    mesh = mesh_of(4, {0: ExitReport("", 1, -9)}, {1: 5})
    mesh.is_one_of_several = lambda: True
    with pytest.raises(MeshError, match=r"with %mesh heal mesh, or run on the others with %%mesh mesh\[!0\]$"):
        check_able(mesh, mesh.extent.region)
    assert "%mesh interrupt mesh --break" in format_stuck(mesh, {1})


def test_where_the_host_agent_is_lost_too_nothing_can_be_healed() -> None:
    mesh = mesh_of(1, {0: ExitReport("", 1, -9)}, has_lost_agent=True)
    with pytest.raises(MeshError, match=r"the host agent has exited; .* %mesh down, then %mesh up$"):
        check_able(mesh, mesh.extent.region)


@pytest.mark.parametrize(
    ("names", "many", "said"),
    [
        ((), False, "no names were lost"),
        (("model",), False, "it lost 1 name: model"),
        (("model", "step"), True, "they lost 2 names: model, step"),
        (tuple("abcdefghijklmn"), False, "it lost 14 names: a, b, c, d, e, f, g, h, i, j, k, l, …"),
    ],
)
def test_what_is_lost_with_a_rank(names: tuple[str, ...], many: bool, said: str) -> None:
    assert format_lost(names, many=many) == said


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (ExitReport("", 4711, -9), "rank 1 (pid 4711) died during the cell: SIGKILL: Killed(sig=9)"),
        (
            ExitReport("", 4711, -9, stderr=("last",), ended_by="%mesh restart"),
            "rank 1 (pid 4711) was stopped during the cell by %mesh restart",
        ),
        (ExitReport("", 0, None, hint="its host is gone\nmore"), "rank 1 died during the cell: its host is gone\nmore"),
    ],
)
def test_a_dead_rank_is_reported_with_the_cause(report: ExitReport, said: str) -> None:
    assert error_of_lost(1, ProcessDied("", report)).message == said


GONE = RankError("raised", "RuntimeError", "Connection closed by peer [127.0.0.1]:1", is_consequence=True)
NO_GROUP = RankError("raised", "ValueError", "Default process group has not been initialized, please make sure to")
NOT_THERE = RankError(
    "raised", "ValueError", "Process group <object at 0x7f> is not initialized in the world group map"
)
OWN = RankError("raised", "ValueError", "bad")
INTERRUPTED = RankError("interrupted", "KeyboardInterrupt", "", is_consequence=True)


@pytest.mark.parametrize(
    ("errors", "broken", "said"),
    [
        ([GONE, NO_GROUP, NOT_THERE], {0: "cell 3", 1: "cell 3", 2: "cell 3"}, "ranks 0-2 were broken by cell 3"),
        ([GONE, INTERRUPTED], {0: "cell 3"}, "rank 0 were broken by cell 3"),
        ([GONE, GONE], {0: "cell 3", 1: "a restart"}, "ranks 0-1 were broken by cell 3 and a restart"),
        ([GONE, OWN], {0: "cell 3", 1: "cell 3"}, ""),
        ([GONE], {}, ""),
        ([INTERRUPTED], {0: "cell 3"}, ""),
    ],
)
def test_errors_of_process_groups_that_were_broken_earlier_name_the_cause(
    errors: list[RankError], broken: dict[int, str], said: str
) -> None:
    expected = f"the process groups of {said}: {HOW_TO_INITIALIZE}" if said else ""
    assert explain_broken(dict(enumerate(errors)), broken) == expected


ASSERTED = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"


def test_an_error_that_loses_the_cuda_context_is_recorded_with_its_remedy() -> None:
    mesh = mesh_of(2, {})
    [hint] = note_lost_contexts({0: OWN, 1: RankError("raised", "AcceleratorError", ASSERTED)}, 9, mesh)
    assert (mesh.lost_contexts, mesh.failed) == ({1: 9}, {1})
    assert "in cell 9" in hint
    assert "%mesh restart 1" in hint


def test_later_errors_of_the_gpu_name_the_first_cell() -> None:
    mesh = mesh_of(2, {})
    list(note_lost_contexts({1: RankError("raised", "AcceleratorError", ASSERTED)}, 9, mesh))
    later = RankError("raised", "RuntimeError", "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED")
    [hint] = note_lost_contexts({0: OWN, 1: later}, 12, mesh)
    assert "rank 1 has lost its CUDA context in cell 9" in hint
    assert not list(note_lost_contexts({0: later, 1: OWN}, 12, mesh))
