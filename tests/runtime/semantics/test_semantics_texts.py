"""Semantics: the pieces of texts that programs look for, each in the situation that they look for it in (spec 6)."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from meshbook import Actor, ActorError, SupervisionError, context, current_actor_name, endpoint, this_proc
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.host_ownership import when_ended
from tests.support import PATIENCE


class Member(Actor):
    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    @endpoint
    def spawn_on(self, procs: Any) -> Any:
        return procs.spawn("ward", Member)


class Mixed(Actor):
    @endpoint
    def sync(self) -> None: ...

    @endpoint
    async def other(self) -> None: ...


def raise_(error: BaseException) -> Any:
    raise error


def hear_of_the_end(node: str) -> None:
    when_ended(current_node(), [node]).get(PATIENCE)


def said(future: Any) -> str:
    """The text of the SupervisionError that it raises."""
    with pytest.raises(SupervisionError) as caught:
        future.get(PATIENCE)
    return str(caught.value)


def test_a_class_that_mixes_kinds(world: Any) -> None:
    with pytest.raises(ValueError, match="Mixed mixes both async and sync endpoints"):
        world.spawn(Mixed)


def test_an_actor_that_failed_and_the_call_of_it(world: Any, faults: Any) -> None:
    member = world.spawn(Member, gpus=1)
    member.run.broadcast(raise_, ValueError("no"))
    text = said(member.run.call_one(abs, 1))
    assert text.startswith("Endpoint call member.run() failed, ")
    path = re.escape(f"<root>.<{Member.__module__}.Member member{{'gpus': 0/1}}>")
    assert re.search(rf"The actor {path} in \S+ and all its descendants have failed", text)
    failure = faults.get(timeout=PATIENCE)
    assert "crashed_ranks=[0]" in str(failure)
    assert "MeshFailure" in str(failure)


def test_processes_that_were_stopped(world: Any) -> None:
    procs = world.procs(1)
    member = procs.spawn("member", Member)
    procs.stop("enough").get(PATIENCE)
    assert "actor mesh is stopped due to proc mesh shutdown: enough" in said(member.run.call_one(abs, 1))
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        procs.spawn("other", Member)


def test_processes_of_another_user(world: Any) -> None:
    procs = world.procs(2)
    for reference in (procs.slice(gpus=0), pickle.loads(pickle.dumps(procs))):
        with pytest.raises(ValueError, match="ProcMesh is not owned; must be stopped by an owner"):
            reference.stop()


def test_a_host_of_another_user(world: Any) -> None:
    with pytest.raises(RuntimeError, match="cannot shut down `HostMesh` that is a reference instead of owned"):
        pickle.loads(pickle.dumps(world.host)).shutdown()


def test_a_host_that_was_shut_down(make_world: Any) -> None:
    host = make_world().host
    procs = host.spawn_procs()
    host.shutdown()
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        host.spawn_procs()
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        procs.spawn("member", Member)
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        host.shutdown().get(PATIENCE)


def test_an_owner_that_is_gone(world: Any) -> None:
    """What it has spawned on processes of others ends, and says so."""
    owners, procs = world.procs(1), world.procs(1)
    ward = owners.spawn("owner", Member).spawn_on.call_one(procs).get(PATIENCE)
    assert ward.run.call_one(abs, -1).get(PATIENCE) == 1
    owner = owners.nodes[0].node
    heard = procs.spawn("neighbour", Member).run.call_one(hear_of_the_end, owner)
    world.kill(owners)
    heard.get(PATIENCE)
    assert f"timed out reaching controller {owner} for mesh ward" in said(ward.run.call_one(abs, -1))


def test_an_actor_that_aborts_without_a_reason(world: Any) -> None:
    member = world.spawn(Member, gpus=1)
    assert "no reason provided" in said(member.run.call_one(lambda: context().actor_instance.abort()))


def test_a_process_that_was_killed(world: Any) -> None:
    procs = world.procs(1)
    member = procs.spawn("member", Member)
    member.initialized.get(PATIENCE)
    world.kill(procs)
    assert "the process this actor was running on failed: Killed(sig=9)" in said(member.run.call_one(abs, 1))


def test_an_end_of_a_process_names_the_actor(world: Any, faults: Any) -> None:
    """With its point in the mesh that was spawned, also where a slice was called."""
    procs = world.procs(2)
    member = procs.spawn("member", Member)
    member.initialized.get(PATIENCE)
    part = member.slice(gpus=1)
    world.kill(procs.slice(gpus=1))
    actor = f"<{Member.__module__}.Member member{{'gpus': 1/2}}>"
    for text in (said(part.run.call_one(abs, 1)), said(member.run.call(abs, 1))):
        assert re.search(rf"The actor {re.escape(actor)} in \S+ and all its descendants have failed", text)
    assert f"The actor <root>.{actor} in " in faults.get(timeout=PATIENCE).report()


def test_an_actor_without_dimensions_is_named_without_a_point(world: Any) -> None:
    member = world.spawn(Member).slice(gpus=0)
    name = this_proc().spawn("single", Member).run.call_one(current_actor_name).get(PATIENCE)
    assert name == f"<root>.<{Member.__module__}.Member single>"
    assert member.run.call_one(current_actor_name).get(PATIENCE).endswith("member{'gpus': 0/2}>")


def test_the_error_of_an_endpoint(world: Any) -> None:
    with pytest.raises(ActorError, match=r"Actor call member\.run failed$"):
        world.spawn(Member, gpus=1).run.call_one(raise_, ValueError("no")).get(PATIENCE)


def test_a_stopped_actor_whose_owner_is_gone(world: Any) -> None:
    """Both is said: an owner that had ended in order is no reason to wait for it."""
    owners, procs = world.procs(1), world.procs(1)
    ward = owners.spawn("owner", Member).spawn_on.call_one(procs).get(PATIENCE)
    ward.stop("enough").get(PATIENCE)
    owner = owners.nodes[0].node
    heard = procs.spawn("neighbour", Member).run.call_one(hear_of_the_end, owner)
    world.kill(owners)
    heard.get(PATIENCE)
    text = said(ward.run.call_one(abs, -1))
    assert "is stopped: enough" in text
    assert f"timed out reaching controller {owner} for mesh ward" in text


def test_a_bootstrap_that_raises(make_world: Any) -> None:
    """Its message is there although the program wants no lines of stderr."""

    def fail() -> None:
        raise ValueError("no such device")

    procs = make_world(stderr_lines=0).procs(1, bootstrap=fail)
    with pytest.raises(ActorError, match="ValueError: no such device") as caught:
        procs.initialized.get(PATIENCE)
    assert isinstance(caught.value, SupervisionError)
