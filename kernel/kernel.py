"""`MeshKernel`: IPython's kernel as the controller of a mesh. Only features that need a kernel are here.

The magics are those of `%load_ext meshbook`. The kernel adds interrupts that arrive while a cell waits for its ranks,
answers to a front end while a cell runs, and an output channel without message loss.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import zmq
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp

import meshbook
from meshbook.kernel.services import Services
from meshbook.magics.cells.detach import end_run
from meshbook.magics.extension import load


class MeshKernel(IPythonKernel):
    """The kernel named `meshbook`."""

    implementation = "meshbook"
    implementation_version = meshbook.__version__
    # ipykernel sleeps for half a millisecond before each reply, for clients that read no output after it. Clients
    # detect the end of a cell by the `idle` that follows its output.
    _execute_sleep = 0.0

    @property
    def banner(self) -> str:
        """The text that a console shows at its start."""
        return f"meshbook {meshbook.__version__}: %%mesh runs a cell on ranks; see %mesh --help\n{super().banner}"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._services = Services(self)

    def start(self) -> None:
        """Start serving, with the magics loaded and the workers' forkserver warming up."""
        self.notebook = load(self.shell)
        super().start()

    async def shell_channel_thread_main(self, msg: list[Any]) -> None:
        """Dispatch a message of the shell channel; on the channel's thread."""
        if not self._services.take(msg):
            await super().shell_channel_thread_main(msg)

    async def shell_main(self, subshell_id: str | None, msg: list[Any]) -> None:
        """Handle a message of the shell channel; on the main thread, or that of a subshell."""
        try:
            await super().shell_main(subshell_id, msg)
        finally:
            if subshell_id is None:
                self._services.end(msg)

    def _publish_status(self, status: str, channel: str, parent: dict[str, Any] | None = None) -> None:
        self._services.publish_status(status, parent or self.get_parent(channel))

    def do_shutdown(self, restart: bool) -> dict[str, Any]:
        """End the run before the client's timeout: a front end kills a kernel after about 5 s."""
        end_run(self.notebook)
        reply: dict[str, Any] = super().do_shutdown(restart)
        return reply


PACKAGES = frozenset({"site-packages", "dist-packages"})


class MeshKernelApp(IPKernelApp):
    """The application that runs `MeshKernel`."""

    name = "meshbook-kernel"
    kernel_class = MeshKernel

    def init_path(self) -> None:
        """Add the notebook's folder to the import path after the standard library, as in a stock kernel.

        The kernelspec starts Python with -P, so that no file there shadows this package during its import. IPython
        would take -P for the user's choice, which PYTHONSAFEPATH is.
        """
        if "" in sys.path or self.ignore_cwd or os.environ.get("PYTHONSAFEPATH"):
            return
        packages = (place for place, entry in enumerate(sys.path) if Path(entry).name in PACKAGES)
        sys.path.insert(next(packages, 0), "")

    def init_iopub(self, context: Any) -> None:
        """Bind the output channel without a high-water mark.

        At the default of 1000 ZeroMQ drops messages, and with them the `idle` that ends a cell.
        """
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
