"""The picklable part of a buffer: its location, its lease, and what each backend needs to reach it. Data only."""

from __future__ import annotations

import msgspec

from meshbook.runtime.memory.identity import ProcessMark
from meshbook.runtime.memory.local import CPU, TensorForm
from meshbook.runtime.wire.messages import Address


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Memory is lent while the word at this address, in the owner's memory, holds this number."""

    word: int  # its address: eight bytes, never freed
    number: int  # random, never used again
    # On the owner's host: processes that use the memory are marked there (`progress`).
    folder: str = ""


class BufferHandle(msgspec.Struct, frozen=True, array_like=True):
    """A memory range of some process."""

    owner: Address  # the node
    incarnation: int  # of that node
    actor: str  # the owner's full name, for errors
    process: ProcessMark
    agent: Address | None  # of the owner's host; None if there is none
    lease: Lease
    address: int
    size: int  # bytes
    device: str = CPU  # or "cuda:<UUID>": the number of a GPU differs between processes
    offers: dict[str, bytes] = {}  # by backend name: what backends need beyond an address
    is_writable: bool = True  # False if the owner's data is read-only: `bytes`, arrays with that flag
    form: TensorForm | None = None  # of the tensor or array that it is; None: bytes
    run: str = ""  # the owner's run: a handle pickled to a file may be loaded in another one

    @property
    def is_on_gpu(self) -> bool:
        return self.device != CPU
