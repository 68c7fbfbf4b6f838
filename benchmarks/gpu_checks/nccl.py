"""NCCL with one rank, as it needs a GPU for each: groups, training, and what its watchdog does to a process."""

from __future__ import annotations

import time

from gpu_checks import BACKEND, HAS_GPU, RunningKernel, check, gpu_used_mib, put, seconds_of

INIT = f'await mesh.init_process_group("{BACKEND}")'
REDUCE = """
import torch
import torch.distributed as dist
x = torch.ones(8, device=device)
dist.all_reduce(x)
x.sum().item()
"""
SECOND = 1_700_000_000  # cycles
FSDP = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

def losses(wrap):
    torch.manual_seed(0)
    model = wrap(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for step in range(5):
        loss = model(torch.ones(16, 64, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found

shards = init_device_mesh(device.type, (world_size,))
alone = losses(lambda model: model)
[max(abs(a - b) for a, b in zip(alone, losses(wrap)))
 for wrap in (DistributedDataParallel, lambda model: fully_shard(model, mesh=shards))]
"""
# A collective that waits longer than its group's limit, behind a kernel on the stream.
TOO_LONG = f"""
import datetime, time, torch
import torch.distributed as dist
kept = 5
dist.init_process_group("{BACKEND}", timeout=datetime.timedelta(seconds=5), device_id=device)
x = torch.ones(8, device=device)
dist.all_reduce(x); x.sum().item()
torch.cuda._sleep(9 * {SECOND})
dist.all_reduce(x)
time.sleep(11)  # longer than the kernel: a watchdog that ends the process would have done so
"""
TORCHS_OWN = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "1",
}


@check(25)
def five_new_groups() -> None:
    """Five groups in a row replace each other, at an even cost."""
    with RunningKernel(1) as book:
        used, seconds = [], []
        for _ in range(5):
            seconds.append(seconds_of(lambda: book.run(INIT)))
            assert book.values(REDUCE) == [8.0]
            used.append(gpu_used_mib())
        put(init_seconds=seconds, gpu_mib_used=used)
        assert book.values("dist.get_backend()") == [BACKEND]
        assert used[-1] - used[1] < 256, f"groups leave GPU memory behind: {used} MiB"
        put(end_of_the_mesh_seconds=seconds_of(lambda: book.run("%mesh down")))


@check(40)
def ddp_and_fsdp2() -> None:
    """DDP and FSDP2 over NCCL have the losses of a model without them."""
    with RunningKernel(1 if HAS_GPU else 2) as book:
        book.run(INIT)
        for differences in book.values(FSDP):
            put(largest_differences=differences)
            assert max(differences) < 1e-5


@check(25, needs_gpu=True)
def two_ranks_on_one_gpu() -> None:
    """NCCL refuses two ranks on one GPU, and the error has the call that works."""
    with RunningKernel(2) as book:
        text = book.fail(f'%%mesh\nimport torch.distributed as dist\ndist.init_process_group("nccl")\n{REDUCE}')
        put(report=text.strip().splitlines()[-2:])
        assert 'dist.init_process_group("gloo")' in text, text


@check(30, needs_gpu=True)
def collective_beyond_its_limit() -> None:
    """With meshbook's defaults, the process of a collective that is too late lives and keeps its variables."""
    with RunningKernel(1) as book:
        try:
            book.run(f"%%mesh\n{TOO_LONG}")
        finally:
            put(ended_with=book.wait(book.start("%%mesh\nkept"))[1].strip().splitlines()[-1:])
        assert book.values("kept") == [5]


@check(30, needs_gpu=True)
def abort_while_the_main_thread_synchronizes() -> None:
    """Ctrl-C, repeated, ends a cell that waits for the GPU behind a collective, and a new group works."""
    with RunningKernel(1) as book:
        book.run(INIT)
        book.run(f"%%mesh\n{REDUCE}")
        cell = book.start(f"%%mesh\ntorch.cuda._sleep(15 * {SECOND})\ndist.all_reduce(x)\ntorch.cuda.synchronize()")
        time.sleep(1.5)  # the main thread waits for the GPU by now; nothing reports that
        begun = time.monotonic()
        presses, text = book.interrupt(cell)
        put(seconds_to_the_end=time.monotonic() - begun, presses=presses, message=text.splitlines()[-1:])
        put(new_group_seconds=seconds_of(lambda: book.run(INIT)))
        assert book.values(REDUCE) == [8.0]


@check(30, needs_gpu=True)
def collective_beyond_its_limit_as_in_torch() -> None:
    """With torch's defaults the watchdog ends such a process; only reported, as it is torch's matter."""
    with RunningKernel(1, **TORCHS_OWN) as book:
        status, text = book.wait(book.start(f"%%mesh\n{TOO_LONG}"))
        put(process_lives="ProcessDied" not in text, cell_status=status, report=text.strip().splitlines()[-4:])
