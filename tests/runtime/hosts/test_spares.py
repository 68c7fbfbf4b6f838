"""The word to a spare, from whichever thread it comes."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from meshbook.runtime.hosts.spares import Spare


def test_two_who_tell_it_close_what_is_theirs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends by itself, as the agent's main thread hears, just while the host actor dismisses it with its mesh."""
    reader, writer = os.pipe()
    spare, write, others = Spare(cast("Any", None), writer), os.write, []

    def write_while_another_comes(descriptor: int, word: bytes) -> int:
        if not others:
            others.append(descriptor)
            spare.tell(b"")
            others.append(os.dup(reader))  # what somebody opens then
        return write(descriptor, word)

    monkeypatch.setattr(os, "write", write_while_another_comes)
    spare.tell(b"rank")
    monkeypatch.undo()
    assert os.read(reader, 10) == b"rank"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writer)
    for descriptor in (reader, others[1]):
        os.close(descriptor)
