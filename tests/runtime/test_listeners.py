"""Listeners: one that raises keeps the event from no other."""

from __future__ import annotations

from typing import Any

import pytest

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import ProcessDied
from meshbook.runtime.threads import notify_all
from tests.support import PATIENCE


def fail(*news: Any) -> None:
    raise RuntimeError("not here")


def test_each_gets_the_event(caplog: Any) -> None:
    seen: list[str] = []
    notify_all([seen.append, fail, seen.append], "event")
    assert seen == ["event", "event"]
    assert caplog.messages == ["a listener raised for event"]


def test_a_listener_may_remove_itself() -> None:
    seen: list[str] = []

    def once(event: str) -> None:
        listeners.remove(once)

    listeners = [once, seen.append]
    notify_all(listeners, "event")
    assert seen == ["event"]


@pytest.mark.parametrize("settle", [lambda it: it.resolve(lambda: 1), lambda it: it.fail(ValueError("no"))])
def test_each_callback_of_a_future_is_called(settle: Any, caplog: Any) -> None:
    seen: list[int] = []
    future: Future[int] = Future.pending()
    for callback in (lambda: seen.append(1), fail, lambda: seen.append(2)):
        future.when_done(callback)
    settle(future)
    assert seen == [1, 2]
    assert caplog.messages == ["a callback of a future raised"]


class Unwilling:
    """Calls, and cannot take the reply."""

    def set_pending_call(self, pending_call: Any) -> None: ...

    answer = refuse = fail


def test_the_death_of_a_process_reaches_all(session: Any, gate: Any, caplog: Any) -> None:
    """Open calls, listeners, and the actors that it had spawned."""
    [node] = session.workers(1)
    probe = session.spawn_probe(node)
    seen_reports: list[Any] = []
    session.controller.peers.when_down += [fail, seen_reports.append]
    session.controller.calls.send(probe._picked, "run", ((gate.pass_through,), {}), probe.extent, Unwilling())
    held = probe.run.call_one(len, "")
    gate.wait_entered()
    report = session.declare_down(node)
    with pytest.raises(ProcessDied):
        held.get(PATIENCE)
    assert seen_reports == [report]
    assert session.controller.peers.report_of(node.address.node) == report
    gate.open()


def test_a_stop_is_confirmed_though_a_listener_failed(session: Any, any_probe: Any, caplog: Any) -> None:
    [node] = session.workers(1)
    seen_reports: list[Any] = []
    node.actors.when_ended += [fail, seen_reports.append]
    session.spawn(any_probe, on=[node]).stop().get(PATIENCE)
    assert len(seen_reports) == 1
