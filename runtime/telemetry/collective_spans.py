"""Spans of collectives: how long the threads of this process spend in calls of torch.distributed.

The functions themselves are not replaced: torch.compile identifies them by identity, and users may have imported them
before. torch wraps each one (`c10d_logger._exception_logger`); the function in that wrapper's closure is replaced.
DistributedDataParallel reduces gradients in C++ within `backward`, so backward passes are recorded as well, with
whether they reduce.

Known limits: waits for a GPU count on the line that synchronizes with it. A version of torch without these wrappers is
not recorded.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from threading import get_ident
from types import CellType, FunctionType
from typing import Any

from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.telemetry.spans import Recorder, now
from meshbook.runtime.telemetry.status_writer import StatusWriter

C10D = "torch.distributed.distributed_c10d"
_WRAPPERS = "c10d_logger.py"
_RUN, _PREPARE = "_engine_run_backward", "prepare_for_backward"
_MARK = "__meshbook_recorded__"


def watch_collectives(recorder: Recorder, status: StatusWriter) -> bool:
    """Record collectives, and report them on the status page; return False if torch.distributed is not imported yet."""
    c10d = sys.modules.get(C10D)
    if c10d is None or not recorder.on:
        return False
    for name, function in list(vars(c10d).items()):
        if not name.startswith("_") and (cell := _wrapped_cell(function)) is not None:
            wrapped: Callable[..., Any] = cell.cell_contents
            if not hasattr(wrapped, _MARK):
                cell.cell_contents = _recorded(wrapped, name, recorder, status)
    _watch_waits(c10d, recorder, status)
    _watch_backward(recorder, status)
    return True


def _wrapped_cell(function: Any) -> CellType | None:
    """Return the cell in which torch's wrapper keeps the wrapped function."""
    if type(function) is not FunctionType or not function.__code__.co_filename.endswith(_WRAPPERS):
        return None
    if function.__code__.co_freevars != ("func",):
        return None
    (cell,) = function.__closure__ or ()
    return cell


def _recorded(function: Callable[..., Any], name: str, recorder: Recorder, status: StatusWriter) -> Callable[..., Any]:
    names = list(inspect.signature(function).parameters)
    place = names.index("group") if "group" in names else len(names)

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        if thread in recorder.open:  # within another collective, which is the one that the user called
            return function(*args, **kwargs)
        group = kwargs.get("group") if len(args) <= place else args[place]
        start, origin, link = now(), current_origin(), (getattr(group, "group_name", ""),)
        try:
            recorder.open[thread] = ("collective", start, 0, thread, name, origin, *link)
            status.collectives(len(recorder.open))
            return function(*args, **kwargs)
        finally:
            recorder.open.pop(thread, None)
            status.collectives(len(recorder.open))
            recorder.add(("collective", start, now(), thread, name, origin, *link))

    setattr(recorded, _MARK, True)
    return recorded


def _watch_waits(c10d: Any, recorder: Recorder, status: StatusWriter) -> None:
    """Record `work.wait()` likewise, which waits for an asynchronous collective."""
    known = getattr(getattr(c10d, "Work", None), "wait", None)
    if known is None or hasattr(known, _MARK):
        return

    # By this name and first argument, pybind11 recognizes that it must not call a subclass's `wait` from here again.
    @functools.wraps(known)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        if thread in recorder.open:
            return known(self, *args, **kwargs)
        start, origin = now(), current_origin()
        try:
            recorder.open[thread] = ("collective", start, 0, thread, "work.wait", origin)
            status.collectives(len(recorder.open))
            return known(self, *args, **kwargs)
        finally:
            recorder.open.pop(thread, None)
            status.collectives(len(recorder.open))
            recorder.add(("collective", start, now(), thread, "work.wait", origin))

    setattr(wait, _MARK, True)
    c10d.Work.wait = wait


def _watch_backward(recorder: Recorder, status: StatusWriter) -> None:
    """Record backward passes; the model's reducer marks beforehand those that reduce gradients.

    Such a pass counts as a collective on the status page once this rank has computed its gradients: from then on it
    waits for the other ranks.
    """
    autograd, reducer = sys.modules["torch.autograd"], getattr(sys.modules["torch.distributed"], "Reducer", None)
    run, prepare = getattr(autograd, _RUN, None), getattr(reducer, _PREPARE, None)
    if run is None or prepare is None or hasattr(run, _MARK):  # another version of torch
        return
    reducing: set[int] = set()  # threads in such a pass

    @functools.wraps(prepare)
    def prepare_for_backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        reducing.add(get_ident())
        return prepare(self, *args, **kwargs)

    @functools.wraps(run)
    def run_backward(roots: Any, *args: Any, **kwargs: Any) -> Any:
        start, thread, origin = now(), get_ident(), current_origin()
        link = ("",) if thread in reducing else ()
        reducing.discard(thread)

        def begin_wait() -> None:
            recorder.open[thread] = ("backward", start, 0, thread, "backward", origin)
            status.collectives(len(recorder.open))

        # The first hook of the pass queues this callback before the reducer queues its own, which waits.
        root = next(iter(roots), None)
        node = getattr(root, "grad_fn", None) or getattr(root, "node", None)
        queue = autograd.Variable._execution_engine.queue_callback
        hook = node.register_prehook(lambda gradients: queue(begin_wait)) if link and node is not None else None
        try:
            return run(roots, *args, **kwargs)
        finally:
            if hook is not None:
                hook.remove()
                recorder.open.pop(thread, None)
                status.collectives(len(recorder.open))
            recorder.add(("backward", start, now(), thread, "backward", origin, *link))

    setattr(run_backward, _MARK, True)
    setattr(reducer, _PREPARE, prepare_for_backward)
    setattr(autograd, _RUN, run_backward)
