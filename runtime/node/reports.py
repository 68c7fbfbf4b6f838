"""Error texts for an actor that raised, failed or was stopped: root cause, then location, then the failed callers.

    trainer.step() on rank {'gpus': 0/2} (procs-04d1.0, pid 4711) raised ZeroDivisionError: division by zero
    Traceback (most recent call last): ...
    which failed outer.fit() (controller, pid 4700):
      File ...

This file only makes texts; `hosted_actor` decides what to do.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from meshbook.runtime import monarch_texts
from meshbook.runtime.actor.context import Instance
from meshbook.runtime.errors import ActorError, CallError
from meshbook.runtime.gpu_errors import find_remedies, is_context_lost
from meshbook.runtime.resources import explain_limit
from meshbook.runtime.traces import format_error, format_frames, headline

_CONTEXT_LOST = (
    "the CUDA context of this process is lost, so each later use of the GPU fails there: kill() the process, and "
    "heal() the mesh"
)


def name_place(instance: Instance, endpoint: str = "") -> str:
    """Return `trainer.step() on rank {'gpus': 0/2} (procs-04d1.0, pid 4711)`. Call this in the actor's process."""
    what = f"{instance.name}.{endpoint}()" if endpoint else instance.name
    rank = f" on rank {instance.rank}" if len(instance.rank) else ""
    return f"{what}{rank} ({instance.proc_id}, pid {os.getpid()})"


def format_raised(where: str, error: BaseException) -> str:
    """Return the text of an exception with the user's lines. An error from another actor's call is kept as it is."""
    try:
        return _format_raised(where, error)
    except Exception as reason:  # no memory, or a program has replaced the formatter
        return f"{where} raised {type(error).__name__}; formatting it raised {type(reason).__name__}"


def _format_raised(where: str, error: BaseException) -> str:
    if isinstance(error, CallError) and error.__cause__ is None and error.__context__ is None:
        text = str(error) if isinstance(error, ActorError) else f"{type(error).__name__}: {error}"
        frames = format_frames(error)
        return f"{text}\nwhich failed {where}" + (f":\n{frames}" if frames else "")
    text = f"{where} raised {headline(error)}\n{format_error(error)}"
    if isinstance(error, MemoryError):
        return f"{text}\n{_format_memory()}"
    if isinstance(error, OSError | RuntimeError):
        # The folder of the file that stdout writes to: when full, it is not the fault of user code.
        output = Path("/proc/self/fd/1")
        limit = explain_limit(str(error), str(output.resolve().parent) if output.is_file() else "")
        lost = [_CONTEXT_LOST] if is_context_lost(str(error)) else []
        return "\n".join([text, *filter(None, [limit]), *lost, *find_remedies([str(error)])])
    return text


def _format_memory() -> str:
    """Return a text with the peak memory and the memory limit of this process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    had = f"the peak memory of this process is {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB"
    if limit == resource.RLIM_INFINITY:
        return had
    return f"{had}; its address space is limited to {limit >> 20} MiB (RLIMIT_AS, `ulimit -v`)"


def format_failed(instance: Instance, report: str, why: str = "") -> str:
    """Return the text of an actor's failure: the report, and `why` this ended the actor."""
    failed = monarch_texts.actor_failed(instance, instance.proc_id)
    return f"{report}\n{failed}: {why}" if why else f"{report}\n{failed}"


def format_stopped(instance: Instance, reason: str) -> str:
    """Return the text of an actor that was stopped."""
    return f"The actor {instance} in {instance.proc_id} is stopped: {reason}"
