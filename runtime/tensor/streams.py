"""Streams: ordered queues of operations. A tensor belongs to one stream; another one borrows it.

On a rank, each stream has a thread, an executor and a table of values of its own; with CUDA a CUDA stream as well. So
streams run beside each other, and no lock guards a value. A borrow hands the value off (`HandOffs`): the stream that
borrows it waits until the other one has reached that point. At the end of the borrow it is the other way round.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
from typing import TYPE_CHECKING, Any, ClassVar

from meshbook.runtime import devices
from meshbook.runtime.tensor.failures import DeviceMeshError, format_call

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from meshbook.runtime.tensor.mesh_value import Place
    from meshbook.runtime.tensor.tensor import MeshTensor


class Stream:
    """An ordered queue of operations, on any mesh: `with stream.activate():`."""

    # Activates a stream on the active mesh. Set by `device_mesh`, which knows that mesh.
    activate_on_mesh: ClassVar[Callable[[Stream], contextlib.AbstractContextManager[Any]]]
    _numbers = itertools.count()

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = next(self._numbers)  # names need not be unique

    def activate(self) -> contextlib.AbstractContextManager[Any]:
        """While the block runs, operations of this thread are those of this stream."""
        return Stream.activate_on_mesh(self)

    def borrow(self, tensor: MeshTensor, *, mutable: bool = False) -> tuple[MeshTensor, Borrow]:
        """Return the tensor as one of this stream, and the borrow that gives it back.

        Until then its own stream cannot change it, and cannot use it at all if `mutable`; this stream can change it
        only if `mutable`. Views of the tensor that exist already are not checked. TypeError: it was dropped, or it is
        borrowed in a way that does not allow this.
        """
        state = tensor._place.state
        if state or (mutable and tensor._ref.borrows):
            raise TypeError(
                format_call("borrow", [tensor], {}, [(tensor, state or "borrowed, and it would be mutated")])
            )
        own, place = tensor._place, tensor.mesh.place(self)
        ref = own.engine.hand_over(tensor._ref.id, own.lane, place.lane) or tensor._ref
        borrowed: MeshTensor = tensor._like(tensor._meta, ref, place)
        return borrowed, Borrow(tensor, borrowed, is_mutable=mutable)

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"


class Borrow:
    """A borrowed tensor. `drop()`, or the end of a `with` block, gives it back."""

    def __init__(self, lent: MeshTensor, borrowed: MeshTensor, *, is_mutable: bool) -> None:
        self._lent = lent
        self._borrowed = borrowed
        self._refs = {lent._ref, borrowed._ref}
        self._ref = borrowed._ref
        self._is_over = False
        self._lanes = borrowed._place.lane, lent._place.lane
        self._own: Place | None = lent._place if is_mutable else None
        if is_mutable:
            lent._place = lent._place.in_state("borrowed")
        else:
            for ref in self._refs:
                ref.borrows += 1

    def drop(self) -> None:
        """Give the tensor back; may be called again. Its stream waits for what the other one has done until now."""
        if self._is_over:
            return
        self._is_over = True
        if self._own is not None:
            self._lent._place = self._own
        else:
            for ref in self._refs:
                ref.borrows -= 1
        with contextlib.suppress(DeviceMeshError):  # there is nothing to give back on a mesh that has failed
            borrower, lender = self._lanes
            borrower.engine.hand_over(self._ref.id, borrower, lender, self._lent._ref.id if self._own else 0)
        self._borrowed.drop()

    def __enter__(self) -> Borrow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()


MAIN = Stream("main")
_CLOSED = object()


class HandOffs:
    """The values of a rank that are on their way from one stream to another. `take` waits for the `put` of its tag."""

    _of: ClassVar[dict[str, HandOffs]] = {}  # by rank; the streams of a rank are actors of one process

    def __init__(self) -> None:
        self._boxes: dict[int, queue.SimpleQueue[Any]] = {}
        self._is_closed = False

    @classmethod
    def of(cls, rank: str) -> HandOffs:
        """Return those of a rank, whose name is unique among all engines."""
        return cls._of.setdefault(rank, cls())

    @classmethod
    def close(cls, rank: str) -> None:
        """Make the streams that still wait raise, as another stream has ended. May be called again."""
        if (found := cls._of.pop(rank, None)) is not None:
            found._is_closed = True
            for box in list(found._boxes.values()):
                box.put(_CLOSED)

    def put(self, tag: int, value: Any) -> None:
        self._boxes.setdefault(tag, queue.SimpleQueue()).put((value, devices.record_event()))

    def take(self, tag: int) -> Any:
        """Return a value; on a GPU the current CUDA stream waits for it. Raises RuntimeError once it is closed."""
        box = self._boxes.setdefault(tag, queue.SimpleQueue())
        if (self._is_closed and box.empty()) or (taken := box.get()) is _CLOSED:
            raise RuntimeError("the stream that lends the value has ended")
        del self._boxes[tag]
        value, event = taken
        if event is not None:
            devices.continue_after(event, value)
        return value
