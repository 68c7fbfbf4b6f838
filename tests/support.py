"""What tests of several files share: waits and their limits, an actor that runs functions, and the ports of kernels."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import cloudpickle
import psutil
import pytest
from jupyter_client.connect import LocalPortCache

from meshbook.runtime import threads
from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import ProcessDied
from meshbook.runtime.hosts.launch import sweep

PATIENCE = 60.0  # seconds until a wait that should be short is a failure, on a busy machine
AT_ONCE = 10.0  # seconds; two are promised to users, and a busy machine takes longer to end processes

# Workers cannot import this module, so its classes and functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def few(examples: Iterable[Any], count: int = 1) -> list[Any]:
    """Return examples for `parametrize`, of which `make test` runs the first ones, and `make slow` the others."""
    values = [each if isinstance(each, tuple) else (each,) for each in examples]
    return [pytest.param(*each, marks=[] if place < count else pytest.mark.long) for place, each in enumerate(values)]


# The kernels that people run notebooks in. `test_extension` shows in each run that a stock one works as well.
FRONT_DOORS = few(["meshbook", "python3"])


class Probe(Actor):
    """Runs functions that it receives, and keeps notes."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    @endpoint
    def note(self, value: Any) -> None:
        self.notes.append(value)

    @endpoint
    def noted(self) -> list[Any]:
        return self.notes


class StatementInterrupts:
    """Interrupts an operation at each statement that the main thread runs in turn, at one in each run of it.

        interrupts = StatementInterrupts()
        while interrupts.are_left:
            interrupts.run(operation)

    SIGINT is raised there, so that its handler decides whether KeyboardInterrupt is. The statements are the lines of
    some parts of the package, by default of those that change a run, and the entries of all its other functions: code
    of the core is correct because threads do not change within some lines, and they may where these are traced.
    `stride` leaves out all but every so many.
    """

    PACKAGE = Path(threads.__file__).parents[1]
    CHANGING_RUNS = "runtime/hosts", "runtime/mesh", "runtime/interrupts.py", "magics", "hosts.py", "runs.py"

    def __init__(self, stride: int = 1, parts: Iterable[str] = CHANGING_RUNS) -> None:
        self._lines = tuple(str(self.PACKAGE / part) for part in parts)
        self._stride = stride
        self._seen: set[tuple[str, int]] = set()
        self.where: tuple[str, int] | None = None  # the statement that was interrupted in the last run
        self.are_left = True  # the last run has met a statement for the first time

    def run(self, operation: Callable[[], object]) -> KeyboardInterrupt | None:
        """Run it and return the KeyboardInterrupt that left it."""
        self.where = None
        before = sys.gettrace()
        try:
            sys.settrace(self._trace)
            operation()
        except KeyboardInterrupt as interrupt:
            return interrupt
        finally:
            sys.settrace(before)
            self.are_left = self.where is not None
        return None

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(str(self.PACKAGE)):
            return None
        place = file, frame.f_lineno
        if event in ("call", "line") and self.where is None and place not in self._seen:
            self._seen.add(place)
            if len(self._seen) % self._stride == 0:
                self.where = place
                signal.raise_signal(signal.SIGINT)
        return self._trace if file.startswith(self._lines) else None


def raise_interrupt() -> None:
    """Raise KeyboardInterrupt, as Python's own handler of SIGINT does."""
    raise KeyboardInterrupt


def wait_forever() -> None:
    """Block the calling thread."""
    threading.Event().wait()


def environment(*names: str) -> list[str | None]:
    """Return the values of these variables in the process that runs this."""
    return [os.environ.get(name) for name in names]


def pids(probes: Any) -> list[int]:
    """Return the process ids of these probes, in rank order."""
    return list(probes.run.call(os.getpid).get(PATIENCE).values())


def await_death(probe: Any) -> str:
    """Return the error of a call that ends when the probe dies."""
    return str(probe.run.call_one(wait_forever).exception(PATIENCE))


def died(future: Any) -> ProcessDied:
    """Return the error of a call whose process dies."""
    with pytest.raises(ProcessDied) as caught:
        future.get(PATIENCE)
    return caught.value


def still_running(processes: Iterable[psutil.Process], seconds: float = AT_ONCE) -> list[psutil.Process]:
    """Return the processes that have not ended after `seconds`. A zombie has ended; process 1 may reap it later."""
    end = time.monotonic() + seconds
    left = list(processes)
    while left and time.monotonic() < end:
        left = [process for process in psutil.wait_procs(left, timeout=0.02)[1] if not _is_zombie(process)]
    return left


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def has_no_runs(runtime_dir: Path) -> bool:
    """Whether nothing is left of a run, or nothing that the next start would not remove.

    The agent removes the folder, unless the controller still holds it, which may take longer to end.
    """
    sweep(runtime_dir)
    return list(runtime_dir.iterdir()) == []


def open_files(folder: Path) -> list[str]:
    """Return the files below this folder that this process has open, also deleted ones, once for each descriptor."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found.append(str(descriptor.readlink()))
    return [path for path in found if path.startswith(f"{folder}/")]


class PortsOfTests(LocalPortCache):
    """Ports for kernels, from a range that the system gives to no other process, with a part for each xdist worker.

    A port is free between its choice here and the kernel's bind. A kernel that finds it taken then ends.
    """

    SIZE = 1000
    FIRST = 20_000 + SIZE * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 12)
    _numbers = itertools.count(os.getpid())  # two test runs at a time seldom begin with the same

    def find_available_port(self, ip: str) -> int:
        for number in itertools.islice(self._numbers, self.SIZE):
            port = self.FIRST + number % self.SIZE
            with contextlib.suppress(OSError), socket.socket() as free:
                free.bind((ip, port))
                return port
        raise OSError(f"no free port for a kernel at {ip}")


PortsOfTests.instance()  # from now on Jupyter's only one
