"""Controllers: one actor of a name in the whole run, in the client's process."""

from __future__ import annotations

import os
from typing import Any

import pytest

from meshbook import Actor, ActorError, SupervisionError, endpoint, get_or_spawn_controller
from tests.support import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.without_torch]


class Counter(Actor):
    def __init__(self, fails: bool = False) -> None:
        if fails:
            raise LookupError("no such counter")
        self.count = 0

    @endpoint
    def add(self) -> tuple[int, int]:
        self.count += 1
        return self.count, os.getpid()

    @endpoint
    def leave(self) -> None:
        raise SystemExit(3)


class Member(Actor):
    @endpoint
    def add(self, cls: type[Any]) -> tuple[int, int]:
        counter = get_or_spawn_controller("shared", cls).get(PATIENCE)
        return counter.add.call_one().get(PATIENCE)


def test_all_get_the_same_one(spawn_procs: Any) -> None:
    members = spawn_procs(3).spawn("members", Member)
    added = sorted(members.add.call(Counter).get(PATIENCE).values())
    mine = get_or_spawn_controller("shared", Counter).get(PATIENCE).add.call_one().get(PATIENCE)
    assert [*added, mine] == [(count, os.getpid()) for count in range(1, 5)]


def test_one_that_cannot_be_made_is_an_error_each_time(session: Any) -> None:
    for fails in (True, False):
        with pytest.raises(ActorError, match=r"Failure on unmade: (.|\n)*LookupError: no such counter"):
            get_or_spawn_controller("unmade", Counter, fails).get(PATIENCE)


def test_one_that_died_stays_dead(session: Any) -> None:
    counter = get_or_spawn_controller("mortal", Counter).get(PATIENCE)
    with pytest.raises(SupervisionError, match="SystemExit: 3"):
        counter.leave.call_one().get(PATIENCE)
    with pytest.raises(ActorError, match="Failure on mortal"):
        get_or_spawn_controller("mortal", Counter).get(PATIENCE)
