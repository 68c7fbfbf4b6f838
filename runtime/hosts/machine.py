"""What this machine has: GPUs, a free port. Asked without loading CUDA, which a parent of workers must not do."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil


def count_gpus() -> int:
    """The number of NVIDIA GPUs that a worker would see: the driver's list, cut by CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = _driver_gpus()
    if visible is None:
        return present
    return min(present, sum(1 for entry in visible.split(",") if entry.strip() not in ("", "-1")))


def _driver_gpus() -> int:
    try:
        return sum(1 for entry in Path("/proc/driver/nvidia/gpus").iterdir())
    except OSError:
        return sum(1 for entry in Path("/dev").glob("nvidia[0-9]*"))


def free_port(ip: str = "127.0.0.1") -> int:
    """A TCP port that was free a moment ago at this address of ours."""
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
        probe.bind((ip, 0))
        return int(probe.getsockname()[1])


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine; that of the loopback alone where there is no other."""
    entries = [entry.address for each in psutil.net_if_addrs().values() for entry in each if _is_ipv4(entry)]
    return [address for address in entries if not address.startswith("127.")] or ["127.0.0.1"]


def address_towards(others: Sequence[str]) -> str:
    """The address of this machine from which it reaches the first of these that it can reach. OSError where none.

    One that is its own as well (of a container's network, for example) counts only where there is no other.
    """
    ways = [(own, other) for other in others if (own := _source_towards(other))]
    if not ways:
        raise OSError(f"this host has no route to any address of the controller's ({', '.join(others)})")
    return next((own for own, other in ways if own != other), ways[0][0])


def _source_towards(other: str) -> str:
    with socket.socket(socket.AF_INET6 if ":" in other else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))  # sends nothing: the system only looks up the route
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def interface_of(ip: str) -> str:
    """The name of the network interface that has this address; empty where none has."""
    addresses = psutil.net_if_addrs()
    return next((name for name, entries in addresses.items() if any(entry.address == ip for entry in entries)), "")


def _is_ipv4(entry: Any) -> bool:
    return bool(entry.family == socket.AF_INET)
