"""The agent of a detached run: its socket, and its standard input."""

from __future__ import annotations

import errno
import os
import socket
import types
from pathlib import Path
from typing import Any, cast

import pytest

from meshbook.runtime.hosts import run_lease
from meshbook.runtime.hosts.run_lease import RunLease


class OverloadedListener:
    """Accepts one client after a failure for lack of descriptors; then the test is over."""

    def __init__(self, client: Any) -> None:
        self._results = [OSError(errno.EMFILE, "Too many open files"), (client, "")]

    def accept(self) -> Any:
        if not self._results:
            raise SystemExit
        if isinstance(result := self._results.pop(0), OSError):
            raise result
        return result


def test_clients_are_accepted_again_after_a_lack_of_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise no client could attach to the run, or end it, until its time limit."""
    monkeypatch.setattr(run_lease, "PAUSE_SECONDS", 0.0)
    ours, theirs = socket.socketpair()
    ours.sendall(b"no request\n")
    nothing = cast("Any", None)
    lease = RunLease(cast("Any", types.SimpleNamespace(folder=str(tmp_path))), nothing, nothing, nothing, nothing)
    with pytest.raises(SystemExit):
        lease._accept_clients(cast("Any", OverloadedListener(theirs)))
    assert ours.recv(1) == b""  # the request was read and refused
    ours.close()
    assert "cannot accept a connection" in caplog.text


def test_forgetting_standard_input_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = cast("Any", None)
    lease = RunLease(cast("Any", types.SimpleNamespace(folder=str(tmp_path))), nothing, nothing, nothing, nothing)
    reading, writing = os.pipe()
    os.write(writing, b"not read")
    try:
        with os.fdopen(reading) as standard_input:
            monkeypatch.setattr("sys.stdin", standard_input)
            before = _lowest_free_descriptor()
            lease.forget(reading)
            assert _lowest_free_descriptor() == before
            assert standard_input.read() == ""  # it is the null device now
    finally:
        os.close(writing)


def _lowest_free_descriptor() -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor
