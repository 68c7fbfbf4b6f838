"""The agent's client of a fork server: a process, a channel, a log. For the agent's main thread only."""

from __future__ import annotations

import binascii
import os
import pickle
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from meshbook.runtime.config import Settings
from meshbook.runtime.hosts.forkserver import Answer, serve_in_fork
from meshbook.runtime.hosts.launch import RunFolder
from meshbook.runtime.hosts.start_agent import LOG, execute_forkserver
from meshbook.runtime.mesh.worker_specs import WorkerSpec
from meshbook.runtime.telemetry.stderr_tail import last_lines

_decode = msgspec.json.Decoder(Answer).decode
PLAIN_LOG = "plain-forkserver.log"
EXIT_SECONDS = 1.0  # time between its closing of the channel and its end
POLL_SECONDS = 0.002


class ServerProcess(Protocol):
    """The methods that a `ForkServerClient` needs of its process: a `Popen`, or a `ForkedProcess`."""

    pid: int

    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class ForkedProcess:
    """A child of this process that runs no other program."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code as `Popen.wait` does. TimeoutExpired if it still runs."""
        end = None if timeout is None else time.monotonic() + timeout
        while (returncode := self._poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return returncode

    def _poll(self) -> int | None:
        if self._returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # `end_descendants` has reaped it
                self._returncode = 0
            else:
                self._returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self._returncode

    def kill(self) -> None:
        if self._poll() is None:  # otherwise the pid may belong to another process
            os.kill(self.pid, signal.SIGKILL)


class ForkServerClient:
    """One fork server. It dies with the thread that started it."""

    def __init__(self, process: ServerProcess, channel: socket.socket, log: Path, log_lines: int) -> None:
        self.channel = channel
        self.channel.setblocking(False)
        self._process = process
        self._log = log
        self._log_lines = log_lines  # of its log, in the report of its end
        self._rest = b""
        self._unsent = bytearray()  # needed because it does not read while it imports

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def events(self) -> int:
        """The selector events to wait for on the channel."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)

    def ask(self, specs: Iterable[WorkerSpec]) -> None:
        """Request these workers, as far as the channel accepts data at once; `send` sends the rest."""
        for spec in specs:
            # Not JSON: an environment may hold values that are not UTF-8.
            self._unsent += binascii.b2a_base64(pickle.dumps(spec))
        self.send()

    def send(self) -> None:
        while self._unsent:
            try:
                sent = self.channel.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # it has ended, which `receive` reports
                return
            del self._unsent[:sent]

    def receive(self) -> list[Answer] | None:
        """Return the answers that have arrived; None once the fork server has ended."""
        try:
            data = self.channel.recv(1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_decode(line) for line in lines]

    def end(self) -> None:
        """Kill the fork server. Its children end with it, or become children of this process."""
        self.channel.close()
        self._process.kill()
        self._process.wait()

    def why_ended(self) -> str:
        """Return the exit code and the end of the log, once the fork server has closed the channel."""
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "the fork server closed its connection"
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        log = "\n".join(last_lines(self._log, self._log_lines))
        return f"the fork server ended ({how})\n{log}".rstrip()


def execute_server(folder: Path, settings: Settings, *, is_warm: bool) -> ForkServerClient:
    """Start a fork server as a new interpreter; a warm one imports `Settings.preload`."""
    log = folder / (LOG if is_warm else PLAIN_LOG)
    process, channel = execute_forkserver(log, settings.preload if is_warm else "")
    return ForkServerClient(process, channel, log, settings.stderr_lines)


def fork_server(folder: RunFolder, settings: Settings) -> ForkServerClient:
    """Start the plain fork server: a fork of this process, which must have one thread and no ZeroMQ context yet."""
    log = folder.path / PLAIN_LOG
    channel, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        channel.close()
        folder.disown()
        serve_in_fork(theirs, folder.path, log)
    theirs.close()
    return ForkServerClient(ForkedProcess(pid), channel, log, settings.stderr_lines)
