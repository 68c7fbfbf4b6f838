"""A kernel without a process: keeps what is sent on its output channel."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest


class FakeKernel:
    """As much of a kernel as a publisher uses. `parent` is the cell that runs; `sent` has kind, content, parent."""

    def __init__(self) -> None:
        self.parent = "cell 1"
        self.sent: list[tuple[str, dict[str, Any], str]] = []
        self.has_sent = threading.Event()
        self.session = self
        self.iopub_socket = "iopub"

    def get_parent(self, channel: str) -> str:
        assert channel == "shell"
        return self.parent

    def send(self, socket: str, kind: str, content: dict[str, Any], *, parent: str, ident: bytes) -> None:
        assert (socket, ident) == ("iopub", f"topic.{kind}".encode())
        self.sent.append((kind, content, parent))
        self.has_sent.set()

    def _topic(self, kind: str) -> bytes:
        return f"topic.{kind}".encode()

    @property
    def texts(self) -> list[tuple[str, str]]:
        """The cell and the text of each stream message."""
        return [(parent, content["text"]) for kind, content, parent in self.sent if kind == "stream"]


class FakeEvents:
    """IPython's events: `trigger` calls what is registered."""

    def __init__(self) -> None:
        self._callbacks: list[tuple[str, Any]] = []

    def register(self, event: str, callback: Any) -> None:
        self._callbacks.append((event, callback))

    def unregister(self, event: str, callback: Any) -> None:
        self._callbacks.remove((event, callback))

    def trigger(self, event: str, *arguments: Any) -> None:
        for _, callback in [each for each in self._callbacks if each[0] == event]:
            callback(*arguments)


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def shell(kernel: FakeKernel) -> Any:
    """An IPython shell, as far as it leads to its kernel."""
    return SimpleNamespace(kernel=kernel, events=FakeEvents())
