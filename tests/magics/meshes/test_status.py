"""What `%mesh status` says of what ranks use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from meshbook.magics.meshes.status import format_vitals
from meshbook.runtime.telemetry.vitals import METRICS, Vitals

NAN, INF = float("nan"), float("inf")


def vitals(age: Sequence[float], **metrics: Sequence[float]) -> Vitals:
    nothing = [NAN] * len(age)
    known = {name: np.float32(metrics.get(name, nothing)) for name in METRICS}
    return Vitals(known, np.zeros(len(age), np.uint8), np.float32(age))


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (vitals([INF, INF]), []),
        (
            vitals([0, 1], cpu=[0.5, 1.25], memory=[180e6, 181e6]),
            ["  uses 1.8 cores, 181 MB of memory per rank; shared memory is divided among the ranks"],
        ),
        (
            vitals([0, 1, 0], cpu=[1, NAN, 1], memory=[2e8, 1.4e9, NAN], gpu_memory=[1e10, 1e10, 0]),
            [
                "  uses 2.0 cores, 200 MB to 1.4 GB of memory per rank (most: rank 1), "
                "0 B to 10 GB of GPU memory per rank (most: rank 0); shared memory is divided among the ranks"
            ],
        ),
        (
            vitals([0, 1], gpu_memory=[1e10, 1e10], gpu_free=[7e10, 2e9]),
            ["  uses 10 GB of GPU memory per rank, at least 2.0 GB of it free on each GPU"],
        ),
        (vitals([1], memory=[1e9], gpu_memory=[0]), ["  uses 1.0 GB of memory per rank"]),
        (vitals([1, 12, 99]), ["  rank 1 has sent no heartbeat for 00:12; see %mesh stack"]),
        (vitals([8, 12, 4]), ["  ranks 0-1 have sent no heartbeat for up to 00:12; see %mesh stack"]),
    ],
)
def test_vitals_as_lines(found: Vitals, lines: list[str]) -> None:
    assert list(format_vitals(found, dead={2})) == lines
