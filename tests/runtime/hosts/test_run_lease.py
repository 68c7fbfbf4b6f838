"""The agent of a detached run: its socket, and its standard input."""

from __future__ import annotations

import errno
import os
import socket
import time
import types
from pathlib import Path
from typing import Any, cast

import pytest

from meshbook.runtime.hosts import run_lease
from meshbook.runtime.hosts.lifeline import RUN_SOCKET, STATE_FILE, RunRequest, RunTaken, RunUnreachable, send_request
from meshbook.runtime.hosts.run_lease import RunLease
from tests.support import PATIENCE


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
    lease._listener = cast("Any", OverloadedListener(theirs))
    with pytest.raises(SystemExit):
        lease._accept_clients()
    assert ours.recv(1) == b""  # the request was read and refused
    ours.close()
    assert "cannot accept a connection" in caplog.text


def test_a_socket_whose_file_was_removed_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a run whose files a cleaner has removed can be neither listed nor ended."""
    monkeypatch.setattr(run_lease, "LOOK_SECONDS", 0.01)
    ours, nothing = types.SimpleNamespace(folder=str(tmp_path), run="3f9c01aa"), cast("Any", None)
    lease = RunLease(cast("Any", ours), nothing, nothing, nothing, nothing)
    lease._listen()
    (tmp_path / RUN_SOCKET).unlink()
    end = time.monotonic() + PATIENCE
    while True:
        try:
            answer, connection = send_request(tmp_path, RunRequest("status"))
            break
        except RunUnreachable:
            assert time.monotonic() < end
    connection.close()
    assert answer.status is not None
    assert answer.status.run == "3f9c01aa"


def test_a_takeover_leaves_the_state_that_the_next_detach_has_written(tmp_path: Path) -> None:
    """The agent may read that the run was taken only after its client has detached again."""
    nothing = cast("Any", None)
    lease = RunLease(cast("Any", types.SimpleNamespace(folder=str(tmp_path))), nothing, nothing, nothing, nothing)
    (tmp_path / STATE_FILE).write_bytes(b"the next state")
    lease._handle(RunTaken())
    assert (tmp_path / STATE_FILE).read_bytes() == b"the next state"


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
