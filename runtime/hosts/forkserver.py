"""A fork server: a single-threaded process that has imported what workers need, and forks one per request.

The warm one is a new interpreter, which imports `Settings.preload`. The plain one is a fork of the agent, made before
the agent has a second thread: it has imported meshbook only, and is ready at once.

Hard rule: it never computes. A matrix product, a CUDA call, a ZeroMQ context or a thread in here would leave locks and
pools behind that hang every child at its first use of them.
    requests   a line of base64 each: a pickled `WorkerSpec`
    answers    a line of JSON each: `Started`, and always later, `Exited`
"""

from __future__ import annotations

import binascii
import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from meshbook.runtime.hosts import spare_worker, worker
from meshbook.runtime.hosts.command_workers import bind, execute
from meshbook.runtime.hosts.linux import (
    adopt_orphans,
    die_with_parent,
    end_descendants,
    flush_c_output,
    outlive_parent,
    skip_exit_handlers_so_far,
)
from meshbook.runtime.hosts.worker_exit import exempt_imports
from meshbook.runtime.memory.process_identity import own_mark
from meshbook.runtime.mesh.worker_specs import WorkerSpec
from meshbook.runtime.resources import explain_limit, raise_file_limit


class Started(msgspec.Struct, frozen=True, tag=True):
    """Answer to a request: the worker was forked, or `error` says why not."""

    node: str
    pid: int
    error: str = ""


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A worker ended: `returncode` as subprocess gives it (negative: killed by that signal); `peak` is in bytes."""

    pid: int
    returncode: int
    peak: int = 0  # peak memory


Answer = Started | Exited
_encode = msgspec.json.Encoder().encode


def main() -> None:
    """Import the modules that the command line names, then serve. Those that use CUDA are left to the workers."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    agent, folder, names, left_out = int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5]
    # While importing, it cannot notice the end of its agent. Afterwards it does, and then must first end its workers.
    die_with_parent(agent)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_file_limit()  # for the workers: the agent may not have raised it when it started this process
    if spoiler := preload(names.split(",")):
        execute_without(spoiler)
    outlive_parent()
    serve(channel, folder, left_out)


def execute_without(spoiler: str) -> NoReturn:
    """Start this process anew, without the module that has loaded CUDA's driver: no child could use CUDA any more."""
    package = spoiler.partition(".")[0]
    names, left_out = sys.argv[4].split(","), sys.argv[5].split(",")
    kept = [name for name in names if name.partition(".")[0] != package]
    arguments = [",".join(kept), ",".join(filter(None, [*left_out, spoiler]))]
    os.execv(sys.executable, [*sys.orig_argv[:-2], *arguments])


def serve(channel: socket.socket, folder: Path, left_out: str = "") -> None:
    """Fork workers until the agent hangs up; does not return. A child becomes the worker, and ends as that.

    `left_out` are the modules that were not preloaded since they use CUDA; the first rank of a host prints them.
    """
    server, inherited = os.getpid(), dict(os.environ)
    # A child leaves the loop by returning, so that its stack is clean.
    spec = ForkServer(channel).serve()
    if spec is None:
        end_descendants()
        os._exit(0)
    begin(spec, folder, server)
    if spec.start.command is not None:
        execute(spec, folder)
    become(spec, inherited)
    if left_out and not spec.local_rank and not spec.is_spare:
        text = "not preloaded, since its import uses CUDA, which a forked process could then not use"
        print(f"{left_out}: {text}; remove it from MESHBOOK_PRELOAD", file=sys.stderr, flush=True)
    spare_worker.run(spec, folder)


def serve_in_fork(channel: socket.socket, folder: Path, log: Path) -> None:
    """Run the plain fork server in a fresh child of the agent; does not return."""
    os.setsid()
    adopt_orphans()
    _redirect(log, log)
    preload([])
    serve(channel, folder)


def preload(names: list[str]) -> str:
    """Import the modules; skip those that are not installed. Their output goes to the fork server's log.

    Returns the module whose import has loaded CUDA's driver, as `torch.cuda.is_available()` does; "" if there is none.
    """
    gc.disable()  # imports leave little garbage, and collecting while torch is imported takes 0.2 s
    for name in filter(None, names):
        try:
            importlib.import_module(name)
        except ImportError:
            traceback.print_exc()
        if has_loaded_cuda():
            return name
    exempt_imports()
    own_mark()  # caches what is the same in all children
    # End OpenBLAS's threads by an empty fork: it starts them when numpy is imported, and ends them before a fork.
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    sys.stdout.flush()  # otherwise every child would print it again
    flush_c_output()
    gc.freeze()  # a child's collector would write to, and so copy, every page that holds an object
    gc.enable()
    return ""


def has_loaded_cuda() -> bool:
    """Return whether this process has loaded CUDA's driver, which torch does when it first looks for a GPU."""
    try:
        return "/libcuda.so" in Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return False


class ForkServer:
    """The main loop: it handles requests and the ends of children."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._rest = b""
        self._workers: set[int] = set()
        self._woken, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def serve(self) -> WorkerSpec | None:
        """Return the worker spec in a new child, None in the fork server once its agent hangs up."""
        while True:
            ready = select.select([self._channel.fileno(), self._woken], [], [])[0]
            try:
                if self._woken in ready:
                    self._reap()
                if self._channel.fileno() in ready and (spec := self._take_requests()) is not None:
                    return spec
            except ConnectionError:
                return None

    def _take_requests(self) -> WorkerSpec | None:
        data = self._channel.recv(1 << 20)
        if not data:
            raise ConnectionResetError
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if (spec := self._fork(pickle.loads(binascii.a2b_base64(line)))) is not None:
                return spec
        return None

    def _fork(self, spec: WorkerSpec) -> WorkerSpec | None:
        node = spec.address.node
        try:
            pid = os.fork()
        except OSError as error:
            failed = f"fork failed: {error.strerror}"
            remedy = explain_limit(failed) or "check ulimit -v and the memory limit of its cgroup"
            self._answer(Started(node, 0, f"{failed}; {remedy}"))
            return None
        if pid == 0:
            self._leave()
            return spec
        # One thread both forks and reaps, so that a worker's start is always reported before its end.
        self._workers.add(pid)
        self._answer(Started(node, pid))
        return None

    def _leave(self) -> None:
        """In a child: release the resources of the fork server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._channel.close()
        os.close(self._woken)
        os.close(self._waker)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                pid = ended.si_pid
                if pid in self._workers:
                    # End the rest of its process group while it is a zombie: later its pid may belong to others.
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)
                _, status, usage = os.wait4(pid, 0)
                if pid in self._workers:  # skips orphans that this process adopted
                    self._workers.discard(pid)
                    self._answer(Exited(pid, os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10))

    def _answer(self, answer: Answer) -> None:
        self._channel.sendall(_encode(answer) + b"\n")


def begin(spec: WorkerSpec, folder: Path, server: int) -> None:
    """Turn a fresh child into an independent process: session, signals, descriptors, directory, CPU binding."""
    die_with_parent(server)
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    node = spec.address.node
    _redirect(folder / f"{node}.out", folder / f"{node}.err")
    with contextlib.suppress(OSError):
        os.chdir(spec.world.directory)
    bind(spec.start.binding.cpus)


def become(spec: WorkerSpec, inherited: Mapping[str, str]) -> None:
    """Turn the child into the worker, in place, as if it had been started and not forked.

    `inherited` is the environment of the server.
    """
    skip_exit_handlers_so_far()
    change_environment(inherited, spec.environment())
    renew_process_state()
    worker.settle(spec)


def change_environment(before: Mapping[str, str], variables: Mapping[str, str]) -> None:
    """Change the environment to these variables. Setting all of them again would copy pages all over the heap."""
    for name in before.keys() - variables.keys():
        del os.environ[name]
    for name, value in variables.items():
        if before.get(name) != value:
            os.environ[name] = value


def renew_process_state() -> None:
    """Seed the generators of this new child, and drop state derived from another environment or process.

    Nothing is needed for `random`, OpenSSL, `uuid` and the names that `tempfile` makes: these detect a fork. CUDA's
    generators are made at the first use of CUDA, which never happens in a fork server.

    Known limit: a private generator of a preloaded module is the same in all children.
    """
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "default_generator"):
        torch.default_generator.seed()
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
    # Both were read from the environment of the server.
    tempfile.tempdir = None
    time.tzset()


def _redirect(output: Path, errors: Path) -> None:
    """Read standard input from /dev/null; write output and errors to files, which never block and outlive a kill."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for descriptor, file in ((1, output), (2, errors)):
        target = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(target, descriptor)
        os.close(target)


if __name__ == "__main__":
    main()
