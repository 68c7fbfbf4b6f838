"""The last message to a spare, which two threads may send."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from meshbook.runtime.hosts.spares import Spare


def test_two_threads_that_send_close_the_descriptor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spare ends by itself while the host actor dismisses it together with its mesh."""
    reader, writer = os.pipe()
    spare, write, others = Spare(cast("Any", None), writer), os.write, []

    def write_while_another_thread_sends(descriptor: int, word: bytes) -> int:
        if not others:
            others.append(descriptor)
            spare.send(b"")
            others.append(os.dup(reader))  # a file opened meanwhile gets the number
        return write(descriptor, word)

    monkeypatch.setattr(os, "write", write_while_another_thread_sends)
    spare.send(b"rank")
    monkeypatch.undo()
    assert os.read(reader, 10) == b"rank"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writer)
    for descriptor in (reader, others[1]):
        os.close(descriptor)
