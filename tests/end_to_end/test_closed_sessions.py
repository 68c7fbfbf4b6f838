"""Handles that outlive their session: any use raises an error at once, also when another session has begun."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from meshbook import Actor, Channel, SupervisionError, close_session, endpoint, this_host, this_proc
from meshbook.runtime.hosts.session import running_session
from tests.support import PATIENCE, StatementInterrupts

pytestmark = [pytest.mark.process, pytest.mark.without_torch]


class Echo(Actor):
    @endpoint
    def echo(self, value: int) -> int:
        return value


class Former:
    """What is left of a session that was closed."""

    def __init__(self) -> None:
        self.host = this_host()
        self.procs = self.host.spawn_procs(per_host={"gpus": 2})
        self.own_proc = this_proc()
        self.echo = self.procs.spawn("echo", Echo)
        self.own_echo = self.own_proc.spawn("own", Echo)
        self.port, self.receiver = Channel[int].open()
        assert self.own_echo.echo.call_one(1).get(PATIENCE) == 1
        assert list(self.echo.echo.call(2).get(PATIENCE).values()) == [2, 2]
        close_session()


@pytest.fixture(scope="module")
def former() -> Iterator[Former]:
    former = Former()
    this_host()  # another session begins
    yield former
    close_session()


def lost(future: Any) -> str:
    with pytest.raises(SupervisionError) as caught:
        future.get(PATIENCE)
    return str(caught.value)


def test_calls_say_that_the_run_has_ended(former: Former) -> None:
    """Of actors elsewhere, and of those that lived in this very process, where another controller is now."""
    for mesh, name in ((former.echo, "echo"), (former.own_echo, "own")):
        text = lost(mesh.echo.call(1))
        assert text.startswith(
            f"Endpoint call {name}.echo() failed, actor mesh is stopped due to proc mesh shutdown: its run has ended"
        )
        assert "called at" in text
    assert "its run has ended" in lost(former.procs.initialized)
    assert "its session has ended" in lost(former.host.initialized)


def test_nothing_is_spawned_there_any_more(former: Former) -> None:
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        former.host.spawn_procs()
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        former.procs.spawn("echo", Echo)
    assert "its run has ended" in lost(former.own_proc.spawn("own", Echo).initialized)


def test_stopping_is_no_error(former: Former) -> None:
    for ended in (former.echo.stop(), former.own_echo.stop(), former.procs.stop(), former.host.stop()):
        assert ended.get(PATIENCE) is None
    assert former.host.shutdown().get(PATIENCE) is None


def test_ports_of_a_former_session_reach_no_receiver(former: Former) -> None:
    """Nor a receiver of the new session with a port of the same number."""
    ports = [Channel[int].open() for _ in range(former.port._number + 1)]
    former.port.send(3)
    assert "shut down" in lost(former.receiver.recv())
    for _, receiver in ports:
        assert not receiver.recv().done()


def test_a_session_whose_start_is_interrupted_is_there_or_not() -> None:
    close_session()
    interrupts, others = StatementInterrupts(stride=150), psutil.Process().children()
    while interrupts.are_left:
        interrupts.run(this_host)
        if running_session() is not None:
            assert this_proc().spawn("own", Echo).echo.call_one(1).get(PATIENCE) == 1
        close_session()
        assert psutil.Process().children() == others, interrupts.where
