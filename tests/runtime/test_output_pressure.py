"""Output of ranks that is not received waits where it was printed, as messages to any actor do."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.flow_control import LONG
from meshbook.runtime.telemetry.output import TELEMETRY
from meshbook.runtime.transport.io_loop import Timer
from tests.runtime.conftest import Gate
from tests.support import PATIENCE

MOST = 8


class Log(Actor):
    """Where output comes in; the first of it is held, and nothing is received meanwhile."""

    def __init__(self, gate: Gate) -> None:
        self.came: list[int] = []
        self.all_came = threading.Event()
        self._gate = gate

    @endpoint
    def output(self, number: int) -> None:
        if not self.came:
            self._gate.pass_through()
        self.came.append(number)
        if number < 0:
            self.all_came.set()


def test_output_that_is_not_taken_in_waits_in_its_process(
    make_session: Callable[..., Any], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session(queue_messages=MOST)
    log = Log(gate)
    session.controller.actors.host_inline(TELEMETRY, log)
    (worker,) = session.workers(1)
    waits: queue.SimpleQueue[float] = queue.SimpleQueue()

    def note(seconds: float, callback: Callable[[], object]) -> Timer:
        waits.put(seconds)
        return Timer(callback)

    monkeypatch.setattr(worker.flow, "_call_later", note)
    target = [Target(session.controller.address, TELEMETRY)]

    def write() -> None:
        for number in [*range(5 * MOST), -1]:
            worker.calls.send(target, "output", ((number,), {}), SCALAR, None)

    writing = threading.Thread(target=write)
    writing.start()
    gate.wait_entered()
    assert waits.get(timeout=PATIENCE) == LONG
    gate.open()
    writing.join(PATIENCE)
    assert log.all_came.wait(PATIENCE)
    assert log.came == [*range(5 * MOST), -1]
