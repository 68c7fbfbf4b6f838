"""The text of `RDMABuffer.explain()`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from meshbook.runtime.amounts import format_bytes
from meshbook.runtime.rdma.handle import BufferHandle
from meshbook.runtime.rdma.select_backend import BackendVerdict

CHOSEN = {
    "same process": "a copy within this process",
    "process memory": "the kernel copies from process to process (Cross Memory Attach); the owner takes no part",
    "cuda ipc": "the GPU copies (CUDA IPC); the owner takes no part",
    "nixl": "the network card copies (NIXL); the owner takes no part",
    "host agent": "its host agent reaches the memory, and the bytes go over TCP; the owner takes no part",
    "message": "the owner's process sends and receives the bytes, but not while C code holds its GIL or it is stopped",
}


def explain(handle: BufferHandle, where: str, verdicts: Sequence[BackendVerdict]) -> str:
    """Return a line about the buffer and one for each backend; an arrow marks the chosen one."""
    memory = f"memory of GPU {handle.device.removeprefix('cuda:')}" if handle.is_on_gpu else "memory of the CPU"
    access = "" if handle.is_writable else ", read-only"
    of = f"{handle.actor} on {handle.owner.node}, {where}"
    width = max((len(each.name) for each in verdicts), default=0)
    return "\n".join(
        (f"{format_bytes(handle.size)} of {of}: {memory}{access}", *(_line(each, width) for each in verdicts))
    )


def _line(verdict: BackendVerdict, width: int) -> str:
    text = CHOSEN.get(verdict.name, "chosen") if verdict.is_chosen else verdict.reason
    return f"{'->' if verdict.is_chosen else '  '} {verdict.name:<{width}}  {text}"
