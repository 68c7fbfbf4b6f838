"""What is written over itself, as a terminal shows it; and how often its states are sent."""

from __future__ import annotations

import pytest

from meshbook.runtime.telemetry.terminal import MOST_ROWS, ROW_CHARACTERS, Emission, Terminal
from meshbook.runtime.telemetry.terminals import INTERVAL, MOST_TERMINALS, REST, Terminals

UP = "\x1b[A"
ERASE = "\x1b[2K"


def show(*pieces: str) -> tuple[str, str]:
    """What is settled after these pieces, and the rows that may still change."""
    terminal, text, live = Terminal(), "", ""
    for piece in pieces:
        emission = terminal.feed(piece)
        text += emission.text
        live = live if emission.live is None else emission.live
    return text, live


@pytest.mark.parametrize(
    ("pieces", "text", "live"),
    [
        (["a\n", "b"], "a\nb", ""),
        (["a\r\nb\r\n"], "a\r\nb\r\n", ""),
        (["\x1b[31mred\x1b[0m\n"], "\x1b[31mred\x1b[0m\n", ""),
        (["\r10%", "\r20%"], "", "20%"),
        (["one\ntwo\r10%\r20%"], "one\n", "20%"),
        # What was sent of a line is overwritten: a reader takes what is before a carriage return for that.
        (["10%", "\r20%"], "10%\r", "20%"),
        (["Loading: ", "\b\b 5%"], "Loading: \r", "Loading 5%"),
        # Shorter text leaves what it does not cover, unless it is wiped out with blanks, or erased.
        (["\r100%", "\r9"], "", "900%"),
        (["\r100%", "\r9   "], "", "9"),
        (["\r100%", f"\r{ERASE}9"], "", "9"),
        (["\r100%", "\r9\x1b[K"], "", "9"),
        (["\r100%", "\n", "after"], "", "100%\nafter"),
        (["\x1b[31mab\x1b[0m\r\x1b[32mc"], "", "\x1b[32mc\x1b[31mb\x1b[0m"),
        # Nested bars, as tqdm writes them; the inner one is wiped out at its end.
        (["\router 0", "\n\rinner 1" + UP, "\n\rinner 2" + UP, "\router 1"], "", "outer 1\ninner 2"),
        (["\router 0", "\n\rinner 2" + UP, "\n\r       \r" + UP, "\router 1", "\n"], "", "outer 1\n"),
        # A region that is drawn anew, as rich does it.
        (["\ra\nb\nc", f"\r{ERASE}{UP}{ERASE}{UP}{ERASE}A\nB\nC\n"], "", "A\nB\nC\n"),
        (["\rone\ntwo\x1b[1G\x1b[J"], "", "one\n"),
        (["\rab\x1b[1D", "c", "\x1b[2C", "d"], "", "ac  d"),
        (["\rab\x1b", "[1Dc"], "", "ac"),  # a sequence that comes in halves
        (["\rab\x1b[?25l\x1b]0;title\x07c"], "", "abc"),  # a hidden cursor and a window's title are no text
        (["\r5%" + "\n" * (MOST_ROWS + 1)], "5%\n\n", "\n" * (MOST_ROWS - 1)),
        (["\r5%", "\n" + "line\n" * MOST_ROWS], "5%\n" + "line\n" * MOST_ROWS, ""),
        (["\r" + "x" * (ROW_CHARACTERS + 1)], "x" * (ROW_CHARACTERS + 1), ""),
    ],
)
def test_text_is_shown_as_a_terminal_shows_it(pieces: list[str], text: str, live: str) -> None:
    assert show(*pieces) == (text, live)
    whole = show("".join(pieces))
    assert (whole[0] + whole[1]).rpartition("\r")[2] == (text + live).rpartition("\r")[2]


def test_rows_are_final_once_they_are_settled() -> None:
    terminal = Terminal()
    terminal.feed("\r10%")
    assert terminal.settle() == Emission("10%", "")
    assert terminal.feed("\r20%") == Emission("\r", "20%")
    assert terminal.feed("\n").live == "20%\n"
    assert terminal.settle() == Emission("20%\n", "")
    assert terminal.is_blank
    assert terminal.settle() == Emission("")


# -- how often ----------------------------------------------------------------------------


def test_the_states_of_a_bar_are_sent_ten_times_a_second_at_most() -> None:
    screens = Terminals()
    sent = [screens.feed("cell", "stderr", f"\r{step}%", step / 1000) for step in range(1000)]
    assert 9 <= len([emission for emission in sent if emission]) <= 10
    assert [emission.live for _, emission in screens.due(2.0)] == ["999%"]
    assert list(screens.due(3.0)) == []


def test_the_end_of_a_bar_does_not_wait() -> None:
    screens = Terminals()
    screens.feed("cell", "stderr", "\r1%", 0.0)
    assert screens.feed("cell", "stderr", "\r100%\n", 0.01) == Emission("", "100%\n")


def test_lines_do_not_wait_for_a_bar() -> None:
    screens = Terminals()
    screens.feed("cell", "stdout", "\r1%", 0.0)
    assert screens.feed("cell", "stdout", "\r2%", 0.01) is None
    assert screens.feed("cell", "stderr", "line\n", 0.02) == Emission("line\n")
    assert [emission.live for _, emission in screens.held(0.03)] == ["2%"]


def test_the_end_of_a_cell_settles_what_it_shows() -> None:
    screens = Terminals()
    screens.feed("cell", "stdout", "\r1%", 0.0)
    screens.feed("cell", "stdout", "\r2%", 0.01)
    screens.feed("other", "stdout", "\r3%", 0.0)
    assert screens.end("cell") == [(("cell", "stdout"), Emission("2%", ""))]
    assert screens.end("cell") == []
    assert screens.feed("cell", "stdout", "\r3%", 1.0) == Emission("\r", "3%"), "its threads write on"


def test_complete_lines_are_final_after_a_while() -> None:
    screens = Terminals()
    screens.feed("cell", "stdout", "\r100%\n", 0.0)
    assert list(screens.due(REST - INTERVAL)) == []
    assert [emission for _, emission in screens.due(REST)] == [Emission("100%\n", "")]
    screens.feed("cell", "stdout", "\r50%", 2.0)
    assert list(screens.due(9.0)) == [], "a bar that makes no progress is no line"


def test_what_a_script_writes_passes_as_it_is() -> None:
    assert Terminals().feed("", "stdout", "\r1%\r2%", 0.0) == Emission("\r1%\r2%")


def test_the_oldest_gives_its_terminal_up() -> None:
    screens = Terminals()
    for number in range(MOST_TERMINALS + 1):
        screens.feed(str(number), "stdout", "\r1%", 0.0)
    assert list(screens.due(0.0)) == [(("0", "stdout"), Emission("1%", ""))]
    assert screens.feed("0", "stdout", "\r2%", 0.0) == Emission("", "2%")
