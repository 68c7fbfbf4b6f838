"""The door of a run that was detached."""

from __future__ import annotations

import errno
import socket
import types
from pathlib import Path
from typing import Any, cast

import pytest

from meshbook.runtime.hosts import run_lease
from meshbook.runtime.hosts.run_lease import RunLease


class Door:
    """Lets one in after there was no descriptor for him; then the test is over."""

    def __init__(self, visitor: Any) -> None:
        self._comings = [OSError(errno.EMFILE, "Too many open files"), (visitor, "")]

    def accept(self) -> Any:
        if not self._comings:
            raise SystemExit
        if isinstance(coming := self._comings.pop(0), OSError):
            raise coming
        return coming


def test_whoever_comes_after_there_was_no_descriptor_is_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody could attach to the run, nor end it, as long as it is kept."""
    monkeypatch.setattr(run_lease, "PAUSE_SECONDS", 0.0)
    ours, theirs = socket.socketpair()
    ours.sendall(b"no request\n")
    nothing = cast("Any", None)
    kept = RunLease(cast("Any", types.SimpleNamespace(folder=str(tmp_path))), nothing, nothing, nothing, nothing)
    with pytest.raises(SystemExit):
        kept._attend_door(cast("Any", Door(theirs)))
    assert ours.recv(1) == b""  # he was heard, and sent away
    ours.close()
    assert "cannot accept a connection" in caplog.text
