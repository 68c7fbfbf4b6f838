"""When idle hosts are returned, and what counts as use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshbook.magics.cells.admission import RankQueues
from meshbook.magics.meshes.idleness import LONGEST_PAUSE, IdleTimer, was_busy
from meshbook.runtime.actor.future import Future
from meshbook.runtime.wire.messages import Address


class Times:
    """A clock that the test sets, and the moments at which something ran."""

    def __init__(self, limit: float) -> None:
        self.now, self.limit = 1000.0, limit
        self.ran: list[float] = []
        self.timer = IdleTimer(lambda: self.limit, lambda seconds: self._ran_since(self.now - seconds), self.clock)

    def clock(self) -> float:
        return self.now

    def _ran_since(self, begin: float) -> bool:
        return any(begin < at <= self.now for at in self.ran)

    def wait(self) -> float:
        """Go on to the end of the time; return when that is."""
        while (pause := self.timer.look()) is not None:
            assert 1.0 <= pause <= LONGEST_PAUSE
            self.now += pause
        return self.now


def test_the_time_counts_from_the_last_use() -> None:
    times = Times(1800.0)
    times.ran = [1100.5, 2000.0]
    ended = times.wait()
    assert 2000.0 + 1800.0 <= ended <= 2000.0 + 1800.0 + LONGEST_PAUSE


def test_hosts_that_are_never_used_and_a_limit_that_changes() -> None:
    times = Times(10.0)
    assert times.wait() == 1010.0
    times = Times(10.0)
    assert times.timer.look() == 2.5
    times.limit = 3600.0
    times.now += 20.0
    assert times.timer.look() == LONGEST_PAUSE
    times.limit = 5.0
    assert times.timer.look() is None


def mesh(**changed: Any) -> Any:
    """A mesh of two ranks that do nothing, but for what is changed."""
    facts = {"activity": [0, 0], "received": 0.0, "cpu": 0.01, "clients": 0, "awaits": False, "queues": RankQueues()}
    facts |= changed
    nodes = [Address(name, name) for name in ("m.0", "m.1")]
    past = np.full((2, 2, 300), np.nan, np.float32)
    past[:, :, -60:] = [[[0.0], [0.01]], [[facts["received"]], [facts["cpu"]]]]
    history = SimpleNamespace(
        vitals=lambda nodes: SimpleNamespace(activity=np.uint8(facts["activity"])),
        series=lambda nodes, metrics: past,
    )
    session = SimpleNamespace(
        history=history,
        node=SimpleNamespace(table=SimpleNamespace(awaits=lambda nodes: facts["awaits"])),
        count_clients=lambda: Future.completed(facts["clients"]),
    )
    return SimpleNamespace(procs=SimpleNamespace(nodes=nodes), queues=facts["queues"], session=session)


def queues_with(*, is_over: bool) -> RankQueues:
    queues = RankQueues()
    queues.join(["m.1"], "cell 1", "cell 1")
    if is_over:
        queues.leave("m.1", "cell 1")
    return queues


@pytest.mark.parametrize(
    ("changed", "is_busy"),
    [
        ({}, False),
        ({"queues": queues_with(is_over=False)}, True),
        ({"queues": queues_with(is_over=True)}, True),
        ({"awaits": True}, True),
        ({"activity": [0, 2]}, True),
        ({"received": 0.5}, True),
        ({"cpu": 0.9}, True),
        ({"clients": 1}, True),
        ({"received": float("nan"), "cpu": float("nan")}, False),
    ],
    ids=["nothing", "cell", "past cell", "call", "collective", "message", "thread", "client", "unknown"],
)
def test_what_counts_as_use(changed: dict[str, Any], is_busy: bool) -> None:
    assert was_busy(mesh(**changed), 3600.0 if "queues" in changed else 30.0) is is_busy
