"""What a process wrote to stderr last, in files that outlive it: written by the worker, read by the host agent."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

LIMIT_BYTES = 64 << 10
TAIL_BYTES = 16 << 10
LINE_CHARACTERS = 400
CRASH = "Fatal Python error:"  # how the stack begins that faulthandler writes


class LastWords:
    """What goes through Python's stderr, also into a file: in a killed process's buffers it would be lost."""

    def __init__(self, folder: Path, node: str) -> None:
        flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"{node}.last", flags, 0o600)

    def add(self, text: str) -> None:
        if self._file < 0:
            return
        try:
            os.write(self._file, text.encode("utf-8", "replace"))
        except OSError:
            self._file = -1  # a full disk: the text still goes to the notebook

    def trim(self) -> None:
        """Keep the end of a file that has grown; from time to time, on one thread.

        A line that another thread adds at that very moment can get lost.
        """
        if self._file < 0 or (size := os.fstat(self._file).st_size) <= LIMIT_BYTES:
            return
        end = os.pread(self._file, TAIL_BYTES, size - TAIL_BYTES)
        os.ftruncate(self._file, 0)
        with contextlib.suppress(OSError):  # somebody else has filled the disk in between
            os.write(self._file, end)


def last_words(folder: Path, node: str, count: int) -> tuple[str, ...]:
    """The last lines of a process: what it wrote through Python, then past it.

    Where the interpreter crashed, its stack, from its beginning: the innermost frame comes first there.
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
    """The lines at the end of a file, each cut to a readable length; none where there is no such file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [_cut(_as_shown(line)) for line in text.replace("\0", "").removesuffix("\n").split("\n")] if text else []
    return lines if count is None else lines[max(0, len(lines) - count) :]


def _as_shown(line: str) -> str:
    """What a terminal shows of a line: of a progress bar its last state."""
    return line.rstrip().rpartition("\r")[2]


def leave_traceback(folder: Path, node: str, text: str) -> None:
    """Leave the traceback of a bootstrap that raised, for the agent."""
    with contextlib.suppress(OSError):  # a full disk: it is among the last words, too
        (folder / f"{node}.raised").write_text(text, encoding="utf-8", errors="replace")


def find_traceback(folder: Path, node: str) -> str:
    """What `leave_traceback` left of this node, or ""."""
    try:
        return (folder / f"{node}.raised").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def remove_files(folder: Path, node: str) -> None:
    """Remove what an ended process leaves in the run's folder, once its last words are known.

    A run may have any number of processes, and the folder is often in memory.
    """
    # The socket, the descriptors' files, and ours.
    for suffix in ("", ".out", ".err", ".last", ".raised", ".unsent", ".vitals"):
        with contextlib.suppress(OSError):
            (folder / f"{node}{suffix}").unlink(missing_ok=True)


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]}…"
