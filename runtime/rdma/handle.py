"""What travels of a buffer: where it is, how long it is lent, and what each way needs to reach it. Data alone."""

from __future__ import annotations

import msgspec

from meshbook.runtime.memory.identity import ProcessMark
from meshbook.runtime.memory.local import CPU
from meshbook.runtime.memory.tensor_form import TensorForm
from meshbook.runtime.wire.messages import Address


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Memory is lent while the word at this address, in the owner's memory, has this number."""

    word: int  # its address: eight bytes, never freed
    number: int  # drawn: never used again, by nobody
    folder: str = ""  # of the owner's host: who is at the memory says so there (`progress`)


class BufferHandle(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of memory of some process."""

    owner: Address  # the node
    incarnation: int  # of that node
    actor: str  # in full, as errors name the owner
    process: ProcessMark
    agent: Address | None  # of the owner's host; None where there is none
    lease: Lease
    address: int
    size: int  # bytes
    device: str = CPU  # or "cuda:<UUID>": the number of a GPU differs between processes
    offers: dict[str, bytes] = {}  # what the ways need that want more than an address, by their names
    is_writable: bool = True  # of some data others may read only, as the owner may: `bytes`, arrays that say so
    form: TensorForm | None = None  # of the tensor or array that it is; None: bytes
    run: str = ""  # that of the owner: handles may be pickled to a file, and come back in another one

    @property
    def is_on_gpu(self) -> bool:
        return self.device != CPU
