"""Measures `%%mesh` cells through a real kernel, beside local cells of the same kernel and ipyparallel's `%%px`.

    python benchmarks/cells.py [--rounds N] [--json FILE]

All times are from the execute request to the kernel's idle, as a front end sees them. The cells assign or evaluate,
print 100,000 lines, or fail because a worker is killed or the cell is interrupted. Without ipyparallel its lines are
left out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_client.manager import start_new_kernel
from report import Aim, Report, arguments, seconds_of
from rounds import TURNS, Comparison, format_spread, run_rounds, timed

CELL = "x = 1"
TIMES = 40  # cells per median
RANKS = (2, 4, 8)
LINES = 100_000
PRINT = f"for number in range({LINES}): print(f'L{{number:06d}};')"
# The cell, the number of ranks, and the limit as a multiple of a local cell.
ON_MESHES: tuple[tuple[str, int, Aim | str], ...] = (
    (CELL, 2, ""),
    (CELL, 4, Aim(1.4)),
    (CELL, 8, Aim(1.8)),
    ("1 + 1", 8, Aim(2.2)),
)
PATIENCE = 120.0  # seconds
SETTLED = 0.5  # seconds after which a cell surely sleeps
SLEEP = "%%mesh pair\nimport time\ntime.sleep(600)"
CLUSTER = "import ipyparallel as ipp\nengines = ipp.Cluster(n=8).start_and_connect_sync(activate=True)"
STOP_CLUSTER = "engines.cluster.stop_cluster_sync()"


class TimedNotebook:
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
        """Run a cell that must succeed; returns its `answer`."""
        reply = self.wait(str(self._client.execute(code, user_expressions={"answer": "answer"})))
        assert reply["status"] == "ok", reply
        found = reply["user_expressions"]["answer"]
        return str(found["data"]["text/plain"]) if found["status"] == "ok" else ""

    def median(self, code: str) -> float:
        """Return the median time of such a cell, in seconds."""
        return statistics.median(seconds_of(lambda: self.run(code)) for _ in range(TIMES))

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel()


def compare_cells(notebook: TimedNotebook, code: str, ranks: int, ratio_aim: Aim | str) -> Comparison:
    notebook.run_well(f"%%mesh of{ranks}\n{code}")  # timed runs are not checked, and a failing cell is fast
    return Comparison(
        f"cell `{code}` on {ranks} ranks",
        timed(lambda: notebook.run(code), TIMES // TURNS),
        timed(lambda: notebook.run(f"%%mesh of{ranks}\n{code}"), TIMES // TURNS),
        "ms",
        ratio_aim=ratio_aim,
        base_name="local cell",
    )


def compare_output(notebook: TimedNotebook) -> Comparison:
    def print_on_a_rank() -> list[float]:
        taken = seconds_of(lambda: notebook.run(f"%%mesh of2[0] -o printed\n{PRINT}"))
        arrived = notebook.run_well("answer = printed[0].stdout.count(';')")
        assert int(arrived) == LINES, f"{arrived} of {LINES} lines arrived"
        return [taken]

    return Comparison(
        f"{LINES:,} lines of one rank",
        timed(lambda: notebook.run(PRINT)),
        print_on_a_rank,
        "s",
        aim=Aim(0.25),
        base_name="local cell",
    )


def measure_peer(report: Report, stock: TimedNotebook) -> None:
    report.put(f"local cell `{CELL}`, stock kernel", stock.median(CELL) * 1e3, "ms")
    theirs = stock.median(f"%%px\n{CELL}") * 1e3
    report.put("%%px of ipyparallel on 8 engines", theirs, "ms", "26.5")
    ours = report.latest(f"cell `{CELL}` on 8 ranks")
    report.put("%%mesh on 8 ranks, ratio to it", ours / theirs, "x %%px", Aim(0.33))


def measure_end(report: Report, notebook: TimedNotebook, name: str, aim: str, end: Callable[[], None]) -> None:
    """Measure how long a sleeping cell continues after `end` is called."""
    cell = notebook.start(SLEEP)
    time.sleep(SETTLED)
    started = time.perf_counter()
    end()
    reply = notebook.wait(cell)
    report.put(name, (time.perf_counter() - started) * 1e3, "ms", aim)
    assert reply["status"] == "error", reply


def measure_ends(report: Report, notebook: TimedNotebook) -> None:
    notebook.run_well("%mesh up --gpus 4 --name pair")
    notebook.run_well("%%mesh pair -o pids\nimport os\nos.getpid()")
    victim = int(notebook.run_well("answer = pids[1].value"))
    measure_end(report, notebook, "interrupt, to the cell's end", "at most 300", notebook.interrupt)
    kill = "SIGKILL of a rank, to the cell's end"
    measure_end(report, notebook, kill, "at most 500", lambda: os.kill(victim, signal.SIGKILL))
    notebook.run_well("%mesh down pair")


@contextlib.contextmanager
def start_peer() -> Iterator[TimedNotebook | None]:
    if importlib.util.find_spec("ipyparallel") is None:
        print("ipyparallel is not installed: its lines are left out", file=sys.stderr)
        yield None
        return
    with contextlib.closing(TimedNotebook("python3")) as stock:
        stock.run_well(CLUSTER)
        try:
            yield stock
        finally:
            stock.run(STOP_CLUSTER)  # engines outlive the kernel that started them


def main() -> None:
    options = arguments("Cells on a mesh, through a kernel.", rounds=7)
    report = Report()
    with contextlib.closing(TimedNotebook("meshbook")) as notebook, start_peer() as stock:
        for ranks in RANKS:
            notebook.run_well(f"%mesh up --gpus {ranks} --name of{ranks}")
        comparisons = [compare_cells(notebook, *each) for each in ON_MESHES]
        comparisons.append(compare_output(notebook))
        others = [lambda: measure_ends(report, notebook)]
        if stock is not None:
            others.append(lambda: measure_peer(report, stock))
        run_rounds(report, comparisons, options.rounds, *others)
    report.present(f"cells through a kernel, medians of {TIMES}", options, format_spread(report, comparisons))


if __name__ == "__main__":
    main()
