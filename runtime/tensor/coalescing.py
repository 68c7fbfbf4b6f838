"""`coalescing`: hold commands back and send them as one message."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from meshbook.runtime.tensor.device_mesh import get_active_mesh


@contextlib.contextmanager
def coalescing() -> Iterator[None]:
    """While the block runs, hold the commands of the active mesh back; its end sends them together.

    The ranks begin later, and the controller sends less often: for bursts of short operations. Blocks can be nested.
    Raises ValueError if no mesh is active; a fetch in the block raises NotImplementedError.
    """
    engine = get_active_mesh().engine
    engine.holds += 1
    try:
        yield
    finally:
        engine.holds -= 1
        if not engine.holds:
            engine.flush()
