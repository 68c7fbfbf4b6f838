"""`monarch.simulator`: programs on meshes that do not exist."""

from enum import Enum
from typing import Any

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.schedule import Costs as Costs
from meshbook.runtime.tensor.simulator import Simulator as _Simulator
from meshbook.runtime.tensor.simulator import SimulatorTraceMode as SimulatorTraceMode
from meshbook.runtime.tensor.simulator import set_meta as set_meta


class SimulatorBackendMode(Enum):
    """How much Monarch simulates. Here one table of values stands for all ranks, and each has its own times."""

    SIMPLE = "simple"
    COMPREHENSIVE = "comprehensive"


class Simulator(_Simulator):
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


__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del Any, Enum, AliasModule
