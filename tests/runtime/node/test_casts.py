"""Calls on many ranks through the agents of hosts: what is sent, in which order it is handled, and who gets errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from meshbook import Channel, current_rank
from meshbook.runtime.actor.context import CURRENT, Context, Instance
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ActorError, CallCancelled, CallTimeout, ExitReport, ProcessDied, SupervisionError
from meshbook.runtime.geometry import SCALAR, Extent
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.casts import CastPlan
from meshbook.runtime.node.node import Node
from meshbook.runtime.transport.memory import MemoryTransport, Switchboard
from meshbook.runtime.wire.frames import Buffer, unpack
from meshbook.runtime.wire.messages import Address, Cast, Down
from tests.runtime.conftest import Gate, Session, spawn_actors
from tests.support import PATIENCE, Probe

LONG = 1e6  # seconds: replies are gathered until all are there


class Cluster:
    """A controller, and hosts with an agent and workers, in this process. `received` has the controller's messages."""

    def __init__(self, session: Session, *workers: int) -> None:
        self.session = session
        self.controller = session.controller
        self.agents: list[Node] = []
        self.workers: list[Node] = []
        for host, count in enumerate(workers):
            agent = session.node(f"agent-{host}")
            agent.cast_relay.gather_seconds = LONG
            self.controller.casts.add_agent(agent.address)
            self.agents.append(agent)
            for rank in range(count):
                self.workers.append(session.node(f"worker-{host}-{rank}"))
        self.received: list[Any] = []
        self.sent: list[Any] = []

    def spawn(self) -> Probe:
        key = self.controller.supervision.name_actor("probe")
        targets = [Target(node.address, key) for node in self.workers]
        extent = Extent.of(gpus=len(targets))
        made = spawn_actors(self.controller, targets, Probe, name="probe", extent=extent)
        made.initialized.get(PATIENCE)
        return cast("Probe", made)

    def watch(self) -> None:
        """Note what the controller sends and receives from now on."""
        accept, transport = self.controller.dispatch.accept, cast("MemoryTransport", self.controller._transport)
        send = transport.send

        def note_received(frame: Buffer) -> None:
            self.received.append(unpack(frame)[0])
            accept(frame)

        def note_sent(to: Address, frame: Buffer) -> None:
            self.sent.append(unpack(frame)[0])
            send(to, frame)

        transport.accept = note_received
        transport.send = transport.send_soon = note_sent  # type: ignore[method-assign]

    def counts(self) -> tuple[int, int]:
        """Return how many messages the controller has sent and received, and forget them."""
        counts = len(self.sent), len(self.received)
        self.sent.clear()
        self.received.clear()
        return counts


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Makes the cluster of the test, with so many workers on each host; the test is its client."""
    with contextlib.ExitStack() as stack:

        def make(*workers: int, **settings: Any) -> Cluster:
            board = Switchboard()

            def connect(name: str, chosen: Settings) -> MemoryTransport:
                transport = board.transport(name, chosen.high_water_mark)
                host = name.split("-")[1] if "-" in name else "0"
                transport.address = Address(name, f"memory://host-{host}/{name}")
                return transport

            session = Session(connect, **settings)
            stack.callback(session.close)
            client = Context(Instance("client", "client", SCALAR.point(0), session.controller))
            token = CURRENT.set(client)
            stack.callback(CURRENT.reset, token)
            return Cluster(session, *workers)

        yield make


def numbers(mesh: Probe, *arguments: Any) -> list[Any]:
    """Call all ranks and return their values, in rank order."""
    return list(mesh.run.call(*arguments).get(PATIENCE).values())


def my_rank() -> int:
    return current_rank().rank


def fail_on(rank: int) -> int:
    if my_rank() == rank:
        raise ValueError("this rank fails")
    return my_rank()


# -- what is sent ----------------------------------------------------------------


@pytest.mark.parametrize("workers", [(8, 8), (40, 40)])
def test_the_controller_sends_and_receives_one_message_per_host(
    make_cluster: Callable[..., Cluster], workers: tuple[int, ...]
) -> None:
    cluster = make_cluster(*workers, cast_ranks=16)
    mesh = cluster.spawn()
    assert numbers(mesh, my_rank) == list(range(sum(workers)))  # after the spawn, marks are sent once
    cluster.watch()
    assert numbers(mesh, my_rank) == list(range(sum(workers)))
    assert cluster.counts() == (2, 2)
    for _ in range(10):
        mesh.note.broadcast(1)
    assert numbers(mesh, my_rank) == list(range(sum(workers)))
    assert cluster.counts() == (22, 2)
    assert numbers(mesh.slice(gpus=slice(0, 15)), my_rank) == list(range(15))  # too few for a cast
    sent, received = cluster.counts()
    assert (sent, received) == (15 + 15, 15)  # with fences


def test_more_than_sixteen_hosts_form_a_tree(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(*[2] * 40, cast_ranks=16)
    mesh = cluster.spawn()
    numbers(mesh, my_rank)
    cluster.watch()
    assert numbers(mesh, my_rank) == list(range(80))
    sent, received = cluster.counts()
    assert sent == received <= 16


def test_large_bodies_and_large_replies_are_sent_directly(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(4, cast_ranks=2)
    mesh = cluster.spawn()
    data = bytes(100_000)
    assert numbers(mesh, len, data) == [len(data)] * 4
    assert numbers(mesh, bytes, len(data)) == [data] * 4
    assert numbers(mesh, my_rank) == list(range(4))


def test_a_slow_rank_delays_no_other_reply(make_cluster: Callable[..., Cluster]) -> None:
    cluster, gate = make_cluster(4, cast_ranks=2), Gate()
    cluster.agents[0].cast_relay.gather_seconds = 0.001
    mesh = cluster.spawn()
    futures = mesh.run.call_each(wait_on_first, gate)
    assert [future.get(PATIENCE) for future in futures[1:]] == [1, 2, 3]
    assert not futures[0].done()
    gate.open()
    assert futures[0].get(PATIENCE) == 0


def wait_on_first(gate: Gate) -> int:
    if my_rank() == 0:
        gate.pass_through()
    return my_rank()


# -- order ------------------------------------------------------------------------


def test_casts_and_direct_messages_keep_their_order(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(3, 3, cast_ranks=4)
    mesh, expected = cluster.spawn(), []
    first = mesh.slice(gpus=slice(0, 1))
    for number in range(200):
        target = mesh if number % 3 else first
        target.note.broadcast(number)
        expected.append((number, target is mesh))
    for rank, noted in enumerate(mesh.noted.call().get(PATIENCE).values()):
        assert noted == [number for number, is_cast in expected if is_cast or rank == 0]
    assert first.noted.call_one().get(PATIENCE) == [number for number, _ in expected]


def test_a_stop_follows_the_casts_before_it(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(4, cast_ranks=2)
    mesh = cluster.spawn()
    answers = mesh.run.call(my_rank)
    cast("ActorMesh[Probe]", mesh).stop().get(PATIENCE)
    assert list(answers.get(PATIENCE).values()) == list(range(4))


def test_a_reply_follows_the_messages_that_its_rank_sent_before(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(4, cast_ranks=2)
    mesh = cluster.spawn()
    port, receiver = Channel.open()
    for turn in range(20):
        numbers(mesh, send_to, port, turn)
        # All values are here: the future of each is settled at once.
        futures = [receiver.recv() for _ in range(4 * 5)]
        assert all(future.done() for future in futures)
        assert {future.get() for future in futures} == {(turn, rank, count) for rank in range(4) for count in range(5)}


def send_to(port: Any, turn: int) -> None:
    for count in range(5):
        port.send((turn, my_rank(), count))


# -- flow control --------------------------------------------------------------------


def test_a_full_queue_makes_the_caller_wait_and_loses_nothing(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(4, cast_ranks=2, queue_messages=2)
    mesh = cluster.spawn()
    for number in range(100):
        mesh.note.broadcast(number)
    assert list(mesh.noted.call().get(PATIENCE).values()) == [list(range(100))] * 4


def test_the_plan_of_the_targets_with_room_keeps_them_with_their_agents() -> None:
    agents = [Address(f"agent-{name}", name) for name in "abc"]
    plan = CastPlan(
        [(agents[0], 2), (agents[1], 3), (agents[2], 2)],
        [0, 2, 1, 3, 4, 5, 6],
        [f"node-{index}" for index in range(7)],
        [(f"node-{index}", "actor") for index in range(7)],
        is_alike=True,
    )
    rest = plan.only([0, 1, 3, 4])
    assert rest.agents == [(agents[0], 2), (agents[1], 2)]
    assert rest.indices == [0, 2, 3, 4]
    assert [node for node, _ in rest.queues] == rest.nodes == ["node-0", "node-1", "node-3", "node-4"]
    assert plan.only([]).agents == []


def test_a_cast_in_vain_gives_its_room_back(make_cluster: Callable[..., Cluster]) -> None:
    cluster, gate = make_cluster(4, cast_ranks=2, queue_messages=1), Gate()
    mesh = cluster.spawn()
    held = mesh.slice(gpus=slice(0, 1)).run.call_one(Gate.pass_through, gate)
    gate.wait_entered()
    mesh.slice(gpus=slice(0, 1)).note.broadcast(0)  # the queue of rank 0 is full now
    with pytest.raises(CallTimeout):
        mesh.run.within(0.01).call(my_rank).get(PATIENCE)
    gate.open()
    held.get(PATIENCE)
    assert numbers(mesh, my_rank) == list(range(4))


# -- errors, cancellation and ends ----------------------------------------------------------


def test_an_error_names_its_rank(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(4, 4, cast_ranks=2)
    mesh = cluster.spawn()
    error = mesh.run.call(fail_on, 5).exception(PATIENCE)
    assert isinstance(error, ActorError)
    assert list(error.failures) == [5]
    assert error.results is not None
    assert len(error.results) == 7
    assert error.called_at is not None


def test_the_end_of_a_host_of_workers_is_one_message(make_cluster: Callable[..., Cluster]) -> None:
    cluster, gate = make_cluster(8, 4, cast_ranks=2), Gate()
    mesh = cluster.spawn()
    futures = mesh.run.call_each(Gate.pass_through, gate)
    for _ in range(12):
        gate.wait_entered()
    cluster.watch()
    reports = [ExitReport(node.address.node, 0, -9) for node in cluster.workers[:8]]
    cluster.agents[0].peers.announce_all_down(reports, [cluster.controller.address])
    for rank, future in enumerate(futures[:8]):
        error = future.exception(PATIENCE)
        assert isinstance(error, ProcessDied)
        assert error.report.node == f"worker-0-{rank}"
    assert sum(isinstance(message, Down) for message in cluster.received) == 1
    gate.open(12)
    assert [future.exception(PATIENCE) for future in futures[8:]] == [None] * 4


def test_a_cancelled_cast_ends_at_each_rank(make_cluster: Callable[..., Cluster]) -> None:
    cluster, gate = make_cluster(4, cast_ranks=2), Gate()
    mesh = cluster.spawn()
    future = mesh.run.call(Gate.pass_through, gate)
    for _ in range(4):
        gate.wait_entered()
    assert future.cancel()
    assert isinstance(future.exception(PATIENCE), CallCancelled)
    gate.open(4)
    assert numbers(mesh, my_rank) == list(range(4))


def test_the_death_of_a_rank_fails_its_call_only(make_cluster: Callable[..., Cluster]) -> None:
    cluster, gate = make_cluster(4, cast_ranks=2), Gate()
    cluster.agents[0].cast_relay.gather_seconds = 0.001
    mesh = cluster.spawn()
    futures = mesh.run.call_each(wait_on_first, gate)
    gate.wait_entered()
    report = ExitReport(cluster.workers[0].address.node, 4711, -9)
    cluster.agents[0].peers.announce_down(report, [cluster.controller.address])
    assert isinstance(futures[0].exception(PATIENCE), ProcessDied)
    assert [future.get(PATIENCE) for future in futures[1:]] == [1, 2, 3]
    gate.open()
    later = mesh.run.call_each(my_rank)
    assert isinstance(later[0].exception(PATIENCE), ProcessDied)
    assert [future.get(PATIENCE) for future in later[1:]] == [1, 2, 3]


def test_the_end_of_an_agent_between_fails_what_it_relayed(make_cluster: Callable[..., Cluster]) -> None:
    cluster, gate = make_cluster(*[2] * 20, cast_ranks=2), Gate()
    mesh = cluster.spawn()
    futures = mesh.run.call_each(wait_on_third, gate)
    gate.wait_entered()
    between = cluster.agents[0]  # relays to the second host
    for node in ("worker-0-0", "worker-0-1", between.address.node):
        cluster.controller.peers.announce_down(ExitReport(node, 0, -9), ())
    errors = [future.exception(PATIENCE) for future in futures[:4]]
    assert all(isinstance(error, SupervisionError) for error in errors[2:])
    assert not any(isinstance(error, ProcessDied) for error in errors[2:])
    assert between.address.node in str(errors[2])
    gate.open()
    rest = mesh.slice(gpus=slice(2, 40))
    assert numbers(rest, my_rank) == list(range(38))
    assert rest.slice(gpus=slice(0, 1)).run.call_one(len, "abc").get(PATIENCE) == 3


def test_ranks_behind_an_ended_agent_do_not_wait_for_lost_casts(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(*[2] * 20, cast_ranks=2)
    mesh = cluster.spawn()
    numbers(mesh, my_rank)
    between = cluster.agents[0]
    between.dispatch._handlers[Cast] = lambda cast, body: None  # it ends before it has relayed
    mesh.note.broadcast(1)
    futures = mesh.run.call_each(my_rank)
    second = mesh.slice(gpus=slice(2, 3)).noted.call_one()  # behind both casts
    for node in ("worker-0-0", "worker-0-1", between.address.node):
        cluster.controller.peers.announce_down(ExitReport(node, 0, -9), ())
    assert all(isinstance(future.exception(PATIENCE), SupervisionError) for future in futures[:4])
    assert second.get(PATIENCE) == []
    rest = mesh.slice(gpus=slice(2, 40))
    assert numbers(rest, my_rank) == list(range(38))
    assert futures[4].get(PATIENCE) == 4


def wait_on_third(gate: Gate) -> int:
    if my_rank() == 2:
        gate.pass_through()
    return my_rank()
