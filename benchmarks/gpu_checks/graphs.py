"""torch.compile and CUDA graphs in cells."""

from __future__ import annotations

from gpu_checks import HAS_GPU, RunningKernel, check, put, seconds_of

COMPILE = f"""
import os, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(device)
x = torch.randn(16, 64, device=device)
compiled = torch.compile(model, backend="{"inductor" if HAS_GPU else "eager"}")
difference = (compiled(x) - model(x)).abs().max().item()
"""
PROCESSES = """
import psutil
[len(psutil.Process().children(recursive=True)), int(os.environ["TORCHINDUCTOR_COMPILE_THREADS"])]
"""
CAPTURE = """
import time, torch, meshbook
x = torch.ones(1024, device=device)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side): y = (x * 2).sum()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
meshbook.log(loss=y)
refused = False
with torch.cuda.graph(graph):
    y = (x * 2).sum()
    try:
        meshbook.log(loss=y)
    except RuntimeError:
        refused = True
    time.sleep(1.2)  # a heartbeat of the rank comes within the capture
x.fill_(3)
graph.replay()
meshbook.log(loss=y)
[y.item(), refused]
"""


@check(50)
def compile_on_two_ranks() -> None:
    """torch.compile gives the values of eager mode; the ranks share the cores for their compile processes."""
    with RunningKernel(2) as book:
        put(compile_seconds=seconds_of(lambda: book.run(f"%%mesh\n{COMPILE}")))
        differences, processes = book.values("difference"), book.values(PROCESSES)
        put(largest_difference=max(differences), children_and_compile_threads=processes)
        assert max(differences) < 1e-3
        for children, threads in processes:
            assert children <= threads + 2, f"{children} child processes, for a share of {threads}"
        put(again_seconds=seconds_of(lambda: book.run("%%mesh\ncompiled(x).sum().item()")))


@check(30, needs_gpu=True)
def graph_in_a_cell() -> None:
    """A cell captures a graph on two ranks, while meshbook measures; to log a value within it is refused."""
    with RunningKernel(2) as book:
        assert book.values(CAPTURE) == [[6144.0, True]] * 2
