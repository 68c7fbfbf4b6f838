"""Output as events: captured whole and in order, routed by who caused it, and kept within limits."""

from __future__ import annotations

import array
import errno
import io
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.actor.context import CURRENT, Context, Instance
from meshbook.runtime.config import PACKAGE
from meshbook.runtime.geometry import Extent
from meshbook.runtime.telemetry import follower as follower_module
from meshbook.runtime.telemetry.capture import Capture, whole
from meshbook.runtime.telemetry.follower import KEPT_BYTES, PUNCH_BYTES, READ_BYTES, Follower
from meshbook.runtime.telemetry.last_words import LIMIT_BYTES, LINE_CHARACTERS, TAIL_BYTES, LastWords, last_words
from meshbook.runtime.telemetry.output import Chunk, DisplayChunk, OutputChunk, OutputStore, Ring
from meshbook.runtime.telemetry.spool import Spool
from meshbook.runtime.telemetry.streams import RankStream

PATIENCE = 10.0
HALF_A_CHARACTER = "\ud83d"  # of an emoji, as a UTF-16 world splits it


def output(text: str, origin: str = "", rank: int = 0, mesh: str = "mesh") -> OutputChunk:
    return OutputChunk(origin, mesh, rank, "stdout", text)


# -- the store -------------------------------------------------------------------------


def test_a_chunk_goes_to_the_sink_of_its_origin() -> None:
    store, first, second, others = OutputStore(), [], [], []  # type: ignore[var-annotated]
    store.open("first", first.append)
    store.open("second", second.append)
    store.set_default(others.append)
    chunks: list[Chunk] = [output("1", "first"), output("2", "second"), output("3", "gone"), output("4")]
    chunks.append(DisplayChunk("first", "mesh", 0, {"text/plain": "figure"}, {}))
    for chunk in chunks:
        store.add(chunk)
    assert (first, second, others) == ([chunks[0], chunks[4]], [chunks[1]], chunks[2:4])


def test_what_comes_after_the_end_goes_to_the_default_sink_if_there_is_one() -> None:
    store, seen, others = OutputStore(), [], []  # type: ignore[var-annotated]
    store.open("cell", seen.append)
    for _ in range(2):
        store.close("cell")
    late = output("late", "cell")
    store.add(late)
    store.set_default(others.append)
    store.add(late)
    store.set_default(None)
    store.add(late)
    assert (seen, others) == ([], [late])
    assert store.recent("mesh", 0) == "late" * 3


def test_a_sink_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store, seen = OutputStore(), []  # type: ignore[var-annotated]

    def fail(chunk: Chunk) -> None:
        raise OSError("display is gone")

    store.open("bad", fail)
    store.set_default(seen.append)
    store.add(output("x", "bad", rank=3))
    store.add(output("y"))
    assert seen == [output("y")]
    assert caplog.messages == ["output of rank 3 of mesh could not be shown"]


def test_the_store_keeps_the_last_text_of_each_rank() -> None:
    store = OutputStore()
    for rank in (0, 1):
        for mesh in ("a", "b"):
            store.add(output(f"{mesh}{rank}", rank=rank, mesh=mesh))
    store.add(OutputChunk("", "a", 0, "stderr", "!"))
    assert [store.recent("a", 0), store.recent("b", 1), store.recent("b", 2)] == ["a0!", "b1", ""]
    store.forget("a")
    assert [store.recent("a", 0), store.recent("a", 1), store.recent("b", 1)] == ["", "", "b1"]


@pytest.mark.parametrize(
    ("chunks", "kept"),
    [
        ([], ""),
        (["abc", "de"], "abcde"),
        (["abc", "def"], "def"),  # by whole chunks
        (["abcdefgh"], "defgh"),
        (["ab", "abcdefgh"], "defgh"),
        (["a"] * 100, "aaaaa"),
        (["abcde", ""], "abcde"),
    ],
)
def test_a_ring_keeps_the_end(chunks: list[str], kept: str) -> None:
    ring = Ring(5)
    for chunk in chunks:
        ring.add(chunk)
    assert ring.text() == kept


# -- the spool -------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [0, 4, 1000])
def test_a_spool_gives_back_all_it_took(memory: int) -> None:
    spool = Spool(memory)
    for piece in ("abc", "", "dé", "😀" * 50, "end\n"):
        spool.write(piece)
    for _ in range(2):
        assert spool.read() == "abcdé" + "😀" * 50 + "end\n"
    spool.write("more")
    assert spool.read().endswith("end\nmore")
    assert spool.note == ""


def test_a_spool_takes_halves_of_characters() -> None:
    spool = Spool()
    spool.write(f"a{HALF_A_CHARACTER}b")
    assert spool.read() == "a?b"


class FullDisk(io.BytesIO):
    """Takes ten bytes, five at a time."""

    def write(self, data: Any) -> int:
        if self.tell() >= 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data[: min(5, 10 - self.tell())])


def test_a_full_disk_costs_the_rest_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **settings: FullDisk())
    spool = Spool(3)
    for piece in ("abc", "0123456", "789xyz", "never kept"):
        spool.write(piece)
    where = tempfile.gettempdir()
    assert spool.note == f"\n[meshbook: the rest could not be kept in {where}: No space left on device]\n"
    assert spool.read() == "abc0123456789" + spool.note


def test_a_disk_that_is_full_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**settings: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    spool = Spool(3)
    spool.write("abc")
    spool.write("def")
    assert spool.read() == "abc" + spool.note
    assert "No space left" in spool.note


# -- following a file --------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.out"


@pytest.fixture
def follower(path: Path) -> Iterator[Follower]:
    made = Follower(path, "stdout")
    yield made
    made.close()


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_a_follower_reads_what_is_new(path: Path, follower: Follower) -> None:
    assert list(follower.read()) == []
    for data in (b"one\n", b"two"):
        append(path, data)
        assert list(follower.read()) == [data.decode()]
    assert list(follower.read()) == []


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_character_may_come_in_parts(path: Path, follower: Follower, cut: int) -> None:
    data = "😀".encode()
    texts = []
    for part in (b"a" + data[:cut], data[cut:] + b"b"):
        append(path, part)
        texts.append("".join(follower.read()))
    assert texts == ["a", "😀b"]


def test_what_is_no_utf8_becomes_a_mark(path: Path, follower: Follower) -> None:
    append(path, b"a\xffb\0c")
    assert list(follower.read()) == ["a\ufffdb\0c"]


def test_a_file_that_was_cut_is_read_from_its_beginning(path: Path, follower: Follower) -> None:
    append(path, b"a long first text")
    list(follower.read())
    path.write_bytes(b"new")
    assert list(follower.read()) == ["new"]


def test_much_text_comes_in_pieces_and_ends(path: Path, follower: Follower) -> None:
    append(path, b"x" * (2 * READ_BYTES + 1))
    pieces = follower.read()
    assert len(next(pieces)) == READ_BYTES
    append(path, b"y")  # what comes meanwhile is for the next time: a fast writer must not hold us
    assert [len(piece) for piece in pieces] == [READ_BYTES, 1]
    assert list(follower.read()) == ["y"]


def test_space_is_given_back_behind_the_reader(path: Path, follower: Follower) -> None:
    text = bytes(range(32, 96)) * (PUNCH_BYTES // 64)
    append(path, text + text)
    before = path.stat()
    assert "".join(follower.read()) == (text + text).decode()
    after = path.stat()
    if after.st_blocks == before.st_blocks:
        pytest.skip("this file system has no holes")
    assert after.st_size == before.st_size
    assert after.st_blocks * 512 < before.st_blocks * 512 - PUNCH_BYTES
    with open(path, "rb") as file:
        file.seek(-KEPT_BYTES, os.SEEK_END)
        assert file.read() == (text + text)[-KEPT_BYTES:]
    append(path, b"more")
    assert list(follower.read()) == ["more"]


def test_a_system_without_holes_keeps_the_text(path: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module.ctypes, "CDLL", lambda name: object())
    append(path, b"x" * (PUNCH_BYTES + 1))
    assert sum(map(len, follower.read())) == PUNCH_BYTES + 1
    append(path, b"y")
    assert list(follower.read()) == ["y"]


# -- last words --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("through", "past", "count", "expected"),
    [
        ("", "", 4, []),
        ("a\nb\n", "", 4, ["a", "b"]),
        ("", "x\ny\n", 4, ["x", "y"]),
        ("a\nb\n", "x\ny\n", 4, ["a", "b", "x", "y"]),
        ("a\nb\nc\nd\ne\n", "", 3, ["c", "d", "e"]),
        # Neither pushes the other out.
        ("a\nb\nc\nd\ne\n", "v\nw\nx\ny\nz\n", 4, ["d", "e", "y", "z"]),
        ("a\n", "v\nw\nx\ny\nz\n", 4, ["a", "x", "y", "z"]),
        ("a\nb\nc\nd\ne\n", "z\n", 4, ["c", "d", "e", "z"]),
        # Of a crash the stack, from its beginning.
        ("a\n", "x\nFatal Python error: Aborted\n1\n2\n3\n", 3, ["Fatal Python error: Aborted", "1", "2"]),
        ("", "Fatal Python error: A\nFatal Python error: B\n1\n", 3, ["Fatal Python error: B", "1"]),
        ("a  \n\n", "\0\0x\n", 4, ["a", "", "x"]),
        ("l" * 1000, "", 4, ["l" * LINE_CHARACTERS + "…"]),
    ],
)
def test_last_words(tmp_path: Path, through: str, past: str, count: int, expected: list[str]) -> None:
    (tmp_path / "node.last").write_text(through)
    (tmp_path / "node.err").write_text(past)
    assert list(last_words(tmp_path, "node", count)) == expected


def test_a_process_that_never_wrote_has_no_last_words(tmp_path: Path) -> None:
    assert last_words(tmp_path, "node", 5) == ()


def test_last_words_are_kept_short(tmp_path: Path) -> None:
    words = LastWords(tmp_path, "node")
    line = "x" * 99 + "\n"
    for _ in range(LIMIT_BYTES // 100):
        words.add(line)
    words.trim()
    assert (tmp_path / "node.last").stat().st_size == LIMIT_BYTES // 100 * 100
    words.add(line + f"the {HALF_A_CHARACTER} last\n")
    words.trim()
    assert (tmp_path / "node.last").stat().st_size == TAIL_BYTES
    words.add("and after\n")
    assert last_words(tmp_path, "node", 2) == ("the ? last", "and after")


# -- the streams of a rank ---------------------------------------------------------------


class Taken:
    """Takes what is written, and notes with it who wrote it."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str, str]] = []
        self.rung = 0

    def write(self, origin: str, stream: str, text: str) -> None:
        self.written.append((origin, stream, text))

    def ring(self) -> None:
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
        CURRENT.set(Context(Instance("a", "a", Extent((), ()).point(0), nowhere), origin=origin))

    yield become
    CURRENT.set(before)


def test_what_is_written_carries_who_wrote_it(taken: Taken, stream: RankStream, as_cell: Any) -> None:
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
    append(tmp_path / "node.out", b"from C\n")
    append(tmp_path / "node.err", b"from C too\n")
    captured.capture.stdout.write("from Python\n")
    assert captured.flushed() == [
        ("cell", "stdout", "from Python\n"),
        ("cell", "stdout", "from C\n"),
        ("cell", "stderr", "from C too\n"),
    ]


def test_stderr_is_kept_for_the_day_the_process_dies(tmp_path: Path, captured: Captured) -> None:
    captured.capture.stdout.write("not this\n")
    captured.capture.stderr.write("but this\n")
    assert last_words(tmp_path, "node", 5) == ("but this",)  # at once: there may be no flush


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
