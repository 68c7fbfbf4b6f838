"""Workers that are started by a command: the child of the fork server hands its birth over and executes it.

It stays the fork server's child, so that its end is seen and told like any other's. The birth goes by a file of the
run's folder, whose path is in the environment: unlike a descriptor it survives the programs that stand in front, and
as long as it is there nobody has become that worker.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from meshbook.runtime.mesh.worker_specs import WorkerSpec

VARIABLE = "MESHBOOK_BIRTH"
NUMACTL = "numactl"
CANNOT_START = 127  # the exit code that shells use for it


def command_line(spec: WorkerSpec) -> tuple[str, list[str]]:
    """The program that starts this worker, and its arguments from the zeroth on. Only for one that has a command."""
    command, options = spec.start.command, spec.start.binding.numactl
    assert command is not None
    if options:
        # Known limit: numactl gives the program its own name, whatever `arg0` says.
        return NUMACTL, [NUMACTL, *options, "--", command.program, *command.args]
    return command.program, [command.arg0 if command.arg0 is not None else command.program, *command.args]


def bind(cpus: Sequence[int]) -> None:
    """Let this process run on these CPUs alone; none given: as before."""
    if not cpus:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except AttributeError:
        give_up("proc_bind: this system cannot bind a process to CPUs")
    except OSError as error:
        offered = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        give_up(f"proc_bind: no such CPUs: {', '.join(map(str, cpus))} ({error.strerror}); this host has {offered}")


def execute(spec: WorkerSpec, folder: Path) -> NoReturn:
    """Become the command of this worker. Where that fails, end with the reason as the last words."""
    program, words = command_line(spec)
    try:
        environment = spec.environment() | {VARIABLE: str(_leave_birth(spec, folder))}
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and a program would inherit
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(program, words, environment)
    except (OSError, ValueError) as error:
        give_up(f"cannot start {program!r}: {_why(error, program)}")


def _why(error: Exception, program: str) -> str:
    if isinstance(error, FileNotFoundError) and program == NUMACTL:
        return "it is not installed on this host, and proc_bind needs it for all but 'cpus' and 'physcpubind' alone"
    return str(error.strerror if isinstance(error, OSError) else error)


def give_up(text: str) -> NoReturn:
    """End this child; the agent reads the text from its stderr."""
    os.write(2, f"{text}\n".encode(errors="backslashreplace"))
    os._exit(CANNOT_START)


def _birth_file(folder: Path, node: str) -> Path:
    return folder / f"{node}.birth"


def _leave_birth(spec: WorkerSpec, folder: Path) -> Path:
    """The file with the birth, for this user alone: it may hold secrets of the environment.

    Beside it our Python's version, in a form that any interpreter can read before it has meshbook.
    """
    path = _birth_file(folder, spec.address.node)
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        pickle.dump((tuple(sys.version_info[:2]), pickle.dumps(spec)), file, protocol=4)
    return path


def is_left(folder: Path, node: str) -> bool:
    """Whether a command was started for this worker, and it has not become one."""
    return _birth_file(folder, node).exists()


def drop_birth(folder: Path, node: str) -> None:
    """Remove what a worker left that never was one."""
    _birth_file(folder, node).unlink(missing_ok=True)
