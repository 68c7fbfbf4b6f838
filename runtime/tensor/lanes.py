"""`Ref` holds a value on the ranks, `OpaqueRef` one that is no tensor; `Lane` is what a command goes to."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from meshbook.runtime.mesh.actors import ActorMesh

if TYPE_CHECKING:
    from meshbook.runtime.tensor.engine import Engine
    from meshbook.runtime.tensor.mesh_value import Place
    from meshbook.runtime.tensor.streams import Stream


class Ref:
    """A value on the ranks of a lane. When the last holder is gone, the value is deleted there."""

    __slots__ = ("__weakref__", "_delete", "borrows", "id", "siblings")

    def __init__(self, number: int, delete: Callable[[int], None], siblings: Sequence[int] = ()) -> None:
        self.id = number
        self.siblings = siblings  # the results of the same command, if it has several
        self.borrows = 0  # how many borrows for reading there are; -1: one for writing
        self._delete = delete

    def __del__(self) -> None:
        self._delete(self.id)


class OpaqueRef:
    """A reference to a Python object that each rank has. Remote functions return it, and take it as an argument.

    On a rank it is made of the object, which is its `value`. It is pickled without: the controller's has none.
    """

    __slots__ = ("_elsewhere", "_value", "place", "ref")

    def __init__(self, value: Any = None) -> None:
        self._value = value
        self.ref: Ref | None = None  # on the controller
        self.place: Place | None = None
        self._elsewhere: dict[Stream, Ref] = {}  # the object in other streams that have used it

    @classmethod
    def to(cls, ref: Ref, place: Place) -> OpaqueRef:
        """Return the controller's reference to a value of the ranks."""
        made = cls()
        made.ref, made.place = ref, place
        return made

    def id_in(self, stream: Stream) -> int:
        """Return the id of the object in a stream, which waits for the object's own stream at its first use."""
        assert self.ref is not None
        assert self.place is not None
        if stream is not self.place.stream and stream not in self._elsewhere:
            lane = self.place.mesh.place(stream).lane
            self._elsewhere[stream] = self.place.engine.hand_over(self.ref.id, self.place.lane, lane) or self.ref
        return self._elsewhere.get(stream, self.ref).id

    @property
    def value(self) -> Any:
        """The object, on a rank. Raises RuntimeError on the controller."""
        if self.ref is not None:
            raise RuntimeError("the object is on the ranks: pass the OpaqueRef to a remote function")
        return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        return OpaqueRef, ()

    def __repr__(self) -> str:
        return "<OpaqueRef>" if self.ref is None else f"<OpaqueRef {self.ref.id}>"


class Lane:
    """A stream on the ranks that a command goes to: all of an engine's, or those of a slice."""

    def __init__(self, engine: Engine, actors: ActorMesh, stream: Stream) -> None:
        self.engine = engine
        self.actors = actors
        self.stream = stream
        self.ranks = actors.region.ranks()  # of the engine
        self.dead: collections.deque[int] = collections.deque()  # ids to delete; finalizers append
        self.delete: Callable[[int], None] = self.dead.append
        self.known: set[int] = set()  # templates that these ranks have
        self.functions: set[int] = set()  # remote functions that they have
        self.groupings: set[str] = set()

    def new_ref(self, number: int) -> Ref:
        return Ref(number, self.delete)
