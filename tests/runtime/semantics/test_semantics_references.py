"""Semantics: where things live, futures, and what travels by value."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle
import pytest

from meshbook import Actor, ActorError, Channel, SupervisionError, endpoint, this_host, this_proc
from tests.support import PATIENCE

COUNTED = [0]  # a global of this module, of which each process that gets a class of it has its own


class Point3:
    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def total(self) -> int:
        return sum(self.numbers)


class Keeper(Actor):
    """Keeps what it gets."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    @endpoint
    def keep(self, value: Any) -> None:
        self.value = value

    @endpoint
    def read(self) -> Any:
        return self.value

    @endpoint
    def grow(self) -> Any:
        self.value.append("by the actor")
        return self.value

    @endpoint
    def hold(self, gate: Any) -> str:
        return gate.pass_through("held")

    @endpoint
    def fail(self) -> None:
        raise ValueError("no")

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def set_environment(self, name: str, value: str) -> None:
        os.environ[name] = value

    @endpoint
    def count(self) -> int:
        COUNTED[0] += 1
        return COUNTED[0]

    @endpoint
    def make(self, size: int) -> bytes:
        return b"x" * size


@pytest.fixture(params=["a worker", "this process"])
def keeper(request: pytest.FixtureRequest, world: Any) -> Iterator[Any]:
    """The handle of an actor elsewhere, and of one in the very process of the test."""
    if request.param == "a worker":
        yield world.spawn(Keeper, gpus=1)
    else:
        keeper = this_proc().spawn("keeper", Keeper)
        yield keeper
        keeper.stop().get(PATIENCE)


# -- 37 --------------------------------------------------------------------------------


class Slow(Actor):
    """Is made once the gate is opened."""

    def __init__(self, gate: Any) -> None:
        gate.pass_through()

    @endpoint
    def name(self) -> str:
        return "made at last"


class Spawner(Actor):
    """Spawns for others, and asks for others."""

    @endpoint
    def spawn(self, gate: Any) -> tuple[Any, Any]:
        self.procs = this_host().spawn_procs(per_host={"gpus": 2})
        return self.procs, self.procs.spawn("slow", Slow, gate)

    @endpoint
    def begin_to_ask(self, other: Any, port: Any) -> None:
        self.asked = other.name.call().then(lambda names: list(names.values()))
        self.asked.when_done(lambda: port.send(self.asked.get(0)))


def test_37_any_actor_spawns_and_its_references_work_while_they_are_pending(world: Any) -> None:
    """They are returned, used and sent on to others before the actors are made, or even their processes."""
    procs, gate = world.procs(2), world.gate()
    spawner, reply_handler = procs.slice(gpus=0).spawn("spawner", Spawner), procs.slice(gpus=1).spawn("asker", Spawner)
    children, slow = spawner.spawn.call_one(gate).get(PATIENCE)
    early = slow.name.call()
    port, answers = Channel[list[str]].open()
    reply_handler.begin_to_ask.call_one(slow, port).get(PATIENCE)
    assert slow.sizes == children.sizes == {"gpus": 2}
    assert not early.done()
    gate.open(2)
    assert list(early.get(PATIENCE).values()) == ["made at last"] * 2
    assert answers.recv().get(PATIENCE) == ["made at last"] * 2
    with pytest.raises(ValueError, match="not owned"):
        children.stop()


def test_37_a_plain_pickle_of_a_pending_mesh_waits_until_it_exists(world: Any) -> None:
    """Its reader may be anywhere, and its messages may take a shorter path than those that make the actors."""
    gate, happened = world.gate(), []
    slow = world.spawn(Slow, gate, gpus=1)
    gate.wait_told()

    def pickle_it() -> bytes:
        data = cloudpickle.dumps(slow)
        happened.append("pickled")
        return data

    with ThreadPoolExecutor(1) as pool:
        pickling = pool.submit(pickle_it)
        happened.append("opened")
        gate.open()
        copy = cloudpickle.loads(pickling.result(PATIENCE))
    assert happened == ["opened", "pickled"]
    assert copy.name.call_one().get(PATIENCE) == "made at last"


def test_37_a_plain_pickle_of_pending_processes_is_one_of_them(world: Any) -> None:
    """Its reader may use it at once: messages to a process wait for it."""
    procs, data = [world.procs(2) for _ in range(2)], []
    for mesh in procs:
        data.append(cloudpickle.dumps(mesh))
    copies = [cloudpickle.loads(each) for each in data]
    for mesh, copy in zip(procs, copies, strict=True):
        assert copy.sizes == {"gpus": 2}
        assert [node.node for node in copy.nodes] == [node.node for node in mesh.nodes]
        assert list(copy.spawn("keeper", Keeper, "kept").read.call().get(PATIENCE).values()) == ["kept"] * 2
        assert copy.initialized.get(PATIENCE) is True


# -- 38 --------------------------------------------------------------------------------


def test_38_this_proc_of_the_client_is_its_own_process(world: Any) -> None:
    """An actor on it has the client's pid, and shares what a process has but once."""
    keeper = this_proc().spawn("keeper", Keeper)
    assert keeper.pid.call_one().get(PATIENCE) == os.getpid()
    keeper.set_environment.call_one("MB_SEMANTICS", "shared").get(PATIENCE)
    assert os.environ.pop("MB_SEMANTICS") == "shared"
    keeper.stop().get(PATIENCE)


class Nester(Actor):
    """Spawns an actor in its own process, and one in a new process."""

    @endpoint
    def nest(self) -> tuple[int, int, int]:
        here = this_proc().spawn("here", Keeper)
        self.procs = this_host().spawn_procs(per_host={"gpus": 1})
        there = self.procs.spawn("there", Keeper)
        return os.getpid(), here.pid.call_one().get(PATIENCE), there.pid.call_one().get(PATIENCE)

    @endpoint
    def end(self) -> None:
        self.procs.stop().get(PATIENCE)


@pytest.mark.process
def test_38_this_host_gives_real_processes(processes: Any) -> None:
    """To the client and to actors alike; `this_proc()` in an actor is that actor's process."""
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    own, here, there = procs.spawn("nester", Nester).nest.call_one().get(PATIENCE)
    assert own == here
    assert len({os.getpid(), own, there}) == 3
    procs.stop().get(PATIENCE)


@pytest.mark.process
def test_38_this_host_of_an_actor_of_the_clients_process_is_the_clients(processes: Any) -> None:
    """Also there what is spawned is a process of its own."""
    nester = this_proc().spawn("nester", Nester)
    own, here, there = nester.nest.call_one().get(PATIENCE)
    assert own == here == os.getpid() != there
    nester.end.call_one().get(PATIENCE)
    nester.stop().get(PATIENCE)


# -- 41 --------------------------------------------------------------------------------


def test_41_a_timeout_does_not_consume_the_answer(world: Any, keeper: Any) -> None:
    """The future stays usable, by `get`, `await` and from several loops."""
    gate = world.gate()
    future = keeper.hold.call_one(gate)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"keeper\.hold\(\) on rank 0 did not answer within 0 s"):
            future.get(timeout=0)
    gate.open()
    assert future.get(PATIENCE) == "held"

    async def wait() -> str:
        return await future

    assert [asyncio.run(wait()) for _ in range(2)] == ["held", "held"]
    assert future.get(0) == "held"


def test_41_the_same_error_is_raised_each_time(keeper: Any) -> None:
    """One object, however often and in whatever way the future is looked at."""
    future = keeper.fail.call_one()

    async def wait() -> None:
        await future

    raised = [future.exception(PATIENCE)]
    for look in (future.get, future.result, lambda: asyncio.run(wait())):
        with pytest.raises(ActorError) as caught:
            look()
        raised.append(caught.value)
    assert len({id(error) for error in raised}) == 1


def test_41_a_cancelled_wait_cancels_no_other(world: Any, keeper: Any) -> None:
    """Neither the other awaiters of the future nor the endpoint."""
    gate = world.gate()
    future = keeper.hold.call_one(gate)

    async def wait() -> Any:
        return await future

    async def give_up_and_wait() -> Any:
        impatient, patient = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        assert impatient.cancelled()
        assert not patient.done()
        gate.open()
        return await patient

    assert asyncio.run(give_up_and_wait()) == "held"
    assert future.get(PATIENCE) == "held"


@pytest.mark.parametrize("timeout", [-1, float("inf"), float("nan")])
def test_41_a_timeout_is_a_number_of_seconds(world: Any, keeper: Any, timeout: float) -> None:
    """Others are refused, unless the answer is there already."""
    gate = world.gate()
    future = keeper.hold.call_one(gate)
    with pytest.raises(ValueError, match="timeout"):
        future.get(timeout)
    gate.open()
    assert future.get(PATIENCE) == future.get(timeout) == "held"


# -- 42 --------------------------------------------------------------------------------


def test_42_arguments_are_those_of_the_time_of_the_call(world: Any, keeper: Any) -> None:
    """What the caller changes afterwards does not show, also before the message is handled."""
    gate = world.gate()
    keeper.hold.broadcast(gate)
    gate.wait_told()
    value = ["at the call"]
    keeper.keep.broadcast(value)
    value.append("afterwards")
    gate.open()
    assert keeper.read.call_one().get(PATIENCE) == ["at the call"]


def test_42_arguments_of_constructors_too(world: Any) -> None:
    """Each rank has a copy of its own."""
    value = ["at the spawn"]
    keeper = world.spawn(Keeper, value)
    value.append("afterwards")
    assert list(keeper.read.call().get(PATIENCE).values()) == [["at the spawn"]] * 2
    assert keeper.slice(gpus=0).grow.call_one().get(PATIENCE) == ["at the spawn", "by the actor"]
    assert keeper.slice(gpus=1).read.call_one().get(PATIENCE) == ["at the spawn"]


def test_42_results_are_copies_as_well(keeper: Any) -> None:
    """The caller's changes do not reach the actor."""
    keeper.keep.call_one(["kept"]).get(PATIENCE)
    got = keeper.read.call_one().get(PATIENCE)
    got.append("by the caller")
    assert keeper.read.call_one().get(PATIENCE) == ["kept"]


@pytest.mark.process
def test_42_a_class_by_value_brings_its_globals_along(processes: Any) -> None:
    """As all code of notebooks does: an actor in another process counts in a copy, and the client keeps its own."""
    before = COUNTED[0]
    assert list(processes.spawn(Keeper).count.call().get(PATIENCE).values()) == [before + 1] * 2
    assert [before] == COUNTED


def test_42_globals_are_shared_within_a_process(world: Any) -> None:
    """The actor's class is the client's there; arguments are copies all the same."""
    before = COUNTED[0]
    keeper = this_proc().spawn("keeper", Keeper)
    assert keeper.count.call_one().get(PATIENCE) == COUNTED[0] == before + 1
    keeper.stop().get(PATIENCE)


def test_42_values_of_a_class_by_value_come_back_as_that_class(world: Any) -> None:
    """So `isinstance` holds for the caller, though the class was rebuilt where the actor lives."""
    keeper = world.spawn(Keeper, Point3(1, 2, 3), gpus=1)
    got = keeper.read.call_one().get(PATIENCE)
    assert isinstance(got, Point3)
    assert got.total() == 6


# -- 43 --------------------------------------------------------------------------------


def test_43_an_argument_over_the_limit_is_an_error_of_the_caller(make_world: Any) -> None:
    """It is raised at the line of the call, names the limit, and nothing is lost in silence."""
    keeper = make_world(max_message_bytes=100_000).spawn(Keeper)
    with pytest.raises(SupervisionError, match="MESHBOOK_MAX_MESSAGE_BYTES"):
        keeper.keep.call(b"x" * 100_000)
    with pytest.raises(SupervisionError, match="MESHBOOK_MAX_MESSAGE_BYTES"):
        keeper.keep.broadcast(b"x" * 100_000)
    assert list(keeper.read.call().get(PATIENCE).values()) == [None, None]


def test_43_a_result_over_the_limit_is_an_error_of_the_caller(make_world: Any) -> None:
    """The same one, though the actor lives: no answer can come. It is the error of this call alone, and no fault."""
    keeper = make_world(max_message_bytes=100_000).spawn(Keeper)
    calls = [keeper.make.call(100_000), keeper.slice(gpus=1).make.call_one(100_000), *keeper.make.stream(100_000)]
    for call in calls:
        with pytest.raises(SupervisionError, match=r"(?s)keeper\.make.* over the limit .*MESHBOOK_MAX_MESSAGE_BYTES"):
            call.get(PATIENCE)
    assert [len(made) for made in keeper.make.call(50_000).get(PATIENCE).values()] == [50_000, 50_000]
