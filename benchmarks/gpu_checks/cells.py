"""Cells of a notebook on GPUs: work, errors, interrupts and dead ranks."""

from __future__ import annotations

import time

from gpu_checks import DEVICE, HAS_GPU, RunningKernel, check, gpu_used_mib, put, seconds_of

SIZE, TIMES = (8192, 20) if HAS_GPU else (256, 5)
MATMUL = f"""
import time, torch
a = torch.randn({SIZE}, {SIZE}, device=device, dtype=torch.bfloat16)
(a @ a).sum().item()
begun = time.perf_counter()
for _ in range({TIMES}): b = a @ a
b.sum().item()
time.perf_counter() - begun
"""
# What a cell can allocate: most of the GPU, or little on the CPU.
MOST = "int(0.7 * torch.cuda.mem_get_info()[1])" if HAS_GPU else "1 << 28"
FAIL_TO_ALLOCATE = (
    f"most = {MOST}\ndef work():\n    held = torch.empty(most, dtype=torch.uint8, device=device)\n"
    + (
        "    return torch.empty(most, dtype=torch.uint8, device=device)"
        if HAS_GPU
        else '    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")'
    )
    + "\nwork()"
)
LONG_KERNEL = (
    "torch.cuda._sleep(20 * 1_700_000_000)\ntorch.cuda.synchronize()" if HAS_GPU else "import time; time.sleep(20)"
)
LOSE_CONTEXT = (
    "y = torch.zeros(2, device=device)[torch.tensor([5], device=device)]\ny.cpu()"
    if HAS_GPU
    else 'raise torch.AcceleratorError("CUDA error: device-side assert triggered")'
)


@check(25)
def matmul_and_peaks() -> None:
    """8 ranks multiply matrices on one GPU; torch's own peak counts over cells, and the footer has the cell's."""
    with RunningKernel(8 if HAS_GPU else 2) as book:
        seconds = book.values(MATMUL)
        put(tflops_of_all_ranks=2 * SIZE**3 * TIMES * len(seconds) / max(seconds) / 1e12)
        if HAS_GPU:
            book.run("%%mesh\nbig = torch.empty(1 << 30, dtype=torch.uint8, device=device); del big")
            footer = book.run("%%mesh -T\nsmall = torch.empty(1 << 20, dtype=torch.uint8, device=device)")
            put(footer_of_a_small_cell=footer.strip().splitlines()[-12:])
            peaks = book.values("torch.cuda.max_memory_allocated()")
            assert min(peaks) >= 1 << 30, f"a later cell has reset torch's peak: {peaks}"


@check(25)
def out_of_memory_twice() -> None:
    """After an error about memory the same cell fails at the same place, and what fits can be allocated."""
    with RunningKernel(1) as book:
        book.run("%%mesh\nimport torch\ntorch.zeros(1, device=device)")
        for attempt in range(2):
            text = book.fail(f"%%mesh\n{FAIL_TO_ALLOCATE}")
            assert "OutOfMemoryError" in text, text
            place = "return torch.empty" if HAS_GPU else "raise torch.Out"
            assert place in text, f"attempt {attempt + 1} fails elsewhere:\n{text}"
            put(report=[line for line in text.splitlines() if "freed" in line or "largest" in line])
        book.run("%%mesh\nheld = torch.empty(most, dtype=torch.uint8, device=device)")


@check(45)
def interrupt_of_a_long_kernel() -> None:
    """Ctrl-C, repeated each 2 s, ends a cell in a kernel of 20 s early; the other rank keeps its variables."""
    with RunningKernel(2) as book:
        book.run("%%mesh\nimport torch\nkept = rank\ntorch.zeros(1, device=device).item()")
        cell = book.start(f"%%mesh 0\n{LONG_KERNEL}")
        time.sleep(2)  # the kernel on the GPU has begun; nothing reports that
        begun = time.monotonic()
        presses, text = book.interrupt(cell)
        seconds = time.monotonic() - begun
        put(seconds_to_the_end=seconds, presses=presses, message=text.splitlines()[-1:])
        assert seconds < 12, f"the cell ended {seconds:.0f} s after the first Ctrl-C"
        assert "[1] 1" in book.run("%%mesh 1\nkept")
        again = "%%mesh\nimport torch\ntorch.zeros(1, device=device).item()"
        put(first_cell_afterwards_seconds=seconds_of(lambda: book.run(again)))


@check(30)
def device_assert_and_restart() -> None:
    """A device-side assert is reported with its remedy, which works; the other rank keeps its variables."""
    with RunningKernel(2) as book:
        book.run("%%mesh\nimport torch\nkept = torch.ones(3, device=device)")
        text = book.fail(f"%%mesh 1\n{LOSE_CONTEXT}")
        put(report=text.strip().splitlines()[-2:])
        assert "%mesh restart 1" in text, text
        if HAS_GPU:
            later = book.fail("%%mesh 1\ntorch.ones(3, device=device).sum().item()")
            assert "%mesh restart 1" in later, later
        put(restart_seconds=seconds_of(lambda: book.run("%mesh heal")))
        book.run("%%mesh 1\nimport torch\nkept = torch.ones(3, device=device)")
        assert book.values("kept.sum().item()") == [3.0, 3.0]


@check(35)
def killed_rank_with_most_memory() -> None:
    """After SIGKILL of a rank that has most of the GPU's memory, a heal brings a rank that can allocate it again."""
    allocate = f"%%mesh 1\nimport torch\nheld = torch.empty({MOST}, dtype=torch.uint8, device=device).fill_(1)"
    with RunningKernel(2) as book:
        book.run("%%mesh\nimport torch\nkept = torch.ones(3, device=device)")
        book.run(allocate)
        put(gpu_mib_used_before=gpu_used_mib())
        text = book.fail("%%mesh 1\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
        assert "SIGKILL" in text, text
        put(heal_seconds=seconds_of(lambda: book.run("%mesh heal")))
        put(gpu_mib_used_after_heal=gpu_used_mib())
        put(allocate_again_seconds=seconds_of(lambda: book.run(allocate)))
        assert "3.0" in book.run("%%mesh 0\nkept.sum().item()"), f"rank 0 has lost its variables on {DEVICE}"
