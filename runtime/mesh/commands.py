"""`BootstrapCommand`: the command that starts a worker instead of a fork, and the assignment of commands to ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from meshbook.runtime.config import PACKAGE
from meshbook.runtime.geometry import Extent, Point
from meshbook.runtime.mesh.binding import Binding, Given, read_bindings

# By its path, since the import direction forbids importing `runtime.hosts` here. The path is valid on all hosts only
# while hosts are on this machine, as they are so far.
ENTRY = str(PACKAGE / "runtime" / "hosts" / "worker_entry.py")


class BootstrapCommand(msgspec.Struct, frozen=True):
    """The command that starts a worker: `program`, looked up on its PATH, with `args`, which it must run in the end.

    Made from `default_bootstrap_cmd()`: with other variables, or with a program in front:

        BootstrapCommand("nsys", None, ["profile", cmd.program, *cmd.args])

    `arg0` is the program's own name as it sees it (None: `program`). `env` is added to the inherited environment, and
    None removes a variable. Without `inherit_env` the program inherits nothing, and gets only its rank and rendezvous.
    Such a process does its own imports, which takes longer than a fork.
    """

    program: str
    arg0: str | None = None
    args: list[str] = []
    env: dict[str, str | None] = {}
    inherit_env: bool = True

    def __post_init__(self) -> None:
        if not (isinstance(self.program, str) and self.program):
            raise TypeError(f"the program of a BootstrapCommand must be a name or a path, not {self.program!r}")
        if isinstance(self.args, str) or not all(isinstance(word, str) for word in self.args):
            raise TypeError(f"the args of a BootstrapCommand must be a list of strings, not {self.args!r}")
        if not all(isinstance(key, str) and isinstance(value, str | None) for key, value in self.env.items()):
            raise TypeError(f"the env of a BootstrapCommand must map strings to strings or None, not {self.env!r}")

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """Return a copy with these variables added; they override variables of the same name."""
        return msgspec.structs.replace(self, env={**self.env, **env})


Commands = BootstrapCommand | Callable[[Point], BootstrapCommand]


def default_bootstrap_cmd() -> BootstrapCommand:
    """Return the command that starts a worker with this process's own interpreter."""
    return _run_by(sys.executable)


def _run_by(interpreter: str) -> BootstrapCommand:
    return BootstrapCommand(interpreter, None, [ENTRY])


class Start(msgspec.Struct, frozen=True):
    """How one process is started: by a command or, without one, by a fork."""

    command: BootstrapCommand | None = None
    binding: Binding = Binding()


def plan_starts(
    extent: Extent,
    per_host: int,
    *,
    proc_bind: Sequence[Given] | None = None,
    commands: Commands | None = None,
    python: str = "",
    env: Mapping[str, str] | None = None,
) -> list[Start]:
    """Return how each process of the mesh is started, by rank. `commands` overrides `python`, an interpreter.

    `env` is added to the variables of each command, which take precedence. Raises ValueError for an invalid
    `proc_bind`, TypeError if `commands` is not, or does not return, a BootstrapCommand.
    """
    if proc_bind is None and commands is None and not python:
        return [Start()] * extent.nelements
    bindings = read_bindings(proc_bind, per_host)
    starts: list[Start] = []
    for rank in range(extent.nelements):
        binding = bindings[rank % per_host]
        command = _command_for(extent.point(rank), commands, python)
        if command is None and binding.numactl:
            command = default_bootstrap_cmd()
        if command is not None:
            command = msgspec.structs.replace(command, env={**(env or {}), **command.env})
        starts.append(Start(command, binding))
    return starts


def start_of_spares(starts: Sequence[Start]) -> Start:
    """Return how spares for these ranks are started. A spare is bound to CPUs only when it becomes a rank.

    Raises ValueError if the command depends on the rank.
    """
    command = starts[0].command
    if any(start.command != command for start in starts):
        raise ValueError("spares can become any rank, so bootstrap_command must be the same for all ranks")
    if any(start.binding.numactl for start in starts):
        raise ValueError("spares can become any rank, so proc_bind supports only 'cpus': numactl binds at the start")
    return Start(command)


def _command_for(point: Point, commands: Commands | None, python: str) -> BootstrapCommand | None:
    if commands is None:
        return _run_by(python) if python else None
    command = commands if isinstance(commands, BootstrapCommand) or not callable(commands) else commands(point)
    if not isinstance(command, BootstrapCommand):
        raise TypeError(f"bootstrap_command must be a BootstrapCommand for {point}, not {command!r}")
    return command
