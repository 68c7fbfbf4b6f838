"""Other runtimes that move bulk data or run tensor programs, for comparison with ours in the same run.

    python benchmarks/peer_interpreters.py monarch|ray|dask

Runs in any interpreter that has them, so it does not import meshbook. For each line of its input, such as "read SIZE
TIMES", it prints a line: the median of so many times, in seconds. It ends with its input. "read" copies bytes that one
worker holds into memory of another one that was written to before; "echo" sends a tensor (Dask: an array) to a worker
and back. "chain" and "train" run so many operations or steps of the programs below on Monarch's tensor engine.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import percentiles

MARK = "seconds: "  # the runtimes print, too
NAMES = {"monarch": "monarch", "ray": "ray", "dask": "distributed"}  # and the package of each
Median = Callable[[int, int], float]  # of a size, and so many times
Answers = dict[str, Median]


def chain(count: int) -> Any:
    """Run a program of many small operations; returns a tensor."""
    import torch

    x = torch.ones(10)
    for _ in range(count):
        x = x + 1
    return x


class MLPTraining:
    """A training of an MLP with SGD and momentum; on the mesh if one is active when it is made."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        self._model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self._x, self._y = torch.randn(32, 64), torch.randn(32, 10)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)

    def step(self) -> Any:
        from torch.nn.functional import mse_loss

        loss = mse_loss(self._model(self._x), self._y)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()


def run_steps(step: Callable[[], Any], count: int) -> Any:
    """Run so many steps; returns the last loss."""
    for _ in range(count):
        loss = step()
    return loss


class PeerInterpreter:
    """One of the runtimes, in a process of its own that answers requests."""

    def __init__(self, python: str, name: str) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process; close() closes it
        self._process = subprocess.Popen(
            [python, str(Path(__file__).resolve()), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},  # its own workers import `report`, too
        )

    def ask(self, what: str, size: int, times: int) -> float | None:
        """Return the seconds; None if the runtime does not support it, or is not installed there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(what, size, times, file=self._process.stdin, flush=True)
        except BrokenPipeError:  # it has ended, and an earlier call printed the reason
            return None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return float(line.removeprefix(MARK))
        self._errors.seek(0)
        print(
            f"without {self.name}: {(self._errors.readlines() or ['it is not installed there'])[-1].strip()}",
            file=sys.stderr,
        )
        return None

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        self._errors.close()


def monarch() -> Answers:
    import torch
    from monarch import inspect
    from monarch.actor import Actor, endpoint, this_host
    from monarch.rdma import RDMABuffer

    class Holder(Actor):
        @endpoint
        def hold(self, size: int) -> RDMABuffer:
            self.memory = torch.ones(size, dtype=torch.uint8)
            return RDMABuffer(self.memory)

        @endpoint
        def drop(self, buffer: RDMABuffer) -> None:
            buffer.drop().get()

        @endpoint
        def echo(self, value: Any) -> Any:
            return value

        @endpoint
        def read(self, buffer: RDMABuffer, size: int, times: int) -> float:
            target = torch.zeros(size, dtype=torch.uint8)
            return warm_median(lambda: buffer.read_into(target).get(), times)

    holder, reader = (this_host().spawn_procs(per_host={"ranks": 1}).spawn(name, Holder) for name in ("a", "b"))

    def read(size: int, times: int) -> float:
        buffer = holder.hold.call_one(size).get()
        median = reader.read.call_one(buffer, size, times).get()
        holder.drop.call_one(buffer).get()
        return float(median)

    def echo(size: int, times: int) -> float:
        value = torch.ones(size, dtype=torch.uint8)
        return warm_median(lambda: holder.echo.call_one(value).get(), times)

    @functools.cache
    def engine() -> Any:
        return this_host().spawn_procs(per_host={"gpus": 1})  # the engine of 0.7.0 needs a dimension of this name

    @functools.cache
    def training() -> MLPTraining:
        with engine().activate():
            return MLPTraining()

    def run(program: Callable[[int], Any], count: int, times: int) -> float:
        with engine().activate():
            return warm_median(lambda: inspect(program(count)), times)

    def train(count: int, times: int) -> float:
        return run(lambda steps: run_steps(training().step, steps), count, times)

    return {"read": read, "echo": echo, "chain": lambda count, times: run(chain, count, times), "train": train}


class ArrayHolder:
    """The memory of a worker of Ray or Dask."""

    def hold(self, size: int) -> None:
        import numpy as np

        self.memory = np.ones(size, np.uint8)

    def memory_itself(self) -> Any:
        return self.memory

    def echo(self, value: Any) -> Any:
        return value


def time_copies(fetch: Callable[[], Any], size: int, times: int) -> float:
    """Return the median seconds to fetch an array and copy it into memory that was written to before."""
    import numpy as np

    target = np.zeros(size, np.uint8)
    return warm_median(lambda: np.copyto(target, fetch()), times)


def ray() -> Answers:
    import ray as runtime
    import torch

    runtime.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

    @runtime.remote(num_cpus=1)
    class Holder(ArrayHolder):
        def read(self, holder: Any, size: int, times: int) -> float:
            return time_copies(lambda: runtime.get(holder.memory_itself.remote()), size, times)

    holder, reader = Holder.remote(), Holder.remote()

    def read(size: int, times: int) -> float:
        runtime.get(holder.hold.remote(size))
        return float(runtime.get(reader.read.remote(holder, size, times)))

    def echo(size: int, times: int) -> float:
        value = torch.ones(size, dtype=torch.uint8)
        return warm_median(lambda: runtime.get(holder.echo.remote(value)), times)

    return {"read": read, "echo": echo}


def dask() -> Answers:
    import numpy as np
    from distributed import Client, LocalCluster

    class Holder(ArrayHolder):
        def read(self, holder: Any, size: int, times: int) -> float:
            return time_copies(lambda: holder.memory_itself().result(), size, times)

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0)
    client = Client(cluster)
    addresses = client.scheduler_info(n_workers=-1)["workers"]
    holder, reader = (client.submit(Holder, actor=True, workers=[at], pure=False).result() for at in addresses)

    def read(size: int, times: int) -> float:
        holder.hold(size).result()
        return float(reader.read(holder, size, times).result())

    def echo(size: int, times: int) -> float:
        value = np.ones(size, np.uint8)
        return warm_median(lambda: holder.echo(value).result(), times)

    return {"read": read, "echo": echo}


def warm_median(work: Callable[[], object], times: int) -> float:
    """Return the median seconds of a call, after a first call to warm up."""
    work()
    return percentiles(work, times)[0]


def main() -> None:
    name = sys.argv[1]
    if importlib.util.find_spec(NAMES[name]) is None:
        return
    answers = {"monarch": monarch, "ray": ray, "dask": dask}[name]()
    for line in sys.stdin:
        what, size, times = line.split()
        print(f"{MARK}{answers[what](int(size), int(times))}", flush=True)


if __name__ == "__main__":
    main()
