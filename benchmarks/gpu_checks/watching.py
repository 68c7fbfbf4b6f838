"""What meshbook shows of ranks and their GPU."""

from __future__ import annotations

import time

from gpu_checks import HAS_GPU, RunningKernel, check, put

TEXT = "%mesh status"


@check(25)
def status() -> None:
    """`%mesh status` has the memory of the ranks, and what they use of the GPU."""
    with RunningKernel(2) as book:
        book.run("%%mesh\nimport torch\nheld = torch.zeros(1 << 28, dtype=torch.uint8, device=device)")
        end = time.monotonic() + 15
        while "memory" not in (text := book.run(TEXT)) or (HAS_GPU and "GPU" not in text):
            assert time.monotonic() < end, text
            time.sleep(0.5)  # the ranks report once a second
        put(status=text.strip().splitlines())
