"""Errors of GPUs and of their process groups, recognised by their texts, and what to do about them."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Errors after which CUDA fails in this process for good ("CUDA Runtime API", 6.3: the process must be terminated and
# relaunched), as torch, Triton and NCCL report them. They appear at a call after the kernel that caused them.
_CONTEXT_LOST = re.compile(
    r"((CUDA|HIP) error: |Triton Error \[(CUDA|HIP)\]: |Cuda failure (\d+ )?')"
    r"(device-side assert|an illegal (memory access|instruction)|misaligned address|invalid program"
    r"|hardware stack error|operation not supported on global|uncorrectable ECC|(unspecified|the) launch)"
)


def is_context_lost(text: str) -> bool:
    """Return whether this process has lost its CUDA context, according to the text of an error."""
    return _CONTEXT_LOST.search(text) is not None


# What to do about errors of process groups, by a part of their texts.
_REMEDIES = {
    "trying to initialize the default process group twice": (
        "end the present group first with dist.destroy_process_group(), or make groups with init_process_group() of "
        "the mesh, outside its ranks, which replaces the present one"
    ),
    "Duplicate GPU detected": (
        'NCCL needs a GPU for each rank, and ranks share one here: use dist.init_process_group("gloo"), or '
        "init_process_group() of the mesh, outside its ranks, which chooses the backend"
    ),
    "Mismatched NCCL version": (
        "the ranks have loaded different versions of NCCL: install the same torch on all hosts, and remove other "
        "copies of NCCL from LD_LIBRARY_PATH"
    ),
}


def find_remedies(texts: Iterable[str]) -> list[str]:
    """Return what to do about errors with these texts, as far as it is known."""
    text = "\n".join(texts)
    return [remedy for part, remedy in _REMEDIES.items() if part in text]
