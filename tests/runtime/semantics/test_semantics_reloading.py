"""Semantics: classes of live actors that are defined anew, `mesh.reload()`."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from meshbook import Actor, ActorError, SupervisionError, as_endpoint, concurrent_endpoint, context, endpoint
from meshbook.runtime.errors import CallCancelled, PickleError
from tests.support import PATIENCE

HERE = sys.modules[__name__]


class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.count = start

    @endpoint
    def add(self, amount: int) -> str:
        self.count += amount
        return f"old {self.count}"

    @endpoint
    def hold(self, gate: Any) -> str:
        gate.pass_through()
        return self.version()

    @endpoint
    def dropped(self) -> str:
        return "old"

    @endpoint
    def class_name(self) -> str:
        return context().actor_instance.class_name.rpartition(".")[2]

    def version(self) -> str:
        return f"old {self.count}"


class Renewed(Actor):
    """A later version; its constructor would want something else."""

    def __init__(self, start: int, label: str) -> None:
        raise AssertionError("a live actor is not constructed again")

    @endpoint
    def add(self, amount: int, times: int = 1) -> str:
        self.count += amount * times
        return f"new {self.count}"

    @endpoint
    def hold(self, gate: Any) -> str:
        gate.pass_through()
        return self.version()

    @endpoint
    def fresh(self) -> str:
        return f"fresh {self.count}"

    @endpoint
    def class_name(self) -> str:
        return context().actor_instance.class_name.rpartition(".")[2]

    def version(self) -> str:
        return f"new {self.count}"

    count: int


class Loop(Actor):
    @endpoint
    async def hold(self, gate: Any) -> str:
        await gate.pass_through_async()
        return self.version()

    @concurrent_endpoint
    async def overlap(self, gate: Any) -> str:
        await gate.pass_through_async()
        return self.version()

    @concurrent_endpoint
    async def was_concurrent(self, gate: Any) -> str:
        return self.version()

    def version(self) -> str:
        return "old"


class RenewedLoop(Loop):
    @endpoint
    async def was_concurrent(self, gate: Any) -> str:  # type: ignore[override]
        await gate.pass_through_async()
        return self.version()

    def version(self) -> str:
        return "new"


class Mixed(Actor, mixed=True):
    @endpoint
    def hold(self, gate: Any) -> str:
        gate.pass_through()
        return self.version()

    @endpoint
    async def hold_async(self, gate: Any) -> str:
        await gate.pass_through_async()
        return self.version()

    def version(self) -> str:
        return "old"


class RenewedMixed(Mixed):
    def version(self) -> str:
        return "new"


def test_beyond_7_live_actors_become_of_the_new_class_and_keep_their_state(world: Any) -> None:
    counters = world.spawn(Counter, 5)
    assert counters.add.call(1).get(PATIENCE).item(gpus=0) == "old 6"
    assert counters.reload(Renewed).get(PATIENCE) is None
    assert list(counters.add.call(1, times=2).get(PATIENCE).values()) == ["new 8", "new 8"]
    assert list(counters.fresh.call().get(PATIENCE).values()) == ["fresh 8", "fresh 8"]
    assert list(as_endpoint(counters.version).call().get(PATIENCE).values()) == ["new 8", "new 8"]
    assert list(counters.class_name.call().get(PATIENCE).values()) == ["Renewed", "Renewed"]


def test_beyond_7_without_an_argument_it_is_the_class_that_has_the_name_now(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = world.spawn(Counter, 0)
    monkeypatch.setattr(HERE, "Counter", Renewed)
    counters.reload()
    assert counters.fresh.choose().get(PATIENCE) == "fresh 0"


def test_beyond_7_the_next_spawn_is_of_the_new_class_on_the_same_processes(world: Any) -> None:
    procs = world.procs()
    old = procs.spawn("counter", Counter, 0)
    assert old.add.choose(1).get(PATIENCE) == "old 1"
    new = procs.spawn("counter", type("Counter", (Renewed,), {"__init__": Counter.__init__, "__module__": __name__}), 0)
    assert new.add.choose(1).get(PATIENCE) == "new 1"
    assert old.add.choose(0).get(PATIENCE).startswith("old")


def test_beyond_7_a_class_that_was_changed_in_place_is_renewed(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = world.spawn(Counter, 3)
    assert counters.hold.choose(_Open()).get(PATIENCE) == "old 3"
    monkeypatch.setattr(Counter, "version", lambda self: f"patched {self.count}")
    counters.reload().get(PATIENCE)
    assert counters.hold.choose(_Open()).get(PATIENCE) == "patched 3"


class _Open:
    """An open gate."""

    def pass_through(self) -> None: ...


# -- order -------------------------------------------------------------------------------


def test_beyond_7_calls_sent_before_run_with_the_old_class_and_those_after_with_the_new(world: Any) -> None:
    counter, gate = world.spawn(Counter, 0, gpus=1), world.gate()
    held = counter.hold.call_one(gate)
    gate.wait_told()
    before = counter.add.call_one(1)
    reloaded = counter.reload(Renewed)
    after = counter.add.call_one(1)
    again = counter.reload(Counter)
    last = counter.dropped.call_one()
    assert not reloaded.done()
    gate.open()
    assert [each.get(PATIENCE) for each in (held, before, reloaded, after, again, last)] == [
        *("old 0", "old 1", None, "new 2", None, "old")
    ]


@pytest.mark.parametrize(
    ("cls", "new", "endpoint"),
    [
        (Loop, RenewedLoop, "hold"),
        (Mixed, RenewedMixed, "hold"),
        (Mixed, RenewedMixed, "hold_async"),
    ],
)
def test_beyond_7_no_endpoint_sees_another_class_in_its_middle(world: Any, cls: type, new: type, endpoint: str) -> None:
    mesh, gate = world.spawn(cls, gpus=1), world.gate()
    held = getattr(mesh, endpoint).call_one(gate)
    gate.wait_told()
    mesh.reload(new)
    after = getattr(mesh, endpoint).call_one(gate)
    gate.open(2)
    assert (held.get(PATIENCE), after.get(PATIENCE)) == ("old", "new")


def test_beyond_7_overlapping_endpoints_are_let_finish_first(world: Any) -> None:
    """And what was sent after the reload does not begin before."""
    mesh, gates, later = world.spawn(Loop, gpus=1), [world.gate(), world.gate()], world.gate()
    held = [mesh.overlap.call_one(gate) for gate in gates]
    for gate in gates:
        gate.wait_told()
    reloaded = mesh.reload(RenewedLoop)
    after = mesh.overlap.call_one(later)
    gates[0].open()
    assert held[0].get(PATIENCE) == "old"
    assert not reloaded.done()
    assert later.told() == []
    gates[1].open()
    assert held[1].get(PATIENCE) == "old"
    assert reloaded.get(PATIENCE) is None
    later.wait_told()
    later.open()
    assert after.get(PATIENCE) == "new"


def test_beyond_7_an_endpoint_that_overlaps_no_more_is_one_at_a_time(world: Any) -> None:
    mesh, gate = world.spawn(Loop, gpus=1), world.gate()
    assert mesh.was_concurrent.call_one(gate).get(PATIENCE) == "old"
    mesh.reload(RenewedLoop)
    first, second = mesh.was_concurrent.call_one(gate), mesh.was_concurrent.call_one(gate)
    gate.wait_told()
    assert gate.told() == []
    gate.open()
    assert first.get(PATIENCE) == "new"
    gate.wait_told()
    gate.open()
    assert second.get(PATIENCE) == "new"


def test_beyond_7_a_reload_that_waits_for_overlapping_endpoints_can_be_cancelled(world: Any) -> None:
    mesh, gate = world.spawn(Loop, gpus=1), world.gate()
    held = mesh.overlap.call_one(gate)
    gate.wait_told()
    reloaded = mesh.reload(RenewedLoop)
    after = mesh.was_concurrent.call_one(gate)
    assert reloaded.cancel()
    assert isinstance(reloaded.exception(PATIENCE), CallCancelled)
    assert after.get(PATIENCE) == "old"
    gate.open()
    assert held.get(PATIENCE) == "old"


# -- which actors, and which handles -------------------------------------------------------


def test_beyond_7_of_a_slice_only_the_slice(world: Any) -> None:
    counters = world.spawn(Counter, 0, gpus=3)
    part = counters.slice(gpus=slice(1, 3))
    part.reload(Renewed).get(PATIENCE)
    assert list(part.fresh.call().get(PATIENCE).values()) == ["fresh 0", "fresh 0"]
    assert list(counters.add.call(1).get(PATIENCE).values()) == ["old 1", "new 1", "new 1"]


def test_beyond_7_the_handle_and_those_made_from_it_know_the_new_endpoints(world: Any) -> None:
    counters = world.spawn(Counter, 0)
    other, earlier, kept = counters.slice(gpus=0), pickle.loads(pickle.dumps(counters)), counters.add
    counters.reload(Renewed)
    with pytest.raises(AttributeError, match="no endpoint 'dropped'; its endpoints: add, class_name, fresh, hold"):
        counters.dropped  # noqa: B018
    for handle in (counters, counters.slice(gpus=1), pickle.loads(pickle.dumps(counters))):
        assert handle.fresh.choose().get(PATIENCE) == "fresh 0"
        assert handle.add.choose(1, times=0).get(PATIENCE) == "new 0"
    # The others go on with what they know, and the actors say what they do not have any more.
    assert earlier.add.choose(0).get(PATIENCE) == kept.choose(0).get(PATIENCE) == "new 0"
    with pytest.raises(TypeError, match="times"):
        kept.choose(0, times=1)
    with pytest.raises(AttributeError, match="no endpoint 'fresh'"):
        other.fresh  # noqa: B018
    with pytest.raises(ActorError, match="Renewed has no endpoint 'dropped'"):
        other.dropped.call_one().get(PATIENCE)
    other.reload(Renewed)
    assert other.fresh.call_one().get(PATIENCE) == "fresh 0"


class Boss(Actor):
    @endpoint
    def reload(self) -> None: ...


class Editor(Actor):
    @endpoint
    def edit(self, mesh: Any, cls: type) -> str:
        mesh.reload(cls).get(PATIENCE)
        answer: str = mesh.fresh.choose().get(PATIENCE)
        return answer


def test_beyond_7_an_actor_can_reload_others(world: Any) -> None:
    """The class goes on from where it came by value."""
    counters = world.spawn(Counter, 7)
    assert world.spawn(Editor, gpus=1).edit.call_one(counters, Renewed).get(PATIENCE) == "fresh 7"
    assert counters.class_name.choose().get(PATIENCE) == "Renewed"


# -- what is refused ---------------------------------------------------------------------


class Slotted(Actor):
    __slots__ = ("narrow",)

    @endpoint
    def add(self, amount: int) -> str:
        return "slotted"

    @endpoint
    def slotted(self) -> None: ...


class Confused(Actor):
    @endpoint
    def one(self) -> None: ...

    @endpoint
    async def two(self) -> None: ...


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (Counter, int, "is not a subclass of Actor"),
        (Counter, Renewed.add, "is not a subclass of Actor"),
        (Counter, Confused, "mixes both async and sync endpoints"),
        (Counter, Boss, "endpoint 'reload' would hide"),
        (Counter, Loop, "Counter run on a thread, but those of Loop on an event loop: "),
        (Loop, Counter, "Loop run on an event loop, but those of Counter on a thread: "),
        (Loop, Mixed, "those of Mixed on an event loop with a thread beside it"),
    ],
)
def test_beyond_7_what_cannot_take_its_place_is_refused_at_the_callers_line(
    in_memory: Any, old: type, new: Any, said: str
) -> None:
    mesh = in_memory.spawn(old, *([0] if old is Counter else []), gpus=1)
    with pytest.raises(ValueError, match=said):
        mesh.reload(new)
    assert old.__name__ in repr(mesh)


def test_beyond_7_a_class_that_is_nowhere_by_its_name_has_to_be_given(in_memory: Any) -> None:
    class Local(Counter):
        pass

    mesh = in_memory.spawn(Local, 0, gpus=1)
    with pytest.raises(ValueError, match=r"no longer has a class .*Local: .*reload\(NewClass\)"):
        mesh.reload()


class Table(Actor, dict[str, int]):
    @endpoint
    def add(self, amount: int) -> str:
        return "table"


@pytest.mark.parametrize("new", [Slotted, Table])
def test_beyond_7_another_layout_leaves_the_actors_as_they_are(world: Any, new: type) -> None:
    counters = world.spawn(Counter, 0)
    error = counters.reload(new).exception(PATIENCE)
    assert isinstance(error, ActorError)
    assert isinstance(error.exception, TypeError)
    assert f"an object of Counter cannot become one of {new.__name__}" in str(error.exception)
    assert "__slots__" in str(error)
    assert counters.add.choose(1).get(PATIENCE) == "old 1"
    assert counters.dropped.choose().get(PATIENCE) == "old", "the handle knows what the actors are"
    counters.reload(Renewed).get(PATIENCE)
    assert counters.fresh.choose().get(PATIENCE).startswith("fresh")


def test_beyond_7_a_class_that_cannot_travel_is_refused_at_the_callers_line(world: Any) -> None:
    counters = world.spawn(Counter, 0)

    class Unpicklable(Renewed):
        source = (number for number in range(3))

    with pytest.raises(PickleError, match=r"the class .*Unpicklable cannot be pickled: .*generator"):
        counters.reload(Unpicklable)
    assert counters.dropped.choose().get(PATIENCE) == "old"


def test_beyond_7_actors_that_have_ended_say_so(world: Any) -> None:
    counters = world.spawn(Counter, 0)
    counters.stop().get(PATIENCE)
    with pytest.raises(SupervisionError, match="stopped"):
        counters.reload(Renewed).get(PATIENCE)


def test_beyond_7_the_same_slots_are_no_other_layout(world: Any) -> None:
    class Renewed(Slotted):
        __slots__ = ()

        @endpoint
        def add(self, amount: int) -> str:
            return "renewed"

    slotted = world.spawn(Slotted)
    slotted.reload(Renewed)
    assert slotted.add.choose(1).get(PATIENCE) == "renewed"


# -- modules -------------------------------------------------------------------------------

SOURCE = """
from meshbook import Actor, endpoint

def version():
    return {version!r}

class Worker(Actor):
    def __init__(self):
        self.kept = []

    @endpoint
    def step(self):
        self.kept.append(version())
        return self.kept
"""


@pytest.mark.process
def test_beyond_7_a_module_that_was_reloaded_here_is_new_on_the_ranks(
    processes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they have imported it in its earlier state."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "edited_by_test.py"
    file.write_text(SOURCE.format(version=1))
    module = importlib.import_module("edited_by_test")
    try:
        worker = processes.spawn(module.Worker, gpus=1)
        assert worker.step.call_one().get(PATIENCE) == [1]
        file.write_text(SOURCE.format(version=2))
        module = importlib.reload(module)
        for versions in ([1, 2], [1, 2, 2]):
            worker.reload().get(PATIENCE)
            assert worker.step.call_one().get(PATIENCE) == versions
        assert module.__name__ not in cloudpickle.list_registry_pickle_by_value()
    finally:
        del sys.modules["edited_by_test"]
