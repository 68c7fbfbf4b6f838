"""Which errors of a GPU end all use of it, and which remedies are known."""

from __future__ import annotations

import pytest

from meshbook.runtime.gpu_errors import find_remedies, is_context_lost


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported", True),
        ("CUDA error: an illegal memory access was encountered", True),
        ("HIP error: unspecified launch failure", True),
        ("CUDA error: the launch timed out and was terminated", True),
        ("Triton Error [CUDA]: misaligned address", True),
        ("Last error:\nCuda failure 700 'an illegal memory access was encountered'", True),
        ("Cuda failure 'uncorrectable ECC error encountered'", True),
        ("CUDA error: invalid device ordinal", False),
        ("CUDA error: out of memory", False),
        ("CUDA out of memory. Tried to allocate 20.00 GiB", False),
        ("an illegal memory access was encountered", False),
    ],
)
def test_some_errors_of_a_gpu_end_all_use_of_it(text: str, is_lost: bool) -> None:
    assert is_context_lost(text) is is_lost


NCCL = "NCCL error in: ProcessGroupNCCL.cpp:77, invalid usage, NCCL version 2.29.7\nLast error:\n"


@pytest.mark.parametrize(
    ("texts", "parts"),
    [
        ([f"{NCCL}Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 30"], ['init_process_group("gloo")']),
        ([f"{NCCL}Mismatched NCCL version detected : rank 0 version 22703 rank 1 version 22907"], ["same torch"]),
        (["trying to initialize the default process group twice!"] * 2, ["destroy_process_group()"]),
        ([NCCL, "bad"], []),
    ],
)
def test_an_error_of_a_group_comes_with_its_remedy(texts: list[str], parts: list[str]) -> None:
    found = find_remedies(texts)
    assert [part in remedy for part, remedy in zip(parts, found, strict=True)] == [True] * len(parts)
