"""`BootstrapCommand`: the command that starts a worker, where it shall not be a fork; and who gets which."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from meshbook.runtime.config import PACKAGE
from meshbook.runtime.geometry import Extent, Point
from meshbook.runtime.mesh.binding import Binding, Given, read_bindings

# By its path: the arrow up to `runtime.hosts` is not an import. A path of this machine, as all hosts are so far.
ENTRY = str(PACKAGE / "runtime" / "hosts" / "worker_entry.py")


class BootstrapCommand(msgspec.Struct, frozen=True):
    """How a worker process is started: `program`, looked up on its PATH, is given `args` and must come to run them.

    Made from `default_bootstrap_cmd()`: with other variables, or with a program in front,
    `BootstrapCommand("nsys", None, ["profile", cmd.program, *cmd.args])`. `arg0` is what the program is told as its own
    name (None: `program`). `env` is added to what the worker inherits, and None removes a variable; without
    `inherit_env` it inherits nothing, and is only told its rank and its rendezvous. Such a process imports for itself,
    which takes longer than a fork.
    """

    program: str
    arg0: str | None = None
    args: list[str] = []
    env: dict[str, str | None] = {}
    inherit_env: bool = True

    def __post_init__(self) -> None:
        if not (isinstance(self.program, str) and self.program):
            raise TypeError(f"the program of a BootstrapCommand is a name or a path, not {self.program!r}")
        if isinstance(self.args, str) or not all(isinstance(word, str) for word in self.args):
            raise TypeError(f"the args of a BootstrapCommand are a list of strings, not {self.args!r}")
        if not all(isinstance(key, str) and isinstance(value, str | None) for key, value in self.env.items()):
            raise TypeError(f"the env of a BootstrapCommand maps strings to strings or None, not {self.env!r}")

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """A copy with these variables besides; where both name one, the new value holds."""
        return msgspec.structs.replace(self, env={**self.env, **env})


Commands = BootstrapCommand | Callable[[Point], BootstrapCommand]


def default_bootstrap_cmd() -> BootstrapCommand:
    """The command that starts a worker with this process's own interpreter."""
    return _run_by(sys.executable)


def _run_by(interpreter: str) -> BootstrapCommand:
    return BootstrapCommand(interpreter, None, [ENTRY])


class Start(msgspec.Struct, frozen=True):
    """How one process is started. Without a command: forked."""

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
    """How each process of the mesh is started, by rank. `commands` wins over `python`, an interpreter.

    `env` is added to the variables of each command, which win. Raises ValueError for a bad `proc_bind`, TypeError
    where `commands` is or gives no BootstrapCommand.
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
    """How what may become any of these ranks is started: it is bound to CPUs only then.

    Raises ValueError where the command depends on the rank.
    """
    command = starts[0].command
    if any(start.command != command for start in starts):
        raise ValueError("spares may become any rank, so bootstrap_command must be the same for all")
    if any(start.binding.numactl for start in starts):
        raise ValueError("spares may become any rank, so proc_bind can have 'cpus' alone: numactl binds at the start")
    return Start(command)


def _command_for(point: Point, commands: Commands | None, python: str) -> BootstrapCommand | None:
    if commands is None:
        return _run_by(python) if python else None
    command = commands if isinstance(commands, BootstrapCommand) or not callable(commands) else commands(point)
    if not isinstance(command, BootstrapCommand):
        raise TypeError(f"bootstrap_command: a BootstrapCommand is wanted for {point}, not {command!r}")
    return command
