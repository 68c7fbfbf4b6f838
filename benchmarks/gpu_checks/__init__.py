"""What the checks of gpu_check.py share: how a check is declared, where its figures go, and a notebook for cells.

Each module here is a stage. Its checks use meshbook as a program or a notebook does, and raise an error if something
does not hold. On a machine without a GPU they run in a smaller form on the CPU, if they have one.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import queue
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from meshbook import ProcMesh, close_session, this_host

# Set by the driver: whether there is a GPU, also for a check that hides it from its own process, and where figures go.
HAS_GPU = os.environ.get("GPU_CHECK_HAS_GPU") == "1"
FIGURES = os.environ.get("GPU_CHECK_FIGURES", os.devnull)
DEVICE = "cuda" if HAS_GPU else "cpu"
BACKEND = "nccl" if HAS_GPU else "gloo"  # of one rank
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PATIENCE = 60.0  # seconds; the driver ends a check earlier


@dataclass(frozen=True)
class Check:
    """A function that raises an error if something does not hold, and how it is run."""

    function: Callable[[], None]
    seconds: float  # its limit
    needs_gpu: bool
    environment: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.function.__module__.rpartition('.')[2]}.{self.function.__name__}"


def check(
    seconds: float, *, needs_gpu: bool = False, environment: dict[str, str] | None = None
) -> Callable[[Callable[[], None]], Check]:
    """Declare a check of this stage. Checks run in the order of their declaration, each in a process of its own."""
    return lambda function: Check(function, seconds, needs_gpu, environment or {})


def put(**figures: Any) -> None:
    """Report figures of this check, with their units in their names. They are kept if the check fails later."""
    with open(FIGURES, "a") as file:
        print(json.dumps({name: _rounded(value) for name, value in figures.items()}, default=str), file=file)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# -- a program -----------------------------------------------------------------------------


@contextlib.contextmanager
def ranks(count: int, **options: Any) -> Iterator[ProcMesh]:
    """Start so many ranks on this host, and end the session afterwards."""
    procs = this_host().spawn_procs({"gpus": count}, **options)
    procs.initialized.get(PATIENCE)
    try:
        yield procs
    finally:
        close_session()


def gpu_used_mib() -> float:
    """Return the memory in use on GPU 0, of all processes, as the driver counts it; 0 without a GPU."""
    if not HAS_GPU:
        return 0.0
    import pynvml  # asks the driver, without a CUDA context in this process

    pynvml.nvmlInit()
    return float(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used) / MIB


def memory_mib(pid: int | None = None) -> float:
    """Return the proportional share of memory of a process."""
    return float(psutil.Process(pid).memory_full_info().pss) / MIB


# -- a notebook ----------------------------------------------------------------------------


class CellFailed(Exception):
    """A cell that was to succeed."""


class RunningKernel:
    """A kernel of meshbook, and the part of a front end that runs cells."""

    def __init__(self, gpus: int, **environment: str) -> None:
        from jupyter_client.manager import start_new_kernel

        self._texts: dict[str, list[str]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="check")
        self._manager, self._client = start_new_kernel(
            kernel_name="meshbook", cwd=self._folder.name, env={**os.environ, **environment}
        )
        self.run(f"%mesh up --gpus {gpus}")

    def run(self, code: str) -> str:
        """Run a cell that must succeed, and return all that it shows."""
        status, text = self.wait(self.start(code))
        if status != "ok":
            raise CellFailed(f"{code}\n{text}")
        return text

    def fail(self, code: str) -> str:
        """Run a cell that must fail, and return all that it shows."""
        status, text = self.wait(self.start(code))
        assert status == "error", f"this cell was to fail:\n{code}\n{text}"
        return text

    def values(self, code: str) -> list[Any]:
        """Run a cell on all ranks, and return the value of each: numbers, texts and lists."""
        self.run(f"%%mesh -q -o _values\n{code}")
        found = self.start("", user_expressions={"values": "list(_values.values)"})
        self.wait(found)
        return list(ast.literal_eval(self._reply["user_expressions"]["values"]["data"]["text/plain"]))

    def start(self, code: str, **options: Any) -> str:
        """Begin a cell, and return its request."""
        request = str(self._client.execute(code, **options))
        self._texts[request] = []
        return request

    def wait(self, request: str, *, for_text: str | None = None, seconds: float = PATIENCE) -> tuple[str, str]:
        """Wait for the end of a cell, or until it shows such a text; return its status, if it ended, and its text.

        Raises queue.Empty if nothing comes in so many seconds.
        """
        end = time.monotonic() + seconds
        while True:
            message = self._client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if content.get("execution_state") == "idle":
                break
            self._texts[request].append(_text_of(content))
            if for_text is not None and re.search(for_text, self._texts[request][-1]):
                return "", self._texts[request][-1]
        while (reply := self._client.get_shell_msg(timeout=seconds))["parent_header"]["msg_id"] != request:
            pass
        self._reply = reply["content"]
        return str(self._reply["status"]), "\n".join(self._texts[request])

    def interrupt(self, request: str) -> tuple[int, str]:
        """Interrupt up to three times, each after 2 s, until a cell ends; return how many times, and its text."""
        for times in (1, 2, 3):
            self._manager.interrupt_kernel()
            with contextlib.suppress(queue.Empty):
                status, text = self.wait(request, seconds=PATIENCE if times == 3 else 2)
                assert status == "error", text
                return times, text
        raise AssertionError("the cell did not end")

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel()
        self._folder.cleanup()

    def __enter__(self) -> RunningKernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _text_of(content: dict[str, Any]) -> str:
    """Return the text of a stream, a display, a result or an error."""
    text = content.get("text") or content.get("data", {}).get("text/plain") or "\n".join(content.get("traceback", []))
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def maps_library(pid: int, name: str) -> bool:
    """Return whether a process has loaded such a library."""
    return name in Path(f"/proc/{pid}/maps").read_text()
