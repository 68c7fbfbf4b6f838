"""The lifeline between a host agent and its controller, and the socket at which a detached run can be attached to.

    controller ==== lifeline ====> agent      its end ends the run, except after a `RunDetached`
    attaching client -> the run's socket -> `Status`, or a new lifeline

The lifeline is the agent's standard input, and later the connection of an attached client. The socket is in the folder
of a run that was detached: any process that may enter the folder may attach.
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

RUN_SOCKET = "attach"  # the socket of a run that was detached
STATE_FILE = "controller-state"  # the file with the controller's saved state
JOURNAL = "journal"  # the folder with the messages for the controller since then
LOOK_SECONDS = 0.002
REPLY_SECONDS = 10.0  # time for an agent's answer: it may have to wait for workers that do not answer


class MeshSummary(msgspec.Struct, frozen=True):
    """A process mesh of a run, as described to other processes."""

    name: str
    nodes: tuple[str, ...]


class RunDetached(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The controller leaves; its run continues until a client attaches to it, or for `seconds` at most."""

    incarnation: int  # of the controller's node
    seconds: float
    version: str
    meshes: tuple[MeshSummary, ...]
    calls: dict[int, str] = {}  # calls whose answers are to be kept: call number to the node that owes the answer
    peers: tuple[Address, ...] = ()  # the nodes of the run on other hosts
    lifelines: tuple[str, ...] = ()  # the FIFOs that keep other hosts while they are open


class RunTaken(msgspec.Struct, frozen=True, tag=True):
    """The attached client has restored the saved state: from now on the end of its connection is the end of the run."""


Line = RunDetached | RunTaken


class RunRequest(msgspec.Struct, frozen=True):
    """A request at the run's socket; `label` names the client."""

    verb: Literal["status", "attach", "end"]
    label: str = ""


class MeshStatus(msgspec.Struct, frozen=True):
    """The status of a mesh of a detached run; a rank is busy while its cell runs."""

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
    held_by: str = ""  # the client that has attached to it since


class RunState(msgspec.Struct, frozen=True):
    """The run's state at the takeover: the next incarnation of the controller's node, and the live peers."""

    incarnation: int
    peers: tuple[Address, ...]
    dropped: dict[str, int] = {}  # by node: output chunks that exceeded the limit and were dropped


class RunReply(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's answer to a request."""

    error: str = ""
    status: Status | None = None
    run_state: RunState | None = None


_decode_line = msgspec.json.Decoder(Line).decode
decode_run_request = msgspec.json.Decoder(RunRequest).decode
_decode_reply = msgspec.json.Decoder(RunReply).decode


class RunUnreachable(OSError):
    """The socket of a run does not answer."""


def present_version() -> str:
    """Return the version that all controllers of a run must share: pickled functions belong to one Python version."""
    major, minor, _ = platform.python_version_tuple()
    return f"meshbook {metadata.version('meshbook')} on Python {major}.{minor}"


def send_request(folder: Path, request: RunRequest, seconds: float = REPLY_SECONDS) -> tuple[RunReply, socket.socket]:
    """Send a request to the socket of a run; the caller closes the connection. RunUnreachable if there is no answer."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        connection.connect(os.fspath(folder / RUN_SOCKET))
        connection.sendall(msgspec.json.encode(request) + b"\n")
        with connection.makefile("rb") as answers:
            return _decode_reply(answers.readline()), connection
    except BaseException as error:
        connection.close()  # also after Ctrl-C: until then the agent offers the run to no other client
        if isinstance(error, OSError | msgspec.DecodeError):
            raise RunUnreachable(f"its host agent does not answer: {error}") from None
        raise


def wait_until_attachable(folder: Path) -> None:
    """Wait until the run in this folder can be attached to. RunUnreachable on timeout."""
    end = time.monotonic() + REPLY_SECONDS
    while True:
        try:
            answer, connection = send_request(folder, RunRequest("status"))
        except RunUnreachable:
            if time.monotonic() > end:
                raise
        else:
            connection.close()
            if answer.status is not None and not answer.status.held_by:
                return
        time.sleep(LOOK_SECONDS)  # polling: no process is left here that could be notified


class LineReader:
    """Reads a lifeline; `rest` is input that was read before. `take` returns the lines since then, None at the end."""

    def __init__(self, descriptor: int, rest: bytes = b"") -> None:
        self.descriptor = descriptor
        self._rest = rest

    def first(self) -> bytes:
        """Wait for the first line and return it."""
        while b"\n" not in self._rest and (data := os.read(self.descriptor, 65536)):
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def is_over(self) -> bool:
        """Whether the lifeline has ended; for a lifeline that carries no further lines."""
        return self.take() is None

    def forget(self, descriptor: int) -> None:
        """Do nothing: the descriptor stays open."""

    def take(self) -> list[Line] | None:
        """Read the lines that have arrived. Call this when the descriptor is readable."""
        data = os.read(self.descriptor, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and not lines:
            return None
        return [_decode_line(line) for line in lines]
