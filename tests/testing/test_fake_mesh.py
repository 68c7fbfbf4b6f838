"""The simulated mesh: the same for the same seed, and what a dashboard shows of it is what was done to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshbook.runtime.telemetry.logsearch import LogQuery, find_lines
from meshbook.runtime.telemetry.vitals import METRICS, Activity
from meshbook.testing import FakeMesh, fake_mesh
from meshbook.testing.simulated.backend import FakeBackend
from meshbook.widgets.curve_charts import band_of
from meshbook.widgets.protocol import RankState
from meshbook.widgets.states import states_of


def states(mesh: FakeMesh) -> list[int]:
    return list(map(int, states_of(mesh.snapshot())))


def test_it_is_the_same_for_the_same_seed() -> None:
    one, same, other = fake_mesh(64), fake_mesh(64), fake_mesh(64, seed=1)
    for mesh in (one, same, other):
        mesh.advance(120)
    snapshot = one.snapshot()
    for metric in METRICS:
        np.testing.assert_array_equal(snapshot.vitals.metrics[metric], same.snapshot().vitals.metrics[metric])
    assert snapshot.events == same.snapshot().events
    assert snapshot.vitals.metrics["memory"].tolist() != other.snapshot().vitals.metrics["memory"].tolist()


def test_ranks_train_and_meet() -> None:
    mesh = fake_mesh(16, faults=0)
    seen = set()
    for _ in range(40):
        mesh.advance(0.25)
        seen |= set(mesh.snapshot().vitals.activity.tolist())
    assert seen == {Activity.RUNNING, Activity.IN_COLLECTIVE}
    snapshot = mesh.snapshot()
    assert snapshot.cell is not None
    assert snapshot.cell.seconds == 10.0
    assert snapshot.bars[0].text.endswith("/100")
    assert (snapshot.vitals.metrics["step"] > 0.5).all()
    assert (snapshot.vitals.age <= 1.0).all()
    history = mesh.series([3, 5], ["cpu", "memory"])
    assert history.shape == (2, 2, 300)
    assert np.isfinite(history[..., -10:]).all()
    assert np.isnan(history[..., 0]).all()


def test_what_is_wrong_with_a_rank_shows_until_it_is_mended() -> None:
    mesh = fake_mesh(8, faults=0)
    mesh.kill(3)
    mesh.break_down("failed", [4])
    mesh.break_down("silent", [5])
    mesh.break_down("paused", [6])
    mesh.advance(10)
    assert states(mesh)[3:7] == [RankState.DEAD, RankState.ERROR, RankState.STALE, RankState.PAUSED]
    assert {states(mesh)[rank] for rank in (0, 1, 2, 7)} == {RankState.IN_COLLECTIVE}  # they wait for the others
    assert mesh.details([3, 6])[0] is None
    assert mesh.snapshot().pauses[0].ranks == (6,)
    assert mesh.heal() == [3, 4, 5, 6]
    assert states(mesh)[3] == RankState.STARTING
    mesh.advance(4)
    assert set(states(mesh)) <= {RankState.RUNNING, RankState.IN_COLLECTIVE}
    assert [event.kind for event in mesh.snapshot().events] == ["failed", "healed"]
    assert mesh.interrupt() == 1
    assert mesh.interrupt() is None
    assert set(states(mesh)) == {RankState.IDLE}
    mesh.advance(3)
    cell = mesh.snapshot().cell
    assert cell is not None
    assert cell.number == 2


def test_faults_come_and_are_mended_by_themselves() -> None:
    mesh = fake_mesh(64, faults=0.2)
    seen: set[int] = set()
    for _ in range(600):
        mesh.advance(0.25)
        seen |= set(states(mesh))
    assert seen == set(RankState) - {RankState.IDLE, RankState.STUCK}
    assert len(mesh.snapshot().events) > 2


def test_ranks_write_and_their_lines_are_found() -> None:
    mesh = fake_mesh(8, faults=0)
    mesh.advance(5)
    mesh.write(2, "<script>alert(1)</script>\n", "stderr")
    extract = mesh.logbook.extract(mesh.nodes)
    found = find_lines(extract, mesh.nodes, LogQuery(text="<script>")).lines
    assert [(line.rank, line.stream, line.cell, line.text) for line in found] == [
        (2, "stderr", 1, "<script>alert(1)</script>")
    ]
    assert find_lines(extract, mesh.nodes, LogQuery(text="loss")).matches >= 8
    with pytest.raises(ValueError, match="invalid rank 8"):
        mesh.write(8, "nobody\n")


def test_its_stacks_and_its_timeline() -> None:
    mesh = fake_mesh(16, faults=0)
    mesh.kill([3])
    mesh.advance(10)
    mesh.take_stacks()
    stacks = mesh.snapshot().stacks
    assert stacks is not None
    assert [tuple(group.ranks) for group in stacks.groups] == [(0, 1, 2, *range(4, 16))]
    mesh.heal()
    mesh.advance(10)
    timeline = mesh.timeline()
    assert [lane["rank"] for lane in timeline["lanes"]] == list(range(16))
    for lane in timeline["lanes"]:
        ends = [time for begin, end, *_ in lane["spans"] for time in (begin, end)]
        assert ends == sorted(ends)
        assert {"running", "collective"} <= {span[2] for span in lane["spans"]}
    large = fake_mesh(4096, faults=0)
    large.advance(20)
    assert sum(len(lane["spans"]) for lane in large.timeline()["lanes"]) <= 60_000


@pytest.mark.parametrize(("size", "dims"), [(1, (1, 1)), (4, (1, 4)), (8, (1, 8)), (24, (3, 8)), (4096, (512, 8))])
def test_its_hosts(size: int, dims: tuple[int, int]) -> None:
    mesh = fake_mesh(size)
    assert mesh.facts.dims == (("hosts", dims[0]), ("gpus", dims[1]))
    assert len(mesh.snapshot().vitals.age) == len(mesh) == size


def test_ranks_that_fill_no_hosts_are_refused() -> None:
    with pytest.raises(ValueError, match="12 ranks cannot be spread evenly over hosts of 8"):
        fake_mesh(12)


def test_on_a_dashboard_its_time_passes_while_a_view_is_open() -> None:
    times = iter([0.0, 0.1, 0.6, 100.0, 100.3])
    mesh = fake_mesh(8)
    board = FakeBackend(mesh, clock=lambda: next(times))
    passed = [mesh.seconds for _ in range(4) if board.snapshot()]
    assert passed == [0.0, 0.5, 2.5, 2.75]  # a reader that has not looked for long has missed some


def test_the_buttons_of_its_dashboard_do_something() -> None:
    mesh = fake_mesh(16, faults=0)
    board = FakeBackend(mesh, clock=lambda: 0.0)

    def do(action: str, sel: str = "") -> Any:
        return board.answer({"kind": "act", "action": action, "sel": sel}).content["text"]

    assert do("kill", "gpus=0") == "killed ranks 0,8; restart them with Heal"
    assert states(mesh)[8] == RankState.DEAD
    assert list(board.select("failed")) == [0, 8]
    assert do("heal") == "healed ranks 0,8"
    assert do("restart", "3") == "restarted rank 3"
    assert do("stacks") == "took the stacks"
    assert do("interrupt") == "interrupted cell 1"
    assert do("interrupt") == "nothing runs"
    with pytest.raises(ValueError, match="does not support the action"):
        do("profile")
    with pytest.raises(ValueError, match="rank 16 is out of range"):
        do("kill", "16")


def test_a_dashboard_gets_its_logs_and_its_timeline() -> None:
    mesh = fake_mesh(8, faults=0)
    mesh.advance(5)
    board = FakeBackend(mesh, clock=lambda: 0.0)
    logs = board.answer({"kind": "logs", "sel": "0:2", "query": {"text": "loss"}, "limit": 500}).content
    assert {line[2] for line in logs["lines"]} == {0, 1}
    assert board.answer({"kind": "timeline", "cell": None}).content["lanes"][7]["label"] == "rank 7"


def test_it_is_shown_as_a_widget_and_where_there_are_none_as_a_picture() -> None:
    mesh = fake_mesh(8)
    dashboard = mesh.dashboard()
    assert mesh.dashboard() is dashboard
    (widget, _), (picture, metadata) = dashboard.outputs()
    assert "application/vnd.jupyter.widget-view+json" in widget
    assert picture["text/plain"].startswith("fake · hosts=1 × gpus=8 · 8 ranks\n  8 running (R)")
    assert metadata["meshbook"]["picture_id"] == dashboard.picture_id
    dashboard.close()
    again = mesh.dashboard()
    assert again is not dashboard
    again.close()


@pytest.mark.parametrize("size", [4, 64])
def test_its_losses_fall_and_a_straggler_and_a_diverging_rank_are_found(size: int) -> None:
    mesh = fake_mesh(size, faults=0)
    assert list(mesh.curves.metrics()) == []
    mesh.advance(170)
    band = band_of(mesh.curves, "train/loss", "cell 1")
    assert band.mean[-1] < band.mean[0] / 4
    kinds = {line.kind: line.rank for line in band.lines if line.kind != "rank"}
    assert kinds == {"straggler": mesh.curves.straggler, "diverging": mesh.curves.diverging}
    assert mesh.curves.runs("train/loss") == ["cell 1", "cell 2"]
    request = {"kind": "curves", "sel": "0", "names": ["train/loss"], "runs": 2}
    answer: Any = FakeBackend(mesh, lambda: 0.0).answer(request).content
    assert [(entry["run"], entry["ranks"]) for entry in answer["curves"]] == [("cell 2", 1), ("cell 1", 1)]
