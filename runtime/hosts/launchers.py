"""What places host agents on machines: one small Protocol, and the launcher that runs a command for each host.

A launcher only starts an agent and tells when it has ended. Whether a host is well is found out by its heartbeats.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from meshbook.runtime.config import PACKAGE, open_private

# A script and its arguments. The name of what it runs is for those who look at the list of processes.
START_AGENT = (str(PACKAGE / "runtime" / "hosts" / "start_agent.py"), "meshbook.runtime.hosts.agent")


class AgentProcess(Protocol):
    """An agent as its session sees it: a `Popen`, or what stands for one.

    On `stdin` it is told what it is; the end of that is its end. One on another host answers by a line on `stdout`.
    """

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class Launcher(Protocol):
    """Starts agents on hosts that it knows by their names."""

    def is_local(self, host: str) -> bool:
        """Whether the agent of this host runs on this machine."""

    def start(self, host: str, agent: Sequence[str], log: Path) -> AgentProcess:
        """Run the command `agent` on this host, its stderr into the file `log`. OSError where that cannot be."""


class CommandLauncher:
    """For each host a command to which that of the agent is added: `["ip", "netns", "exec", "h1"]`, `["ssh", "h1"]`."""

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        self._commands = commands

    def is_local(self, host: str) -> bool:
        return not self._commands[host]

    def start(self, host: str, agent: Sequence[str], log: Path) -> AgentProcess:
        with open(log, "wb", opener=open_private) as errors:
            return subprocess.Popen(
                [*self._commands[host], *agent],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=agent_environment(),
                start_new_session=True,  # Ctrl-C on a terminal is for the controller alone
            )


def agent_environment() -> dict[str, str]:
    """Ours, with the folder that holds this very package on the import path, wherever it came from."""
    package = str(PACKAGE.parent)
    known = os.environ.get("PYTHONPATH", "")
    return os.environ | {"PYTHONPATH": package + (os.pathsep + known if known else "")}
