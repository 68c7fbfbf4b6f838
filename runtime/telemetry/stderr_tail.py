"""The last stderr output of a process, in files that outlive it: the worker writes them, the host agent reads them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

LIMIT_BYTES = 64 << 10
TAIL_BYTES = 16 << 10
LINE_CHARACTERS = 400
CRASH = "Fatal Python error:"  # the first words of faulthandler's stack


class StderrTail:
    """A file that keeps the text of Python's stderr, which would be lost in the buffers of a killed process.

    The first text creates the file: most processes write none, and creating a file is a good part of their start.
    """

    def __init__(self, folder: Path, node: str) -> None:
        self._path = folder / f"{node}.last"
        self._file = -1
        self._has_failed = False

    def add(self, text: str) -> None:
        """Keep text of any thread or signal handler."""
        if self._has_failed:
            return
        try:
            if self._file < 0:
                made = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
                if self._file < 0:
                    self._file = made
                else:  # another thread was faster
                    os.close(made)
            os.write(self._file, text.encode("utf-8", "replace"))
        except OSError:
            self._has_failed = True  # a full disk: the text still goes to the notebook

    def trim(self) -> None:
        """Keep only the end of a file that has grown; called from time to time, on one thread.

        A line that another thread adds at that very moment can be lost.
        """
        if self._file < 0 or self._has_failed or (size := os.fstat(self._file).st_size) <= LIMIT_BYTES:
            return
        end = os.pread(self._file, TAIL_BYTES, size - TAIL_BYTES)
        os.ftruncate(self._file, 0)
        with contextlib.suppress(OSError):  # another program has filled the disk in between
            os.write(self._file, end)


def append_last_line(folder: Path, node: str, text: str) -> None:
    """Add a line to what a process has written to stderr, whatever its descriptor refers to by now."""
    with contextlib.suppress(OSError), open(folder / f"{node}.err", "a") as file:
        file.write(f"{text}\n")


def read_last_lines(folder: Path, node: str, count: int) -> tuple[str, ...]:
    """Return the last lines of a process: first those written through Python, then those written to the descriptor.

    If the interpreter crashed, return its stack from the beginning: the innermost frame comes first there.
    """
    if not count:
        return ()
    through, past = last_lines(folder / f"{node}.last"), last_lines(folder / f"{node}.err")
    crashes = [index for index, line in enumerate(past) if line.startswith(CRASH)]
    if crashes:
        return tuple(past[crashes[-1] :][:count])
    of_past = past[-max(count // 2, count - len(through)) :]
    return (*through[-max(count - len(of_past), 1) :], *of_past)[-count:]


def last_lines(path: Path, count: int | None = None) -> list[str]:
    """Return the lines at the end of a file, each cut to a readable length; an empty list if there is no such file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    written = text.replace("\0", "").removesuffix("\n").split("\n") if text else []
    shown = [line.rstrip().rpartition("\r")[2] for line in written]  # the last state of a progress bar
    lines = [line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]}…" for line in shown]
    return lines if count is None else lines[max(0, len(lines) - count) :]


def leave_traceback(folder: Path, node: str, text: str) -> None:
    """Write the traceback of a bootstrap that raised, for the agent."""
    with contextlib.suppress(OSError):  # a full disk: the last words have it, too
        (folder / f"{node}.raised").write_text(text, encoding="utf-8", errors="replace")


def find_traceback(folder: Path, node: str) -> str:
    """Return the traceback that `leave_traceback` wrote for this node, or ""."""
    try:
        return (folder / f"{node}.raised").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def remove_files(folder: Path, node: str) -> None:
    """Remove an ended process's files from the run's folder, once its last words have been read.

    A run may have any number of processes, and the folder is often in memory.
    """
    # The socket, the descriptors' files, and those of this package.
    for suffix in ("", ".out", ".err", ".last", ".raised", ".unsent", ".vitals"):
        with contextlib.suppress(OSError):
            (folder / f"{node}{suffix}").unlink(missing_ok=True)
