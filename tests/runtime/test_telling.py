"""Several who want to hear of something: one that raises keeps it from nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import ProcessDied
from meshbook.runtime.node.telling import tell_all
from tests.runtime.conftest import PATIENCE


def fail(*news: Any) -> None:
    raise RuntimeError("not here")


def test_each_is_told(caplog: Any) -> None:
    heard: list[str] = []
    tell_all([heard.append, fail, heard.append], "news")
    assert heard == ["news", "news"]
    assert caplog.messages == ["somebody could not be told of news"]


def test_a_listener_may_take_itself_out() -> None:
    heard: list[str] = []

    def once(news: str) -> None:
        listeners.remove(once)

    listeners = [once, heard.append]
    tell_all(listeners, "news")
    assert heard == ["news"]


@pytest.mark.parametrize("settle", [lambda it: it.resolve(lambda: 1), lambda it: it.fail(ValueError("no"))])
def test_whoever_waits_for_an_answer_is_told(settle: Any, caplog: Any) -> None:
    heard: list[int] = []
    future: Future[int] = Future.pending()
    for callback in (lambda: heard.append(1), fail, lambda: heard.append(2)):
        future.when_done(callback)
    settle(future)
    assert heard == [1, 2]
    assert caplog.messages == ["somebody could not be told that an answer is there"]


class Unwilling:
    """Asks, and cannot take what it gets."""

    def asked(self, inquiry: Any) -> None: ...

    answer = refuse = fail


def test_the_death_of_a_process_is_told_to_all(session: Any, gate: Any, caplog: Any) -> None:
    """To who asked it, to listeners, and to those whose actors it had spawned."""
    [node] = session.workers(1)
    probe = session.spawn_probe(node)
    told: list[Any] = []
    session.controller.when_down += [fail, told.append]
    session.controller.call(probe._picked, "run", ((gate.pass_through,), {}), probe.extent, Unwilling())
    held = probe.run.call_one(len, "")
    gate.wait_entered()
    report = session.declare_down(node)
    with pytest.raises(ProcessDied):
        held.get(PATIENCE)
    assert told == [report]
    assert session.controller.report_of(node.address.node) == report
    gate.open()


def test_a_stop_is_confirmed_though_somebody_could_not_be_told(session: Any, any_probe: Any, caplog: Any) -> None:
    [node] = session.workers(1)
    told: list[Any] = []
    node.when_over += [fail, told.append]
    session.spawn(any_probe, on=[node]).stop().get(PATIENCE)
    assert len(told) == 1
