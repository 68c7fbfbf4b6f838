"""An exception in a cell as data: its frames, its rendering, and whether the failure of another rank caused it."""

from __future__ import annotations

import dataclasses
import gc
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from types import TracebackType

from meshbook.runtime.cells.outcome import Frame, RankError
from meshbook.runtime.cells.values import pack
from meshbook.runtime.traces import is_ours

MESSAGE_CHARACTERS = 20_000  # it is shown up to three times
_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_IPYTHON = "/site-packages/IPython/"
# The errors of a rank whose peer in a collective is gone (gloo, NCCL, the store, plain sockets).
_PEER_GONE = re.compile(
    r"connection (was )?(closed|reset)( by peer)?|broken pipe|ncclRemoteError|NCCL communicator was aborted"
    r"|remote process exited|socket Timeout|Connection refused",
    re.IGNORECASE,
)


def make_rank_error(error: BaseException, rendered: Sequence[str]) -> RankError:
    """Convert an exception; `rendered` is the traceback as IPython prints it."""
    cause, frames = error.__context__, traceback.extract_tb(error.__traceback__)
    if isinstance(cause, KeyboardInterrupt) and frames and _IPYTHON in frames[-1].filename:
        # An error in IPython's own code, which hides an interrupt: it fails so when it starts a shell command.
        return dataclasses.replace(make_rank_error(cause, ()), frames=frames_of(error))
    kind = "interrupted" if isinstance(error, KeyboardInterrupt) else "raised"
    is_consequence = type(error).__name__ in ("DistBackendError", "DistNetworkError") or (
        isinstance(error, ConnectionError | RuntimeError) and _PEER_GONE.search(str(error)) is not None
    )
    return RankError(
        kind=kind,  # type: ignore[arg-type]
        type_name=type(error).__name__,
        message=_message_of(error),
        frames=frames_of(error),
        rendered=tuple(rendered),
        is_consequence=is_consequence,
        pickled=pack(error)[0],
    )


def with_causes(error: BaseException) -> list[BaseException]:
    """Return the error, its causes and contexts, and the parts of exception groups."""
    found: list[BaseException] = [error]
    for each in found:
        parts = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        more = filter(None, (each.__cause__, each.__context__, *parts))
        found += [other for other in more if all(other is not known for known in found)]
    return found


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a GPU without free memory has caused it."""
    kind = getattr(sys.modules.get("torch"), "OutOfMemoryError", ())
    return any(isinstance(each, kind) for each in with_causes(error))


def drop_local_variables(error: BaseException) -> None:
    """Drop the local variables of the frames of an error, which keep tensors alive as long as the error is known."""
    for each in with_causes(error):
        traceback.clear_frames(each.__traceback__)
        for frame, _ in traceback.walk_tb(each.__traceback__):
            frame.f_locals  # noqa: B018 - until Python 3.12 a dict that a debugger or a rendering has filled
    gc.collect()


def make_quit_error(error: BaseException) -> RankError:
    """The error of a cell whose debugger a person has quit by `q`, without the debugger's own frames."""
    frames = frames_of(error)
    while frames and not frames[-1].is_user:
        frames = frames[:-1]
    return RankError("raised", type(error).__name__, "the user quit the debugger", frames)


def format_interrupt(error: KeyboardInterrupt) -> RankError:
    """Convert an interrupt after the end of the cell's own code. An exception of that code supplies the frames."""
    converted = make_rank_error(error, ())
    cause = error.__context__
    return converted if converted.frames or cause is None else dataclasses.replace(converted, frames=frames_of(cause))


def _message_of(error: BaseException) -> str:
    try:
        text = "\n".join([str(error), *notes_of(error)])
    except Exception as trouble:
        return f"<exception str() failed: {type(trouble).__name__}>"
    if len(text) <= MESSAGE_CHARACTERS:
        return text
    return f"{text[:MESSAGE_CHARACTERS]}… ({len(text):,} characters)"


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of the exception (PEP 678), which belong below its message."""
    notes = getattr(error, "__notes__", ())
    return [str(note) for note in notes] if isinstance(notes, list | tuple) else []


def frames_of(error: BaseException) -> tuple[Frame, ...]:
    """Return the frames from the cell's first on; those above it are the runtime's."""
    if isinstance(error, SyntaxError) and error.filename is not None and error.__traceback__ is not None:
        own = _after_the_runtime(error.__traceback__)
        if not own or not own[-1].filename.startswith("<cell"):
            text = (error.text or "").rstrip("\n")
            return (*own, Frame(error.filename, error.lineno or 0, "<module>", text))
        return tuple(own)
    return tuple(_after_the_runtime(error.__traceback__))


def _after_the_runtime(trace: TracebackType | None) -> list[Frame]:
    frames = [
        Frame(
            filename=summary.filename,
            line=summary.lineno or 0,
            function=summary.name,
            source=linecache.getline(summary.filename, summary.lineno or 0).rstrip("\n"),
            is_user=is_user_code(summary.filename),
        )
        for summary in traceback.extract_tb(trace)
    ]
    while frames and frames[-1].function == "_on_signal" and is_ours(frames[-1].filename):
        frames.pop()  # our handler of SIGINT: the user's code was at the frame before
    first = next((index for index, frame in enumerate(frames) if frame.filename.startswith("<cell")), len(frames))
    return frames[first:]


def is_user_code(filename: str) -> bool:
    """Whether the code is of a cell, or of a file that is neither a library's nor ours."""
    if filename.startswith("<"):
        return filename.startswith("<cell")
    return not filename.startswith(_LIBRARIES) and "site-packages" not in filename and not is_ours(filename)
