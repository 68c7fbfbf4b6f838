"""What a process leaves behind that it had written and not sent, and what of it the controller has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.telemetry.capture import Capture
from meshbook.runtime.telemetry.output import SHOWN, Chunk, OutputChunk, OutputStore, SentMark, UnsentOutput
from meshbook.runtime.telemetry.terminal import Terminal
from meshbook.runtime.telemetry.unsent import HALF_BYTES, PAST_BYTES, UnsentFile, read_unsent, unsent_file


class Process:
    """A capture, whose chunks arrive at a controller or are lost with the process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: list[OutputChunk] = []
        self.has_left = True
        self.capture = Capture(self.sent.append, "mesh", 0, folder, "mesh.0", has_left=lambda: self.has_left)
        self.capture.main_origin = lambda: "cell"
        self.write, self.flush = self.capture.stdout.write, self.capture.flush

    def shown_after_its_end(self, arrived: int) -> str:
        """What is shown where so many chunks have arrived when it ends."""
        shown: list[Chunk] = []
        store = OutputStore()
        store.set_default(shown.append)
        for chunk in self.sent[:arrived]:
            store.take(chunk)
        if (remains := read_unsent(self.folder, "mesh.0")) is not None:
            store.take(remains)
        return store.recent("mesh", 0)


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


@pytest.mark.parametrize("arrived", [0, 1, 2])
def test_what_has_not_arrived_is_shown_once(process: Process, arrived: int) -> None:
    process.has_left = False
    for text in ("first\n", "second é\n"):
        process.write(text)
        process.flush()
    process.write("third \ud83d\n")
    assert process.shown_after_its_end(arrived) == "first\nsecond é\nthird \ufffd\n"


def test_nothing_is_left_of_what_has_left(process: Process) -> None:
    process.write("text\n")
    (process.folder / "mesh.0.out").write_bytes(b"by C\n")
    for _ in range(3):
        process.flush()
    assert read_unsent(process.folder, "mesh.0") is None
    process.write("later\n")
    assert process.shown_after_its_end(len(process.sent)) == "text\nby C\nlater\n"


@pytest.mark.parametrize("arrived", [0, 1])
def test_what_went_past_python_belongs_to_the_cell_that_runs(process: Process, arrived: int) -> None:
    process.has_left = False
    process.capture.begin("cell")
    with open(process.folder / "mesh.0.err", "ab", buffering=0) as file:
        file.write(b"one\n")
        process.flush()
        file.write(b"two\n")
    remains = read_unsent(process.folder, "mesh.0")
    assert remains is not None
    assert remains.origin == "cell"
    assert process.shown_after_its_end(arrived) == "one\ntwo\n"


def test_of_a_flood_past_python_the_end_is_shown(process: Process) -> None:
    (process.folder / "mesh.0.out").write_bytes(b"x" * PAST_BYTES + b"the end")
    assert process.shown_after_its_end(0).endswith("xthe end")


@pytest.mark.parametrize("arrived", [0, 1, 2])
def test_a_bar_is_shown_in_its_last_state(process: Process, arrived: int) -> None:
    process.has_left = False
    process.write("text\n\rbar 1")
    process.flush()
    process.capture.stderr.write("error\n")
    process.write("\rbar 2")
    process.flush()
    process.write("\rbar 3")
    assert "bar 3" in process.shown_after_its_end(arrived)
    assert "bar 1" not in process.shown_after_its_end(arrived)
    assert process.shown_after_its_end(arrived).count("text\n") == 1


def test_where_nothing_leaves_writing_goes_on(process: Process) -> None:
    """A controller that does not receive costs a writer a moment, and not one for each line."""
    process.has_left = False
    process.write("x" * 3 * HALF_BYTES)
    process.write("kept no more")
    assert len(process.shown_after_its_end(0)) < HALF_BYTES
    process.has_left = True
    for _ in range(3):
        process.flush()
    process.write("kept again")
    assert process.shown_after_its_end(len(process.sent)).endswith("kept no morekept again")


def test_on_a_full_disk_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.posix_fallocate", fail)
    process = Process(tmp_path)
    process.write("text\n")
    process.flush()
    assert process.shown_after_its_end(1) == "text\n"
    assert not unsent_file(tmp_path, "mesh.0").exists()


def test_a_torn_piece_does_not_discard_the_others(process: Process) -> None:
    """The process was killed while it copied a piece, in the middle of a character."""
    process.has_left = False
    process.write("first é\n")
    process.flush()
    process.write("second é\n")
    process.flush()
    path = unsent_file(process.folder, "mesh.0")
    kept, torn = path.read_bytes().rsplit("é".encode(), 1)
    path.write_bytes(kept + "é".encode()[:1] + bytes(1) + torn)
    assert process.shown_after_its_end(0) == "first é\nsecond \ufffd\x00\n"


def test_a_file_that_is_damaged_is_none(tmp_path: Path) -> None:
    UnsentFile(tmp_path, "mesh.0")
    assert read_unsent(tmp_path, "mesh.0") is None  # of a process that had not said whose it is
    unsent_file(tmp_path, "mesh.0").write_bytes(b"short")
    assert read_unsent(tmp_path, "mesh.0") is None


def test_neighbours_come_in_one_piece() -> None:
    pieces: Any = [(1, "a", "stdout", "x"), (2, "a", "stdout", "y"), (3, "b", "stdout", "z"), (4, "b", "stderr", "e")]
    remains = UnsentOutput("mesh.0", "mesh", 0, SHOWN, "", pieces, [(10, b"0123"), (0, b"")])
    assert list(remains.after(SentMark("mesh.0", 1, 12))) == [
        ("a", "stdout", "y"),
        ("b", "stdout", "z"),
        ("b", "stderr", "e"),
        ("", "stdout", "23"),
    ]


@pytest.mark.parametrize(
    ("rows", "text", "expected"),
    [
        ("", "line\n", "line\n"),
        ("", "\r1\r2", "2"),
        ("bar 1", "\rbar 2\nline\n", "bar 2\nline\n"),
        ("one\ntwo", "!", "one\ntwo!"),
    ],
)
def test_rows_go_on_in_another_terminal(rows: str, text: str, expected: str) -> None:
    terminal = Terminal.resumed(rows)
    assert terminal.feed(text).text + terminal.settle().text == expected
