"""Output that travels with the replies to casts: how many messages it takes, and its order among direct messages."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from meshbook import context
from meshbook.runtime.errors import ExitReport, SupervisionError
from meshbook.runtime.hosts.agent import send_remains
from meshbook.runtime.hosts.worker import make_capture
from meshbook.runtime.node.casts import MOST_BYTES
from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.output import TELEMETRY, Chunk, OutputChunk, OutputStore, TelemetryActor
from meshbook.runtime.telemetry.unsent import read_unsent
from meshbook.runtime.wire.frames import Body, Buffer, unpack
from meshbook.runtime.wire.messages import Gathered, GatheredReply, RelayedOutput
from tests.runtime.conftest import Gate
from tests.runtime.node.test_casts import Cluster, make_cluster, my_rank, numbers
from tests.support import PATIENCE

__all__ = ["make_cluster"]


class Shown:
    """The output that the controller of a cluster has received, by rank."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.texts: dict[int, list[str]] = {}
        self.arrived: queue.SimpleQueue[int] = queue.SimpleQueue()  # the rank of each text
        self.folder = folder
        self.store = OutputStore()
        self.store.set_default(self._add)
        telemetry = TelemetryActor(self.store, cast("Any", None), cast("Any", None))
        cluster.controller.actors.host_inline(TELEMETRY, telemetry)
        for rank, worker in enumerate(cluster.workers):
            worker.controller = cluster.controller.address
            worker.routes.trust(worker.controller)
            world = SimpleNamespace(mesh="mesh", settings=worker.settings)
            make_capture(worker, cast("Any", SimpleNamespace(world=world, rank=rank, address=worker.address)), folder)

    def _add(self, chunk: Chunk) -> None:
        assert isinstance(chunk, OutputChunk)
        if chunk.text:
            self.texts.setdefault(chunk.rank, []).append(chunk.text)
            self.arrived.put(chunk.rank)


@pytest.fixture
def make_shown(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Callable[..., tuple[Cluster, Shown]]:
    """Makes a cluster whose workers send their output to its controller."""

    def make(*workers: int, **settings: Any) -> tuple[Cluster, Shown]:
        cluster = make_cluster(*workers, **({"cast_ranks": 2} | settings))
        return cluster, Shown(cluster, tmp_path)

    return make


def run_cell(*texts: str, gate: Gate | None = None, slow: int = -1, size: int = 0) -> bytes:
    """Print texts, as a cell does that sends all but the last one meanwhile. The rank `slow` waits at its end."""
    node: Node = context().actor_instance.node
    capture, call = node.capture, node.cast_call()
    assert capture is not None
    capture.begin("", call)
    for number, text in enumerate(texts):
        if number:
            capture.flush()
        capture.write("", "stdout", text)
    if gate is not None and my_rank() == slow:
        gate.pass_through()
    capture.end("", call)
    return bytes(size)


def print_late(worker: Node, text: str) -> None:
    """Print text after the end of a cell, as a thread does, and send it."""
    assert worker.capture is not None
    worker.capture.write("", "stdout", text)
    worker.capture.flush()


def kill(cluster: Cluster, host: int, rank: int, shown: Shown) -> None:
    """Report the end of a worker, as its agent does."""
    agent, worker = cluster.agents[host], cluster.workers[rank]
    agent.controller = cluster.controller.address
    agent.routes.trust(agent.controller)
    remains = read_unsent(shown.folder, worker.address.node)
    if remains is not None:
        send_remains(agent, remains)
    agent.peers.announce_down(ExitReport(worker.address.node, 0, -9), [cluster.controller.address])


def watch_replies(agent: Node) -> queue.SimpleQueue[str]:
    """Return a queue of the nodes whose replies this agent has gathered from now on."""
    gathered: queue.SimpleQueue[str] = queue.SimpleQueue()
    handle = agent.dispatch._handlers[Gathered]

    def note(message: Gathered, body: Body) -> None:
        handle(message, body)
        for reply in message.replies:
            gathered.put(reply.node)

    agent.dispatch._handlers[Gathered] = note
    return gathered


# -- what is sent ----------------------------------------------------------------


@pytest.mark.parametrize(("workers", "messages"), [((8, 8), 2), ((40, 40), 2), ((2,) * 40, 14)])
def test_output_of_a_short_cell_takes_no_message_of_the_controller(
    make_shown: Callable[..., tuple[Cluster, Shown]], workers: tuple[int, ...], messages: int
) -> None:
    cluster, shown = make_shown(*workers)
    mesh = cluster.spawn()
    numbers(mesh, my_rank)
    cluster.watch()
    for turn in range(3):
        numbers(mesh, run_cell, f"{turn}\n")
        assert shown.texts == {rank: [f"{each}\n" for each in range(turn + 1)] for rank in range(sum(workers))}
        assert cluster.counts() == (messages, messages)


def test_output_goes_directly_to_ranks_that_are_called_directly(
    make_shown: Callable[..., tuple[Cluster, Shown]],
) -> None:
    cluster, shown = make_shown(4, cast_ranks=16)
    mesh = cluster.spawn()
    cluster.watch()
    numbers(mesh, run_cell, "text\n")
    assert shown.texts == {rank: ["text\n"] for rank in range(4)}
    assert sorted(type(message).__name__ for message in cluster.received) == ["Call"] * 4 + ["Reply"] * 4


@pytest.mark.parametrize(("text", "size"), [("x" * (MOST_BYTES + 1), 0), ("x" * 20_000, 20_000), ("x", MOST_BYTES + 1)])
def test_large_output_and_large_replies_go_directly(
    make_shown: Callable[..., tuple[Cluster, Shown]], text: str, size: int
) -> None:
    cluster, shown = make_shown(4)
    mesh = cluster.spawn()
    for turn in range(3):
        answers = mesh.run.call(partial(run_cell, size=size), "begin\n", text).get(PATIENCE)
        assert [len(answer) for answer in answers.values()] == [size] * 4
        assert shown.texts == {rank: ["begin\n", text] * (turn + 1) for rank in range(4)}


def test_a_full_queue_for_output_loses_nothing(make_shown: Callable[..., tuple[Cluster, Shown]]) -> None:
    cluster, shown = make_shown(4, queue_messages=1)
    mesh = cluster.spawn()
    for turn in range(20):
        numbers(mesh, run_cell, f"{turn}\n")
    assert shown.texts == {rank: [f"{turn}\n" for turn in range(20)] for rank in range(4)}


def test_output_before_a_cancellation_is_sent(make_shown: Callable[..., tuple[Cluster, Shown]]) -> None:
    cluster, shown = make_shown(4)
    mesh, gate = cluster.spawn(), Gate()
    future = mesh.run.call(end_in_gate, gate)
    for _ in range(4):
        gate.wait_entered()
    assert not shown.texts
    future.cancel()
    gate.open(4)
    numbers(mesh, my_rank)
    assert shown.texts == {rank: ["text\n"] for rank in range(4)}


def end_in_gate(gate: Gate) -> None:
    run_cell("text\n")
    gate.pass_through()


# -- order ------------------------------------------------------------------------


def test_late_output_follows_output_that_is_on_its_way(make_shown: Callable[..., tuple[Cluster, Shown]]) -> None:
    cluster, shown = make_shown(4)
    mesh, gate = cluster.spawn(), Gate()
    numbers(mesh, my_rank)
    gathered = watch_replies(cluster.agents[0])
    futures = mesh.run.call_each(partial(run_cell, gate=gate, slow=0), "first\n", "last\n")
    assert sorted(gathered.get(timeout=PATIENCE) for _ in range(3)) == ["worker-0-1", "worker-0-2", "worker-0-3"]
    assert "last\n" not in shown.texts.get(1, [])
    numbers(mesh.slice(gpus=slice(1, 2)), my_rank)  # a direct call; its reply comes behind the output
    assert futures[1].done()
    assert shown.texts[1] == ["first\n", "last\n"]
    print_late(cluster.workers[1], "late\n")
    numbers(mesh.slice(gpus=slice(1, 2)), my_rank)
    assert shown.texts[1] == ["first\n", "last\n", "late\n"]
    gate.open()
    assert [len(future.get(PATIENCE)) for future in futures] == [0] * 4
    assert shown.texts == {rank: ["first\n", "last\n"] + ["late\n"] * (rank == 1) for rank in range(4)}


def test_direct_output_on_its_way_comes_before_that_of_the_reply(
    make_shown: Callable[..., tuple[Cluster, Shown]],
) -> None:
    cluster, shown = make_shown(4)
    mesh, controller = cluster.spawn(), cluster.controller
    numbers(mesh, my_rank)
    delayed = list[Buffer]()

    def accept(frame: Buffer) -> None:
        sender = unpack(frame)[0].sender
        if sender == "worker-0-1":
            delayed.append(frame)
        else:
            controller.dispatch.accept(frame)

    controller._transport.accept = accept
    futures = mesh.run.call_each(run_cell, "first\n", "last\n")
    assert [len(futures[rank].get(PATIENCE)) for rank in (0, 2, 3)] == [0] * 3
    assert not futures[1].done()
    assert 1 not in shown.texts
    for frame in delayed:
        controller.loop.run(partial(controller.dispatch.accept, frame))
    assert len(futures[1].get(PATIENCE)) == 0
    assert shown.texts == {rank: ["first\n", "last\n"] for rank in range(4)}


def test_a_second_output_waits_for_no_agent(make_shown: Callable[..., tuple[Cluster, Shown]]) -> None:
    """The output of a cell that began before that of the last one has arrived goes directly, and behind it."""
    cluster, shown = make_shown(4)
    mesh, gate = cluster.spawn(), Gate()
    numbers(mesh, my_rank)
    first = mesh.run.call_each(partial(run_cell, gate=gate, slow=0), "first\n")
    second = mesh.run.call_each(run_cell, "second\n")
    gate.wait_entered()
    numbers(mesh.slice(gpus=slice(3, 4)), my_rank)
    assert shown.texts[3] == ["first\n", "second\n"]
    gate.open()
    assert [len(future.get(PATIENCE)) for future in first + second] == [0] * 8
    assert shown.texts == {rank: ["first\n", "second\n"] for rank in range(4)}


@pytest.mark.parametrize("seed", range(5))
def test_all_output_arrives_once_and_in_order(make_shown: Callable[..., tuple[Cluster, Shown]], seed: int) -> None:
    rng = random.Random(seed)
    cluster, shown = make_shown(3, 3)
    for agent in cluster.agents:
        agent.cast_relay.gather_seconds = 0.001
    mesh, expected, futures = cluster.spawn(), dict[int, list[str]](), []
    for number in range(100):
        match rng.randrange(4):
            case 0:
                futures.append(mesh.slice(gpus=slice(2, 3)).run.call(run_cell, f"{number} direct\n"))
                expected.setdefault(2, []).append(f"{number} direct\n")
            case 1:
                futures.append(mesh.run.call(run_cell, f"{number} one\n", f"{number} two\n"))
                for rank in range(6):
                    expected.setdefault(rank, []).extend([f"{number} one\n", f"{number} two\n"])
            case 2:
                futures.append(mesh.run.call(run_cell, f"{number}\n"))
                for rank in range(6):
                    expected.setdefault(rank, []).append(f"{number}\n")
            case _:
                [future.get(PATIENCE) for future in futures]
                assert shown.texts == expected
    [future.get(PATIENCE) for future in futures]
    assert shown.texts == expected


# -- ends ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_gathered", [True, False])
def test_output_of_a_rank_that_dies_is_shown_once(
    make_shown: Callable[..., tuple[Cluster, Shown]], is_gathered: bool
) -> None:
    cluster, shown = make_shown(4)
    mesh, gate, agent = cluster.spawn(), Gate(), cluster.agents[0]
    numbers(mesh, my_rank)
    gathered = watch_replies(agent)
    futures = mesh.run.call_each(partial(run_cell, gate=gate, slow=0), "first\n", "last\n")
    for _ in range(3):
        gathered.get(timeout=PATIENCE)
    if not is_gathered:  # its reply is lost
        agent.loop.run(agent.cast_relay._bundles.clear)
    kill(cluster, 0, 1, shown)
    assert (futures[1].exception(PATIENCE) is None) == is_gathered
    gate.open()
    assert len(futures[0].get(PATIENCE)) == 0
    assert shown.texts[1] == ["first\n", "last\n"]


def test_output_is_not_lost_with_the_agent_between(make_shown: Callable[..., tuple[Cluster, Shown]]) -> None:
    cluster, shown = make_shown(*[2] * 20)
    mesh, between = cluster.spawn(), cluster.agents[0]  # relays to the second host
    numbers(mesh, my_rank)
    lost = watch_replies(between)
    # This agent loses the gathered replies; mypy refuses to replace a method.
    between.cast_relay.on_gathered = lambda gathered, body: None  # type: ignore[method-assign]
    futures = mesh.run.call_each(run_cell, "text\n")
    assert sorted(lost.get(timeout=PATIENCE) for _ in range(4)) == [
        f"worker-{host}-{rank}" for host in (0, 1) for rank in (0, 1)
    ]
    assert [len(future.get(PATIENCE)) for future in futures[4:]] == [0] * 36
    assert not shown.texts.keys() & {2, 3}
    for node in ("worker-0-0", "worker-0-1", between.address.node):
        cluster.controller.peers.announce_down(ExitReport(node, 0, -9), ())
    assert all(isinstance(future.exception(PATIENCE), SupervisionError) for future in futures[:4])
    # The controller makes them send it again.
    assert {shown.arrived.get(timeout=PATIENCE) for _ in range(38)} == set(range(2, 40))
    numbers(mesh.slice(gpus=slice(2, 40)), my_rank)
    assert shown.texts == {rank: ["text\n"] for rank in range(2, 40)}


def test_output_of_an_earlier_incarnation_is_dropped(make_shown: Callable[..., tuple[Cluster, Shown]]) -> None:
    cluster, _ = make_shown(4)
    controller = cluster.controller
    numbers(cluster.spawn(), my_rank)

    def take(number: int, incarnation: int, call: int = 1) -> Any:
        output = RelayedOutput(number, incarnation, [b"frame"])
        reply = GatheredReply("worker-0-0", call, "ok", 0, b"", 1, 0, output)
        return controller.cast_receiver.take_output(reply, output)

    assert take(1, 0) == [b"frame"]
    assert take(1, 0) is None
    assert take(9, 1) == ()
    assert take(2, 0) == [b"frame"]
    assert take(1, 0, call=0) == [b"frame"]  # of a call of the controller before this one


def test_output_that_has_not_arrived_is_kept_in_the_file(make_shown: Callable[..., tuple[Cluster, Shown]]) -> None:
    cluster, _ = make_shown(4)
    mesh, gate, worker = cluster.spawn(), Gate(), cluster.workers[1]
    numbers(mesh, my_rank)
    assert worker.routes.have_left(worker.controller)
    futures = mesh.run.call_each(partial(run_cell, gate=gate, slow=0), "text\n")
    gate.wait_entered()
    gate.open()
    [future.get(PATIENCE) for future in futures]
    assert not worker.routes.have_left(worker.controller)
    numbers(mesh, my_rank)  # acknowledges the output
    assert worker.routes.have_left(worker.controller)
