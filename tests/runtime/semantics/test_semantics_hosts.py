"""Semantics: the ends of hosts, and the settings of what runs on them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from meshbook import Actor, SupervisionError, context, endpoint, this_host
from meshbook.monarch.configuration import clear_runtime_config, configure, configured, get_global_config
from meshbook.runtime.errors import ProcessDied
from tests.support import PATIENCE


class Member(Actor):
    @endpoint
    def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    @endpoint
    def spawn(self) -> Any:
        """Spawn on the host that it runs on, and keep that."""
        self.procs = this_host().spawn_procs(per_host={"gpus": 1})
        return self.procs.spawn("child", Member)


def answers(mesh: Any) -> bool:
    return list(mesh.run.call(abs, -1).get(PATIENCE).values()) == [1] * len(mesh)


def stopped(mesh: Any, why: str) -> None:
    with pytest.raises(SupervisionError, match=f"stopped due to proc mesh shutdown: {why}"):
        mesh.run.call(abs, -1).get(PATIENCE)


# -- 30 --------------------------------------------------------------------------------


def test_30_stop_ends_the_own_processes_and_keeps_the_host(make_world: Callable[..., Any]) -> None:
    """Its own are those that this handle, its slices and its twins have spawned, and what these own."""
    world = make_world()
    host = world.host
    own = [each.spawn_procs(per_host={"gpus": 2}).spawn("own", Member) for each in (host, host.rename())]
    others = pickle.loads(pickle.dumps(host)).spawn_procs(per_host={"gpus": 2}).spawn("other", Member)
    children = [mesh.slice(gpus=0).spawn.call_one().get(PATIENCE) for mesh in (own[0], others)]
    assert all(map(answers, (*own, others, *children)))
    assert host.stop().get(PATIENCE) is None
    for mesh in own:
        stopped(mesh, "its host mesh was stopped")
    with pytest.raises(SupervisionError, match="stopped"):
        children[0].run.call(abs, -1).get(PATIENCE)
    assert answers(others)
    assert answers(children[1])
    assert answers(world.procs(1).spawn("again", Member))
    assert host.stop().get(PATIENCE) is None
    assert answers(others)


def test_30_shutdown_ends_the_host_and_everything_on_it(make_world: Callable[..., Any]) -> None:
    """Whatever its owner; nothing can be spawned there afterwards."""
    host = make_world().host
    own = host.spawn_procs(per_host={"gpus": 2}).spawn("own", Member)
    others = pickle.loads(pickle.dumps(host)).spawn_procs(per_host={"gpus": 2}).spawn("other", Member)
    assert answers(own)
    assert answers(others)
    assert host.shutdown().get(PATIENCE) is None
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        host.shutdown().get(PATIENCE)
    for mesh in (own, others):
        stopped(mesh, "its host was shut down")
    for each in (host, host.rename()):
        with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
            each.spawn_procs()


def refused(end: Callable[[], Any]) -> str:
    try:
        end()
    except RuntimeError as error:
        return str(error)
    return "it was done"


def test_30_only_its_owner_ends_a_host(world: Any) -> None:
    """Not a holder of a reference or a slice; and no actor the host that it runs on."""

    def try_in_an_actor() -> list[str]:
        return [refused(end) for end in (this_host().shutdown, this_host().stop)]

    member = world.spawn(Member, gpus=1)
    host = world.host
    references = [pickle.loads(pickle.dumps(host)), host.rename(), member.run.call_one(lambda: host).get(PATIENCE)]
    said = [refused(end) for each in references for end in (each.shutdown, each.stop)]
    said += member.run.call_one(try_in_an_actor).get(PATIENCE)
    assert said == ["cannot shut down `HostMesh` that is a reference instead of owned"] * 8
    assert answers(member)


# -- 44 --------------------------------------------------------------------------------


def lines_kept(error: Any) -> int:
    assert isinstance(error, ProcessDied)
    return len(error.report.stderr)


def setting() -> int:
    """What this process begins with, as far as it can be seen where workers are threads."""
    lines: int = context().actor_instance.node.settings.stderr_lines
    return lines


def fail() -> None:
    raise ValueError("no such device")


def test_44_what_is_configured_at_the_spawn_holds_for_the_processes(world: Any) -> None:
    """It shows in what they do, and in what they spawn in turn; other meshes do not have it."""
    before = world.procs(1).spawn("before", Member)
    with configured(tail_log_lines=1):
        member = world.spawn(Member, gpus=1)
        broken = world.procs(1, bootstrap=fail)
    after = world.procs(1).spawn("after", Member)
    assert [each.run.call_one(setting).get(PATIENCE) for each in (before, member, after)] == [20, 1, 20]
    assert member.spawn.call_one().get(PATIENCE).run.call_one(setting).get(PATIENCE) == 1
    assert lines_kept(broken.initialized.exception(PATIENCE)) == 1
    assert lines_kept(world.procs(1, bootstrap=fail).initialized.exception(PATIENCE)) > 1


def test_44_what_runs_keeps_what_it_has(world: Any) -> None:
    """Neither a later block, nor the end of the block that it was spawned in, nor a lasting change reaches it."""
    with configured(tail_log_lines=3):
        procs = world.procs(1)
        member = procs.spawn("member", Member)
        assert member.run.call_one(setting).get(PATIENCE) == 3
        with configured(tail_log_lines=5):
            assert member.run.call_one(setting).get(PATIENCE) == 3
            assert procs.spawn("later", Member).run.call_one(setting).get(PATIENCE) == 3
    assert member.run.call_one(setting).get(PATIENCE) == 3
    configure(tail_log_lines=7)
    try:
        assert member.run.call_one(setting).get(PATIENCE) == 3
        if world.has_processes:  # threads are in the process in which this was configured
            assert member.spawn.call_one().get(PATIENCE).run.call_one(setting).get(PATIENCE) == 3
        assert world.spawn(Member, gpus=1).run.call_one(setting).get(PATIENCE) == 7
    finally:
        clear_runtime_config()


@pytest.mark.process
def test_44_a_process_sees_the_keys_that_it_was_spawned_with(processes: Any) -> None:
    """Also those that mean nothing to us; and what an actor configures is for what it spawns, not for its owner."""
    keys = ("tail_log_lines", "message_latency_sampling_rate")

    def look() -> list[Any]:
        found = get_global_config()
        return [found[key] for key in keys]

    def look_below() -> Any:
        with configured(tail_log_lines=6):
            procs = this_host().spawn_procs(per_host={"gpus": 1})
        found = procs.spawn("child", Member).run.call_one(look).get(PATIENCE)
        procs.stop().get(PATIENCE)
        return found

    default = look()
    with configured(tail_log_lines=4, message_latency_sampling_rate=0.5):
        member = processes.spawn(Member, gpus=1)
    assert member.run.call_one(look).get(PATIENCE) == [4, 0.5]
    assert member.run.call_one(look_below).get(PATIENCE) == [6, 0.5]
    assert member.run.call_one(look).get(PATIENCE) == [4, 0.5]
    assert look() == default
