"""Counts what processes do, for tests that bound it per call, per cast or per line of output.

    with Counting([os.getpid(), worker]) as counted:
        for _ in range(300):
            echo.call_one(1).get()
    assert counted.wake_ups / 300 < 5

Counts do not depend on how fast the machine is, but they are not exact either: a thread whose message is there already
does not sleep and is not woken, and another thread that holds the GIL costs a wake-up. So divide by many and leave
room. What a block starts has to be over at its end, or it is not counted.

`Counting` reads /proc and costs the processes nothing. `SystemCalls` needs strace and stops the processes at every
call: use it for system calls only, in a block of its own. `count_calls` counts calls of functions in this process.
"""

from __future__ import annotations

import collections
import contextlib
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Thread:
    """A thread of a process; `id` is its `threading.Thread.native_id`, and the process's own for its first thread."""

    process: int
    id: int


@dataclass(frozen=True)
class Usage:
    """What threads have done."""

    wake_ups: int = 0  # voluntary context switches: the thread had to wait for something
    preemptions: int = 0  # involuntary ones: another thread got the processor
    processor_ns: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.wake_ups + other.wake_ups,
            self.preemptions + other.preemptions,
            self.processor_ns + other.processor_ns,
        )

    def __sub__(self, other: Usage) -> Usage:
        return self + Usage(-other.wake_ups, -other.preemptions, -other.processor_ns)


class Counting:
    """Counts wake-ups, processor time and file system calls of these processes during a `with` block.

    All threads count that exist at the end of the block; a thread that ends before is missing. A thread that is not
    asleep yet when the block begins has one wake-up more.
    """

    def __init__(self, processes: Iterable[int]) -> None:
        self._processes = tuple(processes)
        self.by_thread: dict[Thread, Usage] = {}
        self.reads = 0  # `read` and its relatives, also of an eventfd; not `recv`
        self.writes = 0  # `write` and its relatives; not `send`

    @property
    def wake_ups(self) -> int:
        return self.total().wake_ups

    @property
    def processor_seconds(self) -> float:
        return self.total().processor_ns / 1e9

    def total(self, process: int | None = None) -> Usage:
        """The sum over the threads of all processes, or of one."""
        found = [usage for thread, usage in self.by_thread.items() if process in (None, thread.process)]
        return sum(found, Usage())

    def __enter__(self) -> Counting:
        self._reads_before, self._writes_before = _read_file_calls(self._processes)
        self._before = _read_usage(self._processes)
        return self

    def __exit__(self, *_: object) -> None:
        after = _read_usage(self._processes)
        reads, writes = _read_file_calls(self._processes)
        self.by_thread = {thread: usage - self._before.get(thread, Usage()) for thread, usage in after.items()}
        self.reads, self.writes = reads - self._reads_before, writes - self._writes_before


def _read_usage(processes: Iterable[int]) -> dict[Thread, Usage]:
    found: dict[Thread, Usage] = {}
    for process in processes:
        for folder in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
                found[Thread(process, int(folder.name))] = _read_usage_of_thread(folder)
    return found


def _read_usage_of_thread(folder: Path) -> Usage:
    fields = _read_fields(folder / "status")
    processor_ns = int((folder / "schedstat").read_text().split()[0])
    return Usage(int(fields["voluntary_ctxt_switches"]), int(fields["nonvoluntary_ctxt_switches"]), processor_ns)


def _read_file_calls(processes: Iterable[int]) -> tuple[int, int]:
    """The reads and the writes; those of threads that have ended are among them."""
    fields = [_read_fields(Path(f"/proc/{process}/io")) for process in processes]
    return sum(int(each["syscr"]) for each in fields), sum(int(each["syscw"]) for each in fields)


def _read_fields(file: Path) -> dict[str, str]:
    """The lines `name: value` of a file of /proc."""
    lines = (line.partition(":") for line in file.read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}


class SystemCalls:
    """Counts the system calls of these processes by name during a `with` block, of threads that begin in it as well.

    Skips the test where strace is missing or may not attach. A call that has not returned at the end of the block is
    not counted, even if its effect is visible: an answer may arrive before the `write` that sent it returns.
    """

    def __init__(self, processes: Iterable[int]) -> None:
        self._processes = tuple(processes)
        self.by_name: collections.Counter[str] = collections.Counter()

    def __enter__(self) -> SystemCalls:
        if shutil.which("strace") is None:
            pytest.skip("strace is not installed")
        self._folder = tempfile.TemporaryDirectory()
        self._summary = Path(self._folder.name) / "summary"
        options = [option for process in self._processes for option in ("-p", str(process))]
        self._strace = subprocess.Popen(
            ["strace", "-f", "-c", "-o", str(self._summary), *options], stderr=subprocess.PIPE, text=True
        )
        self._wait_attached()
        return self

    def _wait_attached(self) -> None:
        assert self._strace.stderr is not None
        attached = 0
        while attached < len(self._processes):
            line = self._strace.stderr.readline()
            if not line or "attach:" in line:
                self._close()
                pytest.skip(f"strace cannot attach: {line.strip()}")
            attached += " attached" in line

    def __exit__(self, *_: object) -> None:
        self._strace.send_signal(signal.SIGINT)
        self._strace.communicate()
        self.by_name.update(parse_summary(self._summary.read_text()))
        self._close()

    def _close(self) -> None:
        with self._strace:
            self._strace.kill()
        self._folder.cleanup()


def parse_summary(text: str) -> dict[str, int]:
    """Return the calls by name of a table of `strace -c`.

    Its columns are % time, seconds, usecs/call, calls, errors (may be empty), and the name.
    """
    rows = [line.split() for line in text.splitlines()]
    return {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[3].isdigit() and row[-1] != "total"}


@contextlib.contextmanager
def count_calls(owner: Any, *names: str) -> Iterator[collections.Counter[str]]:
    """Count calls of these functions of a module, or methods of a class, in this process during a `with` block.

    `owner` is what the code under test looks the name up in when it calls: `os`, `socket.socket`. A reference that was
    taken before (`send = sock.send`) is not counted, and a class written in C (`select.epoll`) takes no wrapper.
    """
    counts: collections.Counter[str] = collections.Counter(dict.fromkeys(names, 0))
    lock = threading.Lock()  # guards `counts`

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            with lock:
                counts[name] += 1
            return function(*args, **kwargs)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(owner, name, wrap(name, getattr(owner, name)))
        yield counts
