"""A second client: it gets a process mesh in a file, calls actors there, spawns its own, and ends before the first."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle
from monarch.actor import Actor, SupervisionError, current_rank, endpoint, shutdown_context, this_host


class Counter(Actor):
    """Counts from a number on."""

    def __init__(self, first: int) -> None:
        self.count = first

    @endpoint
    def add(self) -> tuple[int, int]:
        self.count += 1
        return current_rank().rank, self.count

    @endpoint
    def fail(self) -> None:
        raise SystemExit(1)


def first(file: Path) -> None:
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    counters = procs.spawn("counters", Counter, 0)
    file.write_bytes(cloudpickle.dumps((procs, counters)))
    print("first", counters.add.call().get().values())
    for what in ("use", "fail"):
        sys.stdout.flush()
        ended = subprocess.run([sys.executable, __file__, str(file), what], check=False, stderr=subprocess.DEVNULL)
        print("the second has ended with", ended.returncode)
    print("first", counters.add.call().get().values())
    shutdown_context().get()


def second(file: Path, what: str) -> None:
    procs, counters = cloudpickle.loads(file.read_bytes())
    own = procs.slice(gpus=1).spawn("own", Counter, 10)
    if what == "use":
        print("second", counters.add.call().get().values(), own.add.call_one().get())
        with_own = this_host().spawn_procs().spawn("here", Counter, 100)
        print("second", with_own.add.call_one().get(), counters.slice(gpus=0).add.call_one().get())
    else:
        try:
            own.fail.call_one().get()
        except SupervisionError:
            print("second: its actor has failed", flush=True)
        threading.Event().wait()  # the failure of what it has spawned ends it, as any client


if __name__ == "__main__":
    if len(sys.argv) == 1:
        first(Path("handles").absolute())
    else:
        second(Path(sys.argv[1]), sys.argv[2])
