"""`procs.map`: items for whichever rank is free, their errors, deaths of ranks, cancellation."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import queue
import signal
import threading
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import ActorError, ItemError, ItemLost, PickleError, SupervisionError
from meshbook.runtime.hosts.session import this_proc
from meshbook.runtime.mesh.balancing import MOST_DEATHS
from meshbook.runtime.mesh.mapping import MapResult
from tests.support import PATIENCE


def square(x: int) -> int:
    return x * x


def refuse_two(x: int) -> int:
    if x == 2:
        raise ValueError("not two")
    return x


def stop_at(gate: Any, stops: set[int], x: int) -> int:
    if x in stops:
        gate.pass_through(x)
    return x


def die_at(x: int) -> int:
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def test_values_are_in_the_order_of_the_items(world: Any) -> None:
    procs = world.procs(3)
    result = procs.map(square, range(50))
    assert len(result) == 50
    assert result.get(PATIENCE) == [x * x for x in range(50)]
    assert list(result) == [x * x for x in range(50)]
    assert (result.done(), result.progress, result.errors, result.handed_out_again) == (True, 50, {}, {})
    assert {run.rank for run in result.runs if run is not None} <= {0, 1, 2}
    assert procs.map(lambda x, y: x + y, [1, 2], (10, 20, 30)).get(PATIENCE) == [11, 22]
    assert procs.map(square, iter(())).get(PATIENCE) == []
    assert sorted(procs.map(square, range(9), ordered=False, chunksize=2)) == [x * x for x in range(9)]


@pytest.mark.parametrize("size", [3, 300_000])
def test_a_value_is_what_its_item_returned(world: Any, size: int) -> None:
    """Also if later items of the same request reuse the array."""
    made = np.zeros(size)

    def fill(x: int) -> Any:
        made.fill(x)
        return made

    values = world.procs(1).map(fill, range(4), chunksize=4).get(PATIENCE)
    assert [float(value[0]) for value in values] == [0, 1, 2, 3]


def test_results_come_as_they_are_done(world: Any) -> None:
    gate = world.gate()
    result = world.procs(2).map(functools.partial(stop_at, gate, {0}), range(6), ordered=False, chunksize=1)
    values = iter(result)
    early = [next(values) for _ in range(5)]
    assert sorted(early) == [1, 2, 3, 4, 5]
    assert [future.done() for future in result.futures] == [False, *[True] * 5]
    gate.open()
    assert list(values) == [0]


def test_a_slow_item_does_not_hold_back_those_behind_it(world: Any) -> None:
    gate = world.gate()
    result = world.procs(2).map(functools.partial(stop_at, gate, {0}), range(20), chunksize=10)
    assert [result.futures[x].get(PATIENCE) for x in range(1, 20)] == list(range(1, 20))
    assert not result.wait(0)
    gate.open()
    assert result.get(PATIENCE) == list(range(20))
    assert gate.told() == [0]  # it was done once


def note_and_stop(gate: Any, stops: set[int], x: int) -> int:
    gate.tell(("did", x))
    return stop_at(gate, stops, x)


@pytest.mark.parametrize("chunksize", ["auto", 1, 7])
def test_each_item_is_done_once(world: Any, chunksize: Any) -> None:
    gate = world.gate()
    result = world.procs(3).map(functools.partial(note_and_stop, gate, {0, 40}), range(120), chunksize=chunksize)
    assert [result.futures[x].get(PATIENCE) for x in range(120) if x not in (0, 40)]  # those behind a slow one, too
    gate.open(2)
    assert result.get(PATIENCE) == list(range(120))
    told = gate.told()
    assert sorted(note[1] for note in told if isinstance(note, tuple)) == list(range(120))


def test_an_error_names_item_rank_and_host_and_stops_no_other(world: Any) -> None:
    result = world.procs(2).map(refuse_two, range(5))
    with pytest.raises(
        ItemError, match=r"item 2 of refuse_two failed on rank [01] \(.+\): ValueError: not two"
    ) as caught:
        result.get(PATIENCE)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.item, error.type_name, error.text) == (2, "ValueError", "not two")
    assert isinstance(error.exception, ValueError)
    assert "in refuse_two" in str(error)
    assert list(caught.value.failures) == [2]
    assert [result.futures[x].get(PATIENCE) for x in (0, 1, 3, 4)] == [0, 1, 3, 4]
    values = iter(result)
    assert [next(values), next(values)] == [0, 1]
    with pytest.raises(ActorError):
        next(values)
    assert list(values) == [3, 4]


def test_several_errors_are_counted(world: Any) -> None:
    with pytest.raises(ItemError) as caught:
        world.procs(2).map(lambda x: 1 // (x % 2), range(6)).get(PATIENCE)
    assert sorted(caught.value.failures) == [0, 2, 4]
    assert caught.value.__notes__ == ["3 of 6 items have no value; the others: 2, 4"]


def test_what_cannot_be_pickled_is_an_error_of_its_item(world: Any) -> None:
    procs, lock = world.procs(2), threading.Lock()
    with pytest.raises(PickleError, match="the function <lambda>"):
        procs.map(lambda x: lock, range(3))
    result = procs.map(lambda x: x if x != 1 else threading.Lock(), [0, 1, threading.Lock(), 3])
    result.wait(PATIENCE)
    assert [result.futures[x].get() for x in (0, 3)] == [0, 3]
    with pytest.raises(ItemError, match=r"item 1 .* PickleError"):
        result.futures[1].get()
    with pytest.raises(PickleError, match="item 2 of <lambda>"):
        result.futures[2].get()


def test_arguments_that_cannot_be(in_memory: Any) -> None:
    procs = in_memory.procs(1)
    for wrong in (functools.partial(procs.map, 3, [1]), functools.partial(procs.map, square)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="map takes a function and items"):
            wrong()
    with pytest.raises(ValueError, match="chunksize must be at least 1"):
        procs.map(square, [1], chunksize=0)
    with pytest.raises(TypeError, match="chunksize must be a number"):
        procs.map(square, [1], chunksize="large")  # type: ignore[arg-type]


class Counted:
    """A function that says each time it is pickled, and unpickled."""

    def __init__(self, gate: Any) -> None:
        self.gate = gate

    def __getstate__(self) -> Any:
        self.gate.tell("pickled")
        return self.__dict__

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        self.gate.tell("unpickled")

    def __call__(self, x: int) -> int:
        return x


def test_the_function_is_pickled_once_and_unpickled_once_on_each_rank(world: Any) -> None:
    gate = world.gate()
    result = world.procs(2).map(Counted(gate), range(40), chunksize=1)
    assert result.get(PATIENCE) == list(range(40))
    told = gate.told()
    assert told.count("pickled") == 1
    assert told.count("unpickled") == len({run.rank for run in result.runs if run is not None})


def test_items_of_a_killed_rank_are_handed_out_again(world: Any, faults: queue.SimpleQueue[Any]) -> None:
    gate, procs = world.gate(), world.procs(3)
    result = procs.map(functools.partial(stop_at, gate, {0}), range(30), chunksize=3)
    gate.wait_told()
    world.kill(procs.slice(gpus=0))
    gate.wait_told()  # another rank has it now
    gate.open(2)  # in memory the killed one is a thread that lives on
    assert result.get(PATIENCE) == list(range(30))
    assert result.handed_out_again[0] == (0,)
    assert all(ranks == (0,) for ranks in result.handed_out_again.values())
    assert result.runs[0] is not None
    assert result.runs[0].rank != 0
    assert faults.empty()  # a script goes on


def test_ranks_that_are_dead_before_the_map_get_no_items(world: Any) -> None:
    procs = world.procs(4)
    procs.initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=slice(0, 3)))
    result = procs.map(square, range(8))
    assert result.get(PATIENCE) == [x * x for x in range(8)]
    assert result.handed_out_again == {}
    world.kill(procs.slice(gpus=3))
    with pytest.raises(ItemLost, match="no rank to run on: ranks 0-3 died"):
        procs.map(square, range(8)).get(PATIENCE)


@pytest.mark.process
def test_an_item_that_kills_its_ranks_fails_and_the_others_do_not(processes: Any) -> None:
    result = processes.procs(MOST_DEATHS + 1).map(die_at, range(12), chunksize=2)
    with pytest.raises(ItemLost, match=rf"item 3 of die_at was sent to a rank {MOST_DEATHS} times") as caught:
        result.get(PATIENCE)
    lost = pickle.loads(pickle.dumps(caught.value))
    assert lost.item == 3
    assert len(set(lost.ranks)) == MOST_DEATHS
    assert list(result.errors) == [3]
    assert [result.futures[x].get() for x in range(12) if x != 3] == [x for x in range(12) if x != 3]


def test_without_a_rank_the_items_that_are_left_fail(world: Any) -> None:
    gate, procs = world.gate(), world.procs(2)
    result = procs.map(functools.partial(stop_at, gate, {0, 1}), range(8), chunksize=1)
    gate.wait_told()
    gate.wait_told()
    world.kill(procs)
    with pytest.raises(ItemLost, match="no rank to run on: ranks 0-1 died; heal the mesh"):
        result.get(PATIENCE)
    assert len(result.errors) == 8


def test_a_rank_that_is_healed_gets_items_again(world: Any) -> None:
    gate, procs = world.gate(), world.procs(2)
    result = procs.map(functools.partial(stop_at, gate, {0, 1}), range(8), chunksize=1)
    gate.wait_told()
    gate.wait_told()
    world.kill(procs.slice(gpus=1))
    assert procs.heal().get(PATIENCE) == [1]
    gate.wait_told()  # the one that is there again has the item that was lost
    gate.open(3)
    assert result.get(PATIENCE) == list(range(8))


@pytest.mark.process
def test_ranks_that_are_respawned_are_waited_for(processes: Any) -> None:
    gate, procs = processes.gate(), processes.procs(1, on_failure="respawn")
    result = procs.map(functools.partial(stop_at, gate, {0}), range(4), chunksize=1)
    gate.wait_told()
    processes.kill(procs)
    gate.wait_told()
    gate.open()
    assert result.get(PATIENCE) == [0, 1, 2, 3]
    assert result.handed_out_again == {0: (0,)}


def test_cancel_lets_finish_what_runs_and_nothing_else_begin(world: Any) -> None:
    gate = world.gate()
    result = world.procs(1).map(functools.partial(stop_at, gate, set(range(100))), range(100), chunksize=10)
    gate.wait_told()
    result.cancel()
    with pytest.raises(CancelledError):
        result.futures[9].get(PATIENCE)  # it was with the rank already
    gate.open()
    assert result.wait(PATIENCE)
    assert result.futures[0].get() == 0
    assert list(result.errors) == list(range(1, 100))
    with pytest.raises(CancelledError):
        result.get()
    assert gate.told() == []


def test_one_item_is_cancelled_by_its_future(world: Any) -> None:
    gate = world.gate()
    result = world.procs(1).map(functools.partial(stop_at, gate, {0}), range(5), chunksize=1)
    gate.wait_told()
    assert result.futures[3].cancel()
    assert not result.futures[0].cancel()
    gate.open()
    with pytest.raises(CancelledError):
        result.get(PATIENCE)
    assert list(result.errors) == [3]
    assert not result.futures[1].cancel()


def test_an_interrupt_of_a_wait_cancels_what_has_not_begun(in_memory: Any) -> None:
    gate = in_memory.gate()
    result: MapResult[int] = in_memory.procs(1).map(functools.partial(stop_at, gate, {0}), range(9), chunksize=1)

    def interrupt() -> None:
        gate.wait_told()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        result.get(PATIENCE)
    thread.join()
    gate.open()
    assert result.wait(PATIENCE)
    assert list(result.errors) == list(range(1, 9))


def test_it_is_awaited(world: Any) -> None:
    async def main() -> list[int]:
        return await world.procs(2).map(square, range(5))

    assert asyncio.run(main()) == [0, 1, 4, 9, 16]


class Mapping(Actor):
    @endpoint
    def squares(self, procs: Any, count: int) -> list[int]:
        return list(procs.map(square, range(count)))


def test_an_actor_maps_on_a_mesh_that_it_was_given(world: Any) -> None:
    procs = world.procs(2)
    assert world.spawn(Mapping, gpus=1).squares.call_one(procs, 5).get(PATIENCE) == [0, 1, 4, 9, 16]


def test_a_map_leaves_no_actor_behind(world: Any) -> None:
    procs = world.procs(2)
    assert procs.map(square, range(5)).get(PATIENCE) == [0, 1, 4, 9, 16]
    done = threading.Event()
    procs.map(square, [1]).when_done(done.set)
    assert done.wait(PATIENCE)
    for _ in range(3):
        procs.map(square, [1]).get(PATIENCE)
    assert len(procs.actors) <= 2  # those of the last maps may be about to end


def test_a_map_ends_with_its_mesh_and_with_its_session(in_memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    gate, procs = in_memory.gate(), in_memory.procs(1)
    in_memory.be_impatient()
    stopped = procs.map(functools.partial(stop_at, gate, {0}), range(3), chunksize=1)
    gate.wait_told()
    procs.stop().get(PATIENCE)
    assert stopped.wait(PATIENCE)
    closed = in_memory.procs(1).map(functools.partial(stop_at, gate, {0}), range(3), chunksize=1)
    gate.wait_told()
    gate.open(2)
    in_memory.session.close()
    assert closed.wait(PATIENCE)
    assert all(isinstance(error, SupervisionError) for error in [*stopped.errors.values(), *closed.errors.values()])
    assert caplog.text == ""


def test_the_process_of_the_client_maps_too(in_memory: Any) -> None:
    gate, here = in_memory.gate(), this_proc()
    result = here.map(functools.partial(stop_at, gate, {0}), range(4), chunksize=2)
    gate.wait_told()
    result.cancel()
    with pytest.raises(CancelledError):
        result.futures[1].get(PATIENCE)
    gate.open()
    assert result.wait(PATIENCE)
    assert result.futures[0].get() == 0
