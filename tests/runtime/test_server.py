"""How fork servers are started, and watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from meshbook.runtime.hosts.forkserver_client import ForkedProcess
from meshbook.runtime.hosts.launchers import START_AGENT
from meshbook.runtime.hosts.start_agent import with_huge_pages
from tests.support import PATIENCE


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.tcache_count=0", "glibc.malloc.tcache_count=0:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
        ("glibc.malloc.hugetlb=2:glibc.malloc.check=1", "glibc.malloc.hugetlb=2:glibc.malloc.check=1"),
    ],
)
def test_the_c_library_of_workers_uses_huge_pages_unless_the_user_says_otherwise(given: str, expected: str) -> None:
    assert with_huge_pages(given) == expected


@pytest.mark.process
def test_the_first_code_of_an_agent_imports_nothing_of_meshbook() -> None:
    """Else the warm fork server would wait for it."""
    source = (
        "import runpy, sys; runpy.run_path(sys.argv[1]); print([n for n in sys.modules if n.startswith('meshbook')])"
    )
    words = [sys.executable, "-P", "-c", source, START_AGENT[0]]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.process
def test_a_fork_is_waited_for_and_killed_like_any_process() -> None:
    ending = _fork(lambda: os._exit(7))
    assert [ending.wait(PATIENCE), ending.wait(0)] == [7, 7]
    ending.kill()  # no other process is hit
    lasting = _fork(signal.pause)
    with pytest.raises(subprocess.TimeoutExpired):
        lasting.wait(0)
    lasting.kill()
    assert lasting.wait() == -signal.SIGKILL


@pytest.mark.process
def test_a_fork_that_was_reaped_elsewhere_has_ended() -> None:
    reaped = _fork(lambda: os._exit(7))
    os.waitpid(reaped.pid, 0)
    assert reaped.wait() == 0


def _fork(work: Callable[[], object]) -> ForkedProcess:
    if (pid := os.fork()) == 0:
        work()
    return ForkedProcess(pid)
