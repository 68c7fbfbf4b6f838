"""How fork servers are started, and watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
import unittest.mock
from collections.abc import Callable

import pytest

from meshbook.runtime.hosts.forkserver import change_environment
from meshbook.runtime.hosts.forkserver_client import ForkedProcess
from meshbook.runtime.hosts.launchers import START_AGENT
from meshbook.runtime.hosts.start_agent import with_huge_pages
from meshbook.runtime.hosts.worker_exit import exempt_imports, late_modules, user_modules
from meshbook.runtime.memory.process_identity import own_mark
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


@pytest.mark.process
def test_the_end_of_a_worker_looks_at_few_modules_and_at_those_of_the_user() -> None:
    def end() -> None:
        sys.modules["preloaded"] = _module_of_the_user("preloaded")
        exempt_imports()
        sys.modules["imported"] = _module_of_the_user("imported")
        looked_at = [module.__name__ for module in late_modules() if module is not None]
        users = [module.__name__ for module in user_modules()]
        is_right = "os" not in looked_at and users[0] == "imported" and "preloaded" in users
        os._exit(0 if is_right else 1)

    assert _fork(end).wait(PATIENCE) == 0


def test_a_worker_has_exactly_the_environment_of_its_spec() -> None:
    with unittest.mock.patch.dict(os.environ, {"KEPT": "1", "CHANGED": "1", "REMOVED": "1"}, clear=True):
        change_environment(dict(os.environ), {"KEPT": "1", "CHANGED": "2", "ADDED": "3"})
        assert dict(os.environ) == {"KEPT": "1", "CHANGED": "2", "ADDED": "3"}
        assert os.getenv("REMOVED") is None


@pytest.mark.process
def test_a_forked_child_has_its_own_mark() -> None:
    ours = own_mark()
    assert own_mark() == ours
    assert ours.pid == os.getpid()
    assert _fork(lambda: os._exit(int(own_mark().pid != os.getpid()))).wait(PATIENCE) == 0


def _module_of_the_user(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = f"/home/user/{name}.py"
    return module


def _fork(work: Callable[[], object]) -> ForkedProcess:
    if (pid := os.fork()) == 0:
        work()
    return ForkedProcess(pid)
