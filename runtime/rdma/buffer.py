"""`RDMABuffer`: a small handle to memory that stays where it is."""

from __future__ import annotations

from operator import index
from typing import Any

from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.values import ValueMesh
from meshbook.runtime.memory.local_memory import CPU, LocalMemory, form_of, local_memory, shaped
from meshbook.runtime.rdma.backends import BufferHandle, TransferJob, deadline_in
from meshbook.runtime.rdma.broadcast import Broadcast, receivers_of
from meshbook.runtime.rdma.data_plane import own_data_plane
from meshbook.runtime.rdma.hardware import get_rdma_backend
from meshbook.runtime.rdma.transfers import Progress, TransferProgress


class RDMABuffer:
    """A handle to memory of this process that other processes read and write without its participation.

    `data` is a contiguous tensor (CPU or GPU), array or memoryview of any shape. The buffer is small and picklable:
    pass it to other actors. The memory stays here, and is kept until `drop()`, or until the actor that made it ends. A
    reader may see part of a concurrent write: agree on turns, or use `checksum`.

    Raises ValueError if the data is not contiguous or has no bytes, and TypeError if it is not memory.
    """

    __slots__ = ("_handle",)

    _handle: BufferHandle

    def __init__(self, data: Any) -> None:
        local = local_memory(data, "data")
        instance = context().actor_instance
        self._handle = own_data_plane().lend(local, instance, form_of(data))

    @classmethod
    def _of(cls, handle: BufferHandle) -> RDMABuffer:
        self = cls.__new__(cls)
        self._handle = handle
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return RDMABuffer._of, (self._handle,)

    def read_into(
        self,
        dst: Any,
        offset: int = 0,
        length: int | None = None,
        *,
        timeout: float = 60,
        checksum: bool = False,
        progress: Progress | None = None,
    ) -> Future[None]:
        """Copy `length` bytes of the buffer from its byte `offset` on (by default all of it) to the start of `dst`.

        `dst` is a contiguous tensor or writable memory of at least that many bytes. It is kept, and must not be used,
        until the future is done. Raises ValueError at once if the bytes do not fit. The future fails with
        BufferDropped, OwnerGone, TransferTimeout after `timeout` seconds, or another TransferError; `dst` may then be
        partly written.

        With `checksum` the buffer is read a second time; ChecksumMismatch means that it had changed by then.
        `progress(done, total)` is called now and then, in bytes, on the thread that moves them; an exception that it
        raises ends the transfer.
        """
        size = self._length(offset, length)
        local = local_memory(dst, "dst")
        if not local.is_writable:
            raise ValueError("dst is read-only: it is bytes, or an array or view that is not writable")
        if local.size < size:
            raise ValueError(f"dst has {local.size:,} bytes, but {size:,} are to be read")
        return self._start(local.part(0, size), offset, timeout, checksum, progress, is_write=False)

    def write_from(
        self,
        src: Any,
        offset: int = 0,
        length: int | None = None,
        *,
        timeout: float = 60,
        checksum: bool = False,
        progress: Progress | None = None,
    ) -> Future[None]:
        """Copy the first `length` bytes of `src` (by default all of it) into the buffer, from its byte `offset` on.

        `src` is kept, and must not be changed, until the future is done. Raises ValueError at once if the bytes do not
        fit into the buffer, or if the buffer is read-only. Otherwise as `read_into`.
        """
        if not self._handle.is_writable:
            raise ValueError(
                f"the buffer of {self._handle.actor} is read-only, because its owner created it from read-only memory"
            )
        local = local_memory(src, "src")
        size = self._length(offset, local.size if length is None else length)
        if local.size < size:
            raise ValueError(f"src has {local.size:,} bytes, but {size:,} are to be written")
        return self._start(local.part(0, size), offset, timeout, checksum, progress, is_write=True)

    def _length(self, offset: int, length: int | None) -> int:
        """Return the number of bytes from this offset on."""
        size = self._handle.size
        offset = index(offset)  # raises TypeError unless it is an integer
        count = size - offset if length is None else index(length)
        if offset < 0 or count < 0 or offset + count > size:
            end = offset + count
            raise ValueError(f"bytes {offset:,} to {end:,} exceed the buffer, which has {size:,} bytes")
        return count

    def _start(
        self,
        local: LocalMemory,
        offset: int,
        timeout: float,
        checksum: bool,
        progress: Progress | None,
        *,
        is_write: bool,
    ) -> Future[None]:
        job = TransferJob(self._handle, offset, local, deadline_in(timeout))
        if progress is not None:
            job.moved = TransferProgress(progress, local.size).moved
        return own_data_plane().transfers.start(job, is_write=is_write, checksum=checksum)

    def broadcast_to(
        self, to: Any, *, name: str = "", fresh: bool = False, timeout: float = 60
    ) -> Future[ValueMesh[RDMABuffer]]:
        """Copy the bytes to every process of a mesh of processes or actors, where `here()` returns them.

        Each host reads them once, and its processes fetch them from one another. The future resolves to the copies, as
        buffers, by rank. They use host memory, and reuse the memory of the last broadcast of this buffer, or of the
        same `name` and size: users of that memory see it change. With `fresh` they use new memory. The copies are
        dropped with the buffer.

        `to` may also be a ValueMesh of buffers that their owners made, in CPU or GPU memory: then the bytes go there.

        Fails with a TransferError that names the ranks which the bytes did not reach within `timeout` seconds; the
        other ranks have them. Raises TypeError for objects without processes, and ValueError for buffers that are too
        small.
        """
        seconds = deadline_in(timeout).seconds
        receivers = receivers_of(to, self._handle.size, _handle_of)
        extent = to.extent
        made = Broadcast(own_data_plane().node, self._handle, receivers, extent, seconds).start(name, fresh=fresh)
        return made.then(lambda handles: ValueMesh.of(extent, map(RDMABuffer._of, handles)))

    def here(self) -> Any:
        """Return the bytes in this process without a copy: those of the last broadcast, or the owner's own.

        The result is a tensor or array if the buffer was made from one, with its shape and type; else a memoryview. It
        keeps the memory alive. Raises LookupError if no broadcast has copied the buffer here, or if it was dropped.
        """
        local = own_data_plane().find_here(self._handle)
        if local is None:
            raise LookupError(
                f"{self!r} has no copy in this process; make one on each rank with buffer.broadcast_to(mesh), or read "
                "it once with read_into()"
            )
        return shaped(local, self._handle.form)

    def drop(self) -> Future[None]:
        """End the lease of the memory, from any process. Later transfers fail with BufferDropped.

        The future is done when no earlier transfer uses the memory any more. Dropping twice is no error.
        """
        return own_data_plane().drop(self._handle)

    def size(self) -> int:
        """Return the size in bytes."""
        return self._handle.size

    @property
    def owner(self) -> str:
        """The full name of the actor that owns the memory."""
        return self._handle.actor

    @property
    # A return type with the alias makes jedi fail, and Tab would complete nothing of a buffer.
    def backend(self) -> str:
        """How data moves from here to other hosts, as `get_rdma_backend()` returns it; `way` is about this buffer."""
        return get_rdma_backend()

    @property
    def way(self) -> str:
        """The name of the backend between the buffer and CPU memory of this process, such as "process memory"."""
        return own_data_plane().selector.choose(self._handle, CPU).name

    def explain(self) -> str:
        """Describe the backend that this process uses for the buffer, and why it does not use the others.

        One line per backend. Moves nothing: an obstacle that only a transfer can meet appears once one has met it.
        """
        return own_data_plane().explain(self._handle)

    def __eq__(self, other: object) -> bool:
        """Whether both are handles of the same lease; a pickled copy is equal to its original."""
        return isinstance(other, RDMABuffer) and other._handle.lease == self._handle.lease

    def __hash__(self) -> int:
        return hash(self._handle.lease)

    def __repr__(self) -> str:
        form = "" if self._handle.form is None else f", {self._handle.form},"
        return f"<RDMABuffer of {self.size():,} bytes{form} of {self.owner} on {self._handle.owner.node}>"


def _handle_of(value: Any) -> BufferHandle:
    if not isinstance(value, RDMABuffer):
        raise TypeError(
            f"broadcast_to takes a ValueMesh of RDMABuffers, but this one contains a {type(value).__qualname__}"
        )
    return value._handle
