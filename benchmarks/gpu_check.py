"""Checks meshbook on a machine with a GPU, in under ten minutes: each check is a process with a time limit of its own.

    python benchmarks/gpu_check.py [--out FILE] [--only NAME ...] [--factor N] [--list]

It prints a line of JSON for each check: its name, whether it holds or why it was skipped, its figures, and the seconds.
A check that fails or takes too long does not end the others. Several ranks share the one GPU, by gloo; NCCL has one
rank. Without a GPU, checks that need one are skipped, and others run in a smaller form on the CPU.

`benchmarks/gpu_check.sh` runs it where meshbook is not installed and no network is at hand.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import psutil
from gpu_checks import Check, put

# The limits of the stages, in seconds. No check begins once its stage has used up its own.
STAGES = {
    "facts": 20,
    "start": 60,
    "cells": 75,
    "gloo": 60,
    "nccl": 100,
    "data": 100,
    "tensors": 60,
    "graphs": 60,
    "watching": 25,
}
TOTAL_SECONDS = 590.0
WITHOUT_GPU = 3  # limits are so many times as long on a machine without a GPU, which may have few cores
LEAST_SECONDS = 5.0  # a check that has less of these limits left does not begin
LOG_LINES = 60  # of a check that fails
MARK = "GPU_CHECK_MARK"  # in the environment of all processes that a check starts
Line = dict[str, Any]


def checks_in(module: str) -> list[Check]:
    return [each for each in vars(importlib.import_module(module)).values() if isinstance(each, Check)]


# -- one check -----------------------------------------------------------------------------


def run_check(check: Check, seconds: float, *, has_gpu: bool) -> Line:
    """Run a check in a process of its own, for so long at most, and return its line."""
    mark, begun = uuid.uuid4().hex, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu_check") as folder:
        log, figures = Path(folder, "log"), Path(folder, "figures")
        environment = {
            **os.environ,
            **check.environment,
            MARK: mark,
            "GPU_CHECK_FIGURES": str(figures),
            "GPU_CHECK_HAS_GPU": str(int(has_gpu)),
        }
        command = [sys.executable, __file__, "--child", check.function.__module__, check.name, str(begun + seconds)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        line: Line = {"name": check.name, "ok": process.poll() == 0, "seconds": round(time.monotonic() - begun, 1)}
        if process.poll() is None:
            process.kill()
            process.wait()
            line["error"] = f"it took more than {seconds:.0f} s"
        if left := end_processes(mark):
            line["processes_left"] = left
        for text in figures.read_text().splitlines() if figures.exists() else ():
            line |= json.loads(text)
        if not line["ok"]:
            line.setdefault("error", f"it ended with exit status {process.returncode}")
            line["log"] = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return line


def end_processes(mark: str) -> list[str]:
    """Wait a moment for what a check has started, and kill what is left; returns the names of those processes."""
    _, left = psutil.wait_procs(list(processes_with(mark)), timeout=3)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=5)  # the driver of the GPU frees memory at the end of its process
    return [name for process in left if (name := name_of(process))]


def name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()[:4]) or process.name()
    return ""


def processes_with(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile, or is another user's
            if process.environ().get(MARK) == mark:
                yield process


def run_child(module: str, name: str, end: float) -> None:
    """Run a check in this process; write its stacks to the log shortly before its end by the monotonic clock."""
    faulthandler.dump_traceback_later(max(0.1, end - time.monotonic() - 1.5))
    (check,) = (each for each in checks_in(module) if each.name == name)
    try:
        check.function()
    except BaseException as error:
        put(error=f"{type(error).__name__}: {error}"[-1500:])
        raise


# -- all checks ----------------------------------------------------------------------------


def run_all(checks: Iterable[Check], *, has_gpu: bool, factor: float = 1) -> Iterator[Line]:
    """Run checks one after the other, with all limits times a factor; yield a line of each, also if it is skipped."""
    left = {stage: seconds * factor for stage, seconds in STAGES.items()}
    end = time.monotonic() + TOTAL_SECONDS * factor
    for check in checks:
        stage, begun = check.name.partition(".")[0], time.monotonic()
        seconds = min(check.seconds * factor, left[stage], end - begun)
        if check.needs_gpu and not has_gpu:
            yield {"name": check.name, "skipped": "it needs a GPU"}
        elif seconds < LEAST_SECONDS:
            yield {"name": check.name, "skipped": "no time is left in its stage"}
        else:
            yield run_check(check, seconds, has_gpu=has_gpu)
            left[stage] -= time.monotonic() - begun


def report(lines: Iterable[Line], file: TextIO | None) -> list[Line]:
    """Print each line as it comes, and write it to the file."""
    found = []
    for line in lines:
        for output in (sys.stdout, file):
            if output is not None:
                print(json.dumps(line), file=output, flush=True)
        found.append(line)
    return found


def format_summary(lines: Sequence[Line], seconds: float) -> str:
    """Return how many checks hold, and the name and error of each that fails."""
    failed = [line for line in lines if line.get("ok") is False]
    skipped = sum("skipped" in line for line in lines)
    counts = f"{len(lines) - skipped - len(failed)} checks hold, {len(failed)} fail, {skipped} are skipped"
    return "\n".join([f"{counts}; {seconds:.0f} s", *(f"  {each['name']}: {each['error']}" for each in failed)])


def has_a_gpu() -> bool:
    """Return whether torch finds a GPU. Asked in another process: this one starts all checks, and must not hold it."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks of meshbook on a machine with a GPU, one JSON line each.")
    parser.add_argument("--out", type=Path, help="write the lines to this file as well")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these checks or stages")
    parser.add_argument("--list", action="store_true", help="list the checks, with what they show")
    parser.add_argument("--factor", type=float, help="multiply all time limits (default: 1; without a GPU 3)")
    parser.add_argument("--child", nargs=3, metavar=("MODULE", "NAME", "END"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(*options.child[:2], float(options.child[2]))
        return 0
    checks = [each for stage in STAGES for each in checks_in(f"gpu_checks.{stage}")]
    if options.only:
        checks = [each for each in checks if {each.name, each.name.partition(".")[0]} & set(options.only)]
    if options.list:
        print("\n".join(f"{each.name:45} {(each.function.__doc__ or '').splitlines()[0]}" for each in checks))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begun, has_gpu = time.monotonic(), has_a_gpu()
    factor = options.factor or (1 if has_gpu else WITHOUT_GPU)
    with options.out.open("w") if options.out else contextlib.nullcontext() as file:
        lines = report(run_all(checks, has_gpu=has_gpu, factor=factor), file)
    print(format_summary(lines, time.monotonic() - begun))
    return int(any(line.get("ok") is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
