"""One random state for all ranks, so that random operators give equal values on every rank.

Operators draw the values of the whole tensor on every rank and keep their shard. The values therefore equal those of
one process with the same seed. The cost is the time to draw the whole tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from meshbook.runtime import devices


class SharedRandom:
    """The random state of the operators of one device mesh, apart from the rank's own random state.

    User code that draws numbers on one rank only would otherwise make the replicas differ from then on.
    """

    def __init__(self, device_type: str, seed: int) -> None:
        self._device_type = device_type
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> None:
        """Set the state that `torch.manual_seed(seed)` sets in one process."""
        generator = torch.Generator(device=self._device_type)
        generator.manual_seed(seed)
        self.state = generator.get_state()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this the state of torch's default generator for the duration of the block."""
        generator = self._default_generator()
        outside = generator.get_state()
        generator.set_state(self.state)
        try:
            yield
        finally:
            self.state = generator.get_state()
            generator.set_state(outside)

    def _default_generator(self) -> torch.Generator:
        if self._device_type == "cpu":
            return torch.default_generator
        return devices.generator()
