"""A rank's output as it is captured: its streams, whole and in order, and what goes past them."""

from __future__ import annotations

import array
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.actor.context import CURRENT, Context, Instance
from meshbook.runtime.config import PACKAGE
from meshbook.runtime.formats import whole
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.telemetry.capture import FLUSH_SECONDS, IDLE_SECONDS, Capture, ReplyOutput
from meshbook.runtime.telemetry.output import OutputChunk
from meshbook.runtime.telemetry.rank_streams import RankStream
from meshbook.runtime.telemetry.stderr_tail import read_last_lines
from tests.support import PATIENCE

HALF_A_CHARACTER = "\ud83d"  # of an emoji, as a UTF-16 world splits it


def output(text: str, origin: str = "", rank: int = 0, mesh: str = "mesh") -> OutputChunk:
    return OutputChunk(origin, mesh, rank, "stdout", text)


# -- the streams of a rank ---------------------------------------------------------------


class Taken:
    """Records what is written, with its origin."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str, str]] = []
        self.rung = 0

    def write(self, origin: str, stream: str, text: str) -> None:
        self.written.append((origin, stream, text))

    def flush_soon(self) -> None:
        self.rung += 1


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
def stream(taken: Taken) -> RankStream:
    return RankStream(taken, "stdout", 1)  # type: ignore[arg-type]


@pytest.fixture
def as_cell() -> Iterator[Callable[[str], None]]:
    """Go on as the execution of this origin."""
    before = CURRENT.get()
    nowhere: Any = type("Node", (), {"address": type("Address", (), {"node": "node"})})

    def become(origin: str) -> None:
        CURRENT.set(Context(Instance("a", "a", SCALAR.point(0), nowhere), origin=origin))

    yield become
    CURRENT.set(before)


def test_output_carries_its_origin(taken: Taken, stream: RankStream, as_cell: Any) -> None:
    print("before", file=stream)
    as_cell("cell 1")
    stream.writelines(["a", "", "b"])
    assert taken.written == [
        ("", "stdout", "before"),
        ("", "stdout", "\n"),
        ("cell 1", "stdout", "a"),
        ("cell 1", "stdout", "b"),
    ]


def test_a_stream_is_a_text_file(taken: Taken, stream: RankStream) -> None:
    assert stream.write("four") == 4
    assert [stream.writable(), stream.readable(), stream.seekable(), stream.isatty()] == [True, False, False, False]
    assert (stream.encoding, stream.errors, stream.name, stream.fileno()) == ("utf-8", "replace", "<stdout>", 1)
    stream.reconfigure(line_buffering=True, encoding="latin-1")
    stream.flush()
    assert taken.rung == 1
    with pytest.raises(TypeError, match="write\\(\\) argument must be str, not bytes"):
        stream.write(b"bytes")  # type: ignore[arg-type]


def test_a_stream_that_was_closed_still_takes_text(taken: Taken, stream: RankStream) -> None:
    with stream:
        pass
    stream.close()
    stream.buffer.close()
    stream.write("text")
    stream.buffer.write(b"bytes")
    assert [text for _, _, text in taken.written] == ["text", "bytes"]
    assert not stream.closed


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"abc", bytearray(b"d"), memoryview(b"ef")], ["abc", "d", "ef"]),
        (["😀".encode()[:2], "😀".encode()[2:]], ["😀"]),
        ([b"a\xffb"], ["a\ufffdb"]),
        ([b""], []),
    ],
)
def test_bytes_go_the_way_of_the_text(taken: Taken, stream: RankStream, pieces: Any, expected: list[str]) -> None:
    assert [stream.buffer.write(piece) for piece in pieces] == [len(piece) for piece in pieces]
    assert [text for _, _, text in taken.written] == expected


def test_bytes_of_wider_items_are_counted_as_bytes(taken: Taken, stream: RankStream) -> None:
    assert stream.buffer.write(array.array("I", [0x41414141, 0x42424242])) == 8
    assert taken.written == [("", "stdout", "AAAABBBB")]


def test_bytes_can_be_wrapped_again(taken: Taken, stream: RankStream) -> None:
    """What scripts do that want another encoding: their wrapper closes the buffer when it goes."""
    wrapper = io.TextIOWrapper(stream.buffer, encoding="utf-8", write_through=True)  # type: ignore[arg-type]
    wrapper.write("wrapped é")
    del wrapper
    assert "".join(text for _, _, text in taken.written) == "wrapped é"
    stream.write("still")
    assert taken.written[-1][2] == "still"


# -- capture -----------------------------------------------------------------------------


class Captured:
    """A capture that is not installed: the test writes to its streams and flushes."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.chunks: list[OutputChunk] = []
        self.capture = Capture(self.chunks.append, "mesh", 3, folder, "node", **settings)

    def flushed(self) -> list[tuple[str, str, str]]:
        """What has come since the last time: origin, stream, text."""
        self.capture.flush()
        found = [(chunk.origin, chunk.stream, chunk.text) for chunk in self.chunks]
        self.chunks.clear()
        return found


@pytest.fixture
def captured(tmp_path: Path) -> Captured:
    return Captured(tmp_path)


def test_neighbours_of_one_origin_and_stream_travel_together(captured: Captured, as_cell: Any) -> None:
    out, err = captured.capture.stdout, captured.capture.stderr
    print("a", 1, file=out)
    out.write("b")
    err.write("e")
    out.write("c")
    as_cell("cell")
    out.write("d")
    captured.capture.flush()
    assert [(chunk.mesh, chunk.rank) for chunk in captured.chunks] == [("mesh", 3)] * 4
    assert captured.flushed() == [
        ("", "stdout", "a 1\nb"),
        ("", "stderr", "e"),
        ("", "stdout", "c"),
        ("cell", "stdout", "d"),
    ]
    assert captured.flushed() == []


@pytest.mark.parametrize(
    ("pieces", "sizes"),
    [
        (["x" * 25], [10, 10, 5]),
        (["x" * 10], [10]),
        (["x" * 6] * 4, [10, 2, 10, 2]),
        (["x"] * 25, [10, 10, 5]),
    ],
)
def test_no_chunk_is_over_the_limit(tmp_path: Path, pieces: list[str], sizes: list[int]) -> None:
    captured = Captured(tmp_path, chunk_characters=10)
    for piece in pieces:
        captured.capture.stdout.write(piece)
    assert [len(text) for _, _, text in captured.flushed()] == sizes


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["plain"], "plain"),
        (["é😀"], "é😀"),
        ([f"a{HALF_A_CHARACTER}b"], "a\ufffdb"),
        (["\ud83d", "\ude00"], "😀"),  # the halves meet again
        (["\udcff"], "\ufffd"),  # how Python reads a byte of a file's name
    ],
)
def test_halves_of_characters_travel(captured: Captured, pieces: list[str], expected: str) -> None:
    for piece in pieces:
        captured.capture.stdout.write(piece)
    [(_, _, text)] = captured.flushed()
    assert text == expected
    assert whole("".join(pieces)) == expected


def test_what_goes_past_python_comes_with_the_cell_that_runs(tmp_path: Path, captured: Captured) -> None:
    captured.capture.main_origin = lambda: "cell"
    (tmp_path / "node.out").write_bytes(b"from C\n")
    (tmp_path / "node.err").write_bytes(b"from C too\n")
    assert captured.flushed() == [("cell", "stdout", "from C\n"), ("cell", "stderr", "from C too\n")]


def test_text_of_python_and_of_others_keeps_its_order(tmp_path: Path, captured: Captured) -> None:
    with (tmp_path / "node.out").open("a", buffering=1) as out, (tmp_path / "node.err").open("a", buffering=1) as err:
        for number in range(2):
            print("python", number, file=captured.capture.stdout)
            print("c", number, file=out)
            print(file=captured.capture.stdout)
            print("child", number, file=err)
            print("python", number, file=captured.capture.stderr)
        print("c", file=out)
    assert [text for _, stream, text in captured.flushed() if stream == "stdout"] == [
        *("python 0\n", "c 0\n", "\n", "python 1\n", "c 1\n", "\n", "c\n"),
    ]
    captured.capture.stdout.write("first, ")
    (tmp_path / "node.out").write_text("new\n")
    captured.capture.stdout.write("last")
    assert "".join(text for _, _, text in captured.flushed()) == "first, new\nlast"


def test_text_written_while_earlier_text_is_sent_keeps_its_place_before_text_of_c(tmp_path: Path) -> None:
    chunks: list[OutputChunk] = []

    def send(chunk: OutputChunk) -> None:
        chunks.append(chunk)
        if chunk.text == "first\n":
            capture.stdout.write("second\n")
            (tmp_path / "node.out").write_bytes(b"from C\n")

    capture = Capture(send, "mesh", 0, tmp_path, "node")
    capture.stdout.write("first\n")
    capture.flush()
    capture.flush()
    assert [chunk.text for chunk in chunks] == ["first\n", "second\n", "from C\n"]


def test_the_end_of_a_cell_sends_what_it_wrote_by_whichever_way(
    tmp_path: Path, captured: Captured, as_cell: Any
) -> None:
    as_cell("cell 1")
    captured.capture.end("cell 1")
    assert captured.chunks == []
    captured.capture.stdout.write("without an end")
    captured.capture.end("cell 1")
    assert [chunk.text for chunk in captured.chunks if chunk.text] == ["without an end"]
    with (tmp_path / "node.out").open("a") as file:
        file.write("from C\n")
    captured.capture.end("cell 1")
    assert captured.chunks[-1].text == "from C\n"


class Kept:
    """A capture that is not installed, whose cells are called through agents."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[str] = []
        output = ReplyOutput(self._pack, lambda frame: self.sent.append(bytes(frame).decode()))
        self.capture = Capture(
            lambda chunk: self.sent.append(chunk.text), "mesh", 0, folder, "node", reply_output=output
        )

    def _pack(self, chunk: OutputChunk) -> bytes | None:
        return chunk.text.encode() if len(chunk.text) <= 10 else None

    def taken(self) -> list[bytes]:
        with self.capture.kept_output() as output:
            return [bytes(frame) for frame in output]


CALL = "controller", 7


def test_the_last_output_of_a_call_through_agents_is_kept_for_its_reply(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.capture.stdout.write("first")
    kept.capture.flush()
    kept.capture.stdout.write("out")
    kept.capture.stderr.write("err")
    kept.capture.end("", CALL)
    assert kept.capture.keeps_for(CALL)
    assert not kept.capture.keeps_for(("controller", 8))
    assert kept.taken() == [b"out", b"err"]
    assert not kept.capture.keeps_for(CALL)
    assert kept.taken() == []
    assert kept.sent == ["first"]


@pytest.fixture
def relayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """A capture whose cell is called through agents, and has printed."""
    monkeypatch.setattr("meshbook.runtime.telemetry.capture.FLUSH_SECONDS", 1000.0)
    kept = Kept(tmp_path)
    kept.capture.begin("", CALL)
    kept.capture.stdout.write("kept")
    return kept


def test_what_a_relayed_cell_prints_waits_also_for_a_thread_that_is_about_to_send(relayed: Kept) -> None:
    relayed.capture._send_now(follow=False)
    assert relayed.sent == []
    relayed.capture.end("", CALL)
    assert relayed.taken() == [b"kept"]


class OvertakenLock:
    """The lock of a capture. The output thread takes and releases it just before the first entry."""

    def __init__(self, capture: Capture) -> None:
        self._capture, self._lock = capture, capture._sending
        self._is_entered = False

    def __enter__(self) -> None:
        if not self._is_entered:
            self._is_entered = True
            self._capture._send_now(follow=False)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_text_stays_for_the_reply_if_the_output_thread_looks_for_it_while_the_cell_ends(
    relayed: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relayed.capture, "_sending", OvertakenLock(relayed.capture))
    relayed.capture.end("", CALL)
    assert relayed.taken() == [b"kept"]
    assert relayed.sent == []


@pytest.mark.parametrize("way", ["late text", "a flush", "a large text", "the end of the process"])
def test_kept_output_is_sent_before_other_output(tmp_path: Path, way: str) -> None:
    kept = Kept(tmp_path)
    kept.capture.stdout.write("kept")
    kept.capture.end("", CALL)
    if way == "late text":
        kept.capture.stdout.write("late")
        kept.capture._send_now(follow=False)
    elif way == "a flush":
        kept.capture.flush()
    elif way == "a large text":
        kept.capture.stdout.write("x" * 11)
        kept.capture.end("", CALL)
    else:
        kept.capture.close()
    rest = {"late text": ["late"], "a large text": ["x" * 11]}
    assert kept.sent == ["kept", *rest.get(way, [])]
    assert kept.taken() == []


@pytest.mark.parametrize(("call", "text", "waits"), [(CALL, "a\n", 1), (None, "a\n", 0), (CALL, "x" * 40_000, 0)])
def test_the_output_thread_waits_for_the_end_of_a_call_through_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any, text: str, waits: int
) -> None:
    capture, now = Kept(tmp_path).capture, [100.0]

    class Wakeup:
        """A lock that is never released: each wait takes all of its time."""

        def locked(self) -> bool:
            return False

        def acquire(self, timeout: float) -> None:
            now[0] += timeout

    monkeypatch.setattr("meshbook.runtime.telemetry.capture.monotonic", lambda: now[0])
    monkeypatch.setattr(capture, "_wake_lock", Wakeup())
    capture.begin("", call)
    capture.stdout.write(text)
    capture._wait()
    assert now[0] == pytest.approx(100 + waits * FLUSH_SECONDS)
    now[0] += 1
    capture.stdout.write(text)  # after a silence
    capture._wait()
    assert now[0] == pytest.approx(101 + 2 * waits * FLUSH_SECONDS)


def test_stderr_is_kept_for_the_day_the_process_dies(tmp_path: Path, captured: Captured) -> None:
    captured.capture.stdout.write("not this\n")
    captured.capture.stderr.write("but this\n")
    assert read_last_lines(tmp_path, "node", 5) == ("but this",)  # at once: there may be no flush


def test_threads_do_not_mix_their_lines_and_lose_none(captured: Captured) -> None:
    def write(who: str) -> None:
        for number in range(500):
            captured.capture.stdout.write(f"{who}{number}\n")

    threads = [threading.Thread(target=write, args=(who,)) for who in "abcd"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        captured.capture.flush()
    for thread in threads:
        thread.join()
    captured.capture.flush()
    lines = "".join(chunk.text for chunk in captured.chunks).splitlines()
    for who in "abcd":
        assert [line for line in lines if line[0] == who] == [f"{who}{number}" for number in range(500)]


class Sleeping(Captured):
    """A capture whose thread sends, and sleeps as that of an idle process does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._came = threading.Condition()
        self.capture._send_chunk = self._add
        self.capture._sent_at = -IDLE_SECONDS
        self.capture.poll(is_idle=True)
        self.capture._thread.start()

    def _add(self, chunk: OutputChunk) -> None:
        with self._came:
            self.chunks.append(chunk)
            self._came.notify_all()

    def wait_for(self, text: str) -> None:
        """Wait until this was sent, in text that is final or in rows that may change."""
        with self._came:
            assert self._came.wait_for(lambda: text in self._sent(), PATIENCE), self.chunks

    def _sent(self) -> str:
        return "".join(chunk.text + (chunk.live or "") for chunk in self.chunks)

    def wait_asleep(self) -> None:
        end = time.monotonic() + PATIENCE
        while not self.capture._asleep:
            assert time.monotonic() < end
            self.capture._thread.join(0.01)


@pytest.fixture
def sleeping(tmp_path: Path) -> Iterator[Sleeping]:
    sleeping = Sleeping(tmp_path)
    sleeping.wait_asleep()
    yield sleeping
    sleeping.capture.close()


@pytest.mark.parametrize("text", ["a line\n", "no end", "bar\r", "x" * 100_000])
def test_what_is_written_wakes_the_thread_that_sends(sleeping: Sleeping, as_cell: Any, text: str) -> None:
    as_cell("cell")
    sleeping.capture.stdout.write(text)
    sleeping.wait_for(text.rstrip())


def test_the_heartbeat_wakes_the_thread_for_a_file_that_has_grown(sleeping: Sleeping, tmp_path: Path) -> None:
    sleeping.capture.poll(is_idle=True)
    assert sleeping.capture._asleep
    (tmp_path / "node.err").write_bytes(b"from C\n")
    sleeping.capture.poll(is_idle=True)
    sleeping.wait_for("from C")
    sleeping.wait_asleep()


def test_a_busy_process_is_followed_without_the_heartbeat(sleeping: Sleeping, tmp_path: Path) -> None:
    sleeping.capture.poll(is_idle=False)
    (tmp_path / "node.out").write_bytes(b"from C\n")
    sleeping.wait_for("from C")


def test_a_flush_beside_the_thread_that_sleeps_leaves_no_rows_behind(sleeping: Sleeping, tmp_path: Path) -> None:
    sleeping.capture.main_origin = lambda: "cell"
    (tmp_path / "node.out").write_bytes(b"first\rsecond\n")
    sleeping.capture.flush()  # the rows may still change, and become final a second later
    sleeping.wait_for("second")


# In a process of its own: an installed capture takes the streams over, and a fork concerns all threads.
INSTALLED = """
import os, sys, threading, warnings
from pathlib import Path
from meshbook.runtime.telemetry.capture import Capture
from meshbook.runtime.telemetry.output import OutputChunk

result = open(sys.argv[2], "w")
came = threading.Condition()
chunks = []

def send(chunk):
    with came:
        chunks.append(chunk)
        came.notify_all()

def wait_for(text):
    with came:
        assert came.wait_for(lambda: text in "".join(chunk.text for chunk in chunks), 10), chunks

folder = Path(sys.argv[1])
capture = Capture(send, "mesh", 0, folder, "node")
capture.install()
"""


def run_installed(tmp_path: Path, source: str) -> tuple[str, str]:
    """What the source writes to `result`; and the output that went past the capture, as descriptors 1 and 2 got it."""
    result = tmp_path / "result"
    done = subprocess.run(
        [sys.executable, "-P", "-c", INSTALLED + source, str(tmp_path), str(result)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stderr
    return result.read_text(), done.stdout + done.stderr


@pytest.mark.process
def test_an_installed_capture_sends_by_itself_and_the_rest_at_its_end(tmp_path: Path) -> None:
    source = """
print("line")
wait_for("line")
sys.stderr.write("error")
wait_for("error")
fd = os.open(folder / "node.out", os.O_WRONLY | os.O_APPEND)
os.write(fd, b"from C")
wait_for("from C")
print("x" * 9_000_000, end="")  # over what may wait
sys.stdout.write("rest")
capture.close()
capture.close()
result.write(repr([(chunk.stream, len(chunk.text), chunk.text[-4:]) for chunk in chunks[-1:]]))
result.write(str(sum(len(chunk.text) for chunk in chunks)))
"""
    said, past = run_installed(tmp_path, source)
    assert past == ""
    total = len("line\nerrorfrom Crest") + 9_000_000
    assert said.startswith("[('stdout',")
    assert "'rest')]" in said
    assert said.endswith(str(total))


@pytest.mark.process
def test_a_forked_child_writes_to_its_descriptors(tmp_path: Path) -> None:
    """A DataLoader's worker: no thread sends there, and what waits is the parent's to send, once."""
    source = """
warnings.simplefilter("ignore")  # of a fork with threads, which Python 3.12 has begun to tell
sys.stdout.write("parent's")
pid = os.fork()
if pid == 0:
    print("child's é", end=" ")
    print("child's error", file=sys.stderr)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
capture.close()
result.write("".join(chunk.text for chunk in chunks))
"""
    said, past = run_installed(tmp_path, source)
    assert said == "parent's"
    assert sorted(past.split()) == ["child's", "child's", "error", "é"]


@pytest.mark.process
def test_a_thread_may_outlive_the_flush_of_its_cell(tmp_path: Path) -> None:
    source = """
go, done = threading.Event(), threading.Event()

def work():
    go.wait()
    print("late", end="")
    done.set()

thread = threading.Thread(target=work)
thread.start()
print("early", end="")
capture.flush()
result.write(repr([chunk.text for chunk in chunks]))
go.set()
done.wait()
capture.close()
thread.join()
result.write(chunks[-1].text)
"""
    said, _ = run_installed(tmp_path, source)
    assert said == "['early']late"


@pytest.mark.process
def test_what_cannot_be_sent_costs_no_later_line(tmp_path: Path) -> None:
    """A full disk, or code that closed our files, may be in the way for a moment. It is reported once."""
    source = """
def fail():
    raise OSError("not now")

trim, capture._stderr_tail.trim = capture._stderr_tail.trim, fail
print("first")
wait_for("first")
wait_for("OSError: not now")
capture._stderr_tail.trim = trim
print("second")
wait_for("second")
capture.close()
result.write("".join(chunk.text for chunk in chunks if chunk.stream == "stdout"))
"""
    said, past = run_installed(tmp_path, source)
    assert said == "first\nsecond\n"
    assert past == ""
