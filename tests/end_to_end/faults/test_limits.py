"""Little of what the system gives: open files, processes, disk, shared memory. A clear error, or the slower path."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.without_torch]
PIDS = Path("/sys/fs/cgroup/pids")
PROGRAM = """
import os, resource, sys
from meshbook import Actor, RDMABuffer, close_session, endpoint, this_host

class Probe(Actor):
    @endpoint
    def run(self, function, *arguments):
        return function(*arguments)

def say(what):
    print(what.replace("\\n", " "), flush=True)

def attempt(function):
    try:
        say("ok " + str(function()))
    except Exception as error:
        say(type(error).__name__ + ": " + str(error))

def spawn(count):
    return this_host().spawn_procs(per_host={"gpus": count}).spawn("probe", Probe)

def count(probe):
    return len(probe.run.call(os.getpid).get(60))
"""
Run = Callable[..., Any]


@pytest.fixture
def run(run_script: Callable[..., Any]) -> Run:
    """Runs a program, after its limits are set, without torch: what it says comes line by line."""
    return lambda body, **environment: run_script(PROGRAM + body, MESHBOOK_PRELOAD="", **environment)


def lacks(line: str, *said: str) -> list[str]:
    """What should have been said; with the line, to see what was."""
    return [f"{each!r} in {line}" for each in said if each not in line]


def test_fewer_open_files_than_a_mesh_needs(run: Run) -> None:
    """The spawn is refused, with the limit and the remedy; a smaller one goes."""
    script = run(
        """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
attempt(lambda: spawn(16))
attempt(lambda: count(spawn(2)))
close_session()
"""
    )
    said = ("LaunchError: 16 more processes need", "64, at most 64", "ulimit -n", "start fewer processes")
    assert lacks(script.read_line(), *said) == []
    assert script.read_line() == "ok 2"


def test_a_soft_limit_of_open_files_is_raised(run: Run) -> None:
    script = run(
        """
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
attempt(lambda: count(spawn(8)))
close_session()
"""
    )
    assert script.read_line() == "ok 8"


def test_a_rank_that_opens_too_many_files_says_so(run: Run) -> None:
    script = run(
        """
def open_all():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    return [open("/dev/null") for _ in range(100)]

probe = spawn(1)
attempt(lambda: probe.run.call_one(open_all).get(60))
attempt(lambda: count(probe))
close_session()
"""
    )
    assert lacks(script.read_line(), "ActorError", "Too many open files", "64, at most 64 (ulimit -n") == []
    assert script.read_line() == "ok 1"


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup whose number of processes can be limited."""
    group = PIDS / f"meshbook-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup for processes can be made here: {error}")
    yield group
    left = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    for pid in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(PATIENCE)
    group.rmdir()


def test_fewer_processes_than_a_mesh_needs(cgroup: Path, run: Run) -> None:
    (cgroup / "pids.max").write_text("26")
    script = run(
        f"""
with open("{cgroup}/cgroup.procs", "w") as group:
    group.write(str(os.getpid()))
attempt(lambda: this_host().spawn_procs(per_host={{"gpus": 4}}).initialized.get(60))
os._exit(0)
"""
    )
    assert lacks(script.read_line(), "the limit of processes and threads was reached", "26 in its cgroup") == []


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of one MiB."""
    folder = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        folder.rmdir()
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


def test_a_full_disk(small_disk: Path, run: Run) -> None:
    """What Python prints goes on; what is written past Python fails in the rank, and says where there is no room."""
    script = run(
        """
def fill():
    with open(os.environ["MESHBOOK_RUNTIME_DIR"] + "/ballast", "wb", 0) as file:
        while True:
            file.write(bytes(4096))

def write(count):
    for _ in range(count):
        os.write(1, b"x" * 1023 + b"\\n")

def complain(count):
    for _ in range(count):
        print("x" * 1000, file=sys.stderr)

probe = spawn(2)
attempt(lambda: count(probe))
attempt(fill)
attempt(lambda: probe.run.call(write, 1000).get(60))
attempt(lambda: len(probe.run.call(complain, 1000).get(60)))
attempt(lambda: count(spawn(1)))
os.unlink(os.environ["MESHBOOK_RUNTIME_DIR"] + "/ballast")
close_session()
""",
        MESHBOOK_RUNTIME_DIR=str(small_disk),
    )
    assert script.read_line() == "ok 2"
    assert lacks(script.read_line(), "No space left") == []
    said = ("ActorError", "No space left on device", f"the disk of {small_disk}", "is full", "MESHBOOK_RUNTIME_DIR")
    assert lacks(script.read_line(), *said) == []
    assert [script.read_line(), script.read_line()] == ["ok 2", "ok 1"]


def test_a_disk_without_room_for_a_run(small_disk: Path, run: Run) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=1", str(small_disk)], check=False, capture_output=True)
    script = run("attempt(lambda: count(spawn(1)))", MESHBOOK_RUNTIME_DIR=str(small_disk / "runs"))
    assert lacks(script.read_line(), "LaunchError", "No space left on device", "MESHBOOK_RUNTIME_DIR") == []


def test_no_shared_memory(run: Run) -> None:
    """Nothing of a mesh needs /dev/shm: what processes share is bound to no disk."""
    if os.geteuid():
        pytest.skip("only root can mount over /dev/shm")
    script = run(
        """
import ctypes, subprocess
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0  # a mount namespace of its own
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", "/dev/shm"], check=True)
probe = spawn(2)

def send_and_lend(data):
    for _ in range(3):  # the first in its frame, the next ones in shared memory
        back = list(probe.run.call(bytes, data).get(60).values())
    buffer = RDMABuffer(bytearray(data))
    read = list(probe.run.call(read_all, buffer).get(60).values())
    buffer.broadcast_to(probe).get(60)
    return "memfd:meshbook" in open("/proc/self/maps").read(), back + read == [data] * 4

def read_all(buffer):
    target = bytearray(buffer.size())
    buffer.read_into(target).get(60)
    return bytes(target)

attempt(lambda: send_and_lend(os.urandom(8_000_000)))
close_session()
"""
    )
    assert script.read_line() == "ok (True, True)"
