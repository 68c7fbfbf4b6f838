"""Output of actors that an ordinary cell called: in that cell, labelled, bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from meshbook.magics.output.actor_output import (
    CELL_CHARACTERS,
    CELL_DISPLAYS,
    CELL_LINES,
    REMEMBERED_CELLS,
    ActorOutputRouter,
)
from meshbook.runtime.telemetry.forwarding import Forwarder
from meshbook.runtime.telemetry.lines import DrawnText, LogLines
from meshbook.runtime.telemetry.output import Chunk, DisplayChunk, LogOptions, OutputChunk, OutputStore
from tests.support import PATIENCE

if TYPE_CHECKING:
    from tests.magics.conftest import FakeKernel


@pytest.fixture
def screen(shell: Any) -> ActorOutputRouter:
    """With one cell begun."""
    screen = ActorOutputRouter()
    screen.begin("local 1", shell)
    return screen


class Talk:
    """What ranks say, on its way to a screen; `show` takes the place of the thread that shows it."""

    def __init__(self, screen: ActorOutputRouter) -> None:
        self._screen = screen
        self._lines = LogLines()

    def add(self, chunk: Chunk) -> None:
        self._lines.add(chunk, 0.0)

    def say(
        self, text: str, rank: int = 0, *, origin: str = "local 1", mesh: str = "mesh-0a1b", window: float | None = None
    ) -> None:
        self.add(OutputChunk(origin, mesh, rank, "stdout", text, LogOptions(window=window)))

    def show(self, now: float = 0.0) -> None:
        if shown := self._lines.take(now):
            self._screen.show(shown)


@pytest.fixture
def talk(screen: ActorOutputRouter) -> Talk:
    return Talk(screen)


def begin_next(screen: ActorOutputRouter, kernel: FakeKernel, shell: Any, number: int) -> None:
    kernel.parent = f"cell {number}"
    screen.begin(f"local {number}", shell)


def test_lines_have_the_mesh_and_the_ranks(talk: Talk, kernel: FakeKernel) -> None:
    for rank, text in [(0, "same\n"), (2, "same\n"), (1, "other\nlin"), (1, "es\n")]:
        talk.say(text, rank)
    talk.say("judged\n", mesh="the-judge-77")
    talk.show()
    assert kernel.texts == [
        ("cell 1", "[mesh 0,2] same\n[mesh 1] other\n[mesh 1] lines\n"),
        ("cell 1", "[the-judge 0] judged\n"),
    ]


def test_both_streams_and_displays(talk: Talk, kernel: FakeKernel) -> None:
    talk.add(OutputChunk("local 1", "mesh-0a1b", 0, "stderr", "careful\n"))
    talk.add(DisplayChunk("local 1", "mesh-0a1b", 3, {"image/png": "iVBOR"}, {"width": 3}))
    talk.show()
    (_, stream, _), (_, label, _), (_, image, _) = kernel.sent
    assert stream == {"name": "stderr", "text": "[mesh 0] careful\n"}
    assert label["data"] == {"text/plain": "[mesh 3]"}
    assert (image["data"], image["metadata"]) == ({"image/png": "iVBOR"}, {"width": 3})


def test_bars_of_all_ranks_are_one_area(talk: Talk, kernel: FakeKernel) -> None:
    def draw(rank: int, text: str, live: str) -> None:
        talk.add(OutputChunk("local 1", "mesh-0a1b", rank, "stderr", text, live=live))

    for rank in range(2):
        draw(rank, "", "a:  50%|█████     | 5/10 [00:05<00:05,  1.00it/s]")
    talk.show()
    draw(1, "a: 100%|██████████| 10/10 [00:10<00:00,  1.00it/s]\n", "")
    talk.show()
    (begun, first, _), (update, second, _) = kernel.sent
    assert (begun, update) == ("display_data", "update_display_data")
    assert first["data"]["text/plain"] == "mesh:\n[0-1] a:  50%|█████     | 5/10 [00:05<00:05,  1.00it/s]\n"
    assert "[0-1] a:  50%|█████     | 5–10/10 [00:05<00:05, 1.00it/s] · r0 slowest" in second["data"]["text/plain"]
    assert first["transient"] == second["transient"]


def test_a_terminal_shows_bars_as_they_have_ended(capsys: pytest.CaptureFixture[str]) -> None:
    screen = ActorOutputRouter()
    screen.begin("local 1", SimpleNamespace())
    screen.show([DrawnText("local 1", "mesh-0a1b", 1, "stdout", "begun: \r", "begun: 1%")])
    screen.show([DrawnText("local 1", "mesh-0a1b", 1, "stdout", "begun: 2%\nend\n", "")])
    assert capsys.readouterr().out == "[mesh 1] begun: 2%\n[mesh 1] end\n"


def test_displays_are_bounded_and_that_is_said(talk: Talk, kernel: FakeKernel) -> None:
    for number in range(1000):
        talk.add(DisplayChunk("local 1", "mesh-0a1b", 3, {"text/plain": str(number)}, {}))
    talk.show()
    *shown, (_, last, _) = kernel.sent
    assert len(shown) == 2 * CELL_DISPLAYS
    assert last["data"] == {"text/plain": "[mesh 3] … more displays are not shown"}


def test_each_cell_gets_its_own(talk: Talk, screen: ActorOutputRouter, kernel: FakeKernel, shell: Any) -> None:
    begin_next(screen, kernel, shell, 2)
    talk.say("late\n", origin="local 1")
    talk.say("mine\n", origin="local 2")
    talk.show()
    assert kernel.texts == [("cell 1", "[mesh 0] late\n"), ("cell 2", "[mesh 0] mine\n")]


def test_what_no_cell_claims_goes_to_the_latest(
    talk: Talk, screen: ActorOutputRouter, kernel: FakeKernel, shell: Any
) -> None:
    for number in range(2, REMEMBERED_CELLS + 2):
        begin_next(screen, kernel, shell, number)
    talk.say("forgotten\n", origin="local 1")
    talk.say("nobody's\n", origin="")
    talk.show()
    assert kernel.texts == [(f"cell {REMEMBERED_CELLS + 1}", "[mesh 0] forgotten\n[mesh 0] nobody's\n")]


def test_before_the_first_cell_nothing_is_shown(kernel: FakeKernel) -> None:
    talk = Talk(ActorOutputRouter())
    talk.say("early\n")
    talk.show()
    assert kernel.sent == []


def test_it_is_shown_without_being_asked(screen: ActorOutputRouter, kernel: FakeKernel) -> None:
    store, forwarder = OutputStore(), Forwarder(screen)
    store.set_default(forwarder.take)
    store.add(OutputChunk("local 1", "mesh-0a1b", 0, "stdout", "soon\n"))
    assert kernel.has_sent.wait(PATIENCE)
    forwarder.close()
    assert kernel.texts == [("cell 1", "[mesh 0] soon\n")]


def test_lines_that_are_alike_name_all_their_ranks(talk: Talk, kernel: FakeKernel) -> None:
    for rank in range(3):
        talk.say(f"step 1 of rank {rank}\n", rank, window=5.0)
    talk.show(4.9)
    assert kernel.texts == []
    talk.show(5.0)
    assert kernel.texts == [("cell 1", "[mesh 0-2] step 1 of rank 0 (3 similar lines)\n")]


def test_lines_that_come_at_once_are_in_the_order_of_ranks(talk: Talk, kernel: FakeKernel) -> None:
    for rank in (2, 0, 1):
        talk.say(f"hi {rank}\n", rank)
    talk.show()
    assert [text for _, text in kernel.texts] == ["[mesh 0] hi 0\n[mesh 1] hi 1\n[mesh 2] hi 2\n"]


def test_a_million_short_lines_leave_some_thousand(talk: Talk, kernel: FakeKernel) -> None:
    talk.say("".join(f"{number}\n" for number in range(1_000_000)), 1)
    talk.show()
    ((_, text),) = kernel.texts
    *lines, last = text.splitlines()
    assert (len(lines), lines[0], last) == (CELL_LINES, "[mesh 1] 0", "[mesh 1] … more is not shown (%mesh log 1)")


def test_a_flood_is_cut_with_an_announcement(talk: Talk, kernel: FakeKernel) -> None:
    line = "x" * 999 + "\n"
    for _ in range(2 * CELL_CHARACTERS // len(line)):
        talk.say(line, 1)
    talk.show()
    ((_, text),) = kernel.texts
    assert len(text) < 1.1 * CELL_CHARACTERS
    assert text.endswith("[mesh 1] … more is not shown (%mesh log 1)\n")
    talk.say(line)
    talk.show()
    assert len(kernel.sent) == 1
