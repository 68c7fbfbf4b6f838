"""Lines of the user's code in error texts: the line of a call, its name, and tracebacks without our frames.

This module does not depend on actors or nodes.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

_PACKAGE = Path(__file__).parent.parent
# The package, and the folders that it links to: those of a checkout.
OWN = tuple({f"{_PACKAGE}/", *(f"{room.resolve()}/" for room in _PACKAGE.iterdir() if room.is_symlink())})
_LIBRARY = Path(threading.__file__).parent
_WAITING = (f"{_LIBRARY}/asyncio/", f"{_LIBRARY}/concurrent/", f"{_LIBRARY}/threading.py", "<frozen ")
_RUNS_CELLS = ("/IPython/core/", "/ipykernel/")
# A frame of a traceback, and its source if that is there: `  File "/tmp/ipykernel_4711/123.py", line 3, in step`.
_FRAME = re.compile(r'^( +)File "(.+)", line (\d+)(.*)$(\n\1 .*)?', re.MULTILINE)
_CELL_OF_RANK = re.compile(r"<(cell \d+) \w+>")
MOST_CHARACTERS = 300  # of a headline: the traceback has all of it
Place = tuple[CodeType, int]  # a code object, and the offset of an instruction in it


@functools.lru_cache(maxsize=1024)
def is_ours(filename: str) -> bool:
    """Return whether a code object with this file name belongs to meshbook."""
    return filename.startswith(OWN)


@functools.lru_cache(maxsize=1024)
def _is_noise(filename: str) -> bool:
    """Return whether it is ours, or code of Python or IPython that runs or waits for the user's code."""
    return is_ours(filename) or filename.startswith(_WAITING) or any(part in filename for part in _RUNS_CELLS)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of code, with the file name and the function of its code object."""

    filename: str
    number: int
    function: str

    @classmethod
    def of(cls, place: Place) -> SourceLine:
        code, offset = place
        spans = code.co_lines()
        number = next((line for start, end, line in spans if start <= offset < end), None)
        return cls(code.co_filename, number or code.co_firstlineno, code.co_name)

    def is_in(self, trace: TracebackType | None) -> bool:
        """Return whether a traceback shows this line."""
        return any(
            (frame.f_code.co_filename, number) == (self.filename, self.number)
            for frame, number in traceback.walk_tb(trace)
        )

    @property
    def is_of_user(self) -> bool:
        """Whether it is the user's code, judged by its file: threads of ours begin in Python's own files."""
        return not _is_noise(self.filename)

    def __str__(self) -> str:
        """Format as `train.py:12, in step`, or `Cell In[3], line 2`; with the source line below, if available."""
        cell = _cell_of(self.filename)
        where = f"{cell}, line {self.number}" if cell else f"{short_name(self.filename)}:{self.number}"
        name = "" if self.function.startswith(("<module", "<cell")) else f", in {self.function}"
        source = linecache.getline(self.filename, self.number).strip()
        return f"{where}{name}\n    {source}" if source else f"{where}{name}"


def short_name(filename: str) -> str:
    """Return the file name of a code object for display: `cell 9` for a cell on a rank, `string` for `<string>`."""
    return _CELL_OF_RANK.sub(r"\1", filename).strip("<>")


def calling_place(depth: int) -> Place:
    """Return the instruction that called us: in the first frame outside of meshbook, from `depth` frames up.

    It costs some hundred nanoseconds, so that every call can afford it. It keeps no frame and computes no line number.
    """
    try:
        frame = sys._getframe(depth)
    except ValueError:  # called from C, as a thread's first function: there is no line
        frame = sys._getframe()
    while is_ours(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def _cell_of(filename: str) -> str:
    """Return `Cell In[3]`, IPython's name for the file of a cell; empty for any other."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    try:
        named = shell.compile.format_code_name(filename) if shell is not None else None
    except Exception:  # another kind of shell: use the file name, since the error must still reach its reader
        named = None
    return " ".join(named) if named is not None else ""


# -- tracebacks ------------------------------------------------------------------------


def render_in_ipython(error: BaseException) -> list[str]:
    """Return the lines that IPython shows of an error of ours: without our frames that raised it."""
    table = sys.modules["IPython"].get_ipython().InteractiveTB
    trace = without_ours(error.__traceback__) or error.__traceback__
    return table.structured_traceback(type(error), error, trace, tb_offset=1)  # type: ignore[no-any-return]


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without our frames; None if there are no others."""
    kept: TracebackType | None = None
    entries: list[TracebackType] = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    for each in reversed(entries):
        if not is_ours(each.tb_frame.f_code.co_filename):
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def format_error(error: BaseException) -> str:
    """Format the traceback, its causes included, with the user's frames alone.

    Our frames are shown if there are no others, and the error is not one of ours either: then it is a bug of meshbook.
    """
    formatted = traceback.TracebackException(type(error), error, error.__traceback__)
    for raised, each in _chain(error, formatted):
        kept = [frame for frame in each.stack if not _is_noise(frame.filename)]
        if kept:
            each.stack = traceback.StackSummary.from_list(kept)
        elif type(raised).__module__.startswith("meshbook."):
            each.stack = None  # type: ignore[assignment]
    return "".join(formatted.format()).rstrip()


def format_frames(error: BaseException) -> str:
    """Format the user's frames alone, as lines of a traceback; empty if there are none."""
    frames = traceback.extract_tb(error.__traceback__)
    kept = [frame for frame in frames if not _is_noise(frame.filename)]
    return "".join(traceback.StackSummary.from_list(kept).format()).rstrip()


def name_cells(text: str) -> str:
    """Return the text of another process's error, with frames of this notebook's cells named, and their source lines.

    A process that was sent a class of a notebook has only the name of a file that does not exist.
    """
    return _FRAME.sub(_name_cell, text) if "IPython" in sys.modules else text


def _name_cell(found: re.Match[str]) -> str:
    indent, filename, number, rest, below = found.groups()
    if not (cell := _cell_of(filename)):
        return _CELL_OF_RANK.sub(r"<\1>", found[0])
    source = linecache.getline(filename, int(number)).strip()
    return f"{indent}{cell}, line {number}{rest}" + (below or (f"\n{indent}  {source}" if source else ""))


def headline(error: BaseException) -> str:
    """`ValueError: no such device`: the type and the first line of the text."""
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:
        text = "<exception str() failed>"  # as a traceback has it
    text = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _chain(
    error: BaseException, formatted: traceback.TracebackException
) -> Iterator[tuple[BaseException, traceback.TracebackException]]:
    """Yield an exception with its causes and the members of groups. Not recursive: a chain may have thousands."""
    waiting: list[tuple[BaseException | None, traceback.TracebackException | None]] = [(error, formatted)]
    while waiting:
        raised, formatted_each = waiting.pop()
        if raised is None or formatted_each is None:  # each exception of a circle is yielded once
            continue
        yield raised, formatted_each
        waiting += [(raised.__cause__, formatted_each.__cause__), (raised.__context__, formatted_each.__context__)]
        if isinstance(raised, BaseExceptionGroup):
            waiting += zip(raised.exceptions, formatted_each.exceptions or (), strict=False)
