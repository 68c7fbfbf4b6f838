"""`send`: answers that go to a port of the caller's choosing, of this process or another, or to nobody."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from meshbook import Actor, ActorError, Channel, Port, SupervisionError, current_rank, endpoint, send
from meshbook.runtime.errors import PickleError
from tests.support import PATIENCE


class Member(Actor):
    @endpoint
    def rank(self, offset: int = 0) -> int:
        return current_rank().rank + offset

    @endpoint
    def fail_on(self, *ranks: int) -> int:
        if current_rank().rank in ranks:
            raise ValueError(f"rank {current_rank().rank}")
        return current_rank().rank

    @endpoint
    def hold(self, gate: Any) -> str:
        gate.pass_through()
        return "held"

    @endpoint
    def takes(self, value: Any) -> None: ...


class Answering(Actor):
    """Answers by ports."""

    def __init__(self) -> None:
        self._ports: list[Port[Any]] = []

    @endpoint(explicit_response_port=True)
    def several(self, port: Port[int], count: int) -> None:
        for number in range(count):
            port.send(number)

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[int]) -> None:
        self._ports.append(port)

    @endpoint(explicit_response_port=True)
    def fails(self, port: Port[int]) -> None:
        raise ValueError("unanswered")

    @endpoint(explicit_response_port=True)
    def ask_instead(self, port: Port[int], members: Any) -> None:
        send(members.rank, (100,), {}, port)

    @endpoint
    def answer(self, value: int) -> None:
        for port in self._ports:
            port.send(value)


class Opener(Actor):
    """Receives by itself what others answer."""

    @endpoint
    def open(self) -> Port[Any]:
        port, self._receiver = Channel[Any].open_ranked()
        return port

    @endpoint
    def take(self, count: int = 1) -> list[Any]:
        return [self._receiver.recv().get(PATIENCE) for _ in range(count)]


@pytest.fixture
def members(session: Any) -> Any:
    return session.spawn(Member, on=session.workers(3))


@pytest.fixture
def opener(session: Any) -> Any:
    """Of a process that no member has met."""
    return session.spawn(Opener)


def received(receiver: Any, count: int) -> list[Any]:
    return sorted(receiver.recv().get(PATIENCE) for _ in range(count))


# -- where the answers go --------------------------------------------------------------


def test_each_rank_answers_to_the_port(members: Any) -> None:
    port, receiver = Channel[int].open()
    assert send(members.rank, (10,), {}, port) is None
    assert received(receiver, 3) == [10, 11, 12]


def test_a_ranked_port_has_the_rank_of_each_answer(members: Any) -> None:
    port, receiver = Channel[int].open_ranked()
    send(members.rank, [], {"offset": 10}, port)
    assert received(receiver, 3) == [(0, 10), (1, 11), (2, 12)]


def test_ranks_are_those_of_the_called_mesh(members: Any, opener: Any) -> None:
    port, receiver = Channel[int].open_ranked()
    elsewhere = opener.open.call_one().get(PATIENCE)
    for each in (port, elsewhere):
        send(members.slice(gpus=slice(1, 3)).rank, (), {}, each)
    expected = [(0, 0), (1, 1)]
    assert received(receiver, 2) == expected
    assert sorted(opener.take.call_one(2).get(PATIENCE)) == expected


def test_a_port_of_another_process(members: Any, opener: Any) -> None:
    send(members.rank, (5,), {}, opener.open.call_one().get(PATIENCE))
    assert sorted(opener.take.call_one(3).get(PATIENCE)) == [(0, 5), (1, 6), (2, 7)]


def test_one_rank_drawn_at_random(members: Any) -> None:
    port, receiver = Channel[int].open_ranked()
    for _ in range(100):
        send(members.rank, (), {}, port, selection="choose")
    drawn = received(receiver, 100)
    assert set(drawn) == {(0, 0), (1, 1), (2, 2)}
    send(members.rank, (50,), {}, port, "all")
    assert received(receiver, 3) == [(0, 50), (1, 51), (2, 52)]  # nothing else has come


def test_a_port_for_one_message_takes_the_first_answer(members: Any) -> None:
    port, receiver = Channel[int].open_ranked(once=True)
    send(members.rank, (), {}, port)
    rank, value = receiver.recv().get(PATIENCE)
    assert rank == value


def test_a_port_without_its_receiver_drops_the_answers(members: Any) -> None:
    port, receiver = Channel[int].open()
    del receiver
    gc.collect()
    send(members.rank, (), {}, port)
    assert list(members.rank.call().get(PATIENCE).values()) == [0, 1, 2]


@pytest.mark.parametrize("selection", ["all", "choose"])
def test_without_a_port_answers_are_dropped(members: Any, selection: Any) -> None:
    one = members.slice(gpus=1)
    send(one.rank, (), {}, selection=selection)
    assert one.rank.call_one().get(PATIENCE) == 0
    send(one.fail_on, (0,), {}, None, selection)
    with pytest.raises(SupervisionError, match="raised in a broadcast"):
        one.rank.call_one().get(PATIENCE)


# -- errors ------------------------------------------------------------------------------


def test_an_error_comes_as_an_exception_and_the_others_as_they_are(members: Any) -> None:
    port, receiver = Channel[int].open_ranked()
    send(members.fail_on, (1,), {}, port)
    futures = [receiver.recv() for _ in range(3)]
    errors = [future.exception(PATIENCE) for future in futures]
    (error,) = [error for error in errors if error is not None]
    assert isinstance(error, ActorError)
    assert isinstance(error.exception, ValueError)
    assert sorted(future.get() for future in futures if future.exception() is None) == [(0, 0), (2, 2)]


def test_an_error_reaches_a_port_of_another_process(members: Any, opener: Any) -> None:
    send(members.slice(gpus=2).fail_on, (0,), {}, opener.open.call_one().get(PATIENCE))
    with pytest.raises(ActorError, match="ValueError: rank 0"):
        opener.take.call_one().get(PATIENCE)


def test_arguments_are_checked_at_the_callers_line(members: Any) -> None:
    with pytest.raises(TypeError, match="rank"):
        send(members.rank, (1, 2), {})
    with pytest.raises(TypeError, match="wrong"):
        send(members.rank, (), {"wrong": 1})


def test_other_mistakes(members: Any) -> None:
    with pytest.raises(ValueError, match="'some'"):
        send(members.rank, (), {}, selection="some")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes an endpoint"):
        send(members, (), {})


def test_an_argument_that_cannot_travel_leaves_the_port_as_it_was(members: Any) -> None:
    port, receiver = Channel[int].open_ranked(once=True)
    with pytest.raises(PickleError):
        send(members.takes, (threading.Lock(),), {}, port)
    send(members.slice(gpus=0).rank, (4,), {}, port)
    assert receiver.recv().get(PATIENCE) == (0, 4)


def test_a_port_reports_a_death_and_remains_usable(session: Any, gate: Any) -> None:
    nodes = session.workers(2)
    members = session.spawn(Member, on=nodes)
    members.initialized.get(PATIENCE)
    port, receiver = Channel[Any].open_ranked()
    send(members.slice(gpus=0).hold, (gate,), {}, port)
    gate.wait_entered()
    session.declare_down(nodes[0])
    with pytest.raises(SupervisionError, match=r"Endpoint call Member\.hold\(\) failed"):
        receiver.recv().get(PATIENCE)
    send(members.slice(gpus=1).rank, (7,), {}, port)
    assert receiver.recv().get(PATIENCE) == (0, 7)
    gate.open()


@pytest.mark.parametrize("here", [True, False])
def test_a_port_reports_a_rank_that_is_dead_already(session: Any, opener: Any, here: bool) -> None:
    node = session.node("victim")
    member = session.spawn(Member, on=[node])
    member.initialized.get(PATIENCE)
    session.declare_down(node)
    if here:
        port, receiver = Channel[int].open()
        send(member.rank, (), {}, port)
        with pytest.raises(SupervisionError, match="sig=9"):
            receiver.recv().get(PATIENCE)
    else:
        send(member.rank, (), {}, opener.open.call_one().get(PATIENCE))
        with pytest.raises(ActorError, match=r"(?s)SupervisionError.*sig=9"):
            opener.take.call_one().get(PATIENCE)


def test_a_port_of_another_process_reports_an_actor_that_never_existed(session: Any, opener: Any) -> None:
    nobody = session.refer(Member, "nobody", session.node("empty"))
    send(nobody.rank, (), {}, opener.open.call_one().get(PATIENCE))
    with pytest.raises(ActorError, match="it was stopped, or never spawned"):
        opener.take.call_one().get(PATIENCE)


# -- endpoints that answer by a port -------------------------------------------------------


def test_an_endpoint_may_answer_several_times(session: Any, opener: Any) -> None:
    answering = session.spawn(Answering)
    port, receiver = Channel[int].open_ranked()
    for each in (port, opener.open.call_one().get(PATIENCE)):
        send(answering.several, (3,), {}, each)
    expected = [(0, 0), (0, 1), (0, 2)]
    assert received(receiver, 3) == expected
    assert opener.take.call_one(3).get(PATIENCE) == expected


def test_a_late_answer_has_the_rank_of_its_call(session: Any) -> None:
    answering = session.spawn(Answering, on=session.workers(3))
    port, receiver = Channel[int].open_ranked()
    send(answering.later, (), {}, port)
    for rank in range(3):
        answering.slice(gpus=rank).answer.call_one(9).get(PATIENCE)  # there it is rank 0 of one
    assert received(receiver, 3) == [(0, 9), (1, 9), (2, 9)]


def test_an_endpoint_that_raises_reports_to_the_port(session: Any) -> None:
    answering = session.spawn(Answering)
    port, receiver = Channel[int].open()
    send(answering.fails, (), {}, port)
    with pytest.raises(SupervisionError, match="ValueError: unanswered"):
        receiver.recv().get(PATIENCE)


def test_all_that_is_owed_to_a_port_is_answered_at_the_end(session: Any) -> None:
    answering = session.spawn(Answering)
    port, receiver = Channel[int].open()
    for _ in range(3):
        send(answering.later, (), {}, port)
    answering.stop().get(PATIENCE)
    for _ in range(3):
        with pytest.raises(SupervisionError, match="stopped"):
            receiver.recv().get(PATIENCE)


def test_another_actor_may_be_asked_to_answer_instead(session: Any, members: Any) -> None:
    answering = session.spawn(Answering)
    assert answering.ask_instead.call_one(members.slice(gpus=2)).get(PATIENCE) == 100
    call = answering.ask_instead.call_one(members.slice(gpus=slice(0, 1)))
    answering.stop().get(PATIENCE)  # it owes nothing any more
    assert call.get(PATIENCE) == 100


def test_a_broadcast_that_uses_a_port_gets_no_answer(session: Any, members: Any) -> None:
    answering = session.spawn(Answering)
    answering.ask_instead.broadcast(members)
    answering.answer.call_one(0).get(PATIENCE)
    assert list(members.rank.call().get(PATIENCE).values()) == [0, 1, 2]
