"""Messages for actors that are not there: ended long ago, still to come, or never to come."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.errors import SupervisionError
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.node import actors
from meshbook.runtime.node.call_table import AllReplies, Target
from meshbook.runtime.node.node import Node
from tests.runtime.conftest import Gate, spawn_actors
from tests.support import PATIENCE, Probe


def spawn(spawner: Node, node: Node, *, key: str = "") -> Probe:
    """A probe whose key names its owner, and how many that had spawned before."""
    target = [Target(node.address, key or spawner.supervision.name_actor("probe"))]
    return cast("Probe", spawn_actors(spawner, target, Probe, name="probe"))


def test_an_ended_actor_is_never_mistaken_for_a_future_one(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others have ended since, a call to one of the last that its spawner sent is answered."""
    monkeypatch.setattr(actors, "REMEMBERED", 2)
    (worker,) = session.workers(1)
    probes: list[Any] = [spawn(session.controller, worker) for _ in range(6)]
    for probe in probes:
        probe.stop("enough").get(PATIENCE)
    for probe in probes:
        with pytest.raises(SupervisionError, match="enough"):
            probe.noted.call_one().get(PATIENCE)


def test_only_so_many_ends_are_remembered(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "REMEMBERED", 2)
    (worker,) = session.workers(1)
    old: Any = spawn(session.controller, worker)
    old.stop("enough").get(PATIENCE)
    for _ in range(100):  # numbers that are taken elsewhere
        session.controller.supervision.name_actor("other")
    for _ in range(3):
        newer: Any = spawn(session.controller, worker)
        newer.stop("enough").get(PATIENCE)
    with pytest.raises(SupervisionError, match="it was stopped, or never spawned"):
        old.noted.call_one().get(PATIENCE)


def test_what_a_process_sends_itself_while_its_actors_come_arrives(session: Any, gate: Gate) -> None:
    """From many threads: each calls actors that another one is about to spawn, in its own process."""
    node = session.controller
    keys = [node.supervision.name_actor("probe") for _ in range(40)]
    answers: list[Any] = []

    def call() -> None:
        gate.pass_through()
        for key in keys:
            mesh: Any = ActorMesh("probe", Probe, [Target(node.address, key)], SCALAR.region)
            reply_handler = AllReplies(SCALAR.region)
            node.calls.send(mesh._picked, "run", ((len, "abc"), {}), SCALAR, reply_handler)
            answers.append(reply_handler.future)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        gate.wait_entered()
    gate.open(len(threads))
    for key in keys:
        spawn(node, node, key=key)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(answers) == 160
    for answer in answers:
        assert list(answer.get(PATIENCE).values()) == [3]


class Lingering(Probe):
    """Tells when it is made, and takes its time to end."""

    def __init__(self, made: Gate, cleanup: Gate) -> None:
        super().__init__()
        self.cleanup = cleanup
        made.tell()

    def __cleanup__(self, error: BaseException | None) -> None:
        self.cleanup.pass_through()


@pytest.mark.parametrize("follows", [False, True])
def test_an_actor_that_is_cancelled_before_its_turn_is_never_made(make_session: Any, gate: Gate, follows: bool) -> None:
    """It was to replace one that is still at its cleanup, which stays the only one of that name until it is over."""
    session, made = make_session(stop_timeout=0.01), Gate()
    (worker,) = session.workers(1)
    target = [Target(worker.address, session.controller.supervision.name_actor("lingering"))]

    def spawn_lingering() -> Any:
        return spawn_actors(session.controller, target, Lingering, made, gate, name="lingering")

    first = spawn_lingering()
    ended = first.stop("enough")
    gate.wait_entered()
    replacement = spawn_lingering()
    replacement.stop("too late").get(PATIENCE)
    with pytest.raises(SupervisionError, match="too late; it had not started"):
        replacement.noted.call_one().get(PATIENCE)
    replacement = spawn_lingering() if follows else replacement
    gate.open(2)
    ended.get(PATIENCE)
    if follows:
        assert replacement.noted.call_one().get(PATIENCE) == []
    else:
        with pytest.raises(SupervisionError, match="too late; it had not started"):
            replacement.noted.call_one().get(PATIENCE)
    assert made.entered.qsize() == 1 + follows


def test_a_call_that_is_taken_back_between_its_queue_and_its_beginning_never_begins(
    session: Any, any_probe: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (worker,) = session.workers(1)
    probe: Any = session.spawn(any_probe, on=[worker])
    probe.initialized.get(PATIENCE)
    hosted = worker.actors.find(probe._picked[0].actor)
    taken_back: list[Any] = []

    def take_back(item: Any) -> Any:
        if item is not None and not taken_back and getattr(call := item[0], "endpoint", "") == "note":
            taken_back.append(call.endpoint)
            hosted.cancel(call.sender, call.call)
        return item

    count_out = hosted.queue.count_out  # each message passes it when it is out of the queue
    monkeypatch.setattr(hosted.queue, "count_out", lambda item: take_back(count_out(item)))
    probe.noted.call_one().get(PATIENCE)  # the thread may have been inside the queue's `get` when it was replaced
    unwanted = probe.note.call_one("unwanted")
    assert probe.noted.call_one().get(PATIENCE) == []
    assert taken_back == ["note"]
    assert not unwanted.done()


class Farewell(Actor):
    """Does something when its object goes."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.do = do

    def __del__(self) -> None:
        self.do()


def test_an_actor_may_be_spawned_while_earlier_ones_are_released(session: Any) -> None:
    """Their finalizers may take any time, and the spawning node does not know yet that the process leaves."""
    (worker,) = session.workers(1)
    late: list[Any] = []

    def spawn_late() -> None:
        late.append(worker.actors.host("late", Probe))

    for number in range(2):
        made = worker.actors.host(f"early-{number}", lambda: Farewell(spawn_late))
        contextvars.copy_context().run(made.construct, lambda error: None)
    worker.actors.release_all()
    assert len(late) == 2


@pytest.mark.parametrize(("is_leaving", "logged"), [(False, 1), (True, 0)])
def test_an_actor_of_the_runtime_fails_in_silence_while_its_process_leaves(
    session: Any, caplog: pytest.LogCaptureFixture, is_leaving: bool, logged: int
) -> None:
    """A late message may reach one that has been released; that cannot be avoided."""
    node = session.workers(1)[0]
    probe = node.actors.host("probe", Probe)
    probe.start(lambda error: None)
    node.is_leaving = is_leaving
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    node.actors.when_ended.append(ended.put)
    probe.abort_itself("for the test")
    assert ended.get(timeout=PATIENCE) is probe.instance
    assert len(caplog.messages) == logged
