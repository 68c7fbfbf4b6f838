"""The keyboard of the user who runs a cell: reads a line through the front end's prompt, or on a terminal.

For a thread of its own, one prompt at a time. A call blocks until there is an answer or the prompt is withdrawn.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import termios
from collections.abc import Iterator
from typing import Any, Protocol

import zmq

logger = logging.getLogger(__name__)
END = "\x04"  # sent by a front end for Ctrl-D


class PromptWithdrawn:
    """Withdraws a prompt from another thread."""

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()

    def fileno(self) -> int:
        """The file descriptor, readable once the prompt is withdrawn."""
        return self._reads

    def is_set(self) -> bool:
        return bool(select.select([self], [], [], 0)[0])

    def set(self) -> None:
        os.write(self._writes, b".")

    def clear(self) -> None:
        while self.is_set():
            os.read(self._reads, 64)

    def close(self) -> None:
        os.close(self._reads)
        os.close(self._writes)


class Keyboard(Protocol):
    """A source of lines. `refusal` is the reason why it has no prompt; empty if it has one."""

    refusal: str

    def ask(self, prompt: str, withdrawal: PromptWithdrawn, *, is_password: bool) -> str | None:
        """Return the line that a person enters; None if the prompt was withdrawn. EOFError at the end of all input."""


class NoKeyboard:
    """No keyboard."""

    def __init__(self, refusal: str) -> None:
        self.refusal = refusal

    def ask(self, prompt: str, withdrawal: PromptWithdrawn, *, is_password: bool) -> str | None:
        raise EOFError(self.refusal)


class KernelKeyboard:
    """The prompt of the front end that runs the present cell."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._parent = kernel.get_parent("shell")
        self._ident = kernel._get_shell_context_var(kernel._shell_parent_ident)
        self.refusal = "" if kernel._allow_stdin else "this front end does not support input requests"

    def ask(self, prompt: str, withdrawal: PromptWithdrawn, *, is_password: bool) -> str | None:
        socket, session = self._kernel.stdin_socket, self._kernel.session
        with contextlib.suppress(zmq.Again):  # answers to withdrawn prompts
            while True:
                socket.recv_multipart(zmq.NOBLOCK)
        content = {"prompt": prompt, "password": is_password}
        request = session.send(socket, "input_request", content, self._parent, ident=self._ident)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(withdrawal, zmq.POLLIN)
        while True:
            poller.poll()
            if withdrawal.is_set():
                return None
            value = self._receive(request["header"]["msg_id"])
            if value == END:
                raise EOFError
            if value is not None:
                return value

    def _receive(self, request: str) -> str | None:
        try:
            _, reply = self._kernel.session.recv(self._kernel.stdin_socket)
        except ValueError:
            logger.warning("discarded an invalid message on the stdin channel", exc_info=True)
            return None
        # Not all front ends set the parent of a reply; those that do may answer a withdrawn prompt.
        if reply is None or reply["parent_header"].get("msg_id", request) != request:
            return None
        return str(reply["content"].get("value", ""))


class TerminalKeyboard:
    """The terminal that IPython runs on."""

    refusal = ""

    def ask(self, prompt: str, withdrawal: PromptWithdrawn, *, is_password: bool) -> str | None:
        with _without_echo() if is_password else contextlib.nullcontext():
            print(prompt, end="", flush=True)
            # Python reads ahead from a pipe, so select() would miss lines in its buffer.
            if sys.stdin.isatty() and withdrawal in select.select([sys.stdin, withdrawal], [], [])[0]:
                print()
                return None
            line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")


@contextlib.contextmanager
def _without_echo() -> Iterator[None]:
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        print()


def keyboard_for(shell: Any) -> Keyboard:
    """The keyboard of the user who runs the present cell."""
    kernel = getattr(shell, "kernel", None)
    return TerminalKeyboard() if kernel is None else KernelKeyboard(kernel)
