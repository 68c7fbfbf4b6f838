"""The base of all tests: a scratch home for the run, and the rule that nothing is left behind.

A test that leaves a process behind fails, by name. So does a run that leaves a run directory behind.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import cloudpickle
import hypothesis
import psutil
import pytest

from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.hosts.faults import set_unhandled_fault_hook, unhandled_fault_hook
from tests.support import still_running

HERE = Path(__file__).parent
# Short, because the path of an ipc socket may have 107 bytes at most.
SCRATCH = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))
RUNTIME_DIR = SCRATCH / "run"
TEST_ID = uuid.uuid4().hex
TEST_MARK = f"MESHBOOK_TEST_ID={TEST_ID}"

# Set before any test module is imported: what starts from here inherits it. The id finds processes that left
# the family (a session of their own, a dead parent); the rest keeps the user's settings and history out.
os.environ["MESHBOOK_TEST_ID"] = TEST_ID
os.environ["MESHBOOK_RUNTIME_DIR"] = str(RUNTIME_DIR)
os.environ["IPYTHONDIR"] = str(SCRATCH / "ipython")
os.environ["JUPYTER_RUNTIME_DIR"] = str(SCRATCH / "jupyter")
os.environ["JUPYTER_CONFIG_DIR"] = str(SCRATCH / "config")
# Hundreds of processes import meshbook: without bytecode each would compile it anew, a quarter of a second. Without the
# bytecode of the test modules pytest would rewrite all their assertions in each run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell without job control starts its background jobs with SIGINT ignored, and programs inherit that. Programs that
# tests interrupt would not notice.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine an example may take longer than hypothesis's limit of 200 ms.
# Each run has the same examples, so that it does not fail by chance. Those of `make slow` are new each time.
hypothesis.settings.register_profile("meshbook", deadline=None, derandomize=True)
hypothesis.settings.load_profile("meshbook")

# A failure must not end the test run, as it ends a script; it may also arrive after the end of the test that caused it.
set_unhandled_fault_hook(lambda failure: None)


# -- the tests that start no process: `make quick` --------------------------------------------

START_PROCESSES = {"browser", "end_to_end", "hosts", "kernel", "libraries", "notebooks", "typed"}
SLOW_MODULE = re.compile(r"^pytestmark = pytest\.mark\.(slow|process)$", re.MULTILINE)
START_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
# Workers cannot import test modules, so the classes and functions of these travel by value.
PICKLED_BY_VALUE = ("end_to_end", "kernel", "runtime/rdma", "runtime/semantics", "testing")
_quick_test: str | None = None  # the one that runs


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_left_out = config.getoption("markexpr") == "quick" and _has_no_quick_test(collection_path)
    return True if is_left_out or (not HAS_TORCH and collection_path in NEED_TORCH) else None


def _has_no_quick_test(path: Path) -> bool:
    """Return whether the folder or module can be left out by `make quick` before it is imported, which costs most."""
    if path.is_dir():
        return path.parent == HERE and path.name in START_PROCESSES
    return path.suffix == ".py" and SLOW_MODULE.search(path.read_text()) is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _quick_test
    _quick_test = item.nodeid if item.get_closest_marker("quick") else None
    try:
        return (yield)
    finally:
        _quick_test = None


def _reject_start_in_quick_test(event: str, arguments: tuple[object, ...]) -> None:
    if event in START_EVENTS and _quick_test is not None:
        raise AssertionError(f"{_quick_test} starts a process: mark it with `process`")


sys.addaudithook(_reject_start_in_quick_test)


# -- where torch is not installed: `make test-pythons` ---------------------------------------

HAS_TORCH = importlib.util.find_spec("torch") is not None
# Left out together with torch, because they are as large: .ci/requirements.py.
LEFT_OUT = {"torch", "duckdb", "pandas", "polars", "pyarrow"}
# What these tests start imports torch, except in modules that are marked `without_torch`.
START_TORCH = {"cli", "docs", "end_to_end", "hosts", "kernel", "libraries"}
# Folders whose configuration imports torch.
NEED_TORCH = (HERE / "runtime" / "tensor",)


class ModuleWithoutTorch(pytest.Module):
    """A test module that is skipped where it imports one of the packages that are left out."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return list(super().collect())
        except self.CollectError as error:
            cause = error.__cause__
            if isinstance(cause, ModuleNotFoundError) and cause.name in LEFT_OUT:
                pytest.skip(f"{self.path.name} imports {cause.name}, which is not installed", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return None if HAS_TORCH else ModuleWithoutTorch.from_parent(parent, path=module_path)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="run one of so many parts of the modules, as 2/4")


@pytest.hookimpl(tryfirst=True)  # before pytest's own evaluates -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if not (_starts_processes(item) or item.get_closest_marker("slow") or item.get_closest_marker("long")):
            item.add_marker("quick")
    for path, module in {(item.path, item.getparent(pytest.Module).obj) for item in items}:
        if path.is_relative_to(HERE) and str(path.relative_to(HERE)).startswith(PICKLED_BY_VALUE):
            cloudpickle.register_pickle_by_value(module)
    part, parts = map(int, config.getoption("part").split("/"))
    left_out = {item for item in items if zlib.crc32(item.path.name.encode()) % parts != part % parts}
    if not HAS_TORCH:
        left_out.update(item for item in items if _starts_torch(item))
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def _starts_torch(item: pytest.Item) -> bool:
    folder = item.path.relative_to(HERE).parts[0]
    return folder in START_TORCH and item.get_closest_marker("without_torch") is None


def pytest_collection() -> None:
    """Collect no garbage while the modules are imported: almost everything stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep what is there by now out of garbage collections, which would take a quarter of the time of quick tests."""
    gc.enable()
    gc.collect()
    gc.freeze()


@atexit.register
def _clear_away(owner: int = os.getpid()) -> None:
    """Remove the scratch folder when this process ends, after its shells have written their history."""
    if os.getpid() == owner:  # no child
        shutil.rmtree(SCRATCH, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _run_leaves_nothing_behind() -> Iterator[None]:
    RUNTIME_DIR.mkdir(mode=0o700)
    yield
    _end_and_complain(_all_processes(), "the test run")
    left = sorted(f"{path.relative_to(RUNTIME_DIR)} ({path.stat().st_size} bytes)" for path in RUNTIME_DIR.rglob("*"))
    assert not left, f"run directories left behind in MESHBOOK_RUNTIME_DIR: {left}"


@pytest.fixture(autouse=True)
def faults() -> Iterator[queue.SimpleQueue[MeshFailure]]:
    """Failures that no caller and no supervisor handled in this test."""
    found: queue.SimpleQueue[MeshFailure] = queue.SimpleQueue()
    before = unhandled_fault_hook()
    set_unhandled_fault_hook(found.put)
    yield found
    set_unhandled_fault_hook(before)


@pytest.fixture(autouse=True)
def _test_leaves_no_process_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compares before and after, so that a mesh or kernel that several tests share may live on."""
    # Quick tests cannot start one. Tests in a browser heal ranks of a mesh that they share; the end of the run shows
    # what is left.
    if request.node.get_closest_marker("quick") or request.node.get_closest_marker("browser"):
        yield
        return
    find = _all_processes if _starts_processes(request.node) else _family
    before = find()
    yield
    # Fixtures of the test itself have been torn down by now: this one was set up first.
    _end_and_complain(find() - before, request.node.nodeid)


def _starts_processes(node: pytest.Item) -> bool:
    marked = any(node.get_closest_marker(name) for name in ("process", "kernel", "browser", "gpu", "rdma"))
    return marked or node.path.relative_to(HERE).parts[0] in START_PROCESSES


def _all_processes() -> set[psutil.Process]:
    return _family() | _marked_processes(TEST_MARK)


def _family() -> set[psutil.Process]:
    """The live descendants of pytest, from the system's lists of children: cheap enough for every test."""
    found: set[psutil.Process] = set()
    waiting = [os.getpid()]
    while waiting:
        for child in _children(waiting.pop()):
            waiting.append(child)
            if (process := _process(child)) is not None:
                found.add(process)
    return found


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    except OSError:  # the process or the thread has ended meanwhile
        pass
    return pids


def _marked_processes(mark: str) -> set[psutil.Process]:
    """Return the processes with this in their environment, whatever their parent is."""
    found: set[psutil.Process] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() not in (entry / "environ").read_bytes().split(b"\0"):
                continue
        except OSError:  # ended meanwhile, or another user's
            continue
        if (process := _process(int(entry.name))) is not None:
            found.add(process)
    return found


def _process(pid: int) -> psutil.Process | None:
    """The process, unless it has ended or belongs to another that lives longer than a test."""
    try:
        process = psutil.Process(pid)
        # multiprocessing keeps one of these per interpreter, until that ends; and a browser starts and keeps what it
        # needs (`chromium --type=renderer` and others), which ends with it.
        words = " ".join(process.cmdline())
        is_kept = "multiprocessing.resource_tracker" in words or ("chrom" in words and " --type=" in words)
    except psutil.Error:
        return None
    return None if is_kept else process


def _end_and_complain(left: set[psutil.Process], who: str) -> None:
    """Fail if processes do not end soon, and kill them, so that they do not fail the next test."""
    if not left:
        return
    words = {process.pid: _describe(process) for process in left}
    alive = still_running(left)
    for process in alive:
        _kill(process)
    still_running(alive)
    if alive:
        lines = "\n".join(f"  {words[process.pid]}" for process in alive)
        pytest.fail(f"{who} left processes behind:\n{lines}", pytrace=False)


def _describe(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline())[:300]
        return f"{process.pid} (parent {process.ppid()}, {process.status()}): {command}"
    except psutil.Error as error:
        return f"{process.pid}: {error}"


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):  # it ended in between
        process.kill()


# -- controllers in processes of their own --------------------------------------------------


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A folder for the runs of one test. Short: a socket's path has 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # a process that ends may be removing files of its own


class Script:
    """A controller in a process of its own: a Python file that talks to the test by lines."""

    def __init__(self, file: Path, folder: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"MESHBOOK_RUNTIME_DIR": str(folder), "MESHBOOK_SCRIPT": str(file)} | environment,
        )
        self._file = file

    def read_line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the script ended"
        return line.rstrip("\n")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def family(self) -> list[psutil.Process]:
        """Return its descendants."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def processes(self) -> set[psutil.Process]:
        """Return it and all processes that it started, directly or not, whatever their parent is now."""
        return _marked_processes(f"MESHBOOK_SCRIPT={self._file}")

    def close(self) -> None:
        with self.process:
            self.process.kill()
        self._file.unlink()


@pytest.fixture
def run_script(runtime_dir: Path) -> Iterator[Callable[..., Script]]:
    scripts: list[Script] = []

    def run(source: str, **environment: str) -> Script:
        file = runtime_dir.with_suffix(f".{len(scripts)}.py")
        file.write_text(source)
        scripts.append(Script(file, runtime_dir, **environment))
        return scripts[-1]

    yield run
    for script in scripts:
        script.close()
