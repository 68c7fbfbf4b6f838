"""`Ref` holds a value on the ranks; `Lane` is the ranks that a command goes to."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING

from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.tensor.streams import MAIN

if TYPE_CHECKING:
    from meshbook.runtime.tensor.engine import Engine


class Ref:
    """A value on the ranks of a lane. When the last holder is gone, the value is deleted there."""

    __slots__ = ("__weakref__", "_delete", "borrows", "id")

    def __init__(self, number: int, delete: Callable[[int], None]) -> None:
        self.id = number
        self.borrows = 0  # how many borrows for reading there are; -1: one for writing
        self._delete = delete

    def __del__(self) -> None:
        self._delete(self.id)


class Lane:
    """The ranks that a command goes to: all of an engine's, or those of a slice."""

    def __init__(self, engine: Engine, actors: ActorMesh) -> None:
        self.engine = engine
        self.actors = actors
        self.ranks = actors.region.ranks()  # of the engine
        self.dead: collections.deque[int] = collections.deque()  # ids to delete; finalizers append
        self.delete: Callable[[int], None] = self.dead.append
        self.known: set[int] = set()  # templates that these ranks have
        self.functions: set[int] = set()  # remote functions that they have
        self.groupings: set[str] = set()
        self.stream = MAIN  # in a simulation, where streams have lanes of their own

    def new_ref(self, number: int) -> Ref:
        return Ref(number, self.delete)
