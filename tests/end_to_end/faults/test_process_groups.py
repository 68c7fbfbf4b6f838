"""The process group of a mesh: made from outside, again and again, and by itself after a heal."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from typing import Any

import pytest

from meshbook import Actor, endpoint
from meshbook.runtime.errors import GroupError
from tests.support import PATIENCE

pytestmark = pytest.mark.process


class Rank(Actor):
    """Runs what it is sent."""

    @endpoint
    def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


def add_up() -> tuple[float, int]:
    """The sum of all ranks, and how many there are; fails at once where there is no group."""
    import torch
    import torch.distributed as dist

    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total)
    return total.item(), dist.get_world_size()


def try_to_add_up() -> str:
    try:
        return str(add_up())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def join_by_environment() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")


def keep_the_group() -> None:
    """As a notebook does that keeps an error, or a model."""
    import torch.distributed as dist

    main = sys.modules["__main__"]
    main.kept = dist.group.WORLD  # type: ignore[attr-defined]


def on_all(ranks: Any, function: Any) -> list[Any]:
    return list(ranks.run.call(function).get(PATIENCE).values())


def kill(procs: Any, ranks: Any, rank: int) -> None:
    """And wait until that is known here."""
    pid = ranks.slice(gpus=rank).run.call_one(os.getpid).get(PATIENCE)
    waiting = ranks.slice(gpus=rank).run.call_one(signal.pause)
    os.kill(pid, signal.SIGKILL)
    waiting.exception(PATIENCE)


def test_a_group_is_made_from_outside_and_made_again(spawn_procs):
    procs = spawn_procs(3)
    ranks = procs.spawn("ranks", Rank)
    assert procs.process_group_generation == 0
    assert procs.init_process_group().get(PATIENCE) is None
    assert on_all(ranks, add_up) == [(3.0, 3)] * 3

    stuck = ranks.slice(gpus=0).run.call_one(try_to_add_up)  # the others do not come
    assert procs.init_process_group("gloo", timeout=30.0).get(PATIENCE) is None
    assert stuck.get(PATIENCE) != str((3.0, 3))
    assert on_all(ranks, add_up) == [(3.0, 3)] * 3
    assert procs.process_group_generation == 2


@pytest.mark.parametrize("victim", [0, 2])
def test_a_heal_makes_the_group_again(spawn_procs, victim: int):
    """Any rank may die, also the one with the store. A survivor may wait for another that has failed: it is freed."""
    procs = spawn_procs(3)
    ranks = procs.spawn("ranks", Rank)
    procs.init_process_group().get(PATIENCE)
    survivors = ranks.slice(gpus=slice(1, 3) if victim == 0 else slice(0, 2))
    stuck = survivors.run.call(try_to_add_up)
    kill(procs, ranks, victim)
    assert procs.heal().get(PATIENCE) == [victim]
    assert all("Error" in said for said in stuck.get(PATIENCE).values())
    assert procs.process_group_generation == 2
    assert on_all(ranks, add_up) == [(3.0, 3)] * 3


def test_a_heal_keeps_groups_that_lost_no_rank(spawn_procs):
    procs = spawn_procs(4)
    ranks = procs.spawn("ranks", Rank)
    lower, upper = ({"gpus": slice(0, 2)}, {"gpus": slice(2, 4)})
    procs.slice(**lower).init_process_group().get(PATIENCE)
    procs.slice(**upper).init_process_group().get(PATIENCE)
    on_all(ranks.slice(**lower), keep_the_group)
    kill(procs, ranks, 3)
    procs.heal().get(PATIENCE)
    assert procs.process_group_generation == 3
    assert on_all(ranks.slice(**upper), add_up) == [(1.0, 2)] * 2
    assert on_all(ranks.slice(**lower), lambda: sys.modules["__main__"].kept is not None) == [True] * 2
    assert on_all(ranks.slice(**lower), add_up) == [(1.0, 2)] * 2


@pytest.mark.parametrize("victim", [0, 1])
def test_ranks_that_meet_by_themselves_can_do_so_after_a_heal(spawn_procs, victim: int):
    """By the environment, as scripts do. Something that survives may still hold the old group, and its store."""
    procs = spawn_procs(2)
    ranks = procs.spawn("ranks", Rank)
    on_all(ranks, join_by_environment)
    on_all(ranks, keep_the_group)
    kill(procs, ranks, victim)
    procs.heal().get(PATIENCE)
    on_all(ranks, join_by_environment)
    assert on_all(ranks, add_up) == [(1.0, 2)] * 2


def test_stuck_ranks_are_freed_and_meet_again(spawn_procs):
    procs = spawn_procs(3)
    ranks = procs.spawn("ranks", Rank)
    on_all(ranks, join_by_environment)
    on_all(ranks, keep_the_group)
    stuck = ranks.slice(gpus=slice(0, 2)).run.call(try_to_add_up)
    assert procs.abort_process_groups().get(PATIENCE) == dict.fromkeys(range(3), ("gloo group of 3 ranks",))
    assert all("Error" in said for said in stuck.get(PATIENCE).values())
    assert all("has not been initialized" in said for said in on_all(ranks, try_to_add_up))
    on_all(ranks, join_by_environment)
    assert on_all(ranks, add_up) == [(3.0, 3)] * 3


def test_the_error_names_the_ranks_that_did_not_join(spawn_procs):
    procs = spawn_procs(3)
    ranks = procs.spawn("ranks", Rank)
    with pytest.raises(GroupError, match=r"rank \d did not join\n(.|\n)*nobody's backend"):
        procs.init_process_group("nobody's backend").get(PATIENCE)
    with pytest.raises(GroupError, match="NCCL needs a GPU"):
        procs.init_process_group("nccl").get(PATIENCE)
    kill(procs, ranks, 1)
    with pytest.raises(GroupError, match=r"rank 1 did not join\n(.|\n)*sig=9(.|\n)*heal\(\)"):
        procs.init_process_group().get(PATIENCE)
    assert procs.process_group_generation == 0
    procs.heal().get(PATIENCE)
    assert procs.init_process_group().get(PATIENCE) is None
    assert on_all(ranks, add_up) == [(3.0, 3)] * 3


def pretend_nccl() -> None:
    """Give the group the name of NCCL, and note its abort."""
    import torch.distributed.distributed_c10d as c10d

    c10d._world.pg_backend_config[c10d.GroupMember.WORLD] = "cuda:nccl"
    main, abort = sys.modules["__main__"], c10d._abort_process_group
    main.aborted = threading.Event()  # type: ignore[attr-defined]

    def abort_and_note() -> None:
        abort()
        main.aborted.set()  # type: ignore[attr-defined]

    c10d._abort_process_group = abort_and_note


def wait_aborted() -> bool:
    return bool(sys.modules["__main__"].aborted.wait(PATIENCE))  # type: ignore[attr-defined]


def test_a_death_aborts_the_nccl_group_of_the_others_at_once(spawn_procs):
    """They wait for the dead rank in a kernel, where no closed connection ends the wait."""
    procs = spawn_procs(2)
    ranks = procs.spawn("ranks", Rank)
    procs.init_process_group().get(PATIENCE)
    on_all(ranks, pretend_nccl)
    kill(procs, ranks, 1)
    assert ranks.slice(gpus=0).run.call_one(wait_aborted).get(PATIENCE)


def test_a_group_is_the_owners_business(spawn_procs):
    procs = spawn_procs(1)
    with pytest.raises(ValueError, match="finite"):
        procs.init_process_group(timeout=float("inf"))
    procs.stop().get(PATIENCE)
    with pytest.raises(RuntimeError, match="already been stopped"):
        procs.init_process_group()
    with pytest.raises(ValueError, match="not owned"):
        pickle.loads(pickle.dumps(procs)).abort_process_groups()


def test_a_resize_makes_the_group_of_the_whole_mesh_again(spawn_procs):
    procs = spawn_procs(4)
    ranks = procs.spawn("ranks", Rank)
    procs.init_process_group().get(PATIENCE)
    smaller = procs.resize(gpus=2)
    smaller.initialized.get(PATIENCE)
    assert on_all(smaller.all_of(ranks), add_up) == [(1.0, 2)] * 2
    larger = smaller.resize(gpus=3)
    larger.initialized.get(PATIENCE)
    assert larger.process_group_generation == 3
    ranks = larger.all_of(ranks)
    assert on_all(ranks, add_up) == [(3.0, 3)] * 3
    larger.abort_process_groups().get(PATIENCE)
    on_all(ranks, join_by_environment)
    assert on_all(ranks, add_up) == [(3.0, 3)] * 3


def test_ranks_of_a_slice_that_are_freed_meet_all_others_again(spawn_procs):
    procs = spawn_procs(3)
    ranks = procs.spawn("ranks", Rank)
    on_all(ranks, join_by_environment)
    on_all(ranks, keep_the_group)
    upper, lower = procs.slice(gpus=slice(1, 3)), procs.slice(gpus=0)
    assert list(upper.abort_process_groups().get(PATIENCE)) == [0, 1]
    assert list(lower.abort_process_groups().get(PATIENCE)) == [0]
    on_all(ranks, join_by_environment)
    assert on_all(ranks, add_up) == [(3.0, 3)] * 3
