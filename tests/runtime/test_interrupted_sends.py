"""Interrupts at every statement of a send and of a credit: a Ctrl-C, and a signal handler that calls and waits.

Each test repeats one operation. A trace function interrupts it at its first line in the runtime, then at its second
line, and so on, until an operation has no more lines.
"""

from __future__ import annotations

import contextvars
import itertools
import linecache
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.node import flow_control
from meshbook.runtime.wire.messages import Credit
from tests.support import PATIENCE, Probe

LARGE = b"x" * 100_000


class Line:
    """Calls `interrupt` at the line with this number, of those that the calling thread executes in the runtime."""

    def __init__(self, number: int, interrupt: Callable[[], object]) -> None:
        self._left = number
        self._interrupt = interrupt

    @property
    def is_passed(self) -> bool:
        return self._left < 0

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if "/meshbook/runtime/" not in frame.f_code.co_filename:
            return None
        # A trace function may interrupt between a block and the release of its lock; a signal or a finalizer may not.
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith(
            "with "
        ):
            self._left -= 1
            if self._left == -1:
                sys.settrace(None)
                self._interrupt()
        return self.trace

    def __enter__(self) -> Line:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


def ctrl_c() -> None:
    raise KeyboardInterrupt


def lines_of(operation: Callable[[int], object], interrupt: Callable[[], object]) -> Iterator[tuple[int, bool]]:
    """Run the operation again and again, and interrupt it one line later each time, until it has no more lines.

    Yields the number of each run, and whether it ended without an exception.
    """
    for number in itertools.count():
        ends = False
        line = Line(number, interrupt)
        try:
            with line:
                operation(number)
                ends = True
        except KeyboardInterrupt:
            pass
        if not line.is_passed:
            return
        yield number, ends


WAYS: dict[str, Callable[[Any, int], object]] = {
    "call": lambda probe, number: probe.note.call_one(number),
    "broadcast": lambda probe, number: probe.note.broadcast(number),
    "large": lambda probe, number: probe.keep.call_one(number, LARGE),
}


class Sink(Probe):
    @endpoint
    def keep(self, number: int, data: bytes) -> None:
        self.notes.append(number)


@pytest.mark.parametrize("way", WAYS)
def test_a_ctrl_c_in_a_send_leaves_nothing_behind(make_session: Any, way: str) -> None:
    """Unless the message was sent, its room is free again and no call waits for its reply."""
    session = make_session(shared_bytes=50_000)
    sink = session.spawn_counted_as("sink", Sink)
    sink.keep.call_one(-1, LARGE).get(PATIENCE)  # the next large message goes through shared memory
    send, node, (target,) = WAYS[way], session.controller, sink._picked
    queue, sent = (target.address.node, target.actor), []

    def count() -> int:
        counted = node.flow._outstanding._sent.get(queue)
        return counted.messages - counted.reserved if counted is not None else 0

    interrupted = 0
    for number, ends in lines_of(lambda number: send(sink, number), ctrl_c):
        interrupted += not ends
        noted = sink.noted.call_one().get(PATIENCE)
        assert len(node.table) == 0
        if number in noted:
            sent.append(number)
        elif ends:
            pytest.fail(f"message {number} was lost")
        # The calls of `noted` count as well.
        assert count() <= len(noted) + number + 1, f"room leaked at line {number}"
        assert not [segment for segment in node.bulk._pool._busy if not segment.is_free()], f"at line {number}"
    assert interrupted > 50


@pytest.mark.slow
@pytest.mark.parametrize("way", ["call", "broadcast", "large"])
def test_a_signal_handler_may_wait_at_any_line_of_a_send(make_session: Any, way: str) -> None:
    """Also if the interrupted send has the last room in the queue."""
    session = make_session(queue_messages=1, shared_bytes=50_000)
    sink = session.spawn_counted_as("sink", Sink)
    sink.keep.call_one(-1, LARGE).get(PATIENCE)
    send, done = WAYS[way], 0

    def handle() -> None:
        nonlocal done
        assert sink.run.call_one(abs, -1).get(PATIENCE) == 1
        done += 1

    for _, ends in lines_of(lambda number: send(sink, number), handle):
        assert ends
    assert done > 50
    assert sorted(sink.noted.call_one().get(PATIENCE)) == list(range(-1, done + 1))


@pytest.mark.slow
def test_another_thread_may_need_the_room_of_the_interrupted_send(make_session: Any) -> None:
    """The handler waits for an actor that sends to the same queue, from the same process."""
    session = make_session(queue_messages=1)
    sink = session.spawn_counted_as("sink", Sink)
    source = session.spawn_counted_as("source", Probe, session.controller)
    source.initialized.get(PATIENCE)

    def send_on() -> int:
        return sink.run.call_one(abs, -1).get()

    def handle() -> None:
        assert source.run.call_one(send_on).get(PATIENCE) == 1

    for _, ends in lines_of(lambda number: sink.note.broadcast(number), handle):
        assert ends
    assert sink.noted.call_one().get(PATIENCE)


@pytest.mark.parametrize("connect", ["memory"], indirect=True)
def test_a_thread_that_is_woken_again_and_again_does_not_wait_for_an_interrupted_send(session: Any) -> None:
    node, sink = session.controller, session.spawn_counted()
    queue = sink._picked[0].address.node, sink._picked[0].actor
    for _ in range(node.flow.window.messages):
        assert node.flow.spend(queue, 1)
    sending = threading.Thread(target=contextvars.copy_context().run, args=(sink.note.broadcast, 1))
    sending.start()
    end = time.monotonic() + PATIENCE
    while sending.is_alive():
        node.loop.run(lambda: node.flow.on_credit(Credit(*queue, 0, 0), ()))
        assert time.monotonic() < end
    assert sink.noted.call_one().get(PATIENCE) == [1]


@pytest.mark.parametrize("connect", ["memory"], indirect=True)
def test_a_finalizer_may_wait_at_any_line_of_a_credit(
    make_session: Any, gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for an actor that waits for that credit. The test takes the messages, as the thread of the sink does."""
    monkeypatch.setattr(flow_control, "ASK_SECONDS", 0.01)
    session = make_session(queue_messages=4)
    (worker,) = session.workers(1)
    sink = session.spawn_counted_as("sink", Sink, worker)
    held = sink.run.call_one(gate.pass_through)
    gate.wait_entered()
    source = session.spawn_counted_as("source", Probe, session.controller)
    source.initialized.get(PATIENCE)
    hosted = worker.actors.find(sink._picked[0].actor)
    assert hosted is not None
    done = 0

    def pour(count: int) -> None:
        for number in range(count):
            sink.note.broadcast(number)

    def handle() -> None:
        nonlocal done
        done += 1
        source.run.call_one(pour, 2).get(PATIENCE)  # the second waits for room

    pour(3)
    hosted.queue.get()
    for _ in lines_of(lambda number: hosted.queue.get(), handle):
        for _ in range(3):  # the rest of the first three, and two of the handler
            hosted.queue.get()
        hosted.queue.report(session.controller.address.node)
        pour(3)
        hosted.queue.get()
    assert done > 10
    gate.open()
    held.get(PATIENCE)
