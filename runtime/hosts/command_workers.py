"""Workers that are started by a command: the fork server's child writes the spec to a file and executes the command.

The process stays a child of the fork server, so its end is detected and reported like any other. The path of the file,
which is in the run's folder, is in the environment. Unlike a descriptor, it survives wrapper programs. While the file
exists, no process has become that worker.
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

VARIABLE = "MESHBOOK_WORKER_SPEC"
NUMACTL = "numactl"
CANNOT_START = 127  # the exit code that shells use for it


def command_line(spec: WorkerSpec) -> tuple[str, list[str]]:
    """Return the program that starts this worker, and its arguments from the zeroth on. The spec needs a command."""
    command, options = spec.start.command, spec.start.binding.numactl
    assert command is not None
    if options:
        # Known limit: numactl gives the program its own name, whatever `arg0` is.
        return NUMACTL, [NUMACTL, *options, "--", command.program, *command.args]
    return command.program, [command.arg0 if command.arg0 is not None else command.program, *command.args]


def bind(cpus: Sequence[int]) -> None:
    """Restrict this process to these CPUs; with none given, change nothing."""
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
    """Replace this process by the worker's command. If that fails, write the reason to stderr and exit."""
    program, words = command_line(spec)
    try:
        environment = spec.environment() | {VARIABLE: str(_write_spec_file(spec, folder))}
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and a program would inherit
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(program, words, environment)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        if isinstance(error, FileNotFoundError) and program == NUMACTL:
            why = "it is not installed on this host; without it, proc_bind supports only 'cpus' or 'physcpubind'"
        give_up(f"cannot start {program!r}: {why}")


def give_up(text: str) -> NoReturn:
    """End this child; the agent reads the text from its stderr."""
    os.write(2, f"{text}\n".encode(errors="backslashreplace"))
    os._exit(CANNOT_START)


def _spec_file(folder: Path, node: str) -> Path:
    return folder / f"{node}.spec"


def _write_spec_file(spec: WorkerSpec, folder: Path) -> Path:
    """Write the spec to a file and return its path. Only this user can read it: it may hold secrets of the environment.

    The file also holds the Python version, in a form that any interpreter can read before it has meshbook.
    """
    path = _spec_file(folder, spec.address.node)
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        pickle.dump((tuple(sys.version_info[:2]), pickle.dumps(spec)), file, protocol=4)
    return path


def has_spec_file(folder: Path, node: str) -> bool:
    """Whether a command was started for this worker and has not become it."""
    return _spec_file(folder, node).exists()


def remove_spec_file(folder: Path, node: str) -> None:
    """Remove the spec file of a process that never became a worker."""
    _spec_file(folder, node).unlink(missing_ok=True)
