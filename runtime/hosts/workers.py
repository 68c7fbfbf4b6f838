"""The workers of one host: asked for, forked, watched, ended. Owned by the host agent; every change under one lock."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.hosts.forkserver import Answer, Exited, Started
from meshbook.runtime.mesh.birth import Birth
from meshbook.runtime.wire.messages import Address

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Answer).decode
TAIL_BYTES = 16 << 10


@dataclass
class Worker:
    """One worker from the asking to the end."""

    address: Address
    pid: int = 0
    stopping: str = ""
    killed: bool = False  # by us
    ended: threading.Event = field(default_factory=threading.Event)


class Workers:
    """All workers of this host. `on_exit` is told of each end, with the addresses of those that live on."""

    def __init__(self, folder: Path, settings: Settings, on_exit: Callable[[ExitReport, list[Address]], None]) -> None:
        self._folder = folder
        self._settings = settings
        self._on_exit = on_exit
        self._lock = threading.Lock()  # guards _by_node and _by_pid
        self._by_node: dict[str, Worker] = {}
        self._by_pid: dict[int, Worker] = {}
        self._early: dict[int, int] = {}  # pids whose end was told before their start
        self._rest = b""
        self.channel, theirs = socket.socketpair()
        self._server = self._start_server(theirs)

    def _start_server(self, channel: socket.socket) -> subprocess.Popen[bytes]:
        # Called on the agent's main thread: the fork server dies with the thread that made it.
        with channel, open(self._folder / "forkserver.log", "wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "meshbook.runtime.hosts.forkserver"),
                    *(str(channel.fileno()), str(self._folder), self._settings.preload),
                ],
                pass_fds=[channel.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    # -- from the host actor -------------------------------------------------

    def start(self, births: list[Birth]) -> None:
        """Ask for these workers; the fork server starts them once it is warm."""
        with self._lock:
            for birth in births:
                self._by_node[birth.address.node] = Worker(birth.address)
        requests = b"".join(_encode(birth) + b"\n" for birth in births)
        try:
            self.channel.sendall(requests)
        except OSError:
            for birth in births:
                self._end(self._by_node[birth.address.node], None, self._server_failure())

    def stop(self, nodes: list[str], reason: str, ask: Callable[[Address], None]) -> None:
        """Ask these workers to leave, wait, and kill who has not left by the time limit."""
        workers = self._find(nodes)
        for worker in workers:
            worker.stopping = reason
            ask(worker.address)
        deadline = _Deadline(self._settings.stop_timeout)
        for worker in workers:
            if not worker.ended.wait(deadline.left()):
                self.signal([worker.address.node], signal.SIGKILL)
        for worker in workers:
            worker.ended.wait(self._settings.stop_timeout)

    def signal(self, nodes: list[str], number: int) -> None:
        """Send a signal to the process groups of these workers, so that what they started gets it too."""
        for worker in self._find(nodes):
            worker.killed = worker.killed or number == signal.SIGKILL
            if worker.pid:
                _kill_group(worker.pid, number)

    def kill_all(self) -> None:
        """End everything at once: the controller is gone."""
        with contextlib.suppress(OSError):
            self.channel.close()
        self._server.kill()  # first, so that nothing is forked behind our back
        self._server.wait()
        with self._lock:
            pids = list(self._by_pid)
        for pid in pids:
            _kill_group(pid, signal.SIGKILL)

    def names(self) -> list[str]:
        """The node ids of the workers that live, or are being born."""
        with self._lock:
            return list(self._by_node)

    def _find(self, nodes: list[str]) -> list[Worker]:
        with self._lock:
            return [worker for node in nodes if (worker := self._by_node.get(node)) is not None]

    # -- from the agent's main thread ------------------------------------------

    def hear(self) -> bool:
        """Take in what the fork server says; False once it has ended."""
        try:
            data = self.channel.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self._server_ended()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            answer = _decode(line)
            self._started(answer) if isinstance(answer, Started) else self._exited(answer)
        return True

    def _started(self, answer: Started) -> None:
        with self._lock:
            worker = self._by_node[answer.node]
            worker.pid = answer.pid
            if answer.pid:
                self._by_pid[answer.pid] = worker
            kill = worker.killed
        if answer.error:
            self._end(worker, None, answer.error)
        elif kill:  # it was to be killed before it had a pid
            _kill_group(answer.pid, signal.SIGKILL)

    def _exited(self, answer: Exited) -> None:
        with self._lock:
            worker = self._by_pid.pop(answer.pid, None)
        if worker is None:
            return
        _kill_group(answer.pid, signal.SIGKILL)  # what it started, and left behind
        self._end(worker, answer.returncode, "")

    def _server_ended(self) -> None:
        """Workers die with the fork server, so all of them have ended too."""
        self._server.wait()
        with self._lock:
            workers = list(self._by_node.values())
            self._by_pid.clear()
        for worker in workers:
            self._end(worker, None, self._server_failure())

    def _server_failure(self) -> str:
        code = self._server.poll()
        log = "\n".join(_tail(self._folder / "forkserver.log", self._settings.stderr_lines))
        return f"the fork server ended ({'it still runs' if code is None else f'exit code {code}'})\n{log}"

    def _end(self, worker: Worker, returncode: int | None, trouble: str) -> None:
        node = worker.address.node
        report = ExitReport(
            node=node,
            pid=worker.pid,
            returncode=returncode,
            stderr=self._last_words(node),
            hint=trouble or _hint(returncode, worker.killed),
            stopped=worker.stopping,
        )
        with self._lock:
            self._by_node.pop(node, None)
            others = [other.address for other in self._by_node.values()]
        self._on_exit(report, others)
        worker.ended.set()

    def _last_words(self, node: str) -> tuple[str, ...]:
        """What it wrote to stderr last: through Python, then past it."""
        lines = _tail(self._folder / f"{node}.last", self._settings.stderr_lines)
        lines += _tail(self._folder / f"{node}.err", self._settings.stderr_lines)
        return tuple(lines[-self._settings.stderr_lines :])


class _Deadline:
    """Seconds left of a time limit."""

    def __init__(self, seconds: float) -> None:
        import time

        self._now = time.monotonic
        self._end = self._now() + seconds

    def left(self) -> float:
        return max(0.0, self._end - self._now())


def _kill_group(pid: int, number: int) -> None:
    # Between fork and setsid a worker has no group of its own yet; then the process itself is meant.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _tail(path: Path, lines: int) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]


def _hint(returncode: int | None, killed: bool) -> str:
    if returncode == -signal.SIGKILL and not killed:
        return "SIGKILL came from outside meshbook: often the kernel's out-of-memory killer (see dmesg), or a person"
    return ""
