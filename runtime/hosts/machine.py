"""Facts about this machine: GPUs and addresses. Never loads CUDA, which a parent of workers must not do."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import psutil


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs visible to a worker: the driver's list, limited by CUDA_VISIBLE_DEVICES."""
    try:
        present = sum(1 for entry in Path("/proc/driver/nvidia/gpus").iterdir())
    except OSError:
        present = sum(1 for entry in Path("/dev").glob("nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    return min(present, sum(1 for entry in visible.split(",") if entry.strip() not in ("", "-1")))


def own_addresses() -> list[str]:
    """Return the IPv4 addresses of this machine; the loopback address only if there is no other."""
    entries = [entry for each in psutil.net_if_addrs().values() for entry in each]
    addresses = [entry.address for entry in entries if entry.family == socket.AF_INET]
    return [address for address in addresses if not address.startswith("127.")] or ["127.0.0.1"]


def address_towards(others: Sequence[str]) -> str:
    """Return the address of this machine from which it reaches the first reachable one of these. OSError if none.

    An address that this machine has as well (of a container's network, for example) counts only if there is no other.
    """
    ways = [(own, other) for other in others if (own := _source_towards(other))]
    if not ways:
        raise OSError(f"this host has no route to any address of the controller's host ({', '.join(others)})")
    return next((own for own, other in ways if own != other), ways[0][0])


def _source_towards(other: str) -> str:
    with socket.socket(socket.AF_INET6 if ":" in other else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))  # sends nothing: the system only looks up the route
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def interface_of(ip: str) -> str:
    """Return the name of the network interface that has this address; empty if none has."""
    addresses = psutil.net_if_addrs()
    return next((name for name, entries in addresses.items() if any(entry.address == ip for entry in entries)), "")
