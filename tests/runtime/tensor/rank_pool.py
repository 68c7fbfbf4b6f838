"""Processes that run functions on the ranks of small meshes, for the tests of sharded tensors."""

from __future__ import annotations

import logging
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

SIZE = 4
MESHES = {"1": [0], "2": [0, 1], "3": [0, 1, 2], "4": [0, 1, 2, 3], "2x2": [[0, 1], [2, 3]]}
PATIENCE_S = 100.0


class RankPool:
    """Four processes; `run` calls a function on those that belong to a mesh."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._connections: list[Connection] = []
        self._processes = []
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            arguments = (rank, str(Path(self._folder.name) / "rendezvous"), theirs)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def run(self, mesh: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function(mesh, *args)` on all ranks of a mesh; return the result of rank 0, raise the first error."""
        ranks = range(torch.tensor(MESHES[mesh]).numel())
        for rank in ranks:
            self._connections[rank].send((mesh, function, args))
        replies = []
        for rank in ranks:
            assert self._connections[rank].poll(PATIENCE_S), f"rank {rank} does not answer"
            replies.append(self._connections[rank].recv())
        for rank, (_, error) in enumerate(replies):
            assert error is None, f"rank {rank}: {error}"
        return replies[0][0]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


def serve(rank: int, rendezvous: str, connection: Connection) -> None:
    """Answer calls until the connection is closed."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    start = f"file://{rendezvous}"
    dist.init_process_group("gloo", init_method=start, rank=rank, world_size=SIZE, timeout=timedelta(seconds=60))
    meshes = {name: DeviceMesh("cpu", ranks) for name, ranks in MESHES.items()}
    while True:
        try:
            name, function, args = connection.recv()
        except (EOFError, OSError):
            # Ranks end at different times, and the shutdown of a process group would wait for the others.
            os._exit(0)
        try:
            connection.send((function(meshes[name], *args), None))
        except BaseException:
            connection.send((None, traceback.format_exc()))
