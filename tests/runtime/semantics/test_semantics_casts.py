"""Semantics: calls on many ranks, through the host agent, behave as direct calls do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from meshbook import Channel, current_rank
from meshbook.runtime.errors import ProcessDied
from tests.support import PATIENCE, Probe

RANKS = 4


@pytest.fixture
def casting(make_world: Callable[..., Any]) -> Any:
    """A world where calls on two ranks or more are casts."""
    return make_world(cast_ranks=2)


def my_rank() -> int:
    return current_rank().rank


def tell(port: Any, count: int) -> int:
    for number in range(count):
        port.send((my_rank(), number))
    return my_rank()


def pass_or_die(gate: Any) -> int:
    """Wait at the gate on rank 1, whose process is killed there."""
    if my_rank() == 1:
        gate.pass_through()
    return my_rank()


def test_order_deaths_and_heals(casting: Any) -> None:
    """One world for all of it, since its start is what costs time."""
    procs, gate = casting.procs(RANKS), casting.gate()
    probes = procs.spawn("probe", Probe)
    one = probes.slice(gpus=1)

    expected = []
    for number in range(60):
        (probes if number % 3 else one).note.broadcast(number)
        expected.append(number)
    assert one.noted.call_one().get(PATIENCE) == expected
    notes = list(probes.noted.call().get(PATIENCE).values())
    assert notes == [expected if rank == 1 else [each for each in expected if each % 3] for rank in range(RANKS)]

    port, receiver = Channel.open()
    assert list(probes.run.call(tell, port, 3).get(PATIENCE).values()) == list(range(RANKS))
    futures = [receiver.recv() for _ in range(3 * RANKS)]
    assert all(future.done() for future in futures)  # before the reply
    assert {future.get() for future in futures} == {(rank, number) for rank in range(RANKS) for number in range(3)}

    answers = probes.run.call_each(pass_or_die, gate)
    gate.wait_told()
    assert [answers[rank].get(PATIENCE) for rank in (0, 2, 3)] == [0, 2, 3]
    casting.kill(procs.slice(gpus=1), signal.SIGKILL)
    error = answers[1].exception(PATIENCE)
    assert isinstance(error, ProcessDied)
    assert error.report.node == procs.nodes[1].node

    # The caller restarts a rank before its agent has, so the agent keeps the first casts for it.
    assert procs.heal().get(PATIENCE) == [1]
    assert list(probes.run.call(my_rank).get(PATIENCE).values()) == list(range(RANKS))
    casting.kill(procs, signal.SIGKILL)
    assert procs.heal().get(PATIENCE) == list(range(RANKS))
    assert list(probes.run.call(my_rank).get(PATIENCE).values()) == list(range(RANKS))

    held = probes.run.call(type(gate).pass_through, gate)
    assert held.cancel()
    gate.open(RANKS + 1)  # in memory the thread of the rank that was killed there still waits
    assert one.run.call_one(os.getpid).get(PATIENCE) > 0
