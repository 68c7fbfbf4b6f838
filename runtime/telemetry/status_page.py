"""The status page of a process: a file in which it publishes its state for its agent. Only the layout.

A file and not a message: the agent can read it even while the process holds the GIL in C, or is stopped. Each number
has eight bytes of its own, written at once. The text has a checksum, by which a reader detects a write in progress.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from meshbook.runtime.telemetry.vitals import Activity, ProcessReport

SIZE = 4096
# The words, each of eight bytes. TICK and STEP are seconds as floats, the others whole numbers.
INCARNATION, TICK, CELLS, COLLECTIVES, PAUSES, ENDPOINTS, STEP, QUEUED, LENGTH, CHECK = range(10)
TRAFFIC, GPU = range(10, 14), range(14, 18)
_ALL = struct.Struct("=qdqqqqdqqqqqqqqqqq")
_TEXT = 192  # where the text begins
TEXT_BYTES = SIZE - _TEXT
ATTEMPTS = 3  # to read the text between two writes
Traffic = tuple[int, int, int, int]  # messages sent and received, bytes sent and received, since the process began


class GpuFigures(NamedTuple):
    """Bytes of the GPU that a process uses, by torch: in its tensors, at most in them, reserved; free on the device."""

    allocated: int
    peak: int
    reserved: int
    free: int


@dataclass(frozen=True, slots=True)
class StatusReading:
    """The content of a page. `tick` is by the clock of its host, 0 before the first; `words` are None if torn."""

    tick: float
    activity: Activity
    step: float
    queued: int
    traffic: Traffic
    gpu: GpuFigures
    words: bytes | None


class StatusPage:
    """The writer's side. Before `open`, and without a file, it writes to memory that is not read."""

    def __init__(self) -> None:
        self._write_to(bytearray(SIZE))

    def _write_to(self, buffer: bytearray | mmap.mmap) -> None:
        view = memoryview(buffer)
        self.numbers, self.seconds, self._bytes = view.cast("q"), view.cast("d"), view

    def open(self, folder: Path, node: str, incarnation: int) -> bool:
        """Write to this process's file from now on; return whether there is one. An empty file: none is possible."""
        with contextlib.suppress(OSError):  # the disk is full, or the folder is gone: the process continues without
            self._write_to(_make(page_file(folder, node)))
            self.numbers[INCARNATION] = incarnation
            return True
        return False

    def close(self) -> None:
        """Stop writing to the file."""
        self._write_to(bytearray(SIZE))

    def write_text(self, words: bytes) -> None:
        """Write text of at most `TEXT_BYTES`, from one thread only."""
        self.numbers[LENGTH] = len(words)
        self._bytes[_TEXT : _TEXT + len(words)] = words
        self.numbers[CHECK] = zlib.crc32(words)


def _make(path: Path) -> mmap.mmap:
    path.unlink(missing_ok=True)  # left over from an earlier incarnation
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, bytes(SIZE))  # a full disk raises here, on any system; later it would be a SIGBUS
        return mmap.mmap(file, SIZE)
    finally:
        os.close(file)


def page_file(folder: Path, node: str) -> Path:
    """Return the path of a process's page."""
    return folder / f"{node}.vitals"


def encode_report(words: ProcessReport, most: int = TEXT_BYTES) -> bytes:
    """Encode the words within the limit; if there are too many actors, leave out the least busy."""
    encoded = msgspec.msgpack.encode(words)
    if len(encoded) > most:
        actors = sorted(words.actors, key=lambda actor: (bool(actor[2]), actor[1]), reverse=True)
        while len(encoded) > most and actors:
            actors = actors[: len(actors) // 2]
            encoded = msgspec.msgpack.encode(msgspec.structs.replace(words, actors=tuple(actors)))
    return encoded if len(encoded) <= most else msgspec.msgpack.encode(ProcessReport(words.pid))


# -- reading, in the agent -----------------------------------------------------------------


class StatusPageReader:
    """The open pages of the processes of a host. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[tuple[str, int], int] = {}

    def read(self, node: str, incarnation: int) -> StatusReading | None:
        """Return the page of this incarnation; None if it has not begun. Raises OSError if it cannot have a page."""
        file = self._files.get((node, incarnation), -1)
        if file < 0 and (file := self._open(node, incarnation)) < 0:
            return None
        reading = parse(os.pread(file, SIZE, 0))
        for _ in range(ATTEMPTS - 1):
            if reading.words is not None:
                break
            reading = parse(os.pread(file, SIZE, 0))
        return reading

    def _open(self, node: str, incarnation: int) -> int:
        try:
            file = os.open(page_file(self._folder, node), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1
        page = os.pread(file, SIZE, 0)
        if len(page) == SIZE and _ALL.unpack_from(page)[INCARNATION] == incarnation:
            self._files[node, incarnation] = file
            return file
        os.close(file)
        if not page:
            raise OSError(f"{node} has no status page because {self._folder} is full")
        return -1

    def keep(self, living: set[tuple[str, int]]) -> None:
        """Close the pages of all others."""
        for key in self._files.keys() - living:
            os.close(self._files.pop(key))

    def close(self) -> None:
        self.keep(set())


def parse(page: bytes) -> StatusReading:
    """Parse a page."""
    words = _ALL.unpack_from(page)
    text = page[_TEXT : _TEXT + words[LENGTH]]
    return StatusReading(
        words[TICK],
        activity_of(words[CELLS] + words[ENDPOINTS], words[COLLECTIVES], words[PAUSES]),
        words[STEP],
        words[QUEUED],
        (words[10], words[11], words[12], words[13]),
        GpuFigures(*words[14:18]),
        text if zlib.crc32(text) == words[CHECK] else None,
    )


def activity_of(running: int, collectives: int, pauses: int) -> Activity:
    """Return the activity of a process with so many running cells and endpoints, collectives and pauses."""
    if pauses:
        return Activity.PAUSED
    if collectives:
        return Activity.IN_COLLECTIVE
    return Activity.RUNNING if running else Activity.IDLE
