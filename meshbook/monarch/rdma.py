"""What is true of RDMA in this version: meshbook has no one-sided transfers yet, so nothing here uses a NIC."""

from __future__ import annotations

NO_BACKEND = "none"


def get_rdma_backend() -> str:
    """The way that one-sided transfers take: `none`, for there are no such transfers."""
    return NO_BACKEND


def is_ibverbs_available() -> bool:
    """Whether one-sided transfers go through an RDMA NIC."""
    return get_rdma_backend() == "ibverbs"


def is_rdma_available() -> bool:
    """Whether there are one-sided transfers at all; Monarch's older name for the question."""
    return get_rdma_backend() != NO_BACKEND
