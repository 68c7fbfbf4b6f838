"""`Simulator` of `monarch.simulator`: ours with Monarch's arguments."""

from __future__ import annotations

from enum import Enum
from typing import Any

from meshbook.runtime.tensor import simulator


class SimulatorBackendMode(Enum):
    """How much Monarch simulates. Here one table of values stands for all ranks, and each has its own times."""

    SIMPLE = "simple"
    COMPREHENSIVE = "comprehensive"


class Simulator(simulator.Simulator):
    """`meshbook.Simulator` with Monarch's names of the dimensions, `host` and `gpu`; ignores `simulate_mode`."""

    def __init__(
        self,
        hosts: int = 1,
        gpus: int = 1,
        *,
        simulate_mode: SimulatorBackendMode = SimulatorBackendMode.SIMPLE,
        **options: Any,
    ) -> None:
        super().__init__(hosts, gpus, **{"dims": ("host", "gpu")} | options)
