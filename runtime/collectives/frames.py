"""Detection, from a thread's stack, of the collective that it is in. Pure."""

from __future__ import annotations

from collections.abc import Iterable

# The functions that users call and that wait for other ranks are in these files of torch, under their public names.
CALLED = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/device_mesh.py",
    "torch/distributed/_functional_collectives.py",
)
DECORATOR = "wrapper"
QUESTIONS = ("get_", "is_")  # `get_rank()` and similar functions never wait
# Steps of DistributedDataParallel in which ranks compare their models and copy that of the first.
DDP = frozenset({"_verify_param_shape_across_processes", "_sync_module_states", "_sync_params_and_buffers"})
DDP_MODULE = "torch/nn/parallel/distributed.py"
BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")


def find_collective(frames: Iterable[tuple[str, str]]) -> str | None:
    """Return the collective that a thread is in, by its public name: `all_reduce`, `barrier`, `init_process_group`.

    `frames` are the (file name, function name) of its stack, outermost first. `DistributedDataParallel` while such a
    model is being created, or waits in its own code, as its second `forward` does when it rebuilds the buckets.
    `backward` for any backward pass: the gradients of such a model are reduced within it, in C++, so it may wait there
    or compute. None if it is in no collective, as far as Python's frames show: a thread that waits for the `Work` of an
    asynchronous operation is in a line of the user's own.
    """
    stack = [(file.replace("\\", "/"), function) for file, function in frames]
    for file, function in stack:
        if file.endswith(CALLED) and function != DECORATOR and not function.startswith(("_", *QUESTIONS)):
            return function
        if function in DDP and "torch/" in file:
            return "DistributedDataParallel"
    if stack and stack[-1][0].endswith(DDP_MODULE):
        return "DistributedDataParallel"
    if stack and stack[-1][0].endswith(BACKWARD[0]) and stack[-1][1] == BACKWARD[1]:
        return "backward"
    return None
