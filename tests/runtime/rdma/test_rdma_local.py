"""What counts as memory: tensors, arrays and buffers of any kind, and what is refused with a word of what to pass."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch

from meshbook.runtime.memory import pages
from meshbook.runtime.memory.local_memory import local_memory


class Pair(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("value", ctypes.c_double))


def read_only() -> Any:
    made = np.arange(4.0)
    made.flags.writeable = False
    return made


def inference() -> Any:
    with torch.inference_mode():
        return torch.zeros(4)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        *((lambda kind=kind: torch.zeros(4, dtype=kind), 4 * kind.itemsize)
          for kind in (torch.bool, torch.int64, torch.bfloat16, torch.complex64, torch.float8_e4m3fn)),
        (lambda: torch.zeros(()), 4),
        (lambda: torch.zeros(2, 3, 4), 96),
        (lambda: torch.nn.Parameter(torch.ones(3)), 12),
        (lambda: torch.ones(3, requires_grad=True) * 2, 12),
        (lambda: torch.zeros(4).share_memory_(), 16),
        (inference, 16),
        (lambda: np.zeros((2, 3)), 48),
        (lambda: np.array(1.0), 8),
        (lambda: np.zeros(3, "M8[s]"), 24),
        (lambda: np.zeros(3, [("a", "i4"), ("b", "f8")]), 36),
        (lambda: np.zeros(3, ">i4"), 12),
        (lambda: bytearray(5), 5),
        (lambda: mmap.mmap(-1, 100), 100),
        (lambda: array.array("d", [1, 2]), 16),
        (lambda: (ctypes.c_int * 4)(), 16),
        (lambda: (Pair * 2)(), 32),
        (lambda: memoryview(bytearray(8)).cast("i"), 8),
    ],
)  # fmt: skip
def test_memory_of_any_type_and_shape(make: Callable[[], Any], size: int) -> None:
    data = make()
    local = local_memory(data, "data")
    assert (local.size, local.is_writable, local.device) == (size, True, "cpu")
    ctypes.memset(local.address, 0x5A, 1)
    assert local.view()[0] == 0x5A
    assert local.part(1, size - 1).address == local.address + 1


@pytest.mark.parametrize("make", [lambda: b"abcd", read_only, lambda: np.float64(3), lambda: memoryview(b"abcd")])
def test_memory_that_can_only_be_read(make: Callable[[], Any]) -> None:
    data = make()
    local = local_memory(data, "data")
    assert not local.is_writable
    assert bytes(local.view()) == ctypes.string_at(local.address, local.size) == memoryview(data).tobytes()


def closed() -> Any:
    made = mmap.mmap(-1, 10)
    made.close()
    return made


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: torch.zeros(3, 4).T, ValueError, r"not contiguous .*data\.contiguous\(\)"),
        (lambda: torch.zeros(1).expand(5), ValueError, r"data\.contiguous\(\)"),
        (lambda: np.zeros((3, 4)).T, ValueError, r"numpy\.ascontiguousarray\(data\)"),
        (lambda: memoryview(bytearray(9))[::2], ValueError, "not contiguous"),
        (lambda: torch.zeros(0, 3), ValueError, "no bytes"),
        (lambda: np.zeros((0, 3)), ValueError, "no bytes"),
        (lambda: b"", ValueError, "no bytes"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), TypeError, r"data\.resolve_conj\(\)"),
        (lambda: torch._neg_view(torch.ones(2)), TypeError, r"data\.resolve_neg\(\)"),
        (lambda: torch.zeros(2, 2).to_sparse(), TypeError, "sparse"),
        (lambda: torch.empty(4, device="meta"), TypeError, "no memory of its own"),
        (lambda: np.array([1, "a"], object), TypeError, "Python objects"),
        (lambda: (ctypes.py_object * 2)(), TypeError, "Python objects"),
        (closed, ValueError, "closed"),
        (lambda: [1, 2], TypeError, "data must be .* not a list"),
        (lambda: pa.array([1, 2]), TypeError, r"data must be a tensor, .* not a Int64Array; pass its to_numpy\(\)"),
        (lambda: "text", TypeError, "data must be .* not a str"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        local_memory(make(), "data")


def test_memory_that_was_taken_is_not_freed_by_a_change_of_its_size() -> None:
    tensor, text = torch.zeros(8), bytearray(8)
    kept = local_memory(tensor, "data"), local_memory(text, "data")
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.resize_(1000)
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.untyped_storage().resize_(0)
    with pytest.raises(BufferError):
        text.extend(b"more")
    del kept
    text.extend(b"more")


@pytest.mark.parametrize("make", [lambda: memoryview(bytearray(8)), lambda: bytearray(8), lambda: np.zeros(8)])
def test_memory_in_a_ring_of_objects_is_collected(make: Callable[[], Any]) -> None:
    for _ in range(100):
        ring: list[Any] = [local_memory(make(), "data")]
        ring += [ring[0].view(), ring]
    del ring
    gc.collect()


@pytest.mark.skipif(not pages.are_available(), reason="this system has no large pages for who asks")
def test_large_pages_change_no_byte_and_fill_nothing_that_was_never_touched() -> None:
    memory = np.frombuffer(mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    memory[: 5 << 20] = 7
    before = psutil.Process().memory_info().rss
    asked: list[bool] = []
    pages.make_large(memory.ctypes.data, memory.nbytes, lambda: not asked.append(True))  # type: ignore[func-returns-value]
    assert len(asked) >= 3
    assert psutil.Process().memory_info().rss - before < 2 << 20
    assert (memory[: 5 << 20] == 7).all()
    assert not memory[5 << 20 :].any()
    pages.want_large(memory.ctypes.data, memory.nbytes)
