"""The CUDA driver: opening GPU memory of another process, and copying between any two addresses.

The driver is called by ctypes. Torch's own sharing counts each time that it shares an allocation, and a buffer's
handle goes to any number of processes. This module counts nothing; the lease decides how long the memory stays.
Functions as in NVIDIA's CUDA Driver API, 6.13 (memory), 6.8 (primary contexts) and 6.18 (captures of graphs).

This module neither loads torch nor initializes a GPU: torch is loaded wherever GPU memory exists.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from meshbook.runtime import devices

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_OWN_STREAM = ctypes.c_void_p(2)  # CU_STREAM_PER_THREAD: the calling thread's stream, in any context


class CudaError(RuntimeError):
    """The driver is missing or has refused a call; the text names the call and the reason."""


class _Handle(ctypes.Structure):
    """A CUDA IPC memory handle, passed by value."""

    _fields_ = (("data", ctypes.c_ubyte * HANDLE_BYTES),)


class Driver:
    """The driver of this process. GPU numbers are those of torch: both follow CUDA_VISIBLE_DEVICES.

    Each call makes the primary context of its GPU, which torch uses too, current while it lasts.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def export(self, gpu: int, address: int) -> tuple[bytes, int]:
        """Return the IPC handle of the allocation that contains this address, and the address's offset in it.

        Raises CudaError for memory that cannot be shared: `expandable_segments` of torch, memory of `cudaMallocAsync`.
        """
        base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
        with self._on(gpu):
            self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
            self._call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        return bytes(handle.data), address - base.value

    def open(self, gpu: int, handle: bytes) -> int:
        """Open an allocation of another process; return its address in this one."""
        address = ctypes.c_uint64()
        made = _Handle.from_buffer_copy(handle)
        with self._on(gpu):
            self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), made, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def close(self, gpu: int, address: int) -> None:
        """Close an opened allocation; the owner keeps the memory."""
        with self._on(gpu):
            self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def copy(self, gpu: int, to: int, source: int, size: int) -> None:
        """Copy, and wait until it is done. Both addresses are valid in this process, of any GPU or of the CPU."""
        with self._on(gpu):
            arguments = ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size)
            self._call("cuMemcpyAsync", *arguments, _OWN_STREAM)
            self._call("cuStreamSynchronize", _OWN_STREAM)

    @contextlib.contextmanager
    def beside_captures(self) -> Iterator[None]:
        """While the block runs, captures of graphs by other threads neither forbid calls of this thread nor fail."""
        mode = ctypes.c_int(_THREAD_LOCAL)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    @contextlib.contextmanager
    def _on(self, gpu: int) -> Iterator[None]:
        # Push and pop, so that other code on this thread keeps its own GPU.
        self._call("cuCtxPushCurrent_v2", self._context(gpu))
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _context(self, gpu: int) -> ctypes.c_void_p:
        if (found := self._contexts.get(gpu)) is None:
            device, found = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(gpu))
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(found), device)
            self._contexts[gpu] = found  # kept until the process ends, as in torch
        return found

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise CudaError(f"the CUDA driver has no {name}")
        if status := function(*arguments):
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(ctypes.c_int(status), ctypes.byref(text))
            why = text.value.decode(errors="replace") if text.value else "unknown error"
            raise CudaError(f"{name} of the CUDA driver: {why} ({status})")


@functools.cache
def driver() -> Driver:
    """Return the driver. Raises CudaError if there is none."""
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError as error:
        raise CudaError(f"the CUDA driver cannot be loaded ({error})") from error


def beside_captures() -> contextlib.AbstractContextManager[None]:
    """Return `Driver.beside_captures` for work on a GPU that is in use.

    By default CUDA forbids every thread to allocate memory or to query an event while one captures a graph, and the
    capture fails. A GPU of another maker has no such driver, and its captures are not protected.
    """
    if not devices.is_in_use():
        return contextlib.nullcontext()
    try:
        return driver().beside_captures()
    except CudaError:
        return contextlib.nullcontext()


@contextlib.contextmanager
def in_background() -> Iterator[None]:
    """While the block runs, use GPUs on a thread of ours, beside captures.

    The thread selects the GPU of its rank: otherwise its work would create a CUDA context on GPU 0 as well.
    """
    devices.OWN_GPU.select()
    with beside_captures():
        yield
