"""Other runtimes that benchmarks compare with ours in the same run; each only if it is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

SETTLED = 0.3  # seconds after which a request surely runs
Death = Callable[[], float]  # seconds from a worker's SIGKILL until its caller has the error


class Sleeper:
    """An actor or task of either runtime."""

    def pid(self) -> int:
        return os.getpid()

    def sleep(self) -> None:
        time.sleep(600)


def seconds_to_know(pid: int, wait: Callable[[], object], error: type[Exception]) -> float:
    """Kill this process; returns the seconds until `wait` raises this error."""
    time.sleep(SETTLED)
    begun = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(error):
        wait()
    return time.perf_counter() - begun


@contextlib.contextmanager
def dask() -> Iterator[Death | None]:
    """Yield a cluster of Dask on this machine, with a fresh worker for each death; None if it is not installed."""
    if importlib.util.find_spec("distributed") is None:
        yield None
        return
    import distributed

    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):

        def die() -> float:
            client.wait_for_workers(1)
            sleeper: Any = client.submit(Sleeper, actor=True, pure=False).result()
            pid, waiting = sleeper.pid().result(), sleeper.sleep()
            return seconds_to_know(pid, waiting.result, OSError)

        yield die


@contextlib.contextmanager
def ray() -> Iterator[Death | None]:
    """Yield the same for Ray."""
    if importlib.util.find_spec("ray") is None:
        yield None
        return
    import ray as runtime

    runtime.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

    def die() -> float:
        sleeper = runtime.remote(Sleeper).remote()
        pid, waiting = runtime.get(sleeper.pid.remote()), sleeper.sleep.remote()
        return seconds_to_know(pid, lambda: runtime.get(waiting), runtime.exceptions.RayActorError)

    try:
        yield die
    finally:
        runtime.shutdown()


@contextlib.contextmanager
def ipyparallel(engines: int) -> Iterator[Any]:
    """Yield a load-balanced view of ipyparallel on so many engines of this machine; None if it is not installed."""
    if importlib.util.find_spec("ipyparallel") is None:
        yield None
        return
    import ipyparallel as runtime

    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder
        with runtime.Cluster(n=engines, log_level=40) as client:
            client.wait_for_engines(engines)
            yield client.load_balanced_view()
