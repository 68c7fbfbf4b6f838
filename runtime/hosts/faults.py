"""Unhandled failures in a client: each is passed to `unhandled_fault_hook`, which users may replace.

The default prints the failure and ends a script with exit status 1. In a notebook a fault is only shown. By default a
failure that a caller received as an exception is only logged, and the hook waits while a caller may still receive it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

from meshbook.runtime.actor.failure import MeshFailure, Receipt
from meshbook.runtime.errors import format_help
from meshbook.runtime.node.ledger import OwnedMesh

logger = logging.getLogger(__name__)
PATIENCE = 1.0  # seconds for a hook, when the session is closed meanwhile
Hook: TypeAlias = Callable[[MeshFailure], object]


def default_hook(failure: MeshFailure) -> None:
    """Print the failure, then raise SystemExit(1), except in a notebook's kernel, which continues."""
    print(f"{failure}\n{format_help('meshfailure')}", file=sys.stderr, flush=True)
    kernels = sys.modules.get("ipykernel.kernelapp")
    if kernels is None or not kernels.IPKernelApp.initialized():
        raise SystemExit(1)


def strict_hook(failure: MeshFailure) -> None:
    """Do the same as `default_hook`, also for failures that a caller has received. The default under the alias."""
    default_hook(failure)


class _FaultHook:
    """The hook of this process."""

    current: Hook = staticmethod(default_hook)
    default: Hook = staticmethod(default_hook)


def unhandled_fault_hook() -> Hook:
    """Return the function that is called with each unhandled failure."""
    return _FaultHook.current


def set_unhandled_fault_hook(hook: Hook) -> None:
    """Replace the hook; TypeError if it is not callable."""
    if not callable(hook):
        raise TypeError(f"unhandled_fault_hook must be callable with a MeshFailure, not {hook!r}")
    _FaultHook.current = staticmethod(hook)


def is_default(hook: Hook) -> bool:
    """Whether this hook is a default, not one set by a user."""
    return hook in (default_hook, strict_hook)


def make_default_strict() -> None:
    """End scripts also for failures that a caller has received, unless the user sets a hook."""
    _FaultHook.default = staticmethod(strict_hook)
    if _FaultHook.current is default_hook:
        _FaultHook.current = staticmethod(strict_hook)


class HookedModule(ModuleType):
    """A module whose attribute `unhandled_fault_hook` reads the hook, and replaces it on assignment."""

    @property
    def unhandled_fault_hook(self) -> Hook:
        return unhandled_fault_hook()

    @unhandled_fault_hook.setter
    def unhandled_fault_hook(self, hook: Hook) -> None:
        set_unhandled_fault_hook(hook)

    @unhandled_fault_hook.deleter
    def unhandled_fault_hook(self) -> None:
        set_unhandled_fault_hook(_FaultHook.default)  # unittest.mock ends a patch by deleting

    def __reduce__(self) -> tuple[Any, ...]:
        # By name: cloudpickle does that for plain modules only, and definitions in a notebook refer to this module.
        return importlib.import_module, (self.__name__,)


Fault: TypeAlias = tuple[OwnedMesh, MeshFailure]


class UnhandledFaults:
    """The faults of one session. A separate thread passes each to the hook once: the hook may use the runtime."""

    def __init__(self) -> None:
        self.ended_by = ""  # the failure that ends this process
        self.has_unreceived = False  # whether there was a failure at the end that no caller had received
        self._queue: queue.SimpleQueue[Fault | Receipt | None] = queue.SimpleQueue()
        self._held: list[Fault] = []  # no caller has received these yet, but one still can
        self._lock = threading.Lock()  # guards the thread
        self._thread: threading.Thread | None = None
        self._closed = False

    def report(self, owned_mesh: OwnedMesh, failure: MeshFailure) -> None:
        """Queue a fault; never blocks."""
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="meshbook faults", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # too many threads already
                    print(f"{failure}\n(unhandled_fault_hook was not called: {error})", file=sys.stderr)
                    return
                self._thread = thread
        self._queue.put((owned_mesh, failure))

    def close(self) -> None:
        """Accept no more faults. Wait briefly for a running hook, unless the hook itself called this.

        Failures that no caller has received are printed.
        """
        with self._lock:
            self._closed = True
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)
        for failure in self._take_unreceived():
            self.has_unreceived = True
            print(failure, file=sys.stderr, flush=True)

    def _take_unreceived(self) -> list[MeshFailure]:
        """Return the failures that no caller has received, and those that came too late for the default hook."""
        held, self._held = self._held, []
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if isinstance(item, tuple) and unhandled_fault_hook() is default_hook:
                    held.append(item)
        return [failure for _, failure in held if not failure.was_received]

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._closed:
                return self._queue.put(item)  # left for `close`
            if isinstance(item, Receipt):
                self._held = [fault for fault in self._held if not self._handle(*fault)]
            elif not self._handle(*item):
                self._held.append(item)
                for receipt in item[1].receipts:
                    receipt.watch(self._queue)
        return None

    def _handle(self, owned_mesh: OwnedMesh, failure: MeshFailure) -> bool:
        """Call the hook; return False if it has to wait for a caller that may still receive the failure."""
        hook = unhandled_fault_hook()
        if hook is default_hook and failure.was_received:
            logger.error("%s", failure)
            return True
        if hook is default_hook and failure.may_be_received:
            return False
        try:
            # In the context where the mesh was spawned: in a notebook it determines the cell that shows the output.
            owned_mesh.context.run(hook, failure)
        except SystemExit as exit_:
            self.ended_by = f"{failure!r}: {failure.report().partition(chr(10))[0]}"
            end_process(exit_)
        except BaseException:  # raised by the user's hook: print it, and still call the hook for the next fault
            traceback.print_exc()
        return True


def end_process(exit_: SystemExit) -> None:
    """End the process from a thread that is not the main one, including its exit handlers.

    This does not depend on the main thread, which may wait for something that never comes.
    """
    code = exit_.code
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    try:
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code or 0)
