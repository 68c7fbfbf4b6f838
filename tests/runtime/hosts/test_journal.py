"""What comes for a controller while there is none: kept in order, within bounds, and what is not wanted is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshbook.runtime.errors import ExitReport
from meshbook.runtime.hosts.journal import Journal, read_messages, read_output
from meshbook.runtime.node.control import CONTROL
from meshbook.runtime.telemetry.output import TELEMETRY
from meshbook.runtime.wire.frames import pack, unpack
from meshbook.runtime.wire.messages import (
    Address,
    Call,
    Credit,
    Down,
    Gathered,
    GatheredReply,
    Message,
    RelayedOutput,
    Reply,
)

NOWHERE = (0, (), ())


def frame(message: Message, body: bytes = b"") -> bytes:
    return bytes(pack(message, [body], 1 << 20))


def output(sender: str, text: bytes) -> bytes:
    return frame(Call(sender, 0, TELEMETRY, "output", NOWHERE, ""), text)


def said(folder: Path) -> dict[str, bytes]:
    """All output by its sender."""
    found: dict[str, bytes] = {}
    for each in read_output(folder):
        message, body = unpack(each)
        found[message.sender] = found.get(message.sender, b"") + bytes(body[0])
    return found


def test_output_is_kept_by_process_and_the_newest_of_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", {}, kept_bytes=1000)
    for line in range(100):
        journal.note(output("mesh.0", b"%03d " % line))
    journal.note(output("mesh.1", b"little"))
    journal.close()
    kept = said(tmp_path / "journal")
    assert kept["mesh.1"] == b"little"
    lines = kept["mesh.0"].split()
    assert lines == [b"%03d" % line for line in range(100 - len(lines), 100)]
    assert journal.dropped == {"mesh.0": 100 - len(lines)}
    assert 1000 <= sum(path.stat().st_size for path in tmp_path.glob("journal/mesh.0.*")) <= 2100


def test_output_that_comes_with_replies_is_kept_like_the_rest(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", {7: "mesh.0"})
    relayed = frame(Call("mesh.0", 0, TELEMETRY, "relayed", NOWHERE, ""), b"second ")
    reply = GatheredReply("mesh.0", 7, "ok", 0, b"value", 1, 0, RelayedOutput(1, 0, [relayed]))
    journal.note(output("mesh.0", b"first "))
    journal.note(frame(Gathered("agent", Address("controller", ""), [reply])))
    journal.note(output("mesh.0", b"third"))
    journal.close()
    assert said(tmp_path / "journal") == {"mesh.0": b"first second third"}
    assert [unpack(each)[0] for each in read_messages(tmp_path / "journal")] == [Reply("mesh.0", 7, "ok")]


KEPT: dict[str, Message] = {
    "a wanted answer": Reply("mesh.0", 7, "ok"),
    "an end": Down("agent", [ExitReport("mesh.1", 4711, -9)]),
    "an actor that failed": Call("mesh.0", 0, CONTROL, "failed", NOWHERE, ""),
    "an event": Call("mesh.0", 0, TELEMETRY, "happened", NOWHERE, ""),
}
NOT_KEPT: dict[str, Message] = {
    "another answer": Reply("mesh.0", 8, "ok"),
    "a question": Call("mesh.0", 9, CONTROL, "where", NOWHERE, ""),
    "a call to an actor": Call("mesh.0", 9, "here-1@controller", "add", NOWHERE, ""),
    "room": Credit("mesh.0", "echo-1@controller", 1, 1),
}


@pytest.mark.parametrize("what", [*KEPT, *NOT_KEPT])
def test_what_is_kept_of_the_rest(tmp_path: Path, what: str) -> None:
    journal = Journal(tmp_path / "journal", {7: "mesh.0"})
    message = (KEPT | NOT_KEPT)[what]
    journal.note(frame(message))
    journal.note(b"garbage")
    journal.close()
    assert [unpack(each)[0] for each in read_messages(tmp_path / "journal")] == ([message] if what in KEPT else [])


def test_which_answers_are_still_to_come(tmp_path: Path) -> None:
    """None of a process that has ended; a second journal goes on where the first one stopped."""
    journal = Journal(tmp_path / "journal", {1: "mesh.0", 2: "mesh.1", 3: "mesh.2"})
    journal.note(frame(Reply("mesh.0", 1, "ok")))
    journal.note(frame(Down("agent", [ExitReport("mesh.1", 4711, -9)])))
    assert journal.wanted == {3: "mesh.2"}
    assert journal.down == {"mesh.1"}
    journal.close()
    again = Journal(tmp_path / "journal", journal.wanted)
    again.note(frame(Reply("mesh.2", 3, "ok")))
    again.close()
    assert len(list(read_messages(tmp_path / "journal"))) == 3
