"""Ctrl-C in a kernel: raise KeyboardInterrupt only in the code of cells; in our kernel and in a stock one alike.

ipykernel raises it at any place. If a cell has just ended, that costs the cell its reply, and the front end waits for
the reply without end. A second Ctrl-C while a cell ends by the first one is enough.

`run_interruptible` and `interruptible` handle Ctrl-C while our code waits.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, TypeVar

from IPython.core.interactiveshell import InteractiveShell


class CodeInterrupts:
    """Raises interrupts in the code of a cell alone. One that comes between two statements is raised in the next.

    `outer`: the functions of an outer cell that runs this one, at which the stack of this one ends.
    """

    def __init__(self, shell: Any, outer: Collection[CodeType] = ()) -> None:
        self._shell = shell
        self._run_code = shell.run_code
        self._outer = outer
        self.is_early = False  # an interrupt came while no code ran, and is raised as the next piece begins
        self._is_begun = False  # a sync piece of the cell's code is about to run, or runs

    def install(self) -> None:
        """Replace IPython's method."""
        self._shell.run_code = self.run_code

    def remove(self) -> None:
        """Put the method back that was there before."""
        self._shell.run_code = self._run_code

    def interrupt(self, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt if the code of the cell runs; else keep it for the next piece."""
        if self._is_begun or self._runs_code(frame):
            raise KeyboardInterrupt
        self.is_early = True

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run code of the cell, unless its interrupt came before it."""
        before = self._is_begun
        try:
            # First: a SIGINT between the check below and IPython's own frame would be stored as early, and never be
            # raised. Not for code that awaits, since the loop runs between its steps; nor on other threads than the
            # main one.
            self._is_begun = before or (not async_ and threading.current_thread() is threading.main_thread())
            if self.is_early:
                self.is_early = False
                raise KeyboardInterrupt
            failed: bool = await self._run_code(code_obj, result, async_=async_)
        finally:
            self._is_begun = before
        return failed

    def _runs_code(self, frame: FrameType | None) -> bool:
        """Whether IPython called the code of the cell in this stack."""
        while frame is not None and frame.f_code not in self._outer:
            if frame.f_code is InteractiveShell.run_code.__code__:
                return True
            frame = frame.f_back
        return False


class CellInterrupts(CodeInterrupts):
    """The SIGINT handling of a kernel while it handles a request. `%%mesh` cells handle SIGINT themselves."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._kernel = shell.kernel
        self._woken: asyncio.AbstractEventLoop | None = None  # the loop that a signal wakes

    def install(self) -> None:
        """Replace ipykernel's hook and IPython's method."""
        super().install()
        self._kernel.pre_handler_hook = self.begin_request

    def begin_request(self) -> None:
        """Install our handler as the kernel begins a request; its `post_handler_hook` restores SIGINT."""
        self.is_early = False
        # Signals wake the loop: ipykernel cancels an awaiting cell by a callback, which does not wake it.
        loop = asyncio._get_running_loop()
        if loop is not None and loop is not self._woken:
            self._woken = loop
            let_signals_wake(loop)
        self._kernel.saved_sigint_handler = signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._kernel.get_parent("shell").get("header", {}).get("msg_type") != "execute_request":
            raise KeyboardInterrupt
        self.interrupt(frame)


T = TypeVar("T")


async def run_interruptible(work: Coroutine[Any, Any, T], act: Callable[[], object]) -> T:
    """Await this to its end; Ctrl-C calls `act` in the loop, and does nothing else.

    A signal before our handler is installed makes the kernel cancel the cell. That counts as an interrupt, too: a cell
    that is only dropped would leave its ranks running.
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
    """Make Ctrl-C call only `act`: the kernel's own handler does not wake the loop, and is seconds late."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda number, frame: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def let_signals_wake(loop: asyncio.AbstractEventLoop) -> None:
    """Have a signal wake this loop. Otherwise a task that its handler cancels is cancelled seconds later."""
    ours, pythons = socket.socketpair()
    for end in (ours, pythons):
        end.setblocking(False)
    signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    pythons.detach()  # it lasts as long as the process
    loop.add_reader(ours, lambda: ours.recv(4096))
