"""The actor of every node that others ask about the memory which its process lends: to drop it, and, where no other way
leads here, for its bytes. Those go in pieces, whatever the owner's actors do; but not while C code holds the GIL.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Literal, Protocol

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.memory.local import CPU, LocalMemory
from meshbook.runtime.rdma.leases import LeaseTable
from meshbook.runtime.rdma.memory_contents import parcel_of, put_bytes

RDMA = "rdma"
Answer = Literal["ok", "dropped", "read-only"]


class LeaseOwner(Protocol):
    """What the actor needs of the station of its process. Nothing of it waits."""

    leases: LeaseTable

    def end(self, number: int) -> Future[None]: ...


class RDMAService(Actor):
    """Hosted inline: what it does is done before the next message is received; but for what waits for a GPU."""

    def __init__(self, lender: LeaseOwner) -> None:
        self._lender = lender

    @endpoint(explicit_response_port=True)
    def drop(self, port: Port[None], number: int) -> None:
        """Lend this no more; answered once nobody is at the memory. What is not lent (any more) is no error."""
        here = contextvars.copy_context()  # that is known later, on whichever thread looks then
        self._lender.end(number).when_done(lambda: here.run(port.send, None))

    @endpoint(explicit_response_port=True)
    def read(self, port: Port[Any], number: int, offset: int, size: int) -> None:
        """So many bytes of what is lent under this number, from there on; None where nothing is."""

        def send(part: LocalMemory) -> None:
            port.send(parcel_of(part))

        if not self._use(port, number, offset, size, send):
            port.send(None)

    @endpoint(explicit_response_port=True)
    def write(self, port: Port[Answer], number: int, offset: int, data: Any) -> None:
        """Put these bytes into what is lent under this number, from there on, and answer how that went."""
        source = memoryview(data)

        def put(part: LocalMemory) -> None:
            if part.is_writable:
                put_bytes(part, source)
            port.send("ok" if part.is_writable else "read-only")

        if not self._use(port, number, offset, source.nbytes, put):
            port.send("dropped")

    def _use(self, port: Port[Any], number: int, offset: int, size: int, do: Callable[[LocalMemory], None]) -> bool:
        """Do something with a part of what is lent, which is kept meanwhile; whether it is lent."""
        if (lent := self._lender.leases.find(number)) is None:
            return False
        user = object()
        lent.users.add(user)
        if lent.is_over:
            lent.users.discard(user)
            return False

        def use() -> None:
            try:
                do(_part(lent.local, offset, size))
            except Exception as error:  # whoever asked is told of anything
                port.exception(error)
            finally:
                lent.users.discard(user)

        if lent.local.device == CPU:
            use()
        else:  # a copy waits for what the GPU is at
            here = contextvars.copy_context()
            threading.Thread(target=here.run, args=(use,), name="meshbook GPU memory", daemon=True).start()
        return True


def _part(local: LocalMemory, offset: int, size: int) -> LocalMemory:
    if offset < 0 or size < 0 or offset + size > local.size:
        raise ValueError(f"bytes {offset:,} to {offset + size:,} of a buffer of {local.size:,}")
    return local.part(offset, size)
