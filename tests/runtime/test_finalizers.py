"""What finalizers of the user's do: Python runs them in the middle of anything, on whichever thread makes an object.

Here something that is looked at in that middle does what they would do.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, cast

from meshbook.runtime.config import Settings
from meshbook.runtime.node.credits import Outstanding, Window
from meshbook.runtime.node.ledger import Charge, Ledger
from meshbook.runtime.transport.zeromq import _Peer

PATIENCE = 10.0


def check_ends(do: Callable[[], object]) -> None:
    """A thread that waits for a lock that it has would wait for ever."""
    ended = threading.Event()

    def run() -> None:
        do()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(PATIENCE)


class Socket:
    """Lets something else be sent in the middle of a sending."""

    def __init__(self, sent: list[bytes]) -> None:
        self.peer: Any = None
        self._sent = sent

    def connect(self, url: str) -> None: ...

    def send(self, frame: bytes, flags: int, *, copy: bool) -> None:
        if frame != b"last words":
            self.peer.send(b"last words")
        self._sent.append(frame)


def test_one_that_sends_in_the_middle_of_a_sending() -> None:
    sent: list[bytes] = []
    socket = Socket(sent)
    context = type("Context", (), {"socket": lambda self, kind: socket})()
    socket.peer = _Peer(cast("Any", context), "worker", "ipc://nowhere", Settings())
    check_ends(lambda: socket.peer.send(b"frame"))
    assert sorted(sent) == [b"frame", b"last words"]


class Size(int):
    """A number of bytes that, when it is added, has something else counted in."""

    outstanding: Outstanding[Any]

    def __radd__(self, other: int) -> int:
        self.outstanding.spend(("worker", "last words"), 1)
        return other + int(self)


def test_one_that_sends_while_room_in_a_queue_is_looked_for() -> None:
    outstanding: Outstanding[Any] = Outstanding(Window(4096, 1 << 20))
    size = Size(10)
    size.outstanding = outstanding
    check_ends(lambda: outstanding.spend(("worker", "queue"), size))
    assert len(outstanding) == 2


class Owner(str):
    """A name that, when it is compared, has a mesh stopped."""

    __slots__ = ("stop",)

    stop: Callable[[], object]

    def __eq__(self, other: object) -> bool:
        self.stop()
        return str(self) == other

    __hash__ = str.__hash__


def test_one_that_stops_a_mesh_while_its_owner_looks_at_his() -> None:
    ledger, nothing = Ledger(), cast("Any", None)
    for key in ("first", "second", "third"):
        known = Charge(key, key, "", {"worker": 0}, nothing, nothing, contextvars.copy_context(), nothing)
        ledger.add(known)
    owner = Owner()
    owner.stop = lambda: ledger.end("second", ["worker"])
    found: list[Charge] = []
    check_ends(lambda: found.extend(ledger.of(owner)))
    assert [charge.key for charge in found] == ["third", "second", "first"]
    assert [charge.key for charge in ledger.of("")] == ["third", "first"]
