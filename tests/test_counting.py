"""What tests count with: each counter against a process that does a known number of things."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.counting import Counting, SystemCalls, Thread, count_calls, parse_summary

TIMES = 100
ROOM = 10  # wake-ups of other causes, such as the lines between the test and its child

# Runs each line of its input, and answers by a line.
CHILD = """
import os, sys, time
null = os.open(os.devnull, os.O_WRONLY)
while line := sys.stdin.readline():
    exec(line)
    print(flush=True)
"""


class Child:
    """A process that does what a test says."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self.run("pass")  # its start is over

    def run(self, code: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{code}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "\n"

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def start_child() -> Iterator[Callable[[], Child]]:
    children: list[Child] = []

    def start() -> Child:
        children.append(Child())
        return children[-1]

    yield start
    for child in children:
        child.close()


@pytest.fixture
def child(start_child: Callable[[], Child]) -> Child:
    return start_child()


@pytest.mark.process
def test_each_wait_is_a_wake_up(child: Child) -> None:
    with Counting([child.pid]) as counted:
        child.run(f"for _ in range({TIMES}): time.sleep(0.0005)")
    assert TIMES <= counted.wake_ups <= TIMES + ROOM


@pytest.mark.process
def test_computing_is_no_wake_up_but_processor_time(child: Child) -> None:
    with Counting([child.pid]) as counted:
        child.run("sum(range(3_000_000))")
    assert counted.wake_ups <= ROOM
    assert counted.processor_seconds > 0.005


@pytest.mark.process
def test_a_process_that_waits_does_nothing(child: Child) -> None:
    with Counting([child.pid]) as counted:
        time.sleep(0.05)
    assert counted.wake_ups <= 1  # it may not be asleep yet
    assert counted.writes == 0


@pytest.mark.process
def test_processes_are_summed_and_distinguished(start_child: Callable[[], Child]) -> None:
    busy, idle = start_child(), start_child()
    with Counting([busy.pid, idle.pid]) as counted:
        busy.run(f"for _ in range({TIMES}): time.sleep(0.0005)")
    assert counted.total(busy.pid).wake_ups >= TIMES
    assert counted.total(idle.pid).wake_ups <= 1
    assert counted.total(busy.pid) + counted.total(idle.pid) == counted.total()


def test_threads_are_distinguished() -> None:
    done, is_over = threading.Event(), threading.Event()

    def wait_often() -> None:
        for _ in range(TIMES):
            time.sleep(0.0005)
        done.set()
        is_over.wait()

    waiting = threading.Thread(target=wait_often)
    with Counting([os.getpid()]) as counted:
        waiting.start()
        done.wait()
    is_over.set()
    waiting.join()
    assert waiting.native_id is not None
    assert TIMES <= counted.by_thread[Thread(os.getpid(), waiting.native_id)].wake_ups <= TIMES + ROOM


@pytest.mark.process
def test_file_calls_are_counted(child: Child) -> None:
    with Counting([child.pid]) as counted:
        child.run(f"for _ in range({TIMES}): os.write(null, b'x')")
    assert TIMES <= counted.writes <= TIMES + ROOM
    assert counted.reads <= ROOM


@pytest.mark.process
def test_a_process_that_has_ended_cannot_be_counted() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(FileNotFoundError), Counting([ended.pid]):
        pass


@pytest.mark.process
def test_system_calls_are_counted_by_name(start_child: Callable[[], Child]) -> None:
    one, other = start_child(), start_child()
    with SystemCalls([one.pid, other.pid]) as calls:
        one.run(f"for _ in range({TIMES}): os.getppid()")
        other.run(f"for _ in range({TIMES}): os.getppid()")
    assert calls.by_name["getppid"] == 2 * TIMES


def test_a_summary_of_strace_is_read() -> None:
    text = """
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 82.72    0.003553          18       191         7 futex
 17.28    0.000742           3       192           getppid
------ ----------- ----------- --------- --------- ----------------
100.00    0.004295          11       383         7 total
"""
    assert parse_summary(text) == {"futex": 191, "getppid": 192}


def test_calls_of_functions_and_methods_are_counted() -> None:
    one, other = socket.socketpair()
    with one, other, count_calls(socket.socket, "send", "recv") as calls, count_calls(os, "getppid") as others:
        for _ in range(3):
            one.send(b"x")
        assert other.recv(10) == b"xxx"
        os.getppid()
    assert calls == {"send": 3, "recv": 1}
    assert others == {"getppid": 1}
    assert "send" not in vars(socket.socket)
    assert os.getppid.__module__ == "posix"
