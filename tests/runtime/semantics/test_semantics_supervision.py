"""Semantics: errors that nobody takes, who is told of a failure, and how far it goes up."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

from meshbook import (
    Actor,
    Channel,
    MeshFailure,
    Port,
    SupervisionError,
    concurrent_endpoint,
    context,
    endpoint,
    this_host,
    this_proc,
)
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.host_ownership import when_ended
from tests.support import PATIENCE


class Own(BaseException):
    """Of nobody's, so nobody catches it."""


def raise_(error: BaseException) -> Any:
    raise error


class Probe(Actor):
    """Runs what it is sent."""

    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    @endpoint(explicit_response_port=True)
    def answer(self, port: Port[Any], function: Callable[[Any], Any]) -> None:
        function(port)


class AsyncProbe(Actor):
    """The same on a loop."""

    @endpoint
    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    @endpoint(explicit_response_port=True)
    async def answer(self, port: Port[Any], function: Callable[[Any], Any]) -> None:
        function(port)


@pytest.fixture(params=[Probe, AsyncProbe])
def probe(request: pytest.FixtureRequest) -> type[Actor]:
    return request.param  # type: ignore[no-any-return]


def lost(future: Any, said: str = "") -> SupervisionError:
    with pytest.raises(SupervisionError, match=f"(?s){said}") as caught:
        future.get(PATIENCE)
    return caught.value


def next_of(faults: Any) -> MeshFailure:
    return faults.get(timeout=PATIENCE)  # type: ignore[no-any-return]


def test_09_an_error_in_a_broadcast_ends_the_actor_and_reaches_its_owner(world: Any, faults: Any, probe: Any) -> None:
    """Where nobody takes an answer nobody takes an error: the actor ends, and whoever spawned it hears of that."""
    mesh = world.spawn(probe, name="worker")
    mesh.slice(gpus=1).run.broadcast(raise_, ValueError("for nobody"))
    failure = next_of(faults)
    assert (failure.mesh_name, failure.crashed_ranks) == ("worker", [1])
    for text in (failure.report(), str(failure)):
        assert "ValueError: for nobody" in text
        assert "and all its descendants have failed" in text
    assert "MeshFailure" in str(failure)
    assert "crashed_ranks=[1]" in str(failure)
    lost(mesh.slice(gpus=1).run.call_one(abs, 1), "ValueError: for nobody")
    assert failure.mesh.slice(gpus=0).run.call_one(abs, -1).get(PATIENCE) == 1


def test_10_an_endpoint_that_answers_by_a_port_and_raises_ends_the_actor(world: Any, faults: Any, probe: Any) -> None:
    """It has no other way to say so; whoever waits for its answer is told."""
    mesh = world.spawn(probe, gpus=1)
    lost(mesh.answer.call_one(lambda port: raise_(ValueError("instead of an answer"))), "instead of an answer")
    assert "instead of an answer" in next_of(faults).report()
    lost(mesh.run.call_one(abs, 1))


class Debtor(Actor):
    """Owes its callers answers."""

    def __init__(self) -> None:
        self.ports: list[Port[Any]] = []

    @endpoint(explicit_response_port=True)
    def owe(self, port: Port[Any], *, gate: Any = None, error: BaseException | None = None) -> None:
        self.ports.append(port)
        if gate is not None:
            gate.pass_through()
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [ValueError("at last"), SystemExit("at last")], ids=lambda e: type(e).__name__)
def test_10_all_its_waiting_callers_get_an_error(world: Any, faults: Any, error: BaseException) -> None:
    """Those whom it owed one from before, and those in the queue."""
    mesh, gate = world.spawn(Debtor, gpus=1), world.gate()
    owed = [mesh.owe.call_one() for _ in range(2)]
    waiting = [mesh.owe.call_one(gate=gate, error=error), mesh.owe.call_one()]
    gate.wait_told()
    assert not any(future.done() for future in (*owed, *waiting))
    gate.open()
    for future in (*owed, *waiting, mesh.owe.call_one()):
        lost(future, "at last")
    assert "at last" in next_of(faults).report()


def hold_and_raise(gate: Any, error: BaseException) -> None:
    gate.pass_through()
    raise error


def test_11_callers_in_the_queue_get_an_error_too(world: Any, faults: Any, probe: Any) -> None:
    """Whether it was asked for an answer or not: the end of the one is told to all."""
    mesh, gate = world.spawn(probe, gpus=2), world.gate()
    rank = mesh.slice(gpus=1)
    rank.run.broadcast(hold_and_raise, gate, SystemExit("in a broadcast"))
    gate.wait_told()
    waiting = [rank.run.call_one(abs, -1), mesh.run.call(abs, -1), rank.run.choose(abs, -1)]
    gate.open()
    for future in waiting:
        lost(future, "in a broadcast")
    assert next_of(faults).crashed_ranks == [1]
    assert mesh.slice(gpus=0).run.call_one(abs, -1).get(PATIENCE) == 1


def test_11_calls_that_overlap_end_with_it(world: Any, faults: Any) -> None:
    """One that raises what is no exception ends the actor, and so all others."""
    port, _ = Channel[str].open()
    mesh, gate = world.spawn(Overlapping, port, gpus=1), world.gate()
    others = [mesh.wait.call_one(gate) for _ in range(2)]
    for _ in others:
        gate.wait_told()
    for future in (mesh.end.call_one(), *others, mesh.wait.call_one(gate)):
        lost(future, "KeyboardInterrupt")
    assert "KeyboardInterrupt" in next_of(faults).report()


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt("now"), Own("of ours")], ids=lambda e: type(e).__name__
)
def test_11_what_is_no_exception_always_ends_the_actor(world: Any, faults: Any, probe: Any, error: Any) -> None:
    """SystemExit, KeyboardInterrupt and their like: who waits is told, and so is whoever calls later."""
    mesh = world.spawn(probe, gpus=1)
    lost(mesh.run.call_one(raise_, error), type(error).__name__)
    assert type(error).__name__ in next_of(faults).report()
    lost(mesh.run.call_one(abs, 1), type(error).__name__)


def first_fault(world: Any, faults: Any) -> str:
    """The name of the mesh of the first fault that nobody handled; here one is caused, which comes after all others."""
    world.spawn(Probe, gpus=1, name="last").run.broadcast(raise_, ValueError("the last"))
    return next_of(faults).mesh_name


class Broken(Actor):
    """Its constructor raises."""

    def __init__(self, error: BaseException) -> None:
        raise error

    @endpoint
    def run(self) -> None: ...


@pytest.mark.parametrize("error", [ValueError("at birth"), SystemExit("at birth")], ids=lambda e: type(e).__name__)
def test_13_a_constructor_that_fails_is_one_event_for_each_rank(world: Any, faults: Any, error: Any) -> None:
    """`spawn` does not raise it; the owner is told of each rank, and calls fail."""
    mesh = world.spawn(Broken, error, name="broken")
    early = mesh.run.call()
    failures = [next_of(faults), next_of(faults)]
    assert sorted(failure.crashed_ranks for failure in failures) == [[0], [1]]
    assert all("at birth" in failure.report() for failure in failures)
    for future in (early, mesh.run.call(), mesh.slice(gpus=1).run.call_one(), mesh.initialized):
        lost(future, "at birth")
    mesh.run.broadcast()
    assert first_fault(world, faults) == "last"


class Parent(Actor):
    """Owns a mesh of probes in its own process, and does with their failures what it is told to."""

    def __init__(self, verdict: Any, note: Port[Any], child: type[Actor] = Probe) -> None:
        self.verdict = verdict
        self.note = note
        self.child = this_proc().spawn("child", child)

    def __supervise__(self, failure: MeshFailure) -> Any:
        self.note.send((failure.mesh_name, failure.crashed_ranks, failure.report()))
        return raise_(self.verdict) if isinstance(self.verdict, Exception) else self.verdict

    @endpoint
    def give_child(self) -> Any:
        return self.child

    @endpoint
    def ask_child(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.child.run.call_one(function, *arguments).get()

    @endpoint
    def take_child(self, child: Any) -> None:
        self.child = child

    @endpoint
    def renew_child(self) -> None:
        self.child = this_proc().spawn("second", Probe)

    @endpoint
    def tell_child(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.child.run.broadcast(function, *arguments)


class ParentOfOtherKind(Parent):
    """On a thread, with an async hook."""

    async def __supervise__(self, failure: MeshFailure) -> Any:
        await asyncio.sleep(0)
        return super().__supervise__(failure)


class AsyncParent(Actor):
    """The same on a loop."""

    def __init__(self, verdict: Any, note: Port[Any], child: type[Actor] = Probe) -> None:
        self.verdict = verdict
        self.note = note
        self.child = this_proc().spawn("child", child)

    async def __supervise__(self, failure: MeshFailure) -> Any:
        self.note.send((failure.mesh_name, failure.crashed_ranks, failure.report()))
        return raise_(self.verdict) if isinstance(self.verdict, Exception) else self.verdict

    @endpoint
    async def give_child(self) -> Any:
        return self.child

    @endpoint
    async def ask_child(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self.child.run.call_one(function, *arguments)

    @endpoint
    async def take_child(self, child: Any) -> None:
        self.child = child

    @endpoint
    async def renew_child(self) -> None:
        self.child = this_proc().spawn("second", Probe)

    @endpoint
    async def tell_child(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.child.run.broadcast(function, *arguments)


class Boss(Actor):
    """Owns a mesh of probes on the processes that it is given, or on some of its own; handles what becomes of them."""

    def __init__(self, note: Port[Any], procs: Any = None) -> None:
        self.note = note
        self.procs = procs if procs is not None else this_host().spawn_procs({"gpus": 3}, name="own")
        self.crew: Any = self.procs.spawn("crew", Probe)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.note.send((failure.mesh_name, failure.crashed_ranks, failure.report()))
        return True

    @endpoint
    def tell(self, rank: int, function: Callable[..., Any], *arguments: Any) -> None:
        self.crew.slice(gpus=rank).run.broadcast(function, *arguments)

    @endpoint
    def why_lost(self, rank: int) -> str:
        """Ask until it fails."""
        return str(self.crew.slice(gpus=rank).run.call_one(abs, 1).exception(PATIENCE))

    @endpoint
    def kill(self, rank: int) -> None:
        """Return when it has heard of the end."""
        node = self.procs.slice(gpus=rank).nodes[0].node
        ended = when_ended(current_node(), [node])
        self.procs.slice(gpus=rank).kill().get(PATIENCE)
        ended.get(PATIENCE)


class AsyncParentOfOtherKind(AsyncParent):
    """On a loop, with a sync hook."""

    def __supervise__(self, failure: MeshFailure) -> Any:  # type: ignore[override]
        self.note.send((failure.mesh_name, failure.crashed_ranks, failure.report()))
        return raise_(self.verdict) if isinstance(self.verdict, Exception) else self.verdict


@pytest.fixture(params=[Parent, AsyncParent, ParentOfOtherKind, AsyncParentOfOtherKind])
def parent(request: pytest.FixtureRequest) -> type[Actor]:
    return request.param  # type: ignore[no-any-return]


def test_20_the_failure_reaches_the_owner_and_not_holders_of_a_reference(world: Any, faults: Any, parent: Any) -> None:
    """The parent has spawned the child. The client has a reference to it, and so has the actor that makes it fail."""
    port, notes = Channel[Any].open()
    others, others_notes = Channel[Any].open()
    mesh, holder = world.spawn(parent, True, port, gpus=1), world.spawn(parent, True, others, gpus=1)
    child = mesh.give_child.call_one().get(PATIENCE)
    holder.take_child.call_one(child).get(PATIENCE)
    holder.tell_child.call_one(raise_, ValueError("of the child")).get(PATIENCE)
    name, ranks, report = notes.recv().get(PATIENCE)
    assert (name, ranks) == ("child", [0])
    assert "of the child" in report
    for each in (mesh, holder):
        assert each.give_child.call_one().get(PATIENCE) is not None
    assert not others_notes.recv().done()
    assert first_fault(world, faults) == "last"


def test_20_the_failure_reaches_the_owner_of_the_actors_and_not_of_the_processes(world: Any, faults: Any) -> None:
    """Of what fails in actors. The end of a process concerns both: each hears of what is its own."""
    port, notes = Channel[Any].open()
    procs = world.procs(2)
    boss = world.spawn(Boss, port, procs, gpus=1)
    boss.tell.call_one(0, raise_, ValueError("of an actor")).get(PATIENCE)
    name, ranks, report = notes.recv().get(PATIENCE)
    assert (name, ranks) == ("crew", [0])
    assert "of an actor" in report
    world.kill(procs.slice(gpus=1))
    assert notes.recv().get(PATIENCE)[:2] == ("crew", [1])
    failure = next_of(faults)
    assert (failure.mesh_name, failure.crashed_ranks) == ("procs", [1])
    assert first_fault(world, faults) == "last"


def test_21_a_true_answer_means_handled_and_the_owner_goes_on(world: Any, faults: Any, parent: Any) -> None:
    """It is asked once for each failed rank, and may spawn another child."""
    port, notes = Channel[Any].open()
    mesh = world.spawn(parent, "yes", port, gpus=1)
    mesh.tell_child.call_one(raise_, ValueError("once")).get(PATIENCE)
    notes.recv().get(PATIENCE)
    with pytest.raises(Exception, match="once"):
        mesh.ask_child.call_one(abs, -1).get(PATIENCE)
    mesh.renew_child.call_one().get(PATIENCE)
    assert mesh.ask_child.call_one(abs, -2).get(PATIENCE) == 2
    assert not notes.recv().done()
    assert faults.empty()


def test_21_each_failed_rank_is_reported_once(world: Any, faults: Any) -> None:
    """However much goes wrong with it, and in whatever order; each failure names its own rank."""
    port, notes = Channel[Any].open()
    boss = world.spawn(Boss, port, gpus=1)
    for _ in range(2):
        boss.tell.call_one(1, raise_, ValueError("of an actor")).get(PATIENCE)
    assert "of an actor" in boss.why_lost.call_one(1).get(PATIENCE)
    boss.kill.call_one(2).get(PATIENCE)
    for _ in range(2):
        assert "Killed(sig=9)" in boss.why_lost.call_one(2).get(PATIENCE)
    boss.kill.call_one(0).get(PATIENCE)
    told = [notes.recv().get(PATIENCE) for _ in range(3)]
    assert [(name, ranks) for name, ranks, _ in told] == [("crew", [1]), ("crew", [2]), ("crew", [0])]
    assert ["of an actor" in report for _, _, report in told] == [True, False, False]
    boss.why_lost.call_one(1).get(PATIENCE)  # all that could be told has been by now
    assert not notes.recv().done()
    assert first_fault(world, faults) == "last"


@pytest.mark.parametrize("verdict", [False, None, 0])
def test_21_anything_else_lets_the_owner_fail_too(world: Any, faults: Any, parent: Any, verdict: Any) -> None:
    """And its own owner, the client, is told of both."""
    port, notes = Channel[Any].open()
    mesh = world.spawn(parent, verdict, port, gpus=1, name="outer")
    mesh.tell_child.broadcast(raise_, ValueError("far below"))
    notes.recv().get(PATIENCE)
    failure = next_of(faults)
    assert failure.mesh_name == "outer"
    assert "its mesh child has failed" in failure.report()
    assert "far below" in failure.report()
    lost(mesh.give_child.call_one(), "far below")


def test_21_an_owner_that_raises_fails_with_both_reasons(world: Any, faults: Any, parent: Any) -> None:
    """What `__supervise__` raised, and what it was told."""
    port, _ = Channel[Any].open()
    mesh = world.spawn(parent, KeyError("in the hook"), port, gpus=1)
    mesh.tell_child.broadcast(raise_, ValueError("in the child"))
    report = next_of(faults).report()
    assert "in the hook" in report
    assert "in the child" in report
    lost(mesh.give_child.call_one(), "in the hook")


class Listener(Actor):
    """Is in an endpoint when its child fails."""

    def __init__(self, note: Port[str]) -> None:
        self.note = note
        self.child = this_proc().spawn("child", Probe)

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.note.send("supervised")
        return True

    @endpoint
    async def wait(self, gate: Any) -> None:
        self.child.run.broadcast(raise_, ValueError("meanwhile"))
        await gate.pass_through_async()
        self.note.send("waited")


class SyncListener(Actor):
    """The same on a thread."""

    def __init__(self, note: Port[str]) -> None:
        self.note = note
        self.child = this_proc().spawn("child", Probe)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.note.send("supervised")
        return True

    @endpoint
    def wait(self, gate: Any) -> None:
        self.child.run.broadcast(raise_, ValueError("meanwhile"))
        with pytest.raises(SupervisionError):
            self.child.run.call_one(abs, 1).get(PATIENCE)
        gate.pass_through()
        self.note.send("waited")


def test_22_an_async_owner_is_notified_between_awaits(world: Any) -> None:
    """Its endpoint waits, and its loop turns."""
    port, notes = Channel[str].open()
    gate = world.gate()
    waiting = world.spawn(Listener, port, gpus=1).wait.call_one(gate)
    gate.wait_told()
    assert notes.recv().get(PATIENCE) == "supervised"
    gate.open()
    assert notes.recv().get(PATIENCE) == "waited"
    waiting.get(PATIENCE)


def test_22_a_sync_owner_is_notified_between_messages(world: Any) -> None:
    """Its endpoint is never interrupted by that."""
    port, notes = Channel[str].open()
    gate = world.gate()
    world.spawn(SyncListener, port, gpus=1).wait.broadcast(gate)
    gate.wait_told()
    gate.open()
    assert [notes.recv().get(PATIENCE) for _ in range(2)] == ["waited", "supervised"]


def test_24_an_actor_can_abort_itself(world: Any, faults: Any, probe: Any) -> None:
    """It fails for the reason that it gives, or for none."""
    for reason, said in [("enough", "enough"), (None, "no reason provided")]:
        mesh = world.spawn(probe, gpus=1)
        lost(mesh.run.call_one(lambda reason: context().actor_instance.abort(reason), reason), said)
        assert said in next_of(faults).report()
        lost(mesh.run.call_one(abs, 1), said)


def test_24_an_actor_can_stop_itself_and_that_is_no_failure(world: Any, faults: Any, probe: Any) -> None:
    """What it was sent before is handled, and whoever calls later is told."""
    mesh = world.spawn(probe, gpus=1)
    assert mesh.run.call_one(lambda: context().actor_instance.stop("done here")).get(PATIENCE) is None
    lost(mesh.run.call_one(abs, 1), "stopped: done here")
    assert faults.empty()


class Nest(Actor):
    """Spawns another of its kind below itself, as deep as it is told, on processes of their own."""

    def __init__(self, depth: int) -> None:
        self.inner: Any = None
        if depth:
            self.inner = this_host().spawn_procs({"inner": 1}).spawn("nest", Nest, depth - 1)

    @endpoint
    def innermost(self) -> Any:
        return self.inner.innermost.call_one().get() if self.inner is not None else None

    @endpoint
    def fail_inside(self) -> None:
        if self.inner is None:
            raise ValueError("at the bottom")
        self.inner.fail_inside.broadcast()


def test_25_a_failure_deep_inside_reaches_the_client_by_name(world: Any, faults: Any) -> None:
    """Each owner on the way fails with its child; the report names the one that began, by its whole name."""
    mesh = world.spawn(Nest, 2, gpus=1, name="outer")
    mesh.innermost.call_one().get(PATIENCE)
    mesh.fail_inside.broadcast()
    failure = next_of(faults)
    assert failure.mesh_name == "outer"
    assert "ValueError: at the bottom" in failure.report()
    inner = "Nest nest{'inner': 0/1}>"
    assert f"<root>.<{Nest.__module__}.Nest outer{{'gpus': 0/1}}>.<{Nest.__module__}.{inner}.<" in failure.report()
    assert failure.report().count("and all its descendants have failed") == 3


class Mourner(Actor):
    """Tells when it cleans up."""

    def __init__(self, note: Port[Any], name: str, depth: int = 0) -> None:
        self.note = note
        self.name = name
        self.inner = this_proc().spawn("inner", Mourner, note, f"{name}.inner", depth - 1) if depth else None

    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def __cleanup__(self, error: BaseException | None) -> None:
        self.note.send((self.name, repr(error)))


@pytest.mark.parametrize("ends", ["actors", "processes"])
def test_26_what_an_actor_owns_is_cleaned_up_before_it(world: Any, faults: Any, ends: str) -> None:
    """Stopping goes down to the leaves first, whether the actors are stopped or their processes."""
    port, notes = Channel[Any].open()
    procs = world.procs(1)
    mesh = procs.spawn("outer", Mourner, port, "outer", 2)
    mesh.initialized.get(PATIENCE)
    (mesh if ends == "actors" else procs).stop().get(PATIENCE)
    told = [notes.recv().get(PATIENCE) for _ in range(3)]
    assert told == [(name, "None") for name in ("outer.inner.inner", "outer.inner", "outer")]
    assert faults.empty()


class Tenant(Mourner):
    """Tells when that was."""

    def __cleanup__(self, error: BaseException | None) -> None:
        self.note.send((time.monotonic(), (self.name, repr(error))))


class Landlord(Tenant):
    """Owns processes, with a tenant on each."""

    def __init__(self, note: Port[Any]) -> None:
        super().__init__(note, "landlord")
        self.procs = this_host().spawn_procs({"gpus": 2})
        self.tenants = self.procs.spawn("tenant", Tenant, note, "tenant")
        self.tenants.initialized.get(PATIENCE)

    @endpoint
    def give_tenants(self) -> Any:
        return self.tenants


@pytest.mark.parametrize("ends", ["actors", "processes"])
def test_26_processes_that_an_actor_owns_end_before_it(world: Any, faults: Any, ends: str) -> None:
    """With all that is in them; and it was no fault."""
    port, notes = Channel[Any].open()
    procs = world.procs(1)
    mesh = procs.spawn("landlord", Landlord, port)
    tenants = mesh.give_tenants.call_one().get(PATIENCE)
    (mesh if ends == "actors" else procs).stop().get(PATIENCE)
    # From three processes; so not the order of arrival counts, but that of their common clock.
    told = sorted(notes.recv().get(PATIENCE) for _ in range(3))
    assert [note for _, note in told] == [("tenant", "None"), ("tenant", "None"), ("landlord", "None")]
    lost(tenants.run.call(abs, 1), "stopped|has ended")
    assert faults.empty()


def test_26_a_failure_ends_what_the_actor_owns(world: Any, faults: Any) -> None:
    """And `__cleanup__` is told the error."""
    port, notes = Channel[Any].open()
    mesh = world.spawn(Mourner, port, "outer", 1, gpus=1)
    mesh.run.broadcast(raise_, ValueError("why"))
    assert notes.recv().get(PATIENCE) == ("outer.inner", "None")
    assert notes.recv().get(PATIENCE) == ("outer", "ValueError('why')")
    next_of(faults)


def test_26_a_killed_actor_does_not_clean_up(world: Any, faults: Any) -> None:
    """What it owns does."""
    port, notes = Channel[Any].open()
    mesh = world.spawn(Mourner, port, "outer", 1, gpus=1)
    lost(mesh.run.call_one(lambda: context().actor_instance.kill("for good")), "for good")
    assert notes.recv().get(PATIENCE)[0] == "outer.inner"
    assert "for good" in next_of(faults).report()
    mesh.stop().get(PATIENCE)
    assert not notes.recv().done()


class Overlapping(Actor):
    """Has several calls at once."""

    def __init__(self, note: Port[str]) -> None:
        self.note = note

    @concurrent_endpoint
    async def wait(self, gate: Any) -> None:
        try:
            await gate.pass_through_async()
        finally:
            await asyncio.sleep(0)  # cancelled is not ended
            self.note.send("ended")

    @concurrent_endpoint
    async def end(self) -> None:
        raise KeyboardInterrupt

    async def __cleanup__(self, error: BaseException | None) -> None:
        self.note.send("cleaned up")


def test_27_overlapping_calls_are_over_before_the_cleanup(world: Any) -> None:
    """They are cancelled, and awaited."""
    port, notes = Channel[str].open()
    gate = world.gate()
    mesh = world.spawn(Overlapping, port, gpus=1)
    calls = [mesh.wait.call_one(gate) for _ in range(3)]
    for _ in calls:
        gate.wait_told()
    mesh.stop("enough").get(PATIENCE)
    assert [notes.recv().get(PATIENCE) for _ in range(4)] == ["ended", "ended", "ended", "cleaned up"]
    for call in calls:
        lost(call, "stopped: enough")


def test_a_failure_is_of_its_process(world: Any, faults: Any) -> None:
    """It holds handles and contexts; its report travels."""
    world.spawn(Probe, gpus=1).run.broadcast(raise_, ValueError("x"))
    with pytest.raises(TypeError, match=r"report\(\)"):
        pickle.dumps(next_of(faults))
