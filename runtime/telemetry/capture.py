"""Capture of a worker's output: Python's streams, and what C code and subprocesses write to descriptors 1 and 2.

    print -> RankStream -> queue -> output thread -> the controller
    C code, subprocesses -> descriptors 1 and 2 -> files -> Follower -> output thread

Unsent output is also kept in files that outlive the process (`unsent`), from which the agent sends it.

Text that overwrites itself, such as a progress bar, is sent in its last state (`terminals`).

In an idle process the output thread sleeps. A write to a stream wakes it at once. The heartbeat wakes it when one of
the files has grown.

Each piece of Python's text has the size that its stream's file had when it was written. What the file had by then is
sent first, so text of Python, C and children on one stream keeps its order.

Python's streams read from the context which execution writes to them. A cell that ends flushes on its own thread, so
that none of its output arrives after its reply. If the reply goes through agents, the output of this flush goes with it
(`ReplyOutput`). So that short cells need no other message, the output thread waits `FLUSH_SECONDS` longer in such a
cell: at its begin, and at the first line after a silence.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from meshbook.runtime.clock import monotonic, sleep
from meshbook.runtime.formats import whole
from meshbook.runtime.telemetry.follower import Follower
from meshbook.runtime.telemetry.output import SHOWN, LogOptions, OutputChunk, SentMark, StreamName
from meshbook.runtime.telemetry.rank_streams import RankStream
from meshbook.runtime.telemetry.stderr_tail import StderrTail
from meshbook.runtime.telemetry.terminal import Emission
from meshbook.runtime.telemetry.terminals import Terminals
from meshbook.runtime.telemetry.unsent import PIECE_CHARACTERS as KEPT_CHARACTERS
from meshbook.runtime.telemetry.unsent import OutputOwner, UnsentFile

FLUSH_SECONDS = 0.05
IDLE_SECONDS = 1.0  # of silence, after which the thread polls less often, or sleeps
FLUSH_CHARACTERS = 32 << 10
FOLLOW_SECONDS = 0.2
CHUNK_CHARACTERS = 1 << 20  # a chunk that reaches this size is sent, and the next one begins
WAITING_CHARACTERS = 8 << 20  # with this much unsent, writers block
PIECE_CHARACTERS = 100  # overhead of a piece in memory: `print(i)` writes "\n" as a piece of its own
WAIT_SECONDS = 1.0  # how long a writer waits for the controller to receive

Send = Callable[[OutputChunk], None]
CallKey = tuple[str, int]  # the node of the caller, and the call number
Frame = bytes | bytearray | memoryview
Piece = tuple[int, str, StreamName, str, int]  # number, origin, stream, text, and the size of the stream's file then
logger = logging.getLogger(__name__)


class ReplyOutput:
    """The last output of a call, kept for its reply. `pack` makes the frame of a chunk, unless it must be sent at once.

    For threads that hold the lock of the capture, which orders this output and the other one.
    """

    def __init__(self, pack: Callable[[OutputChunk], Frame | None], send: Callable[[Frame], None]) -> None:
        self.pack = pack
        self.frames: list[Frame] = []
        self.call: CallKey | None = None  # the call that the frames are kept for
        self._send = send

    def take(self) -> list[Frame]:
        """Return the frames, which are kept no longer."""
        frames, self.frames = self.frames, []
        return frames

    def send(self) -> None:
        """Send the frames now, before other output."""
        for frame in self.take():
            self._send(frame)


class Capture:
    """The owner of this process's streams: it installs them, follows the descriptors' files, and sends their text.

    A writer only appends to a queue; the output thread sends. The threads must differ: a signal handler may print while
    its own thread is in the middle of a send, and would deadlock.
    """

    def __init__(
        self,
        send: Send,
        mesh: str,
        rank: int,
        folder: Path,
        node: str,
        chunk_characters: int = CHUNK_CHARACTERS,
        has_left: Callable[[], bool] = lambda: True,
        reply_output: ReplyOutput | None = None,
    ) -> None:
        self._send_chunk = send
        self._has_left = has_left  # whether everything that was sent has left this process
        self._reply_output = reply_output or ReplyOutput(lambda chunk: None, lambda frame: None)
        self._keeps = False  # output that is sent now is kept for a reply
        self._held_until = 0.0  # the output thread waits until then, as the cell may end before
        self._is_relayed = False  # the reply of the running cell goes through agents
        self._chunk_characters = chunk_characters
        self._mesh = mesh
        self._rank = rank
        self.main_origin: Callable[[], str] = lambda: ""  # the running cell: the best guess for C code's output
        self._options = SHOWN
        self._stderr_tail = StderrTail(folder, node)
        self._unsent = UnsentFile(folder, node)
        self._numbers = itertools.count(1)  # of the pieces that are written
        self._read = self._sent = SentMark(node)  # the marks of text read and of text sent; between them are held rows
        self._set_owner("")
        self.stdout = RankStream(self, "stdout", 1)
        self.stderr = RankStream(self, "stderr", 2)
        self._files: dict[StreamName, Follower] = {
            "stdout": Follower(folder / f"{node}.out", "stdout"),
            "stderr": Follower(folder / f"{node}.err", "stderr"),
        }
        self._sizes: dict[StreamName, int] = {"stdout": 0, "stderr": 0}  # of the files at the last piece of text
        self._is_in_line: dict[StreamName, bool] = {"stdout": False, "stderr": False}
        self._waiting: collections.deque[Piece] = collections.deque()
        self._size = 0  # approximate characters in _waiting: threads add to it without a lock
        self._sent_at = 0.0
        self._wake_lock = (
            threading.Lock()
        )  # acquired: silent. A signal handler can release a lock, but cannot set an Event
        self._wake_lock.acquire()
        self._is_urgent = False  # the thread was woken to send at once
        self._asleep = False  # the thread waits only for a wake-up
        self._is_idle = False  # whether the process is idle, as the heartbeat reports
        self._sending = threading.Lock()  # guards _files, _terminals and the order in which chunks leave
        self._terminals = Terminals()
        self._ended = False
        self._has_failed = False
        self._forked = False
        self._thread = threading.Thread(target=self._run, name="meshbook output", daemon=True)
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]

    def install(self) -> None:
        """Replace Python's streams and start the output thread."""
        sys.stdout, sys.stderr = self.stdout, self.stderr
        os.register_at_fork(after_in_child=self._become_child)
        self._thread.start()

    def close(self) -> None:
        """Send the rest; text written from now on stays in this process."""
        self._ended = True
        if self._thread.is_alive():
            self.flush_soon()
            self._thread.join()
        self.flush()

    def flush(self) -> None:
        """Send all output so far, from Python and from anything else in this process."""
        with self._sending:
            self._reply_output.send()
            self._send_all()
            self._wake_for_terminals()

    def flush_for_reply(self) -> None:
        """Send all output so far, before a reply. Costs little if there is none."""
        with self._sending:  # until here the output thread has sent what it has taken
            if self._waiting or self._has_news:
                self._send_all()
                self._wake_for_terminals()

    def end(self, origin: str, call: CallKey | None = None) -> None:
        """Send everything, and settle the rows of this cell, which has ended.

        With `call`, keep what is small for the reply to this call, which takes it (`kept_output`) or calls `flush`.
        """
        with self._sending:  # until here the output thread has left the text to this one
            self._is_relayed, self._held_until = False, 0.0
            # Most cells write nothing, and each cell waits for this.
            if not (self._waiting or self._terminals.has_any or self._has_news):
                return
            self._reply_output.call, self._keeps = call, call is not None
            try:
                self._send_all()
                for writer, emission in self._terminals.end(origin):
                    self._send(*writer, emission)
            finally:
                self._keeps = False
            self._wake_for_terminals()

    def keeps_for(self, call: CallKey) -> bool:
        """Whether output may be kept for the reply to this call."""
        return self._reply_output.call == call

    @contextlib.contextmanager
    def kept_output(self) -> Iterator[list[Frame]]:
        """Return the output that was kept for a reply. The block sends it; no other output is sent meanwhile."""
        with self._sending:
            self._reply_output.call = None
            yield self._reply_output.take()

    def begin(self, origin: str, call: CallKey | None = None) -> None:
        """Record that a cell begins on the main thread; `call` is its call, if the reply goes through agents."""
        self._is_relayed = call is not None
        if self._is_relayed:
            with self._sending:  # the output thread has sent before, or sees that it has to wait
                self._hold()
        self._set_owner(origin)

    def _hold(self) -> None:
        """Make the output thread wait, if the reply of the running cell goes through agents."""
        self._held_until = monotonic() + FLUSH_SECONDS if self._is_relayed else 0.0

    def _hold_seconds(self) -> float:
        """Return how long the output thread still waits for the end of the cell; at most 0: no longer."""
        is_full = self._size >= FLUSH_CHARACTERS
        return 0.0 if is_full or self._ended else self._held_until - monotonic()

    @property
    def options(self) -> LogOptions:
        """How the controller handles output of no cell."""
        return self._options

    def set_options(self, options: LogOptions) -> None:
        """Use these options for text that is written from now on; send earlier text with the old ones."""
        self.flush()
        self._options = options
        self._set_owner(self.main_origin())

    def set_rank(self, rank: int) -> None:
        """Change the rank of this process."""
        self._rank = rank
        self._set_owner(self.main_origin())

    def _set_owner(self, origin: str) -> None:
        self._unsent.set_owner(OutputOwner(self._mesh, self._rank, self._options, origin))

    # -- from the streams ------------------------------------------------------

    def write(self, origin: str, stream: StreamName, text: str) -> None:
        """Queue a piece of text; callable from any thread and any signal handler."""
        if self._forked:
            data = whole(text).encode()
            while data:
                data = data[os.write(1 if stream == "stdout" else 2, data) :]
            return
        if stream == "stderr":
            self._stderr_tail.add(text)
        number, origin = next(self._numbers), origin or self.main_origin()
        self._size += len(text) + PIECE_CHARACTERS
        if text != "\n" or not self._is_in_line[stream]:  # else `print` ends its text: one system call for both
            self._sizes[stream] = self._files[stream].size
        self._is_in_line[stream] = not text.endswith("\n")
        self._waiting.append((number, origin, stream, text, self._sizes[stream]))
        if len(text) > KEPT_CHARACTERS or not self._unsent.add(number, origin, stream, text):
            self._keep_waiting_for_room(number, origin, stream, text)
        if not self._is_urgent and (
            self._size >= FLUSH_CHARACTERS or (text.endswith("\n") and monotonic() - self._sent_at > FLUSH_SECONDS)
        ):
            self._hold()
            self.flush_soon()
        elif self._asleep:
            self._wake()
        if self._size >= WAITING_CHARACTERS:
            # The wait is bounded: a handler that interrupted a send on this very thread would never see room.
            end = monotonic() + WAIT_SECONDS
            while self._size >= WAITING_CHARACTERS and self._thread.is_alive() and monotonic() < end:
                sleep(0.001)  # polls, without a lock: the releasing thread may be the interrupted one

    def flush_soon(self) -> None:
        """Make the output thread send now."""
        self._is_urgent = True
        self._wake()

    def poll(self, *, is_idle: bool) -> None:
        """Wake the thread if a file has grown or this process is not idle; called by the heartbeat."""
        self._is_idle = is_idle
        if self._asleep and (not is_idle or self._has_news):
            self._wake()

    def _wake_for_terminals(self) -> None:
        if self._asleep and not self._terminals.is_settled:
            self._wake()

    def _wake(self) -> None:
        if self._wake_lock.locked():
            with contextlib.suppress(RuntimeError):  # another thread woke it in between
                self._wake_lock.release()

    def _keep_waiting_for_room(self, number: int, origin: str, stream: StreamName, text: str) -> None:
        """Keep a long text, waiting for room; stop after `WAIT_SECONDS` if the controller does not receive."""
        end = monotonic() + WAIT_SECONDS
        for start in range(0, len(text), KEPT_CHARACTERS):
            while not self._unsent.add(number, origin, stream, text[start : start + KEPT_CHARACTERS]):
                self.flush_soon()
                sleep(0.001)
                if monotonic() > end:
                    self._unsent.pause()

    def _become_child(self) -> None:
        """Write to the descriptors from now on, in a forked child (a DataLoader's worker).

        The child has no output thread, and the socket is the parent's. The parent follows the descriptors.
        """
        self._forked = True
        self._waiting.clear()
        self._size = 0

    # -- sending ---------------------------------------------------------------

    def _run(self) -> None:
        followed_at = 0.0
        while not self._ended:
            self._wait()
            is_due = monotonic() - followed_at >= FOLLOW_SECONDS
            try:
                self._send_now(follow=is_due)
            except Exception:  # keep running, so that later output is still sent
                if not self._has_failed:
                    self._has_failed = True
                    logger.exception("output of this process could not be sent")
            if is_due:
                followed_at = monotonic()

    def _wait(self) -> None:
        """Wait until there may be something to send."""
        is_silent = monotonic() - self._sent_at > IDLE_SECONDS
        if is_silent and self._is_idle:
            self._sleep()
            is_silent = False  # the piece that woke it may be the first of a line, and the rest follows
        if not self._is_urgent:
            self._wake_lock.acquire(timeout=FOLLOW_SECONDS if is_silent else FLUSH_SECONDS)
        while (seconds := self._hold_seconds()) > 0:
            self._wake_lock.acquire(timeout=seconds)
        self._is_urgent = False

    def _sleep(self) -> None:
        """Wait for a wake-up, unless a terminal has something to send later."""
        # Set _asleep before looking: text that arrives in between is either seen here or wakes the thread.
        with self._sending:
            self._asleep = self._terminals.is_settled
        if self._asleep and not (self._waiting or self._ended):
            self._wake_lock.acquire()
        self._asleep = False

    def _send_now(self, *, follow: bool) -> None:
        with self._sending:
            if self._hold_seconds() > 0:  # a cell has begun since the last wait
                return
            self._free_sent()
            ends = self._file_ends()
            self._send_waiting()
            for writer, emission in self._terminals.due(monotonic()):
                self._send(*writer, emission)
            if follow:
                self._send_files(ends)
                self._stderr_tail.trim()

    def _free_sent(self) -> None:
        """Free the space of text that was sent and has left this process; runs before more is sent."""
        if not self._reply_output.frames and self._has_left():
            self._unsent.switch_halves(self._read.number, self._sent)
            for file in self._files.values():
                file.free_before(getattr(self._sent, file.stream))

    def _send_all(self) -> None:
        self._free_sent()
        ends = self._file_ends()
        self._send_waiting()
        self._send_files(ends)
        self._send_held()

    def _send_held(self) -> None:
        for writer, emission in self._terminals.held(monotonic()):
            self._send(*writer, emission)

    def _send_waiting(self) -> None:
        for number, origin, stream, text, size in self._merged():
            self._send_file(self._files[stream], size)
            self._pass_on(origin, stream, whole(text), msgspec.structs.replace(self._read, number=number))

    def _merged(self) -> Iterator[Piece]:
        """Yield the queued text; adjacent pieces of one origin and stream are joined, unless its file has grown."""
        waiting, most = self._waiting, self._chunk_characters
        now, last, size = "", 0, 0
        file_size = 0
        of_stream: StreamName = "stdout"
        parts: list[str] = []
        while waiting:  # for each piece that is written: each line of a cell has two
            number, origin, stream, text, its_size = waiting.popleft()
            self._size -= len(text) + PIECE_CHARACTERS
            if parts and (origin != now or stream != of_stream or size >= most or its_size != file_size):
                yield last, now, of_stream, "".join(parts), file_size
                parts, size = [], 0
            now, of_stream, file_size = origin, stream, its_size
            if number > last:
                last = number
            parts.append(text)
            size += len(text)
        self._size = 0
        if parts:
            yield last, now, of_stream, "".join(parts), file_size

    @property
    def _has_news(self) -> bool:
        return any(file.has_news for file in self._files.values())

    def _file_ends(self) -> list[int]:
        """Return how far to read the files; call it before reading Python's text, to send earlier text first."""
        return [file.size for file in self._files.values()]

    def _send_files(self, ends: list[int]) -> None:
        for file, end in zip(self._files.values(), ends, strict=True):
            self._send_file(file, end)

    def _send_file(self, file: Follower, end: int) -> None:
        if end == file.position:
            return
        for text in file.read(end):
            read = msgspec.structs.replace(self._read, **{file.stream: file.position})
            self._pass_on(self.main_origin(), file.stream, text, read)

    def _pass_on(self, origin: str, stream: StreamName, text: str, read: SentMark) -> None:
        """Feed the text up to this mark to the terminals, and send what they do not hold back."""
        self._sent_at = monotonic()
        emission = self._terminals.feed(origin, stream, text, self._sent_at)
        if emission is None or not (emission.text or emission.live is not None):
            self._read = read
            return
        self._send_held()  # first, so that everything before a mark has been sent
        self._read = read
        self._send(origin, stream, emission)

    def _send(self, origin: str, stream: StreamName, emission: Emission) -> None:
        """Send chunks within the size limit; the last one carries the rows that may still change."""
        if not self._terminals.holds_any:
            self._sent = self._read
        text, size = emission.text, self._chunk_characters
        live = None if emission.live is None else emission.live[-size:]
        for start in range(0, max(len(text), 1), size):
            is_last = start + size >= len(text)
            # Only the last chunk has the rows and the mark.
            rest = (live, self._sent) if is_last else (None, None)
            part = text[start : start + size]
            self._send_or_keep(OutputChunk(origin, self._mesh, self._rank, stream, part, self._options, *rest))

    def _send_or_keep(self, chunk: OutputChunk) -> None:
        if self._keeps and (frame := self._reply_output.pack(chunk)) is not None:
            self._reply_output.frames.append(frame)
        else:
            self._reply_output.send()
            self._send_chunk(chunk)
