"""Output as events: routed by its origin, kept within limits, followed in files, and found again after a death."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.errors import ExitReport
from meshbook.runtime.telemetry import follower as follower_module
from meshbook.runtime.telemetry.follower import KEPT_BYTES, PUNCH_BYTES, READ_BYTES, Follower
from meshbook.runtime.telemetry.output import REMEMBERED_ENDS, Chunk, DisplayChunk, OutputChunk, OutputStore
from meshbook.runtime.telemetry.spool import Spool
from meshbook.runtime.telemetry.stderr_tail import (
    LIMIT_BYTES,
    LINE_CHARACTERS,
    TAIL_BYTES,
    StderrTail,
    read_last_lines,
    remove_files,
)

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


def test_the_text_of_processes_that_ended_is_kept_while_they_are_the_last() -> None:
    store = OutputStore()
    for rank in range(REMEMBERED_ENDS + 2):
        store.add(output(f"of {rank}", rank=rank))
        store.ended(ExitReport(f"mesh.{rank}", 4711, 0))
        store.add(output(", late", rank=rank))
        if rank == 1:
            store.restarted("mesh.1")
    store.ended(ExitReport("agent", 4711, 0))
    kept = [rank for rank in range(REMEMBERED_ENDS + 2) if store.recent("mesh", rank) == f"of {rank}, late"]
    assert kept == [1, *range(3, REMEMBERED_ENDS + 2)]  # rank 1 lives again


def test_a_process_that_ends_again_counts_once() -> None:
    store = OutputStore()
    for rank in (0, *range(REMEMBERED_ENDS), 0):
        store.add(output("text", rank=rank))
        store.ended(ExitReport(f"mesh.{rank}", 4711, 0))
    store.ended(ExitReport("agent", 4711, 0))
    assert [rank for rank in range(REMEMBERED_ENDS) if not store.recent("mesh", rank)] == [1]


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
    assert f"{where}: No space left on device" in spool.note
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
        ("a\nb\n", "x\ny\n", 0, []),
        # Neither pushes the other out.
        ("a\nb\nc\nd\ne\n", "v\nw\nx\ny\nz\n", 4, ["d", "e", "y", "z"]),
        ("a\n", "v\nw\nx\ny\nz\n", 4, ["a", "x", "y", "z"]),
        ("a\nb\nc\nd\ne\n", "z\n", 4, ["c", "d", "e", "z"]),
        # Of a crash the stack, from its beginning.
        ("a\n", "x\nFatal Python error: Aborted\n1\n2\n3\n", 3, ["Fatal Python error: Aborted", "1", "2"]),
        ("", "Fatal Python error: A\nFatal Python error: B\n1\n", 3, ["Fatal Python error: B", "1"]),
        ("a  \n\n", "\0\0x\n", 4, ["a", "", "x"]),
        # Of a progress bar its last state.
        ("\r 0%\r50%\r99%\nb\r\n", "\r1/2", 4, ["99%", "b", "1/2"]),
        ("l" * 1000, "", 4, ["l" * LINE_CHARACTERS + "…"]),
    ],
)
def test_last_words(tmp_path: Path, through: str, past: str, count: int, expected: list[str]) -> None:
    (tmp_path / "node.last").write_text(through)
    (tmp_path / "node.err").write_text(past)
    assert list(read_last_lines(tmp_path, "node", count)) == expected


def test_a_process_that_never_wrote_has_no_last_words(tmp_path: Path) -> None:
    assert read_last_lines(tmp_path, "node", 5) == ()


def test_last_words_are_kept_short(tmp_path: Path) -> None:
    words = StderrTail(tmp_path, "node")
    words.trim()
    assert not (tmp_path / "node.last").exists()  # before there is any text
    line = "x" * 99 + "\n"
    for _ in range(LIMIT_BYTES // 100):
        words.add(line)
    words.trim()
    assert (tmp_path / "node.last").stat().st_size == LIMIT_BYTES // 100 * 100
    words.add(line + f"the {HALF_A_CHARACTER} last\n")
    words.trim()
    assert (tmp_path / "node.last").stat().st_size == TAIL_BYTES
    words.add("and after\n")
    assert read_last_lines(tmp_path, "node", 2) == ("the ? last", "and after")


def test_a_process_leaves_no_files(tmp_path: Path) -> None:
    for name in ("node", "node.out", "node.err", "node.last", "other", "other.out", "node.1.err"):
        (tmp_path / name).write_text("text")
    for _ in range(2):
        remove_files(tmp_path, "node")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node.1.err", "other", "other.out"]
