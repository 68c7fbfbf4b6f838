"""Streams: ordered queues of operations. A tensor belongs to one stream; another one borrows it.

The checks are those of streams that run beside each other, so a program that passes them is right on any ranks. The
ranks run the operations of all streams in the order of the controller's calls, which is one of the allowed orders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from meshbook.runtime.tensor.failures import format_call

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from types import TracebackType

    from meshbook.runtime.tensor.mesh_value import Place
    from meshbook.runtime.tensor.tensor import MeshTensor


class Stream:
    """An ordered queue of operations, on any mesh: `with stream.activate():`."""

    # Activates a stream on the active mesh. Set by `device_mesh`, which knows that mesh.
    activate_on_mesh: ClassVar[Callable[[Stream], contextlib.AbstractContextManager[Any]]]

    def __init__(self, name: str) -> None:
        self.name = name

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
        borrowed: MeshTensor = tensor._like(tensor._meta, tensor._ref, tensor.mesh.place(self))
        return borrowed, Borrow(tensor, borrowed, is_mutable=mutable)

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"


class Borrow:
    """A borrowed tensor. `drop()`, or the end of a `with` block, gives it back."""

    def __init__(self, lent: MeshTensor, borrowed: MeshTensor, *, is_mutable: bool) -> None:
        self._lent = lent
        self._borrowed = borrowed
        self._is_over = False
        self._own: Place | None = lent._place if is_mutable else None
        if is_mutable:
            lent._place = lent._place.in_state("borrowed")
        else:
            lent._ref.borrows += 1

    def drop(self) -> None:
        """Give the tensor back; may be called again."""
        if self._is_over:
            return
        self._is_over = True
        if self._own is not None:
            self._lent._place = self._own
        else:
            self._lent._ref.borrows -= 1
        self._borrowed.drop()

    def __enter__(self) -> Borrow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()


MAIN = Stream("main")
