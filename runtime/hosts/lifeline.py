"""What a host agent and its controller say to each other beside the messages of nodes, and where a detached run is met.

    controller ==== lifeline ====> agent      its end is the controller's; after a `RunDetached` the run lives on
    whoever attaches -> the run's door -> `Status`, or a lifeline of his own

The lifeline is the agent's standard input, and later the connection of whoever has attached. The door is a socket in
the folder of a run that was detached: who may enter the folder may attach.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from meshbook.runtime.wire.messages import Address

DOOR = "door"
ESTATE = "estate"  # the file with what the controller has left
JOURNAL = "journal"  # the folder with what came for it since
LOOK_SECONDS = 0.002
DOOR_SECONDS = 10.0  # what an agent has to answer: it may have to wait for workers that do not


class MeshSummary(msgspec.Struct, frozen=True):
    """A process mesh of a run, as others are told of it."""

    name: str
    nodes: tuple[str, ...]


class RunDetached(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The controller leaves, and its run lives on until somebody attaches to it, or for so many seconds."""

    incarnation: int  # of the controller's node
    seconds: float
    version: str
    meshes: tuple[MeshSummary, ...]
    calls: dict[int, str] = {}  # whose answers are to be kept: their numbers, and who owes each


class RunTaken(msgspec.Struct, frozen=True, tag=True):
    """Whoever attaches has all that was left: from now on his end is the end of the run."""


Line = RunDetached | RunTaken


class DoorRequest(msgspec.Struct, frozen=True):
    """What somebody at the door wants; `who` says who that is."""

    verb: Literal["status", "attach", "end"]
    who: str = ""


class MeshStatus(msgspec.Struct, frozen=True):
    """How a mesh of a detached run is; a rank is busy while its cell runs."""

    name: str
    ranks: int
    busy: int
    dead: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was detached. Times are in seconds since 1970."""

    run: str
    host: str
    version: str
    meshes: tuple[MeshStatus, ...]
    since: float
    until: float
    held_by: str = ""  # who has attached to it since


class RunState(msgspec.Struct, frozen=True):
    """Where what is left to whoever attaches begins: the next life of the controller's node, and who lives."""

    incarnation: int
    peers: tuple[Address, ...]
    dropped: dict[str, int] = {}  # by node: pieces of output that were too much to be kept


class DoorReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent says at the door."""

    error: str = ""
    status: Status | None = None
    run_state: RunState | None = None


class DoorClosed(OSError):
    """Nobody answers at the door of a run."""


def present_version() -> str:
    """What two controllers of one run have to agree upon: pickled functions are of one Python."""
    major, minor, _ = platform.python_version_tuple()
    return f"meshbook {metadata.version('meshbook')} on Python {major}.{minor}"


def knock(folder: Path, request: DoorRequest, seconds: float = DOOR_SECONDS) -> tuple[DoorReply, socket.socket]:
    """Ask at the door of the run in this folder; the connection is to be closed. DoorClosed where nobody answers."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        connection.connect(os.fspath(folder / DOOR))
        connection.sendall(msgspec.json.encode(request) + b"\n")
        with connection.makefile("rb") as answers:
            return msgspec.json.decode(answers.readline(), type=DoorReply), connection
    except (OSError, msgspec.DecodeError) as error:
        connection.close()
        raise DoorClosed(f"its host agent does not answer: {error}") from None


def wait_for_door(folder: Path) -> None:
    """Wait until the run in this folder can be attached to. DoorClosed where that takes too long."""
    end = time.monotonic() + DOOR_SECONDS
    while True:
        try:
            answer, connection = knock(folder, DoorRequest("status"))
        except DoorClosed:
            if time.monotonic() > end:
                raise
        else:
            connection.close()
            if answer.status is not None and not answer.status.held_by:
                return
        time.sleep(LOOK_SECONDS)  # nobody is left here who could be told


class LineReader:
    """Reads a lifeline as it comes; `rest` was read before. `take` returns the lines since; None at the end."""

    def __init__(self, descriptor: int, rest: bytes = b"") -> None:
        self.descriptor = descriptor
        self._rest = rest

    def first(self) -> bytes:
        """Wait for the first line."""
        while b"\n" not in self._rest and (data := os.read(self.descriptor, 65536)):
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def is_over(self) -> bool:
        """Whether it has ended, where its end is all that it has to say."""
        return self.take() is None

    def forget(self, descriptor: int) -> None:
        """It is not looked at any more."""

    def take(self) -> list[Line] | None:
        """Call it when there is something to read."""
        data = os.read(self.descriptor, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and not lines:
            return None
        return [msgspec.json.decode(line, type=Line) for line in lines]
