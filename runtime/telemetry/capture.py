"""A worker's output, all of it: Python's streams, and what C code and subprocesses write to descriptors 1 and 2.

    print -> RankStream -> what waits here -> one thread -> the controller
    C code, subprocesses -> descriptors 1 and 2 -> files -> Follower -> the same thread

What is not sent yet is also in files that outlive the process (`unsent`), from where its agent sends it.

What is written over itself, a progress bar, is sent in its last state (`screens`).

In an idle process the thread sleeps. A stream that is written to wakes it at once. The heartbeat wakes it when one of
the files has grown.

Python's streams know on whose behalf they are written to (the context). A cell that ends flushes on its own thread, so
that nothing of it can come after its reply.
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
from meshbook.runtime.telemetry.follower import Follower
from meshbook.runtime.telemetry.last_words import LastWords
from meshbook.runtime.telemetry.output import SHOWN, LogOptions, OutputChunk, SentMark, StreamName
from meshbook.runtime.telemetry.screens import Screens
from meshbook.runtime.telemetry.streams import RankStream
from meshbook.runtime.telemetry.terminal import Emission
from meshbook.runtime.telemetry.unsent import PIECE_CHARACTERS as KEPT_CHARACTERS
from meshbook.runtime.telemetry.unsent import OutputOwner, UnsentFile

FLUSH_SECONDS = 0.05
IDLE_SECONDS = 1.0  # of silence, after which the thread looks less often, or sleeps
FLUSH_CHARACTERS = 32 << 10
FOLLOW_SECONDS = 0.2
CHUNK_CHARACTERS = 1 << 20  # a chunk that has grown to this is sent, and the next one begun
WAITING_CHARACTERS = 8 << 20  # with so much unsent, whoever writes has to wait
PIECE_CHARACTERS = 100  # what a piece takes in memory besides its text: `print(i)` writes "\n" as a piece of its own
WAIT_SECONDS = 1.0
KEEP_SECONDS = 0.02  # that a writer waits for room to keep what it writes

Send = Callable[[OutputChunk], None]
logger = logging.getLogger(__name__)


class Capture:
    """Owns the streams of this process: installs them, follows the descriptors' files, sends what comes.

    A writer appends and goes on, and this object's thread sends. It must be another one: a signal handler may print
    while its own thread is in the middle of a send, and would wait for itself.
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
    ) -> None:
        self._send_chunk = send
        self._has_left = has_left  # whether all that was sent has left this process
        self._chunk_characters = chunk_characters
        self._mesh = mesh
        self._rank = rank
        self.main_origin: Callable[[], str] = _no_origin  # the cell that runs: the best guess for C code's output
        self._options = SHOWN
        self._last_words = LastWords(folder, node)
        self._unsent = UnsentFile(folder, node)
        self._numbers = itertools.count(1)  # of what is written
        self._read = self._sent = SentMark(node)  # what was taken in, and what was sent; between them are held rows
        self._set_owner("")
        self.stdout = RankStream(self, "stdout", 1)
        self.stderr = RankStream(self, "stderr", 2)
        self._files = [Follower(folder / f"{node}.out", "stdout"), Follower(folder / f"{node}.err", "stderr")]
        self._waiting: collections.deque[tuple[int, str, StreamName, str]] = collections.deque()
        self._size = 0  # characters that _waiting takes, roughly: threads add to it without a lock
        self._sent_at = 0.0
        self._bell = threading.Lock()  # acquired: silent. A lock can be rung from a signal handler, an Event cannot
        self._bell.acquire()
        self._is_urgent = False  # the bell was rung to have something sent at once
        self._asleep = False  # the thread waits for the bell alone
        self._is_idle = False  # the process, as the heartbeat says
        self._sending = threading.Lock()  # guards _files, _screens and the order in which chunks leave
        self._screens = Screens()
        self._ended = False
        self._has_failed = False
        self._forked = False
        self._thread = threading.Thread(target=self._run, name="meshbook output", daemon=True)
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]

    def install(self) -> None:
        """Replace Python's streams and begin to send."""
        sys.stdout, sys.stderr = self.stdout, self.stderr
        os.register_at_fork(after_in_child=self._become_child)
        self._thread.start()

    def close(self) -> None:
        """Send the rest; what is written from now on stays here."""
        self._ended = True
        if self._thread.is_alive():
            self.ring()
            self._thread.join()
        self.flush()

    def flush(self) -> None:
        """Send everything that has been written so far, by Python or by anything else in this process."""
        with self._sending:
            self._send_all()
            self._wake_for_screens()

    def end(self, origin: str) -> None:
        """A cell has ended: send everything, and what it has shown stays."""
        with self._sending:
            # In most cells nothing is written, and each cell waits for this.
            if not (self._waiting or self._screens.has_any or any(file.has_news for file in self._files)):
                return
            self._send_all()
            for writer, emission in self._screens.end(origin):
                self._send(*writer, emission)
            self._wake_for_screens()

    def begin(self, origin: str) -> None:
        """A cell begins on the main thread."""
        self._set_owner(origin)

    @property
    def options(self) -> LogOptions:
        """What the controller does with output of no cell."""
        return self._options

    def choose(self, options: LogOptions) -> None:
        """Let this hold for what is written from now on; what was written before leaves with the options of before."""
        self.flush()
        self._options = options
        self._set_owner(self.main_origin())

    def take_rank(self, rank: int) -> None:
        """This process has another rank from now on."""
        self._rank = rank
        self._set_owner(self.main_origin())

    def _set_owner(self, origin: str) -> None:
        self._unsent.belong_to(OutputOwner(self._mesh, self._rank, self._options, origin))

    # -- from the streams ------------------------------------------------------

    def write(self, origin: str, stream: StreamName, text: str) -> None:
        """Take in what was written, on any thread and within any signal handler."""
        if self._forked:
            return _write_all(1 if stream == "stdout" else 2, text)
        if stream == "stderr":
            self._last_words.add(text)
        number, origin = next(self._numbers), origin or self.main_origin()
        self._size += len(text) + PIECE_CHARACTERS
        self._waiting.append((number, origin, stream, text))
        if len(text) > KEPT_CHARACTERS or not self._unsent.add(number, origin, stream, text):
            self._keep_slowly(number, origin, stream, text)
        if self._size >= FLUSH_CHARACTERS or (text.endswith("\n") and self._is_quiet()):
            self.ring()
        elif self._asleep:
            self._wake()
        if self._size >= WAITING_CHARACTERS:
            self._wait_for_room()
        return None

    def ring(self) -> None:
        """Let the thread send now."""
        self._is_urgent = True
        self._wake()

    def look(self, *, is_idle: bool) -> None:
        """Wake the thread if a file has grown, or if this process is not idle; for the heartbeat."""
        self._is_idle = is_idle
        if self._asleep and (not is_idle or any(file.has_news for file in self._files)):
            self._wake()

    def _wake_for_screens(self) -> None:
        if self._asleep and not self._screens.is_settled:
            self._wake()

    def _wake(self) -> None:
        if self._bell.locked():
            with contextlib.suppress(RuntimeError):  # another thread rang in between
                self._bell.release()

    def _is_quiet(self) -> bool:
        return monotonic() - self._sent_at > FLUSH_SECONDS

    def _wait_for_room(self) -> None:
        # Not for ever: a handler that has interrupted a send on this very thread waits for what cannot happen.
        end = monotonic() + WAIT_SECONDS
        while self._size >= WAITING_CHARACTERS and self._thread.is_alive() and monotonic() < end:
            sleep(0.001)  # and not by a lock: whoever would release it may be the one that was interrupted

    def _keep_slowly(self, number: int, origin: str, stream: StreamName, text: str) -> None:
        """Keep a long text, or wait until there is room; not for long, where the controller does not receive."""
        end = monotonic() + KEEP_SECONDS
        for start in range(0, len(text), KEPT_CHARACTERS):
            while not self._unsent.add(number, origin, stream, text[start : start + KEPT_CHARACTERS]):
                self.ring()
                sleep(0.001)
                if monotonic() > end:
                    self._unsent.give_up()

    def _become_child(self) -> None:
        """In a forked child (a DataLoader's worker) there is no such thread, and the socket is the parent's.

        Its output goes to the descriptors, where the parent follows it.
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
            except Exception:  # of what is written later the user wants to see something, too
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
            is_silent = False  # a piece that rang may be the first of a line, and the rest is about to come
        if not self._is_urgent:
            self._bell.acquire(timeout=FOLLOW_SECONDS if is_silent else FLUSH_SECONDS)
        self._is_urgent = False

    def _sleep(self) -> None:
        """Wait for the bell, unless a screen has something to send later."""
        # First say that this thread sleeps, then look: what comes in between is seen, or rings.
        with self._sending:
            self._asleep = self._screens.is_settled
        if self._asleep and not (self._waiting or self._ended):
            self._bell.acquire()
        self._asleep = False

    def _send_now(self, *, follow: bool) -> None:
        with self._sending:
            self._turn()
            ends = self._file_ends()
            self._send_waiting()
            for writer, emission in self._screens.due(monotonic()):
                self._send(*writer, emission)
            if follow:
                self._send_files(ends)
                self._last_words.trim()

    def _turn(self) -> None:
        """Before anything more is sent: what was sent so far need not be kept if it has left."""
        if self._has_left():
            self._unsent.turn(self._read.number, self._sent)
            for file in self._files:
                file.give_back(getattr(self._sent, file.stream))

    def _send_all(self) -> None:
        self._turn()
        ends = self._file_ends()
        self._send_waiting()
        self._send_files(ends)
        self._send_held()

    def _send_held(self) -> None:
        for writer, emission in self._screens.held(monotonic()):
            self._send(*writer, emission)

    def _send_waiting(self) -> None:
        for number, origin, stream, text in self._merged():
            self._pass_on(origin, stream, whole(text), msgspec.structs.replace(self._read, number=number))

    def _merged(self) -> Iterator[tuple[int, str, StreamName, str]]:
        """What waits, with neighbours of one origin and stream in one piece."""
        now: tuple[str, StreamName] = ("", "stdout")
        last = 0
        parts: list[str] = []
        size = 0
        while self._waiting:
            number, origin, stream, text = self._waiting.popleft()
            self._size -= len(text) + PIECE_CHARACTERS
            if parts and ((origin, stream) != now or size >= self._chunk_characters):
                yield last, *now, "".join(parts)
                parts, size = [], 0
            now = (origin, stream)
            if number > last:
                last = number
            parts.append(text)
            size += len(text)
        self._size = 0
        if parts:
            yield last, *now, "".join(parts)

    def _file_ends(self) -> list[int]:
        """Return how far to read the files; taken before Python's text is, so that earlier text is sent first."""
        return [file.size for file in self._files]

    def _send_files(self, ends: list[int]) -> None:
        for file, end in zip(self._files, ends, strict=True):
            for text in file.read(end):
                read = msgspec.structs.replace(self._read, **{file.stream: file.position})
                self._pass_on(self.main_origin(), file.stream, text, read)

    def _pass_on(self, origin: str, stream: StreamName, text: str, read: SentMark) -> None:
        """Take in the text up to this mark, and send what is not held."""
        self._sent_at = monotonic()
        emission = self._screens.feed(origin, stream, text, self._sent_at)
        if emission is None or not (emission.text or emission.live is not None):
            self._read = read
            return
        self._send_held()  # first, so that everything before a mark has been sent
        self._read = read
        self._send(origin, stream, emission)

    def _send(self, origin: str, stream: StreamName, emission: Emission) -> None:
        """In chunks of no more than the limit; the rows that may still change come with the last of them."""
        if not self._screens.holds_any:
            self._sent = self._read
        text, size = emission.text, self._chunk_characters
        live = None if emission.live is None else emission.live[-size:]
        for start in range(0, max(len(text), 1), size):
            is_last = start + size >= len(text)
            # Only the last one has the rows, and the mark.
            rest = (live, self._sent) if is_last else (None, None)
            part = text[start : start + size]
            self._send_chunk(OutputChunk(origin, self._mesh, self._rank, stream, part, self._options, *rest))


def whole(text: str) -> str:
    """Text that UTF-8 can carry: halves of characters become one where they meet, and U+FFFD where they do not."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _write_all(descriptor: int, text: str) -> None:
    data = whole(text).encode()
    while data:
        data = data[os.write(descriptor, data) :]


def _no_origin() -> str:
    return ""
