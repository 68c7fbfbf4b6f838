"""Measures the start of eight workers with torch imported, from the request to the first answer, and their memory.

    python benchmarks/spawn.py [--rounds N] [--json FILE]

The base is a process that imports nothing more: so many `os.fork()` from a process that has torch, each child answering
by a pipe. The report also has a cold start (agent and fork server are started too, and torch imported), and the cost
without a fork server: as many fresh interpreters that import torch. Then two scripts, each from the start of its
interpreter to the answers of all workers: one without torch and one that imports it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from report import Report, arguments, seconds_of

from meshbook import Actor, ProcMesh, close_session, endpoint, this_host
from meshbook.runtime.config import Settings

WORKERS = 8
PRELOAD = "MESHBOOK_PRELOAD"
FORK = """
import os, sys, time
import torch, torch.distributed, numpy
for line in sys.stdin:
    start = time.perf_counter()
    inbox, outbox = os.pipe()
    children = []
    for _ in range(int(line)):
        pid = os.fork()
        if pid == 0:
            os.write(outbox, b"!")
            os._exit(0)
        children.append(pid)
    heard = 0
    while heard < len(children):
        heard += len(os.read(inbox, len(children)))
    print(time.perf_counter() - start, flush=True)
    for pid in children:
        os.waitpid(pid, 0)
    os.close(inbox)
    os.close(outbox)
"""

SCRIPT = """
from meshbook import Actor, endpoint, this_host

class Probe(Actor):
    @endpoint
    def answer(self):
        return 1

procs = this_host().spawn_procs(per_host={"gpus": COUNT})
procs.spawn("probe", Probe).answer.call().get()
print("answered", flush=True)
"""


class Probe(Actor):
    """The worker's side."""

    @endpoint
    def is_ready(self) -> bool:
        return "torch" in sys.modules

    @endpoint
    def multiply(self) -> int:
        """Compute a first matrix product; returns the proportional set size, in KiB."""
        import torch  # imported in the worker only; the controller does not need it

        torch.ones(256, 256) @ torch.ones(256, 256)
        return _memory("Pss")


def _memory(name: str) -> int:
    """Return an entry of the kernel's memory account of this process, in KiB."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise ValueError(f"no {name} in smaps_rollup")


class BareFork:
    """A process that has torch, and forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def fork(self, count: int) -> float:
        """Return the seconds until so many children have answered."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def import_torch(count: int) -> None:
    """Import torch in so many fresh interpreters: the cost without a fork server."""
    started = [subprocess.Popen([sys.executable, "-c", "import torch, torch.distributed"]) for _ in range(count)]
    for process in started:
        process.wait()


def run_script(source: str) -> float:
    """Return the seconds until this script prints a line."""
    environment = {name: value for name, value in os.environ.items() if name != PRELOAD}
    words = [sys.executable, "-c", source]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        return seconds_of(process.stdout.readline)


def measure_scripts(report: Report) -> None:
    taken = run_script(SCRIPT.replace("COUNT", "2"))
    report.put("script without torch, 2 workers", taken, "s", "0.6")
    taken = run_script("import torch\n" + SCRIPT.replace("COUNT", str(WORKERS)))
    report.put(f"script that imports torch, {WORKERS} workers", taken, "s")


def first_answers(meshes: list[ProcMesh]) -> Any:
    mesh = this_host().spawn_procs(per_host={"gpus": WORKERS})
    meshes.append(mesh)
    probe = mesh.spawn("probe", Probe)
    assert all(probe.is_ready.call().get().values())
    return probe


def measure_cold(report: Report) -> None:
    meshes: list[ProcMesh] = []
    report.put(f"{WORKERS} workers, cold", seconds_of(lambda: first_answers(meshes)), "s", "1.5")
    meshes[0].stop().get()
    close_session()
    name = f"{WORKERS} interpreters that import torch"
    report.put(name, seconds_of(lambda: import_torch(WORKERS)), "s")


def measure_warm(report: Report, bare: BareFork) -> None:
    meshes: list[ProcMesh] = []
    report.put(f"{WORKERS} bare forks", bare.fork(WORKERS), "s")
    probes: list[Any] = []
    taken = seconds_of(lambda: probes.append(first_answers(meshes)))
    report.put(f"{WORKERS} workers, warm, to the first answer of all", taken, "s", "at most 0.2; 0.1")
    sizes = [size / 1024 for size in probes[0].multiply.call().get().values()]
    report.put("memory of a worker after a matrix product (PSS)", statistics.median(sizes), "MiB", "under 45")
    report.put(f"{WORKERS} workers, to stop", seconds_of(lambda: meshes[0].stop().get()), "s")


def main() -> None:
    options = arguments("Workers: from the request to the first answer, and their memory.", rounds=7)
    report = Report()
    os.environ[PRELOAD] = Settings().preload  # only the workers of this script use torch
    for _ in range(max(1, options.rounds // 3)):
        measure_cold(report)
        measure_scripts(report)
    bare = BareFork()
    bare.fork(1)
    this_host().spawn_procs().initialized.get()  # the fork server is warm from here on
    for _ in range(options.rounds):
        measure_warm(report, bare)
    close_session()
    bare.close()
    report.present(f"{WORKERS} workers with torch", options)


if __name__ == "__main__":
    main()
