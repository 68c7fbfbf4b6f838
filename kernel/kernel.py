"""`MeshKernel`: IPython's kernel as the controller of a mesh. Only what a kernel alone can do is here.

The magics are those of `%load_ext meshbook`; this adds interrupts that arrive while a cell waits for its ranks, and
an output channel that loses nothing.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

import zmq
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type

import meshbook
from meshbook.magics.extension import load
from meshbook.runtime.hosts.session import close_session


class MeshShell(ZMQInteractiveShell):
    """The shell of the kernel."""

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run code of the user's; not where the interrupt of its cell has come before it."""
        if self.kernel.is_interrupted:
            self.kernel.is_interrupted = False
            raise KeyboardInterrupt
        failed: bool = await super().run_code(code_obj, result, async_=async_)
        return failed


class MeshKernel(IPythonKernel):
    """The kernel named `meshbook`."""

    shell_class = Type(MeshShell)
    is_interrupted = False  # the request that is handled, and nobody has been told yet
    implementation = "meshbook"
    implementation_version = meshbook.__version__

    @property
    def banner(self) -> str:
        """What a console shows at its start."""
        return f"meshbook {meshbook.__version__}: %%mesh runs a cell on ranks; see %mesh --help\n{super().banner}"

    def start(self) -> None:
        """Start serving, with the magics loaded and the workers' parent warming up."""
        load(self.shell)
        super().start()

    async def interrupt_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Interrupt this process alone; runs on the control thread, also while the main thread is busy.

        The inherited one signals the whole process group, the workers of other libraries included.
        """
        os.kill(os.getpid(), signal.SIGINT)
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    def pre_handler_hook(self) -> None:
        """Take SIGINT over while a request is handled; `post_handler_hook` gives it back."""
        self.is_interrupted = False
        self.saved_sigint_handler = signal.signal(signal.SIGINT, self._on_interrupt)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt where it is meant: in the user's code, at once or when that begins.

        The inherited handler raises it anywhere. One that comes when a cell has just ended would cost the cell its
        reply, and the front end would wait for that for ever.
        """
        request = self.get_parent("shell").get("header", {}).get("msg_type")
        if request != "execute_request" or runs_a_cell(frame):
            raise KeyboardInterrupt
        self.is_interrupted = True

    def do_shutdown(self, restart: bool) -> dict[str, Any]:
        """End the run before the client's patience does: a front end kills a kernel after about 5 s."""
        close_session()
        reply: dict[str, Any] = super().do_shutdown(restart)
        return reply


def runs_a_cell(frame: FrameType | None) -> bool:
    """Whether IPython has called the code of a cell, somewhere up this stack."""
    while frame is not None:
        if frame.f_code is InteractiveShell.run_code.__code__:
            return True
        frame = frame.f_back
    return False


class MeshKernelApp(IPKernelApp):
    """The application that runs it."""

    name = "meshbook-kernel"
    kernel_class = MeshKernel

    def init_iopub(self, context: Any) -> None:
        """Bind the output channel without a high-water mark: at the default of 1000 ZeroMQ drops messages, and with
        them the `idle` that ends a cell."""
        make = context.socket

        def make_unbounded(kind: int, *arguments: Any, **keywords: Any) -> Any:
            socket = make(kind, *arguments, **keywords)
            if kind in (zmq.PUB, zmq.XPUB):
                socket.sndhwm = 0
            return socket

        context.socket = make_unbounded
        try:
            super().init_iopub(context)
        finally:
            del context.socket
