"""The journal of a detached run: messages for the absent controller, written to files and read by the next one.

Output is most of it: the newest output of each process is kept, and dropped output is counted. The same applies to
points of curves, with a higher limit. Of the other messages only those are kept that the next controller needs. Output
is read first, since an answer comes after all output that it follows.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from meshbook.runtime.config import open_private
from meshbook.runtime.errors import RefusedMessage
from meshbook.runtime.hosts.controllers import WORKER_REGISTRY
from meshbook.runtime.hosts.launch import AGENT
from meshbook.runtime.node.control import CONTROL
from meshbook.runtime.telemetry.output import TELEMETRY
from meshbook.runtime.wire.frames import Buffer, pack, unpack
from meshbook.runtime.wire.messages import Call, Down, Gathered, Reply

KEPT_BYTES = 32 << 20  # of the output of one process, at least
LOGGED_BYTES = 256 << 20  # of the points that one process logs for curves, at least: ten million
NEWS = {
    CONTROL: {"failed", "ended", "restarted"},
    TELEMETRY: {"happened"},
    WORKER_REGISTRY: {"starting", "silent"},
}
MESSAGES = "messages"
_LENGTH = struct.Struct("<Q")


class Journal:
    """Writes messages, on the node's receiving thread. `wanted`: calls whose answers to keep, with the node of each."""

    def __init__(self, folder: Path, wanted: dict[int, str], kept_bytes: int = KEPT_BYTES) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._kept_bytes = kept_bytes
        self.wanted = dict(wanted)
        self.down: set[str] = set()  # nodes that have ended
        self._messages = _open(folder / MESSAGES)
        self._outputs: dict[str, _OutputFiles] = {}
        self._logged: dict[str, _OutputFiles] = {}

    @property
    def dropped(self) -> dict[str, int]:
        """By node: the number of output chunks that were dropped."""
        return {node: output.dropped for node, output in self._outputs.items() if output.dropped}

    def note(self, frame: Buffer) -> None:
        """Write a message if it is to be kept."""
        try:
            message, _ = unpack(frame)
        except RefusedMessage:
            return  # the node reports it
        if isinstance(message, Call) and message.actor == TELEMETRY and message.endpoint in ("output", "relayed"):
            if message.sender not in self._outputs:
                self._outputs[message.sender] = _OutputFiles(
                    self._folder / f"{message.sender}.output", self._kept_bytes
                )
            self._outputs[message.sender].write(frame)
        elif isinstance(message, Call) and (message.actor, message.endpoint) == (TELEMETRY, "logged"):
            if message.sender not in self._logged:
                self._logged[message.sender] = _OutputFiles(self._folder / f"{message.sender}.logged", LOGGED_BYTES)
            self._logged[message.sender].write(frame)
        elif isinstance(message, Gathered):
            for each in message.replies:
                for output in each.output.frames if each.output is not None else ():
                    self.note(output)
                self.note(pack(Reply(each.node, each.call, each.status, each.rank), (each.body,), len(frame)))
        elif self._is_kept(message):
            with contextlib.suppress(OSError):  # a full disk: the next controller detects the missing answer
                _write(self._messages, frame)

    def _is_kept(self, message: Any) -> bool:
        if isinstance(message, Reply):
            return self.wanted.pop(message.call, None) is not None
        if isinstance(message, Down):
            ended = {report.node for report in message.reports}
            self.down |= ended
            self.wanted = {call: node for call, node in self.wanted.items() if node not in ended}
            return True
        return isinstance(message, Call) and message.endpoint in NEWS.get(message.actor, ())

    def close(self) -> None:
        """Close all files."""
        self._messages.close()
        for files in (*self._outputs.values(), *self._logged.values()):
            files.close()


class _OutputFiles:
    """The output of one process: two files; when the newer one is full, the older one is dropped."""

    def __init__(self, path: Path, kept_bytes: int) -> None:
        self._path, self._older = path, older(path)
        self._kept_bytes = kept_bytes
        self._file = _open(path)
        self._count = self._older_count = 0
        self.dropped = 0

    def write(self, frame: Buffer) -> None:
        try:
            if self._file.tell() >= self._kept_bytes:
                self._turn()
            _write(self._file, frame)
            self._count += 1
        except OSError:  # the disk is full
            self.dropped += 1

    def _turn(self) -> None:
        self._file.close()
        self._path.replace(self._older)
        self.dropped += self._older_count
        self._count, self._older_count = 0, self._count
        self._file = _open(self._path)

    def close(self) -> None:
        self._file.close()


def older(path: Path) -> Path:
    """Return the path of the older file."""
    return path.with_name(f"{path.name}.older")


def _open(path: Path) -> IO[bytes]:
    return open(path, "ab", buffering=0, opener=open_private)


def _write(file: IO[bytes], frame: Buffer) -> None:
    start = file.tell()
    try:
        for part in (_LENGTH.pack(len(frame)), frame):
            if file.write(part) != len(part):
                raise OSError("the disk is full")
    except OSError:
        file.truncate(start)  # no partial record: it would make later ones unreadable
        raise


def read_output(folder: Path) -> Iterator[Buffer]:
    """Yield the frames of output, in order for each process; those of agents, sent for ended processes, come last."""
    for path in sorted(folder.glob("*.output"), key=lambda path: (path.name.startswith(AGENT), path)):
        yield from _read(older(path))
        yield from _read(path)


class JournalTail:
    """Reads the output of a detached run while its agent writes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, IO[bytes]] = {}

    def read(self) -> list[Buffer]:
        """Return the frames that were written since the last call, in order for each process."""
        found: list[Buffer] = []
        for path in sorted(self._folder.glob("*.output")):
            with contextlib.suppress(FileNotFoundError):  # the run has just ended, or its files were turned
                known = self._files.get(path)
                if known is None or os.fstat(known.fileno()).st_ino != path.stat().st_ino:
                    if known is not None:  # the files were turned; the older one is complete
                        found += _read_complete(known)
                        known.close()
                    known = self._files[path] = open(path, "rb")  # noqa: SIM115  # closed with this object
                found += _read_complete(known)
        return found

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()


def _read_complete(file: IO[bytes]) -> Iterator[Buffer]:
    """Yield the records of the file from its position on; of the last one, perhaps only a part is written yet."""
    while True:
        start = file.tell()
        head = file.read(_LENGTH.size)
        frame = file.read(*_LENGTH.unpack(head)) if len(head) == _LENGTH.size else b""
        if not frame or len(frame) < _LENGTH.unpack(head)[0]:
            file.seek(start)
            return
        yield frame


def read_logged(folder: Path) -> Iterator[Buffer]:
    """Yield the frames with points of curves, in order for each process."""
    for path in sorted(folder.glob("*.logged")):
        yield from _read(older(path))
        yield from _read(path)


def read_messages(folder: Path) -> Iterator[Buffer]:
    """Yield the frames of all other messages, in order."""
    return _read(folder / MESSAGES)


def _read(path: Path) -> Iterator[Buffer]:
    if not path.exists():
        return
    with open(path, "rb") as file:
        while head := file.read(_LENGTH.size):
            yield file.read(*_LENGTH.unpack(head))
