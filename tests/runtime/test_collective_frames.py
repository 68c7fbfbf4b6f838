"""Which collective a thread is in, by its frames."""

from __future__ import annotations

import pytest

from meshbook.runtime.collectives.abort import find_collective

TORCH = "/env/lib/python3.12/site-packages/torch"
CELL = ("<cell 9>", "<module>")
C10D = f"{TORCH}/distributed/distributed_c10d.py"
LOGGED = (f"{TORCH}/distributed/c10d_logger.py", "wrapper")


@pytest.mark.parametrize(
    ("frames", "collective"),
    [
        ([], None),
        ([CELL], None),
        ([CELL, ("/home/me/train.py", "all_reduce")], None),
        ([CELL, LOGGED, (C10D, "all_reduce")], "all_reduce"),
        ([CELL, ("/home/me/train.py", "step"), LOGGED, (C10D, "recv")], "recv"),
        ([CELL, LOGGED, (C10D, "all_gather_object"), LOGGED, (C10D, "all_gather")], "all_gather_object"),
        (
            [
                *(CELL, LOGGED, (C10D, "wrapper"), (C10D, "init_process_group")),
                *((f"{TORCH}/distributed/rendezvous.py", "_env_rendezvous_handler"),),
            ],
            "init_process_group",
        ),
        ([CELL, LOGGED, (C10D, "new_group"), (C10D, "_new_group_with_tag"), LOGGED, (C10D, "barrier")], "new_group"),
        ([CELL, (f"{TORCH}/distributed/device_mesh.py", "init_device_mesh"), (C10D, "new_group")], "init_device_mesh"),
        (
            [
                CELL,
                (f"{TORCH}/nn/parallel/distributed.py", "__init__"),
                (f"{TORCH}/distributed/utils.py", "_verify_param_shape_across_processes"),
            ],
            "DistributedDataParallel",
        ),
        (
            [CELL, (f"{TORCH}/nn/parallel/distributed.py", "forward"), (f"{TORCH}/nn/modules/linear.py", "forward")],
            None,
        ),
        # The second step of a training: `reducer._rebuild_buckets()`, in C++, waits for the other ranks.
        (
            [
                CELL,
                (f"{TORCH}/nn/parallel/distributed.py", "forward"),
                (f"{TORCH}/nn/parallel/distributed.py", "_pre_forward"),
            ],
            "DistributedDataParallel",
        ),
        (
            [
                *(CELL, (f"{TORCH}/_tensor.py", "backward"), (f"{TORCH}/autograd/__init__.py", "backward")),
                (f"{TORCH}/autograd/graph.py", "_engine_run_backward"),
            ],
            "backward",
        ),
        # A hook of the user's, within a backward pass.
        ([CELL, (f"{TORCH}/autograd/graph.py", "_engine_run_backward"), ("<cell 7>", "hook")], None),
        ([CELL, (C10D, "get_rank")], None),
    ],
)
def test_which_collective(frames: list[tuple[str, str]], collective: str | None) -> None:
    assert find_collective(frames) == collective
