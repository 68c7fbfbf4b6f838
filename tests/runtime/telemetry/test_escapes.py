"""Of escape sequences in output colours alone are shown, however the output is cut."""

from __future__ import annotations

import pytest

from meshbook.runtime.telemetry.output import ESCAPE_CHARACTERS, Chunk, OutputChunk, OutputStore, only_colours

RED = "\x1b[31m"
PLAIN = "\x1b[0m"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\n", "plain\n"),
        (f"{RED}red{PLAIN} and \x1b[38;2;1;2;3mmore", f"{RED}red{PLAIN} and \x1b[38;2;1;2;3mmore"),
        ("a\x1b[2Jb\x1b[1;1Hc\x1b[?1049hd\x1b[6ne", "abcde"),  # wiped out, moved, another screen, a question
        ("a\x1b]0;title\x07b\x1b]52;c;aGk=\x1b\\c", "abc"),  # the window's title, the clipboard
        ("a\x1bPq#0\x1b\\b\x1b_x\x1b\\c", "abc"),
        ("a\x1bcb\x1b(0c\x1b=d", "abcd"),  # reset, another alphabet, the keypad
        ("a\x9b2Jb\u0085é\x1b", "a2Jb\u0085é"),
        (f"a\x1b]0;never ends{RED}b", f"a0;never ends{RED}b"),
    ],
)
def test_colours_alone_stay(text: str, expected: str) -> None:
    assert only_colours(text) == expected


class Shown:
    def __init__(self) -> None:
        self.chunks: list[OutputChunk] = []
        self.store = OutputStore()
        self.store.set_default(self._add)

    def _add(self, chunk: Chunk) -> None:
        assert isinstance(chunk, OutputChunk)
        self.chunks.append(chunk)

    def add(self, text: str, stream: str = "stdout", live: str | None = None) -> None:
        self.store.add(OutputChunk("", "mesh", 0, stream, text, live=live))  # type: ignore[arg-type]

    def text(self, stream: str = "stdout") -> str:
        return "".join(chunk.text for chunk in self.chunks if chunk.stream == stream)


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_sequence_may_come_in_two_chunks(cut: int) -> None:
    shown = Shown()
    text = f"a\x1b]0;title\x1b\\b\x1b[?25lc{RED}d\x1b[2Je\x1b[Kf\n"
    shown.add(text[:cut])
    shown.add("error", stream="stderr")
    shown.add(text[cut:])
    assert shown.text() == f"abc{RED}def\n" == shown.store.recent("mesh", 0).replace("error", "")
    assert shown.text("stderr") == "error"


def test_a_sequence_without_an_end_is_text() -> None:
    shown = Shown()
    for _ in range(10):
        shown.add("\x1b]0;" + "x" * ESCAPE_CHARACTERS)
    assert len(shown.text()) > 8 * ESCAPE_CHARACTERS
    assert "\x1b" not in shown.text()


def test_rows_have_colours_alone() -> None:
    shown = Shown()
    shown.add("", live=f"{RED}bar\x1b]0;title\x07\x1b[")
    [chunk] = shown.chunks
    assert chunk.live == f"{RED}bar"


def test_half_a_sequence_is_dropped_with_its_cell() -> None:
    store = OutputStore()
    for origin in ("9.0.1", "9.0.2"):
        store.open(origin, lambda chunk: None)
        store.add(OutputChunk(origin, "mesh", 0, "stdout", "a\x1b["))
    store.close("9.0.1")
    assert [writer[2] for writer in store._halves] == ["9.0.2"]
    store.forget("mesh")
    assert not store._halves
