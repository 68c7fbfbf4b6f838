"""Memory that runs out: told as such, with the limit, and with what the rank had."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from meshbook import ActorError
from meshbook.runtime.errors import ProcessDied
from tests.support import PATIENCE, Probe

pytestmark = [pytest.mark.process, pytest.mark.without_torch]
ROOT = Path("/sys/fs/cgroup")
LIMIT = 600 << 20  # several times what a script, its agent and two ranks need


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup of either version that may use so much memory, for who moves there."""
    parent = next((each for each in (ROOT / "memory", ROOT) if (each / "cgroup.procs").exists()), None)
    folder = (parent or ROOT) / f"meshbook-{uuid.uuid4().hex[:8]}"
    names = ("memory.limit_in_bytes", "memory.max")
    try:
        folder.mkdir()
        file = next(folder / name for name in names if (folder / name).exists())
        file.write_text(str(LIMIT))
    except (OSError, StopIteration) as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"a cgroup with a limit cannot be made here: {error!r}")
    yield folder
    folder.rmdir()


SCRIPT = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from meshbook import Actor, endpoint, this_host, close_session, events
import meshbook

meshbook.unhandled_fault_hook = lambda failure: None

class Worker(Actor):
    @endpoint
    def take(self, count):
        self.memory = bytearray(count)
        return os.getpid()

procs = this_host().spawn_procs(per_host={"gpus": 2})
workers = procs.spawn("worker", Worker)
workers.take.call(1000).get(60)
print("ready", flush=True)
try:
    workers.slice(gpus=1).take.call_one(1 << 30).get(60)
except meshbook.SupervisionError as error:
    print(repr(error.report.hint), flush=True)
print(procs.heal().get(60), flush=True)
workers.take.call(1000).get(60)
close_session()
"""


def test_a_rank_that_is_killed_out_of_memory(limited: Path, run_script: Any) -> None:
    script = run_script(SCRIPT.replace("sys.argv[1]", repr(str(limited))), MESHBOOK_PRELOAD="")
    assert script.read_line() == "ready"
    family = script.family()
    hint = script.read_line()
    assert "out of memory" in hint
    assert f"{limited.name} may use 600 MiB" in hint
    assert "add memory, run fewer ranks on this host" in hint
    assert script.read_line() == "[1]"
    assert script.process.wait(PATIENCE) == 0
    psutil.wait_procs(family, timeout=PATIENCE)  # its cgroup goes with the last of them


def test_an_allocation_that_fails(spawn_procs: Any) -> None:
    """Under a limit of addresses Python says so itself, and the rank lives."""

    def limit() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))

    def take() -> None:
        bytearray(1 << 30)

    probe = spawn_procs(1).spawn("probe", Probe)
    probe.run.call_one(limit).get(PATIENCE)
    with pytest.raises(ActorError, match="raised MemoryError") as caught:
        probe.run.call_one(take).get(PATIENCE)
    assert "peak memory of this process" in str(caught.value)
    assert "MiB (RLIMIT_AS, `ulimit -v`)" in str(caught.value)
    assert probe.run.call_one(lambda: 3).get(PATIENCE) == 3


def test_a_kill_by_a_person_is_not_reported_as_out_of_memory(spawn_procs: Any) -> None:
    """The last lines on stderr are told as well, and the whole text is kept."""
    procs = spawn_procs(1)
    probe = procs.spawn("probe", Probe)

    def speak() -> int:
        print("said before", file=sys.stderr)
        return os.getpid()

    os.kill(probe.run.call_one(speak).get(PATIENCE), 9)
    with pytest.raises(ProcessDied) as caught:
        probe.run.call_one(speak).get(PATIENCE)
    assert caught.value.report.hint.startswith("a user or a program outside meshbook sent the signal")
    assert caught.value.report.stderr == ("said before",)
