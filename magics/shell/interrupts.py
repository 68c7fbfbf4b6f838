"""Ctrl-C in a kernel, raised in the code of cells and nowhere else; in our kernel and in a stock one alike.

ipykernel raises it wherever it comes. When a cell has just ended that costs the cell its reply, and the front end waits
for that for ever; a second Ctrl-C, to a cell that is just ending by the first, is all it takes.

Ctrl-C while a coroutine of ours waits.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from IPython.core.interactiveshell import InteractiveShell


class CellInterrupts:
    """What the kernel of a shell does at SIGINT while it handles a request. `%%mesh` cells have a way of their own."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._kernel = shell.kernel
        self._run_code = shell.run_code
        self._is_early = False  # one has come for this request, and its cell has not begun
        self._is_begun = False  # a sync piece of a cell's code is about to run, or runs
        self._woken: asyncio.AbstractEventLoop | None = None  # which loop a signal wakes

    def install(self) -> None:
        """Take the places of ipykernel's hook and of IPython's method."""
        self._kernel.pre_handler_hook = self.begin_request
        self._shell.run_code = self.run_code

    def begin_request(self) -> None:
        """The kernel handles a request; its `post_handler_hook` gives SIGINT back."""
        self._is_early = False
        self._wake_loop()
        self._kernel.saved_sigint_handler = signal.signal(signal.SIGINT, self._on_signal)

    def _wake_loop(self) -> None:
        """ipykernel cancels a cell that awaits by a callback of the loop, which would sleep on."""
        loop = asyncio._get_running_loop()
        if loop is not None and loop is not self._woken:
            self._woken = loop
            let_signals_wake(loop)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        request = self._kernel.get_parent("shell").get("header", {}).get("msg_type")
        if request != "execute_request" or self._is_begun or runs_a_cell(frame):
            raise KeyboardInterrupt
        self._is_early = True

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run code of a cell; not where its interrupt has come before it."""
        before = self._is_begun
        try:
            # First: one that came between the look below and IPython's own frame was noted as early, and that for ever.
            # Not of code that awaits, since the loop runs between its steps; nor beside the main thread.
            self._is_begun = before or (not async_ and threading.current_thread() is threading.main_thread())
            if self._is_early:
                self._is_early = False
                raise KeyboardInterrupt
            failed: bool = await self._run_code(code_obj, result, async_=async_)
        finally:
            self._is_begun = before
        return failed


def runs_a_cell(frame: FrameType | None) -> bool:
    """Whether IPython has called the code of a cell, somewhere up this stack."""
    while frame is not None:
        if frame.f_code is InteractiveShell.run_code.__code__:
            return True
        frame = frame.f_back
    return False


T = TypeVar("T")


async def run_interruptible(work: Coroutine[Any, Any, T], act: Callable[[], object]) -> T:
    """Await this to its end; Ctrl-C does what `act` does, in the loop, and nothing else.

    A signal that comes before we have taken it over lets the kernel cancel the cell. That is an interrupt like any
    other: a cell that was just dropped would leave its ranks running.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    with interruptible(lambda: loop.call_soon_threadsafe(act)):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                if (caller := asyncio.current_task()) is not None:
                    caller.uncancel()
                act()
    return task.result()


@contextmanager
def interruptible(act: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C does this, and nothing else: the kernel's own handler does not wake the loop, and is seconds late."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda number, frame: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def let_signals_wake(loop: asyncio.AbstractEventLoop) -> None:
    """Have a signal wake this loop, so that what its handler cancels there is cancelled now, and not seconds later."""
    ours, pythons = socket.socketpair()
    for end in (ours, pythons):
        end.setblocking(False)
    signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    pythons.detach()  # it lasts as long as the process
    loop.add_reader(ours, lambda: ours.recv(4096))
