"""Ports: values that actors send without being asked one by one, and endpoints that answer when they like."""

from __future__ import annotations

import gc
import pickle
import re
import threading
from typing import Any

import pytest

from meshbook import (
    Actor,
    ActorError,
    Channel,
    Port,
    SupervisionError,
    concurrent_endpoint,
    current_rank,
    endpoint,
)
from meshbook.runtime.errors import PickleError
from tests.support import PATIENCE


class Sender(Actor):
    @endpoint
    def send(self, port: Port[Any], *values: Any) -> None:
        for value in values:
            port.send(value)

    @endpoint
    def send_rank(self, port: Port[int]) -> None:
        port.send(current_rank().rank * 10)

    @endpoint
    def refuse(self, port: Port[Any], error: Exception) -> None:
        port.exception(error)

    @endpoint
    def refuse_with(self, port: Port[Any], made: str) -> None:
        port.exception(eval(made))

    @endpoint
    def send_lock(self, port: Port[Any]) -> None:
        port.send(threading.Lock())

    @endpoint
    def give_back(self, port: Port[Any]) -> Port[Any]:
        return port


class Opener(Actor):
    """Receives by itself what others send."""

    @endpoint
    def open(self) -> Port[Any]:
        port, self._receiver = Channel[Any].open()
        return port

    @endpoint
    def take(self) -> Any:
        return self._receiver.recv().get(PATIENCE)


class Answering(Actor):
    """Keeps the ports of its callers until it is told to answer."""

    def __init__(self) -> None:
        self._ports: list[Port[Any]] = []

    @endpoint(explicit_response_port=True)
    def now(self, port: Port[int], value: int, *, times: int = 1) -> str:
        for _ in range(times):
            port.send(value * 2)
        return "dropped"

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[int], value: int) -> None:
        self._ports.append(port)

    @endpoint(explicit_response_port=True)
    def by(self, port: Port[str], other: Any) -> None:
        other.send.broadcast(port, "of another")

    @endpoint(explicit_response_port=True)
    def fails(self, port: Port[int]) -> None:
        raise ValueError("unanswered")

    @endpoint(explicit_response_port=True)
    def refuses(self, port: Port[int]) -> None:
        port.exception(KeyError("refused"))

    @endpoint()
    def answer(self, *order: int) -> None:
        for index in order:
            self._ports[index].send(index)


class AsyncAnswering(Actor):
    @concurrent_endpoint(explicit_response_port=True)
    async def now(self, port: Port[int], value: int) -> None:
        port.send(value * 2)


@pytest.fixture
def senders(session: Any) -> Any:
    made = session.spawn(Sender, on=session.workers(3))
    made.initialized.get(PATIENCE)  # actors of other processes send to it, and its key does not name its spawner
    return made


@pytest.fixture
def answering(session: Any) -> Any:
    return session.spawn(Answering)


# -- channels ------------------------------------------------------------------------


def test_values_come_in_the_order_of_their_sender(senders: Any) -> None:
    port, receiver = Channel[Any].open()
    early = receiver.recv()
    senders.slice(gpus=0).send.broadcast(port, 1, "two", [3], None)
    assert [early.get(PATIENCE), *(receiver.recv().get(PATIENCE) for _ in range(3))] == [1, "two", [3], None]


def test_a_ranked_receiver_has_the_rank_of_each_sender(senders: Any) -> None:
    port, receiver = Channel[int].open()
    pairs = receiver.ranked()
    del receiver  # the pairs keep it
    gc.collect()
    senders.send_rank.broadcast(port)
    assert sorted(pairs.recv().get(PATIENCE) for _ in range(3)) == [(0, 0), (1, 10), (2, 20)]
    ranked_port, ranked = Channel[int].open_ranked()
    senders.slice(gpus=slice(1, 2)).send_rank.broadcast(ranked_port)
    assert ranked.recv().get(PATIENCE) == (0, 0)


def test_several_may_wait(senders: Any) -> None:
    port, receiver = Channel[int].open()
    waiting = [receiver.recv() for _ in range(3)]
    senders.slice(gpus=0).send.broadcast(port, 1, 2, 3)
    assert [future.get(PATIENCE) for future in waiting] == [1, 2, 3]


def test_a_waiting_caller_may_drop_the_receiver(senders: Any) -> None:
    port, receiver = Channel[int].open()
    future = receiver.recv()
    del receiver
    gc.collect()
    senders.slice(gpus=0).send.broadcast(port, 1)
    assert future.get(PATIENCE) == 1


def test_without_its_receiver_a_port_takes_nothing(session: Any, senders: Any) -> None:
    port, receiver = Channel[int].open()
    open_ports = len(session.controller.table._standing)
    del receiver
    gc.collect()
    assert len(session.controller.table._standing) == open_ports - 1
    assert senders.slice(gpus=0).send.call_one(port, 1).get(PATIENCE) is None


def test_a_port_for_one_message(senders: Any) -> None:
    port, receiver = Channel[int].open(once=True)
    with pytest.raises(ActorError, match="RuntimeError: this port was opened for one message"):
        senders.slice(gpus=0).send.call_one(port, 1, 2).get(PATIENCE)
    senders.slice(gpus=1).send.call_one(port, 3).get(PATIENCE)  # that one cannot know, and it is dropped
    assert receiver.recv().get(PATIENCE) == 1
    with pytest.raises(RuntimeError, match="opened for one message"):
        receiver.recv()


def test_an_exception_is_raised_where_it_is_received(senders: Any) -> None:
    port, receiver = Channel[int].open()
    senders.slice(gpus=0).refuse.broadcast(port, KeyError("k"))
    with pytest.raises(KeyError, match="k"):
        receiver.recv().get(PATIENCE)


class Unsendable(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("stays where it is")


@pytest.mark.parametrize("made", ["Unsendable('k')", "KeyboardInterrupt('k')"])
def test_an_exception_that_cannot_be_raised_here_is_described(senders: Any, made: str) -> None:
    port, receiver = Channel[int].open()
    senders.slice(gpus=0).refuse_with.broadcast(port, made)
    with pytest.raises(ActorError, match=re.escape(made.replace("('", ": ").removesuffix("')"))):
        receiver.recv().get(PATIENCE)


def test_what_cannot_travel_is_the_senders_error(senders: Any) -> None:
    port, _receiver = Channel[Any].open()
    with pytest.raises(ActorError, match="a value sent to a port cannot be pickled") as raised:
        senders.slice(gpus=0).send_lock.call_one(port).get(PATIENCE)
    assert isinstance(raised.value.exception, PickleError)


def test_ports_travel(senders: Any) -> None:
    port, receiver = Channel[int].open()
    again = senders.slice(gpus=0).give_back.call_one(pickle.loads(pickle.dumps(port))).get(PATIENCE)
    senders.slice(gpus=1).send.broadcast(again, 5)
    assert receiver.recv().get(PATIENCE) == 5


def test_senders_and_receivers_need_no_earlier_contact(session: Any, senders: Any) -> None:
    opener = session.spawn(Opener)
    port = opener.open.call_one().get(PATIENCE)
    taken = opener.take.call_one()
    senders.slice(gpus=2).send.broadcast(port, 7)
    assert taken.get(PATIENCE) == 7


def test_a_receiver_gets_an_error_when_the_runtime_ends(make_session: Any) -> None:
    session = make_session()
    _port, receiver = Channel[int].open()
    future = receiver.recv()
    session.close()
    for waiting in (future, receiver.recv()):
        with pytest.raises(SupervisionError, match="shut down"):
            waiting.get(PATIENCE)


# -- endpoints that answer by a port ---------------------------------------------------


@pytest.mark.parametrize("cls", [Answering, AsyncAnswering])
def test_the_callers_view_has_no_port(session: Any, cls: type[Actor]) -> None:
    mesh = session.spawn(cls, on=session.workers(2))
    assert list(mesh.now.call(4).get(PATIENCE).values()) == [8, 8]
    with pytest.raises(TypeError, match="now"):
        mesh.now.call()


def test_the_first_answer_counts(answering: Any) -> None:
    assert answering.now.call_one(4, times=3).get(PATIENCE) == 8
    assert answering.now.call_one(5).get(PATIENCE) == 10


def test_answers_may_come_later_and_in_another_order(answering: Any) -> None:
    calls = [answering.later.call_one(value) for value in range(3)]
    answering.answer.call_one(2, 0).get(PATIENCE)
    assert [calls[2].get(PATIENCE), calls[0].get(PATIENCE)] == [2, 0]
    assert not calls[1].done()
    answering.answer.call_one(1).get(PATIENCE)
    assert calls[1].get(PATIENCE) == 1


def test_another_actor_may_answer(session: Any, answering: Any, senders: Any) -> None:
    assert answering.by.call_one(senders.slice(gpus=1)).get(PATIENCE) == "of another"
    answering.stop().get(PATIENCE)


def test_an_exception_may_be_the_answer(answering: Any) -> None:
    for asked in (answering.refuses.call_one(), answering.refuses.call(), next(answering.refuses.stream())):
        with pytest.raises(KeyError, match="refused"):
            asked.get(PATIENCE)
    assert answering.now.call_one(1).get(PATIENCE) == 2


def refuse_to_exist() -> None:
    raise LookupError("no such thing here")


class Unreadable:
    def __reduce__(self) -> tuple[Any, ...]:
        return refuse_to_exist, ()


def test_an_argument_that_cannot_be_read_is_the_callers_error(answering: Any) -> None:
    with pytest.raises(ActorError, match="cannot be unpickled: LookupError"):
        answering.now.call_one(Unreadable()).get(PATIENCE)
    assert answering.now.call_one(1).get(PATIENCE) == 2


def test_one_that_raises_ends_its_actor(answering: Any) -> None:
    with pytest.raises(SupervisionError, match="ValueError: unanswered"):
        answering.fails.call_one().get(PATIENCE)
    with pytest.raises(SupervisionError, match="all its descendants have failed"):
        answering.now.call_one(1).get(PATIENCE)


def test_an_actor_that_ends_answers_all_its_callers(answering: Any) -> None:
    call = answering.later.call_one(1)
    answering.stop().get(PATIENCE)
    with pytest.raises(SupervisionError, match="stopped"):
        call.get(PATIENCE)


def test_a_broadcast_wants_no_answer(answering: Any) -> None:
    answering.now.broadcast(1)
    assert answering.now.call_one(2).get(PATIENCE) == 4
