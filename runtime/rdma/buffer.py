"""`RDMABuffer`: a small handle to memory that stays where it is."""

from __future__ import annotations

from operator import index
from typing import Any

from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.values import ValueMesh
from meshbook.runtime.memory.local import CPU, LocalMemory, local_memory
from meshbook.runtime.memory.tensor_form import form_of, shaped
from meshbook.runtime.rdma.backend import get_rdma_backend
from meshbook.runtime.rdma.backends import TransferJob, deadline_in
from meshbook.runtime.rdma.broadcast import Broadcast, receivers_of
from meshbook.runtime.rdma.data_plane import own_station
from meshbook.runtime.rdma.handle import BufferHandle
from meshbook.runtime.rdma.transfer_progress import Progress, TransferProgress


class RDMABuffer:
    """Memory of this process that others read and write without its taking part.

    `data` is a contiguous tensor (CPU or GPU), array or memoryview of any shape. The buffer is small and picklable:
    hand it to other actors. The memory stays here, and is kept until `drop()`, or until the actor that made it ends.
    What is written to it while it is read may be seen in part: agree on turns, or ask for a `checksum`.

    ValueError where the data is not contiguous or has no bytes; TypeError where it is no memory.
    """

    __slots__ = ("_handle",)

    _handle: BufferHandle

    def __init__(self, data: Any) -> None:
        local = local_memory(data, "data")
        instance = context().actor_instance
        self._handle = own_station().lend(local, instance, form_of(data))

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
        """Copy `length` bytes of the buffer from its byte `offset` on (all of it, without them) to the start of `dst`.

        `dst` is a contiguous tensor or writable memory of at least so many bytes; it is kept, and must not be used,
        until the future is done. ValueError at once where that does not fit. The future fails with BufferDropped,
        OwnerGone, TransferTimeout after so many seconds, or another TransferError, and `dst` may then be half written.

        With `checksum` the buffer is read once more, and ChecksumMismatch tells that it had changed by then.
        `progress(done, total)` is called now and then, in bytes, on the thread that moves them; what it raises ends the
        transfer.
        """
        size = self._length(offset, length)
        local = local_memory(dst, "dst")
        if not local.is_writable:
            raise ValueError("dst can only be read: it is bytes, or an array or a view that is not writable")
        if local.size < size:
            raise ValueError(f"dst has {local.size:,} bytes, and {size:,} are read: it is smaller than the buffer")
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
        """Copy the first `length` bytes of `src` (all of it, without it) into the buffer, from its byte `offset` on.

        `src` is kept, and must not be changed, until the future is done. ValueError at once where it does not fit into
        the buffer, or where the buffer can only be read. All else is as in `read_into`.
        """
        if not self._handle.is_writable:
            raise ValueError(f"the buffer of {self._handle.actor} can only be read: its owner may not write to it")
        local = local_memory(src, "src")
        size = self._length(offset, local.size if length is None else length)
        if local.size < size:
            raise ValueError(f"src has {local.size:,} bytes, and {size:,} are to be written")
        return self._start(local.part(0, size), offset, timeout, checksum, progress, is_write=True)

    def _length(self, offset: int, length: int | None) -> int:
        """How many bytes are meant, from this offset on."""
        size = self._handle.size
        offset = index(offset)  # TypeError for what is no whole number
        count = size - offset if length is None else index(length)
        if offset < 0 or count < 0 or offset + count > size:
            end = offset + count
            raise ValueError(f"bytes {offset:,} to {end:,} are not all inside the buffer, which has {size:,} bytes")
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
        return own_station().transfers.start(job, is_write=is_write, checksum=checksum)

    def broadcast_to(
        self, to: Any, *, name: str = "", fresh: bool = False, timeout: float = 60
    ) -> Future[ValueMesh[RDMABuffer]]:
        """Bring the bytes to every process of a mesh of processes or actors, where `here()` gives them.

        Each host reads them once, and its processes have them from one another. The future resolves to the copies, as
        buffers, by rank. They are in the memory of the host, and in that of the last broadcast of this buffer, or of
        the same `name` and size: who still uses that sees new bytes come in. With `fresh` they go to new memory. The
        copies go when the buffer is dropped.

        `to` may also be a ValueMesh of buffers, such as their owners made, on a GPU or not: then the bytes go there.

        Fails with a TransferError that names the ranks which they did not reach within `timeout` seconds; the others
        have them. TypeError for what has no processes, ValueError for buffers that are too small.
        """
        seconds = deadline_in(timeout).seconds
        receivers = receivers_of(to, self._handle.size, _handle_of)
        extent = to.extent
        made = Broadcast(own_station().node, self._handle, receivers, extent, seconds).start(name, fresh=fresh)
        return made.then(lambda handles: ValueMesh.of(extent, map(RDMABuffer._of, handles)))

    def here(self) -> Any:
        """The bytes as they are in this process, without a copy: those of the last broadcast; the owner's own.

        A tensor or array where the buffer was made of one, with its shape and type; else a memoryview. Who holds it
        keeps the memory. LookupError where no broadcast has brought the buffer here, or where it was dropped.
        """
        local = own_station().find_here(self._handle)
        if local is None:
            raise LookupError(
                f"{self!r} has no copy in this process: buffer.broadcast_to(mesh) brings one to each rank of a mesh, "
                f"until the buffer is dropped; read_into() reads it once"
            )
        return shaped(local, self._handle.form)

    def drop(self) -> Future[None]:
        """Lend the memory no more, be it asked for here or elsewhere. Transfers fail with BufferDropped from then on.

        The future is done when no transfer of before is at the memory any more. To drop twice is no error.
        """
        return own_station().drop(self._handle)

    def size(self) -> int:
        """Bytes."""
        return self._handle.size

    @property
    def owner(self) -> str:
        """The actor whose memory it is, in full."""
        return self._handle.actor

    @property
    def backend(self) -> str:  # with the alias of its values jedi fails, and Tab completes nothing of a buffer
        """How data goes from here to other hosts, as `get_rdma_backend()` says it; `way` is of this buffer."""
        return get_rdma_backend()

    @property
    def way(self) -> str:
        """The way that its data goes from or to memory of this process, as "process memory"."""
        return own_station().chooser.choose(self._handle, CPU).name

    def explain(self) -> str:
        """Which way its data goes from or to this process, and what is to be said of each other way: a line for each.

        Nothing is moved: what a way meets on its way is known, and said here, once a transfer has tried it.
        """
        return own_station().explain(self._handle)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same memory under the same lease, as a copy that has travelled is."""
        return isinstance(other, RDMABuffer) and other._handle.lease == self._handle.lease

    def __hash__(self) -> int:
        return hash(self._handle.lease)

    def __repr__(self) -> str:
        form = "" if self._handle.form is None else f", {self._handle.form},"
        return f"<RDMABuffer of {self.size():,} bytes{form} of {self.owner} on {self._handle.owner.node}>"


def _handle_of(value: Any) -> BufferHandle:
    if not isinstance(value, RDMABuffer):
        raise TypeError(
            f"broadcast_to takes a ValueMesh of RDMABuffers, and in this one is a {type(value).__qualname__}"
        )
    return value._handle
