"""The output of ranks on one terminal: whole lines behind their rank."""

from __future__ import annotations

import io
import itertools
import threading
from typing import Any

import pytest

from meshbook.runtime.spmd.printing import LINE_CHARACTERS, Prefixer, Printer
from meshbook.runtime.telemetry.output import DisplayChunk, OutputChunk, StreamName
from tests.support import PATIENCE


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        (["one\n"], ["one"]),
        (["one\ntwo\n"], ["one", "two"]),
        (["o", "ne\ntw", "o\n"], ["one", "two"]),
        (["\n\n"], ["", ""]),
        (["one\r\ntwo\r", "\n"], ["one", "two"]),
        (["open"], []),
        # A progress bar: one state a second, and the last.
        (["\r 1%", "\r 2%", "\r 3%", "\r100%\n"], [" 1%", "100%"]),
    ],
)
def test_lines(pieces: list[str], lines: list[str]) -> None:
    prefixer = Prefixer(4)
    found = [line for piece in pieces for line in prefixer.add(2, "stdout", piece, 0.0)]
    assert found == [f"[rank 2] {line}\n" for line in lines]


def test_a_progress_bar_is_drawn_again_after_a_second() -> None:
    prefixer = Prefixer(1)
    drawn = [prefixer.add(0, "stderr", f"\r{now:.1f}", now) for now in (0.0, 0.5, 1.0, 1.5, 2.0)]
    assert list(itertools.chain(*drawn)) == ["[rank 0] 0.0\n", "[rank 0] 1.0\n"]


def test_pieces_of_ranks_and_streams_do_not_mix() -> None:
    prefixer = Prefixer(11)
    pieces: list[tuple[int, StreamName]] = [(3, "stdout"), (3, "stderr"), (10, "stdout")]
    for rank, stream in pieces:
        assert prefixer.add(rank, stream, f"{rank} {stream}", 0.0) == []
    assert prefixer.add(3, "stdout", "!\n", 0.0) == ["[rank  3] 3 stdout!\n"]
    assert prefixer.rest() == [("stderr", "[rank  3] 3 stderr\n"), ("stdout", "[rank 10] 10 stdout\n")]
    assert prefixer.rest() == []


def test_a_line_without_an_end_is_broken() -> None:
    prefixer = Prefixer(1)
    [line] = prefixer.add(0, "stdout", "x" * (LINE_CHARACTERS + 1), 0.0)
    assert len(line) == len("[rank 0] ") + LINE_CHARACTERS + 2
    assert prefixer.rest() == []


def chunk(text: str, stream: StreamName = "stdout") -> OutputChunk:
    return OutputChunk("", "spmd-0", 0, stream, text)


def test_each_stream_goes_to_its_file() -> None:
    files: dict[StreamName, Any] = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    printer = Printer(1, files, broken=lambda: None)
    printer.take(chunk("out\n"))
    printer.take(chunk("err\n", "stderr"))
    printer.take(DisplayChunk("", "spmd-0", 0, {"text/plain": "a figure"}, {}))
    printer.take(chunk("open"))
    printer.close()
    assert files["stdout"].getvalue() == "[rank 0] out\n[rank 0] open\n"
    assert files["stderr"].getvalue() == "[rank 0] err\n"


def test_a_file_that_is_ascii_gets_escapes() -> None:
    file = io.TextIOWrapper(data := io.BytesIO(), encoding="ascii")
    printer = Printer(1, {"stdout": file, "stderr": file}, broken=lambda: None)
    printer.take(chunk("caf\xe9\n"))
    printer.close()
    assert data.getvalue() == rb"[rank 0] caf\xe9" + b"\n"


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_closed_reader_is_reported_once() -> None:
    broken = threading.Semaphore(0)
    printer = Printer(1, {"stdout": Closed(), "stderr": Closed()}, broken=broken.release)
    printer.take(chunk("one\n"))
    printer.take(chunk("two\n"))
    printer.close()
    assert broken.acquire(timeout=PATIENCE)
    assert not broken.acquire(blocking=False)
