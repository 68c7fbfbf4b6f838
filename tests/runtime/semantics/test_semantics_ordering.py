"""Semantics: the order of messages, and what runs at the same time."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle

from meshbook import Actor, endpoint

PATIENCE = 60.0
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Log(Actor):
    """Keeps what it is told, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def add(self, what: Any) -> None:
        self.seen.append(what)

    @endpoint
    def read(self) -> list[Any]:
        return self.seen


def test_01_messages_of_one_sender_arrive_in_order(world: Any) -> None:
    """Messages from one sender to one actor arrive as they were sent; a call of a mesh is one message for each rank."""
    log = world.spawn(Log)
    for number in range(50):
        log.add.broadcast(number)
        log.slice(gpus=1).add.broadcast(-number)
    first, second = log.read.call().get(PATIENCE).values()
    assert first == list(range(50))
    assert second == [sign * number for number in range(50) for sign in (1, -1)]
