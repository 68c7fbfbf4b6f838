"""What a `%%mesh` cell costs through a real kernel, beside a local cell of the same kernel and ipyparallel's `%%px`.

    python benchmarks/cells.py [--rounds N] [--json FILE]

From the execute request to the kernel's idle, as a front end sees it. Then how long a cell takes to fail once one of
its workers is killed, or once it is interrupted. Without ipyparallel its lines are left out.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from jupyter_client.manager import start_new_kernel
from report import Report, arguments, seconds_of

CELL = "x = 1"
TIMES = 40  # cells of one median
PATIENCE = 120.0  # seconds
SETTLED = 0.5  # seconds until a cell certainly sleeps
SLEEP = "%%mesh pair\nimport time\ntime.sleep(600)"
CLUSTER = "import ipyparallel as ipp\nengines = ipp.Cluster(n=8).start_and_connect_sync(activate=True)"
LOCAL = f"local cell `{CELL}`"


class Notebook:
    """A kernel, and the part of a front end that runs cells."""

    def __init__(self, kernel: str) -> None:
        self._manager, self._client = start_new_kernel(kernel_name=kernel, stderr=subprocess.DEVNULL)

    def run(self, code: str) -> dict[str, Any]:
        """Run a cell until the kernel is idle; returns the reply's content."""
        return self.wait(self.start(code))

    def start(self, code: str) -> str:
        return str(self._client.execute(code))

    def wait(self, request: str) -> dict[str, Any]:
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") == request and (
                message["content"].get("execution_state") == "idle"
            ):
                break
        while (reply := self._client.get_shell_msg(timeout=PATIENCE))["parent_header"]["msg_id"] != request:
            pass
        content: dict[str, Any] = reply["content"]
        return content

    def run_well(self, code: str) -> str:
        """Run a cell that has to succeed; returns its `answer`."""
        reply = self.wait(str(self._client.execute(code, user_expressions={"answer": "answer"})))
        assert reply["status"] == "ok", reply
        found = reply["user_expressions"]["answer"]
        return str(found["data"]["text/plain"]) if found["status"] == "ok" else ""

    def median(self, code: str) -> float:
        """The median time of such a cell, in seconds."""
        return statistics.median(seconds_of(lambda: self.run(code)) for _ in range(TIMES))

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel()


def measure_cells(report: Report, notebook: Notebook) -> float:
    """The time of a cell on eight ranks, in seconds."""
    local = notebook.median(CELL)
    report.put(LOCAL, local * 1e3, "ms", "3.7")
    for ranks, aim in ((2, ""), (4, "at most 2; 1.4"), (8, "1.6")):
        took = notebook.median(f"%%mesh of{ranks}\n{CELL}")
        report.put(f"%%mesh on {ranks} ranks", took * 1e3, "ms")
        report.put(f"%%mesh on {ranks} ranks, ratio", took / local, "x local", aim)
    return took


def measure_peer(report: Report, stock: Notebook, ours: float) -> None:
    report.put(f"{LOCAL}, stock kernel", stock.median(CELL) * 1e3, "ms")
    theirs = stock.median(f"%%px\n{CELL}")
    report.put("%%px of ipyparallel on 8 engines", theirs * 1e3, "ms", "26.5")
    report.put("%%mesh on 8 ranks, ratio to it", ours / theirs, "x %%px", "at most 0.33")


def measure_end(report: Report, notebook: Notebook, name: str, aim: str, end: Callable[[], None]) -> None:
    """How long a cell that sleeps goes on after this end of it."""
    cell = notebook.start(SLEEP)
    time.sleep(SETTLED)
    started = time.perf_counter()
    end()
    reply = notebook.wait(cell)
    report.put(name, (time.perf_counter() - started) * 1e3, "ms", aim)
    assert reply["status"] == "error", reply


def measure_ends(report: Report, notebook: Notebook) -> None:
    notebook.run_well("%mesh up --gpus 4 --name pair")
    notebook.run_well("%%mesh pair -o pids\nimport os\nos.getpid()")
    victim = int(notebook.run_well("answer = pids[1].value"))
    measure_end(report, notebook, "interrupt, to the cell's end", "at most 300", notebook.interrupt)
    kill = "SIGKILL of a rank, to the cell's end"
    measure_end(report, notebook, kill, "at most 500", lambda: os.kill(victim, signal.SIGKILL))
    notebook.run_well("%mesh down pair")


def start_peer() -> Notebook | None:
    if importlib.util.find_spec("ipyparallel") is None:
        print("ipyparallel is not installed: its lines are left out", file=sys.stderr)
        return None
    stock = Notebook("python3")
    stock.run_well(CLUSTER)
    return stock


def main() -> None:
    options = arguments("Cells on a mesh, through a kernel.", rounds=5)
    report = Report()
    notebook, stock = Notebook("meshbook"), start_peer()
    for ranks in (2, 4, 8):
        notebook.run_well(f"%mesh up --gpus {ranks} --name of{ranks}")
        notebook.run_well(f"%%mesh of{ranks}\n{CELL}")
    for _ in range(options.rounds):
        ours = measure_cells(report, notebook)
        measure_ends(report, notebook)
        if stock is not None:
            measure_peer(report, stock, ours)
    if stock is not None:
        stock.run("engines.cluster.stop_cluster_sync()")
        stock.close()
    notebook.close()
    report.present(f"cells through a kernel, medians of {TIMES}", options)


if __name__ == "__main__":
    main()
