"""Launchers start host agents on machines: a small Protocol, and the launchers that run a command for each host.

A launcher only starts an agent and reports its end. Heartbeats show whether a host is healthy. `slurm_launcher` and
`ray_launcher` start agents on the nodes of a Slurm allocation and of a Ray cluster.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import select
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import psutil

from meshbook.runtime.config import PACKAGE, open_private

# Variables that select devices of one machine.
DEVICES = "(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK"
UNKNOWN = -1  # exit status of a process that is not a child of this one
# A script and its argument: the module that it imports and runs once it has started the fork server.
START_AGENT = (str(PACKAGE / "runtime" / "hosts" / "start_agent.py"), "meshbook.runtime.hosts.agent")


class AgentProcess(Protocol):
    """The process of an agent: a `Popen`, or an object with the same methods.

    The agent reads its spec from `stdin`, and ends when that is closed. An agent on another host answers with a line on
    `stdout`.
    """

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class Launcher(Protocol):
    """Starts agents on hosts, which are identified by their names.

    `outlives_controller`: whether the processes that it starts continue while their input stays open, and the launcher
    can be pickled; else a run on its hosts cannot be detached.
    """

    outlives_controller: bool

    @property
    def lifelines(self) -> Sequence[Path]:
        """The inputs, beyond those of agents, that keep the machines while they are open."""

    def is_local(self, host: str) -> bool:
        """Whether the agent of this host runs on this machine."""

    def start(self, host: str, agent: Sequence[str], log: Path) -> AgentProcess:
        """Run the command `agent` on this host, with its stderr in the file `log`. OSError on failure."""

    def give_back(self, host: str) -> None:
        """Return one machine whose agent has ended, while agents on others run."""

    def close(self) -> None:
        """Return the machines, once all agents have ended or none could be started. May be called again."""


class CommandLauncher:
    """Adds the agent's command to a command for each host: `["ip", "netns", "exec", "h1"]`."""

    outlives_controller = True
    lifelines: Sequence[Path] = ()

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        self._commands = commands

    def is_local(self, host: str) -> bool:
        return not self._commands[host]

    def start(self, host: str, agent: Sequence[str], log: Path) -> AgentProcess:
        return start_process([*self._commands[host], *agent], log)

    def give_back(self, host: str) -> None:
        """Do nothing, as in `close`."""

    def close(self) -> None:
        """Do nothing: a command holds no machine beyond its agent's end."""


class SshLauncher:
    """Starts agents by OpenSSH's client. `destinations` are its arguments by host, such as `user@gpu1`."""

    outlives_controller = True
    lifelines: Sequence[Path] = ()

    def __init__(self, destinations: Mapping[str, str], options: Sequence[str], timeout: float) -> None:
        self._destinations = destinations
        # ssh uses the first value of an option: the user's own go first.
        self._options = [*options, "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(timeout))}"]

    def is_local(self, host: str) -> bool:
        return False

    def start(self, host: str, agent: Sequence[str], log: Path) -> AgentProcess:
        # The remote shell splits the words again. sshd does not pass the environment on.
        words = ["exec", "env", f"PYTHONPATH={PACKAGE.parent}", *agent]
        return start_process(["ssh", *self._options, "--", self._destinations[host], shlex.join(words)], log)

    def give_back(self, host: str) -> None:
        """Do nothing, as in `close`."""

    def close(self) -> None:
        """Do nothing: a connection ends with its agent."""


class LaunchedProcess(subprocess.Popen[bytes]):
    """A child whose input is a FIFO, so that another process can hold it open when this one leaves."""

    lifeline: Path


def start_process(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> LaunchedProcess:
    """Start a program on this machine that passes standard input and output on to an agent. OSError on failure.

    `environment` is by default that of an agent on this machine. The FIFO of its input is made beside the log.
    """
    lifeline = log.with_name(f"{log.name}.{secrets.token_hex(4)}.in")
    os.mkfifo(lifeline, 0o600)
    reader = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)  # without waiting for a writer
    writer = os.fdopen(os.open(lifeline, os.O_WRONLY), "wb")
    os.set_blocking(reader, True)
    try:
        with open(log, "wb", opener=open_private) as errors:
            process = LaunchedProcess(
                command,
                stdin=reader,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=agent_environment() if environment is None else environment,
                start_new_session=True,  # Ctrl-C on a terminal is for the controller only
            )
    except BaseException:
        writer.close()
        raise
    finally:
        os.close(reader)
    process.stdin, process.lifeline = writer, lifeline
    return process


@dataclass(frozen=True)
class ProcessReference:
    """A launcher's process, for another controller. Its start time tells it from a later process with the same pid."""

    pid: int
    started: float
    lifeline: Path

    @classmethod
    def of(cls, process: Any) -> ProcessReference:
        """Return the reference of a LaunchedProcess or a ForeignProcess."""
        started = 0.0
        with contextlib.suppress(psutil.Error):  # it has just ended
            started = psutil.Process(process.pid).create_time()
        return cls(process.pid, started, process.lifeline)


class ForeignProcess:
    """A launcher's process that another controller has started, with the methods of a `Popen`."""

    stdout: IO[bytes] | None = None

    def __init__(self, reference: ProcessReference) -> None:
        self.pid = reference.pid
        self.lifeline = reference.lifeline
        self.stdin: IO[bytes] | None = io.BytesIO()
        self._process = -1  # it has ended
        with contextlib.suppress(OSError, psutil.Error):
            descriptor = os.pidfd_open(self.pid)
            if psutil.Process(self.pid).create_time() == reference.started:
                self._process = descriptor
                self.stdin = os.fdopen(os.open(self.lifeline, os.O_WRONLY | os.O_NONBLOCK), "wb")
            else:  # a later process
                os.close(descriptor)

    def poll(self) -> int | None:
        return UNKNOWN if self._has_ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return UNKNOWN

    def kill(self) -> None:
        if self._process >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def _has_ended(self, timeout: float | None) -> bool:
        if self._process < 0:
            return True
        poll = select.poll()
        poll.register(self._process, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def __del__(self) -> None:
        if self._process >= 0:
            os.close(self._process)


def agent_environment() -> dict[str, str]:
    """Return this process's environment, with the folder that holds this meshbook package on PYTHONPATH."""
    package = str(PACKAGE.parent)
    known = os.environ.get("PYTHONPATH", "")
    return os.environ | {"PYTHONPATH": package + (os.pathsep + known if known else "")}
