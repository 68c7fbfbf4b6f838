"""What the controller knows of its processes: the present numbers, five minutes of them, words, and ends."""

from __future__ import annotations

import array
import time

import msgspec
import numpy as np
import pytest

from meshbook.runtime.errors import ExitReport
from meshbook.runtime.telemetry.history import REMEMBERED_ENDS, History, VitalsActor
from meshbook.runtime.telemetry.vitals import (
    COLUMNS,
    HISTORY_SECONDS,
    METRICS,
    SECONDS,
    WATCHED_SECONDS,
    Activity,
    ActorLoad,
    ProcessDetail,
    ProcessReport,
    VitalsBatch,
)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def batch(
    *nodes: str, incarnation: int = 0, words: dict[str, ProcessReport] | None = None, **columns: float
) -> VitalsBatch:
    row = [columns.get(column, 0.0) for column in COLUMNS]
    said = {node: msgspec.msgpack.encode(each) for node, each in (words or {}).items()}
    return VitalsBatch("node1", nodes, (incarnation,) * len(nodes), array.array("f", row * len(nodes)).tobytes(), said)


def ended(node: str, incarnation: int = 0) -> ExitReport:
    return ExitReport(node, 7, -9, incarnation=incarnation)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(clock: Clock) -> History:
    made = History(clock)
    made.vitals([])  # so that it takes in at once what comes
    return made


def test_it_returns_the_last_lines_in_the_requested_order(history: History, clock: Clock) -> None:
    history.add(batch("m.0", memory=1e9, cpu=0.5, activity=Activity.RUNNING, age=0.25))
    history.add(batch("m.1", memory=2e9, age=4.0))
    clock.now += 1.0
    vitals = history.vitals(["m.1", "m.7", "m.0"])
    np.testing.assert_array_equal(vitals.metrics["memory"], np.float32([2e9, np.nan, 1e9]))
    np.testing.assert_array_equal(vitals.activity, [Activity.IDLE, Activity.IDLE, Activity.RUNNING])
    np.testing.assert_array_equal(vitals.age, [5.0, np.inf, 1.25])
    assert list(vitals.metrics) == list(METRICS)
    assert (vitals.age.dtype, vitals.activity.dtype) == (np.float32, np.uint8)


def test_a_node_that_comes_later_is_found_by_earlier_requests(history: History) -> None:
    assert np.isnan(history.vitals(["m.0"]).metrics["cpu"])
    history.add(batch("m.0", cpu=0.5))
    assert history.vitals(["m.0"]).metrics["cpu"] == 0.5


def test_the_past_is_a_value_a_second_the_newest_last(history: History, clock: Clock) -> None:
    for value in (1.0, 2.0, 3.0, 4.0):
        history.add(batch("m.0", cpu=value))
        clock.now += 0.5
    series = history.series(["m.9", "m.0"], ["cpu", "memory"])
    assert series.shape == (2, 2, HISTORY_SECONDS)
    np.testing.assert_array_equal(series[1, 0, -3:], [np.nan, 2.0, 4.0])
    np.testing.assert_array_equal(series[1, 1, -2:], [0.0, 0.0])
    assert np.isnan(series[0]).all()


@pytest.mark.parametrize(
    ("pause", "seen"),
    [(1.0, [1, 2]), (2.0, [1, 1, 2]), (3.0, [1, 1, 1, 2]), (4.0, [1, np.nan, np.nan, np.nan, 2])],
)
def test_a_batch_that_comes_late_leaves_no_hole(
    history: History, clock: Clock, pause: float, seen: list[float]
) -> None:
    history.add(batch("m.0", cpu=1.0))
    clock.now += pause
    history.add(batch("m.0", cpu=2.0))
    np.testing.assert_array_equal(history.series(["m.0"], ["cpu"])[0, 0, -len(seen) :], seen)


def test_it_forgets_what_is_older_than_that(history: History, clock: Clock) -> None:
    history.add(batch("m.0", cpu=1.0))
    clock.now += HISTORY_SECONDS - 1
    history.add(batch("m.0", cpu=2.0))
    series = history.series(["m.0"], ["cpu"])[0, 0]
    assert (series[0], series[-1], np.isnan(series).sum()) == (1.0, 2.0, HISTORY_SECONDS - 2)
    clock.now += 10 * HISTORY_SECONDS
    assert np.isnan(history.series(["m.0"], ["cpu"])).all()  # nobody measures any more, and time goes on


def test_what_a_process_says_of_itself(history: History) -> None:
    assert history.detail("m.0") is None
    words = ProcessReport(42, (("trainer", 3, "step"), ("cells", 0, "")), "all_reduce", "")
    history.add(batch("m.0", words={"m.0": words}))
    history.add(batch("m.0"))  # nothing has changed
    loads = (ActorLoad("trainer", 3, "step"), ActorLoad("cells", 0))
    assert history.detail("m.0") == ProcessDetail("m.0", 42, "node1", loads, "all_reduce", "")


def test_of_an_ended_process_the_past_is_known_and_the_present_is_not(history: History, clock: Clock) -> None:
    history.add(batch("m.0", cpu=1.0, activity=Activity.RUNNING, words={"m.0": ProcessReport(1)}))
    history.ended(ended("m.0"))
    history.add(batch("m.0", cpu=2.0))  # was on its way when the end was told
    clock.now += 3.0
    vitals = history.vitals(["m.0"])
    assert (np.isnan(vitals.metrics["cpu"][0]), vitals.activity[0], vitals.age[0]) == (True, Activity.IDLE, 3.0)
    assert history.detail("m.0") is None
    assert history.series(["m.0"], ["cpu"])[0, 0, -2] == 1.0


def test_a_restarted_process_is_present_again(history: History) -> None:
    history.add(batch("m.0", cpu=1.0))
    history.ended(ended("m.0", incarnation=0))
    history.add(batch("m.0", incarnation=1, cpu=2.0))
    assert history.vitals(["m.0"]).metrics["cpu"] == 2.0


def test_a_mesh_is_forgotten_and_its_rows_are_used_again(history: History) -> None:
    for generation in range(5):
        nodes = [f"m{generation}.{rank}" for rank in range(100)]
        history.add(batch(*nodes, cpu=1.0))
        history.forget(f"m{generation}")
        assert np.isnan(history.vitals(nodes).metrics["cpu"]).all()
    assert history._table is not None
    assert len(history._table) == 0
    assert len(history._table._activity) == 128
    assert np.isnan(history._table._ring).all()


def test_of_those_that_ended_the_last_are_kept(history: History) -> None:
    for rank in range(REMEMBERED_ENDS + 3):
        history.add(batch(f"m.{rank}", cpu=1.0))
        history.ended(ended(f"m.{rank}"))
    assert history._table is not None
    assert history._table.nodes() == [f"m.{rank}" for rank in range(3, REMEMBERED_ENDS + 3)]


def test_a_batch_that_comes_after_all_was_forgotten_brings_nothing_back(history: History) -> None:
    nodes = [f"m.{rank}" for rank in range(REMEMBERED_ENDS + 3)]
    history.add(batch(*nodes))
    for node in nodes:
        history.ended(ended(node))
    history.forget("m")
    history.add(batch(*nodes, words={"m.0": ProcessReport(1)}))  # was on its way
    assert history._table is not None
    assert len(history._table) == 0
    assert history.detail("m.0") is None


def test_an_open_view_gets_more_batches(history: History) -> None:
    actor = VitalsActor(history)
    history.watch(True)
    history.watch(True)
    history.watch(False)
    assert actor.measured(batch("m.0")) == WATCHED_SECONDS
    history.watch(False)
    assert actor.measured(batch("m.0")) == SECONDS


def test_listeners_hear_of_each_batch(history: History) -> None:
    heard: list[int] = []
    history.when_sampled.append(lambda: heard.append(1))
    history.add(batch("m.0"))
    history.add(batch("m.0"))
    assert heard == [1, 1]


def test_a_batch_that_is_there_before_the_table_is_taken_in(clock: Clock) -> None:
    history = History(clock)
    history.add(batch("m.0", cpu=1.0))
    assert history.vitals(["m.0"]).metrics["cpu"] == 1.0


def test_a_mesh_of_thousands_is_read_in_a_moment(history: History) -> None:
    nodes = [f"m.{rank}" for rank in range(4096)]
    for first in range(0, 4096, 64):
        history.add(batch(*nodes[first : first + 64], cpu=1.0))
    history.vitals(nodes)
    started = time.perf_counter()
    for _ in range(10):
        history.vitals(nodes)
    assert (time.perf_counter() - started) / 10 < 0.1  # it takes a third of a millisecond
