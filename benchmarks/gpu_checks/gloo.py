"""Process groups by gloo over tensors of one GPU that all ranks share."""

from __future__ import annotations

import time

from gpu_checks import RunningKernel, check, put, seconds_of

RANKS = 4
# The same model and data on every rank, by DDP with a part of the data each, and in one process with all of it.
TRAIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def train(wrap, part):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1)).to(device)
    model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).to(device)
    for step in range(5):
        optimizer.zero_grad()
        model(data[part]).square().mean().backward()
        optimizer.step()
    return model, [each.detach().double() for each in model.parameters()]
"""
COMPARE = """
rows = 64 // world_size
model, ours = train(DistributedDataParallel, slice(rank * rows, (rank + 1) * rows))
_, alone = train(lambda model: model, slice(None))
max((a - b).abs().max().item() for a, b in zip(ours, alone))
"""


def connect(book: RunningKernel) -> float:
    """Create the default group as a notebook does; return the seconds."""
    return seconds_of(lambda: book.run("await mesh.init_process_group()"))


@check(40)
def ddp_equals_one_process() -> None:
    """DistributedDataParallel on 4 ranks that share the GPU ends with the parameters of one process."""
    with RunningKernel(RANKS) as book:
        put(init_seconds=connect(book))
        book.run(f"%%mesh\n{TRAIN}")
        assert set(book.values("dist.get_backend()")) == {"gloo"}
        differences = book.values(COMPARE)
        put(largest_difference=max(differences))
        assert max(differences) < 1e-5


@check(40)
def skipped_step() -> None:
    """A rank skips a step: it is named within 6 s, an interrupt frees the others, and a new group trains on."""
    with RunningKernel(RANKS) as book:
        connect(book)
        book.run(f"%%mesh\n{TRAIN}")
        cell = book.start(
            "%%mesh\nkept = rank\nx = torch.ones(1 << 20, device=device)\n"
            "import threading\nthreading.Event().wait(60) if rank == 3 else dist.all_reduce(x)\nx.sum().item()"
        )
        begun = time.monotonic()
        _, text = book.wait(cell, for_text=r"3 ranks \[0-2\] in all_reduce", seconds=10)
        put(named_after_seconds=time.monotonic() - begun, message=text.strip().splitlines()[:3])
        assert time.monotonic() - begun < 7
        begun = time.monotonic()
        presses, text = book.interrupt(cell)
        put(freed_after_seconds=time.monotonic() - begun, presses=presses, end=text.splitlines()[-1:])
        assert presses == 2, text
        assert book.values("kept") == [0, 1, 2, 3], "a rank has lost its variables"
        put(new_group_seconds=connect(book))
        assert max(book.values(COMPARE)) < 1e-5
