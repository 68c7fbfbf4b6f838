"""Errors of ordinary cells as IPython shows them, without meshbook's own frames: they end at the user's line.

The error and the line of the call explain a wrong call; frames inside meshbook do not help the user. `%xmode Verbose`
shows those frames as well.
"""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any

from meshbook.runtime.traces import without_ours


def trim_tracebacks(shell: Any) -> None:
    """Make a shell hide our frames from now on."""
    table = shell.InteractiveTB
    show = table.structured_traceback

    @functools.wraps(show)
    def fold(etype: Any, evalue: Any = None, etb: TracebackType | None = None, *args: Any, **kwargs: Any) -> list[str]:
        if table.mode != "Verbose":
            _trim_causes(evalue)
            etb = without_ours(etb) or etb
        return show(etype, evalue, etb, *args, **kwargs)  # type: ignore[no-any-return]

    table.structured_traceback = fold


def _trim_causes(error: BaseException | None) -> None:
    """Trim the tracebacks of causes in place, since IPython reads them from the exceptions."""
    seen = {id(error)}
    cause = error.__cause__ or error.__context__ if error is not None else None
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        cause.__traceback__ = without_ours(cause.__traceback__)  # without user frames, its last line is enough
        cause = cause.__cause__ or cause.__context__
