"""The model without a browser, a kernel or a process: what views are told, and that it is enough."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbook.runtime.telemetry.vitals import STALE_AFTER
from meshbook.widgets.dashboard_model import DashboardModel
from meshbook.widgets.protocol import CHANNELS, RankState
from meshbook.widgets.source import CellFacts, MeshEvent, PausedRanks, ProgressBar, RankConditions
from meshbook.widgets.states import states_of
from tests.widgets.conftest import Told, View, facts, snapshot, vitals

IDLE, RUNNING, COLLECTIVE, PAUSED, STARTING, ERROR, STUCK, STALE, DEAD = RankState


def every(sel: str) -> list[int]:
    """Understands `0:4` and nothing else."""
    start, stop = sel.split(":")
    return list(range(int(start), int(stop)))


def model_of(source: Told) -> DashboardModel:
    return DashboardModel(source, every)


@pytest.mark.parametrize(
    ("conditions", "states"),
    [
        (RankConditions(), [IDLE, RUNNING, COLLECTIVE, PAUSED]),
        (RankConditions(running={0, 1, 2, 3}), [RUNNING, RUNNING, COLLECTIVE, PAUSED]),
        (RankConditions(paused=[0]), [PAUSED, RUNNING, COLLECTIVE, PAUSED]),
        (RankConditions(error=range(4)), [ERROR] * 4),
        (RankConditions(dead=np.array([2]), error=range(4)), [ERROR, ERROR, DEAD, ERROR]),
        (RankConditions(running={0, 1}, error={1}, stuck={0, 1}), [STUCK, STUCK, COLLECTIVE, PAUSED]),
        (RankConditions(starting={3}, dead={3}), [IDLE, RUNNING, COLLECTIVE, DEAD]),
        (RankConditions(dead={4, 99, -1}), [IDLE, RUNNING, COLLECTIVE, PAUSED]),  # of a mesh that was larger
    ],
)
def test_a_rank_is_in_the_worst_of_its_states(conditions: RankConditions, states: list[RankState]) -> None:
    now = snapshot(4, vitals=vitals(4, activity=[0, 1, 2, 3]), conditions=conditions)
    assert states_of(now).tolist() == states


@pytest.mark.parametrize(
    ("age", "starting", "state"),
    [
        (STALE_AFTER - 0.1, (), RUNNING),
        (STALE_AFTER + 0.1, (), STALE),
        (math.inf, (), RUNNING),  # nothing is known of it: it is not measured
        (STALE_AFTER + 0.1, {0}, STARTING),
        (math.inf, {0}, STARTING),
    ],
)
def test_a_rank_without_heartbeats_is_stale_only_if_it_sent_before(age: float, starting: Any, state: RankState) -> None:
    now = snapshot(1, vitals=vitals(1, activity=[1], age=age), conditions=RankConditions(starting=starting))
    assert states_of(now).tolist() == [state]


def test_the_first_update_is_whole_and_then_only_changes_are_sent() -> None:
    source = Told(snapshot(8, vitals=vitals(8, memory=1e9)))
    model = model_of(source)
    first = model.tick(0.0)
    assert first is not None
    assert first.content["full"]
    assert first.content["mesh"]["dims"] == [("hosts", 1), ("gpus", 8)]
    assert first.content["counts"] == {"idle": 8}
    assert model.tick(0.25) is None
    source.change(conditions=RankConditions(dead={3}))
    update = model.tick(0.5)
    assert update is not None
    assert update.eventful
    assert update.content["counts"] == {"idle": 7, "dead": 1}
    assert update.content["worst"][0]["text"] == "dead"
    assert update.content["buffers"] == ["state_ranks", "state_values"]
    assert set(update.content) == {"kind", "seq", "full", "counts", "worst", "buffers"}
    assert update.content["seq"] == first.content["seq"] + 1


def test_what_a_fault_lost_is_sent_with_the_next_update(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Told(snapshot(8))
    model = model_of(source)
    model.tick(0.0)
    source.change(conditions=RankConditions(dead={3}))

    def fail(*_: Any) -> Any:
        raise OSError("no history")

    with monkeypatch.context() as patched:
        patched.setattr(source, "series", fail)
        with pytest.raises(OSError, match="no history"):
            model.tick(1.0)
    update = model.tick(2.0)
    assert update is not None
    assert update.content["counts"] == {"idle": 7, "dead": 1}
    assert np.frombuffer(update.buffers[0], np.uint8)[3] == DEAD


def test_measurements_of_a_mesh_at_rest_are_no_event() -> None:
    source = Told(snapshot(8, vitals=vitals(8, cpu=0.0)))
    model = model_of(source)
    model.tick(0.0)
    source.change(vitals=vitals(8, cpu=0.5))
    update = model.tick(1.0)
    assert update is not None
    assert "hosts" in update.content
    assert not update.eventful
    source.change(vitals=vitals(8, [1], cpu=0.5))
    update = model.tick(2.0)
    assert update is not None
    assert update.eventful
    assert model.busy


def test_a_cell_is_sent_once_while_views_count_its_seconds() -> None:
    source = Told(snapshot(cell=CellFacts(9, "cell 9", 0.0, range(8))))
    model = model_of(source)
    first = model.tick(10.0)
    assert first is not None
    assert first.content["cell"] == {
        "number": 9,
        "title": "cell 9",
        "seconds": 0.0,
        "ranks": "0-7",
        "waits": "",
        "jobs": 0,
        "interruptible": True,
    }
    source.change(cell=CellFacts(9, "cell 9", 60.2, range(8)))
    assert model.tick(70.0) is None
    source.change(cell=CellFacts(9, "cell 9", 62.0, range(8)))  # a clock has jumped
    update = model.tick(70.0)
    assert update is not None
    assert update.content["cell"]["seconds"] == 62.0
    source.change(cell=None)
    update = model.tick(71.0)
    assert update is not None
    assert update.content["cell"] is None


def test_a_channel_brings_its_values_and_a_scale() -> None:
    source = Told(snapshot(100, vitals=vitals(100, memory=[1e9] * 99 + [9e12])))
    model, view = model_of(source), View()
    view.take(model.tick(0.0))
    assert view.values is None
    model.show("memory")
    view.take(model.tick(0.25))
    assert view.values.tolist() == [np.float32(1e9)] * 99 + [np.float32(9e12)]
    channel = view.sections["channel"]
    assert channel["unit"] == "bytes"
    assert channel["low"] <= 1e9 < channel["high"] < 2e9  # the one far out leaves the others their colours
    assert view.sections["worst"][0]["rank"] == 99
    model.show("state")
    view.take(model.tick(0.5))
    assert view.values is None
    with pytest.raises(ValueError, match="unknown channel 'RSS'; choose from state, memory"):
        model.show("RSS")


def test_a_scale_widens_at_once_and_shrinks_after_a_while() -> None:
    source = Told(snapshot(vitals=vitals(memory=range(int(1e9), int(2e9), int(1.25e8)))))
    model, view = model_of(source), View()
    model.show("memory")

    def high_at(now: float, top: float) -> Any:
        source.change(vitals=vitals(memory=np.linspace(1e9, top, 8)))
        view.take(model.tick(now))
        return view.sections["channel"]["high"]

    wide = high_at(0.0, 9e9)
    assert wide >= 8.8e9
    assert high_at(1.0, 8e9) == wide  # it does not flicker
    assert high_at(2.0, 2e9) == wide
    assert high_at(11.9, 2e9) == wide
    assert high_at(12.1, 2e9) < 3e9
    assert high_at(12.2, 9e9) == wide


def test_invisible_changes_are_not_sent_and_do_not_add_up() -> None:
    source = Told(snapshot(vitals=vitals(gpu=0.5)))
    model, view = model_of(source), View()
    model.show("gpu")
    view.take(model.full(0.0))
    sent = 0
    for tick in range(100):
        source.change(vitals=vitals(gpu=0.5 + tick / 1000))
        update = model.tick(0.5 + tick / 1000)
        sent += update is not None and bool(update.buffers)
        view.take(update)
        assert np.abs(view.values - source.now.vitals.metrics["gpu"]).max() <= 1 / 250
    assert 15 < sent < 30


@pytest.mark.parametrize(
    ("channel", "measured", "dead", "texts"),
    [
        ("state", {}, {1}, {1: "dead"}),
        ("state", {"step": [1, 1, 1, 3.5]}, {0}, {0: "dead", 3: "2.50 s behind"}),
        ("state", {"step": [1, 1, 1, 1.01]}, (), {}),
        ("skew", {"step": [1, 1, 1, 3.5]}, (), {3: "2.50 s behind"}),
        ("gpu", {"gpu": [0.9, 0.1, 0.95, 0.8]}, {3}, {1: "10%", 0: "90%", 2: "95%"}),  # low is worse
        ("memory", {"memory": [1e9, 2e9, math.nan, 1.5e6]}, (), {1: "2.0 GB", 0: "1.0 GB", 3: "1.5 MB"}),
        ("queued", {"queued": [0, 7, 0, 0]}, (), {1: "7 messages"}),
        ("cpu", {}, (), {}),
    ],
)
def test_the_worst(channel: str, measured: dict[str, Any], dead: Any, texts: dict[int, str]) -> None:
    model = model_of(Told(snapshot(4, vitals=vitals(4, [1] * 4, **measured), conditions=RankConditions(dead=dead))))
    model.show(channel)
    worst = model.full(0.0).content["worst"]
    assert {each["rank"]: each["text"] for each in worst} == texts
    assert [each["rank"] for each in worst] == list(texts)
    assert all(each["history"][0] == 2.0 and len(each["history"]) == 60 for each in worst)  # means of five


def test_hosts_are_rolled_up() -> None:
    now = snapshot(
        4,
        mesh=facts(4, hosts=2),
        vitals=vitals(
            4, activity=[1, 1, 0, 0], cpu=[1, 0.5, 0.25, math.nan], memory=1e9, gpu=[1, 0.5, math.nan, math.nan]
        ),
        conditions=RankConditions(dead={3}),
    )
    first, second = model_of(Told(now)).full(0.0).content["hosts"]
    assert first == {
        "name": "node0",
        "ranks": 2,
        "counts": {"running": 2},
        "cpu": 1.5,
        "memory": 2e9,
        "gpu": 0.75,
        "gpu_memory": None,
    }
    assert second["counts"] == {"idle": 1, "dead": 1}
    assert second["gpu"] is None


def test_the_selection_is_sent_with_its_processes() -> None:
    source = Told(snapshot(200, mesh=facts(200, hosts=2)))
    model = model_of(source)
    topology = model.full(0.0).content["topology"]
    assert source.asked == list(range(64))
    assert topology[0]["procs"][5] == {"rank": 5, "pid": 1005, "actors": []}
    assert model.select(" 98:102 ").ranks == (98, 99, 100, 101)
    update = model.tick(0.1)
    assert update is not None
    assert update.content["selected"] == {"sel": "98:102", "ranks": "98-101", "count": 4}
    assert [host["host"] for host in update.content["topology"]] == ["node0", "node1"]
    with pytest.raises(ValueError, match="unpack"):
        model.select("none")
    assert model.selected.sel == "", "a button must not act on what was selected before"
    model.select("")
    assert model.full(1.0).content["selected"]["count"] == 0


def test_a_mesh_that_was_resized_begins_anew() -> None:
    source = Told(snapshot(8))
    model, view = model_of(source), View()
    view.take(model.tick(0.0))
    model.select("6:8")
    view.take(model.tick(0.1))
    source.change(mesh=replace(facts(8), alive=False))
    view.take(model.tick(0.2))
    assert view.sections["mesh"]["alive"] is False
    assert view.sections["selected"]["count"] == 2
    source.now = snapshot(4)
    update = model.tick(0.3)
    view.take(update)
    assert update is not None
    assert update.content["full"]
    assert len(view.states) == 4
    assert view.sections["selected"]["count"] == 0


def test_a_mesh_with_other_ranks_than_hosts_of_them_is_refused() -> None:
    with pytest.raises(ValueError, match="'gpus' has 8 ranks, but host_of has 7 entries"):
        replace(facts(8), host_of=(0,) * 7)


def test_numbers_that_json_has_not_never_leave() -> None:
    now = snapshot(
        4,
        vitals=vitals(4, age=math.inf, memory=math.nan, cpu=math.inf, step=math.nan),
        conditions=RankConditions(dead={1}),
        pauses=[PausedRanks({1, 2}, "in the debugger", "cell 9:14")],
        bars=[ProgressBar("train", math.nan, [0, 1], 0.1234567, 1.0)],
        events=[MeshEvent("12:01:03", "healed", (3,), f"event {each}") for each in range(12)],
    )
    source = Told(now)
    source.series = lambda ranks, metrics: np.full((len(ranks), len(metrics), 300), math.nan, np.float32)  # type: ignore[method-assign]
    model = model_of(source)
    for channel in CHANNELS:
        model.show(channel)
        content = model.full(0.0).content
        json.dumps(content, allow_nan=False)
    assert content["bars"] == [{"text": "train", "fraction": None, "ranks": "0-1", "low": 0.123, "high": 1.0}]
    assert [event["text"] for event in content["events"]] == [f"event {each}" for each in range(2, 12)]


SIZE = 24
numbers = st.floats(0, 100, width=32) | st.sampled_from([math.nan, math.inf, 0.0, 7.0])
columns = st.lists(numbers, min_size=SIZE, max_size=SIZE)
ranks = st.frozensets(st.integers(0, SIZE - 1), max_size=6)
looks = st.builds(
    lambda activity, age, rss, step, dead, error, cell: snapshot(
        SIZE,
        mesh=facts(SIZE, hosts=3),
        vitals=vitals(SIZE, activity, age, memory=rss, step=step),
        conditions=RankConditions(dead=dead, error=error),
        cell=CellFacts(1, "cell 1", cell, range(SIZE)) if cell else None,
    ),
    st.lists(st.integers(0, 3), max_size=SIZE),
    columns,
    columns,
    columns,
    ranks,
    ranks,
    st.floats(0, 100),
)
moves = st.tuples(
    st.floats(0, 3), looks, st.sampled_from([*CHANNELS, *["same"] * 20]), st.sampled_from(["", "0:9", "same"])
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(moves, min_size=1, max_size=8))
def test_a_view_that_got_every_tick_has_what_a_new_one_gets(moves: list[Any]) -> None:
    source = Told(moves[0][1])
    model, old = model_of(source), View()
    now = 0.0
    for seconds, source.now, channel, sel in moves:
        now += seconds
        if channel != "same":
            model.show(channel)
        if sel != "same":
            model.select(sel)
        old.take(model.tick(now))
    shown = model.tick(now + 1000)  # by then every section has been due
    old.take(shown)
    new = View()
    new.take(model.full(now + 1000))
    assert new.sections.keys() == old.sections.keys()
    assert {name for name in new.sections if new.sections[name] != old.sections[name]} <= {"cell"}
    assert new.states.tolist() == old.states.tolist() == states_of(source.now).tolist()
    assert (new.values is None) == (old.values is None) == (model.channel == "state")
    if new.values is not None:
        span = new.sections["channel"]["high"] - new.sections["channel"]["low"]
        np.testing.assert_allclose(old.values, new.values, rtol=0, atol=span / 250 * 1.001)
