"""The RDMA service of every node, for memory that its process lends: ends leases, and serves bytes as a last resort.

Bytes travel in pieces, independently of what the owner's actors do, but not while C code holds the GIL.
"""

from __future__ import annotations

import contextvars
import pickle
import threading
from collections.abc import Callable
from typing import Any, Literal, Protocol

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.memory.cuda import in_background
from meshbook.runtime.memory.local_memory import CPU, LocalMemory
from meshbook.runtime.rdma.leases import LeaseTable

RDMA = "rdma"
Answer = Literal["ok", "dropped", "read-only"]


class LeaseOwner(Protocol):
    """The parts of the process's data plane that this actor needs. None of them waits."""

    leases: LeaseTable

    def end(self, number: int) -> Future[None]: ...


class RDMAService(Actor):
    """Hosted inline: each message is handled before the next is received, except where the work waits for a GPU."""

    def __init__(self, lender: LeaseOwner) -> None:
        self._lender = lender

    @endpoint(explicit_response_port=True)
    def drop(self, port: Port[None], number: int) -> None:
        """End a lease, and reply once no transfer uses the memory. Ending an unknown or ended lease is no error."""
        here = contextvars.copy_context()  # the reply is sent later, on another thread
        self._lender.end(number).when_done(lambda: here.run(port.send, None))

    @endpoint(explicit_response_port=True)
    def read(self, port: Port[Any], number: int, offset: int, size: int) -> None:
        """Reply with `size` bytes of this lease from `offset` on; None if the lease has ended."""

        def send(part: LocalMemory) -> None:
            port.send(parcel_of(part))

        if not self._use(port, number, offset, size, send):
            port.send(None)

    @endpoint(explicit_response_port=True)
    def write(self, port: Port[Answer], number: int, offset: int, data: Any) -> None:
        """Write these bytes to the memory of this lease from `offset` on, and reply with the outcome."""
        source = memoryview(data)

        def put(part: LocalMemory) -> None:
            if part.is_writable:
                put_bytes(part, source)
            port.send("ok" if part.is_writable else "read-only")

        if not self._use(port, number, offset, source.nbytes, put):
            port.send("dropped")

    def _use(self, port: Port[Any], number: int, offset: int, size: int, do: Callable[[LocalMemory], None]) -> bool:
        """Run `do` on a part of the memory of a lease, which is kept meanwhile. Return False if the lease has ended."""
        if (lent := self._lender.leases.find(number)) is None:
            return False
        user = object()
        lent.users.add(user)
        if lent.is_over:
            lent.users.discard(user)
            return False

        def use() -> None:
            try:
                if offset < 0 or size < 0 or offset + size > lent.local.size:
                    end, room = offset + size, lent.local.size
                    raise ValueError(f"bytes {offset:,} to {end:,} exceed the buffer, which has {room:,} bytes")
                do(lent.local.part(offset, size))
            except Exception as error:  # the caller receives any error
                port.exception(error)
            finally:
                lent.users.discard(user)

        if lent.local.device == CPU:
            use()
        else:  # the copy waits for work on the GPU
            here = contextvars.copy_context()

            def use_gpu() -> None:
                with in_background():
                    use()

            threading.Thread(target=here.run, args=(use_gpu,), name="meshbook GPU memory", daemon=True).start()
        return True


def parcel_of(local: LocalMemory) -> pickle.PickleBuffer:
    """Return the bytes for sending out of band.

    Not made of a memoryview: a PickleBuffer of one crashes Python (before 3.13) when the garbage collector finds both.
    """
    return pickle.PickleBuffer(local.array() if local.device == CPU else local.tensor.cpu().numpy())


def put_bytes(local: LocalMemory, data: Any) -> None:
    """Copy `data` into the memory, and wait until the copy is done."""
    if local.device == CPU:
        local.view()[:] = data
        return
    import torch  # weight: a tensor of a GPU exists, so torch is loaded

    source = torch.empty(local.size, dtype=torch.uint8)  # `data` may be read-only, which torch does not accept
    memoryview(source.numpy())[:] = data
    local.tensor.copy_(source)  # waits, as the source is on the CPU
