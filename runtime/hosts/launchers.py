"""Launchers start host agents on machines: a small Protocol, and the launchers that run a command for each host.

A launcher only starts an agent and reports its end. Heartbeats show whether a host is healthy. `slurm_launcher` and
`ray_launcher` start agents on the nodes of a Slurm allocation and of a Ray cluster.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from meshbook.runtime.config import PACKAGE, open_private

# Variables that select devices of one machine.
DEVICES = "(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK"
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
    """Starts agents on hosts, which are identified by their names."""

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


def start_process(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program on this machine that passes standard input and output on to an agent. OSError on failure.

    `environment` is by default that of an agent on this machine.
    """
    with open(log, "wb", opener=open_private) as errors:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=agent_environment() if environment is None else environment,
            start_new_session=True,  # Ctrl-C on a terminal is for the controller only
        )


def agent_environment() -> dict[str, str]:
    """Return this process's environment, with the folder that holds this meshbook package on PYTHONPATH."""
    package = str(PACKAGE.parent)
    known = os.environ.get("PYTHONPATH", "")
    return os.environ | {"PYTHONPATH": package + (os.pathsep + known if known else "")}
