"""The answers that ranks get, over a keyboard on which the test types."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

import pytest

from meshbook.magics.cells.state import CellInbox
from meshbook.magics.prompts.broker import PromptBroker, PromptPolicy
from meshbook.magics.prompts.keyboard import NoKeyboard, PromptWithdrawn
from meshbook.runtime.telemetry.prompt_questions import EOF, Kind, PromptAnswer, PromptQuestion
from tests.support import PATIENCE


class Person:
    """Types what the test says; None gives the prompt up as an interrupt does."""

    refusal = ""

    def __init__(self) -> None:
        self.prompts: queue.Queue[str] = queue.Queue()
        self.lines: queue.Queue[str | Exception | None] = queue.Queue()

    def ask(self, prompt: str, withdrawal: PromptWithdrawn, *, is_password: bool) -> str | None:
        self.prompts.put(prompt)
        line = self.lines.get(timeout=PATIENCE)
        if isinstance(line, Exception):
            raise line
        return line


class Cell:
    """A cell of two ranks on the mesh `m`, and what is shown around its prompts."""

    def __init__(self, person: Person | NoKeyboard, **policy: object) -> None:
        self.events: list[str] = []
        self.held: list[bool] = []
        self.answers: queue.Queue[tuple[int, PromptAnswer]] = queue.Queue()
        self.silent = {0, 1}
        self._policy = PromptPolicy(person, **policy)  # type: ignore[arg-type]
        self._numbers = iter(range(1, 100))
        self._is_ready, self._is_over = threading.Event(), False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._is_ready.wait(PATIENCE)

    async def _run(self) -> None:
        """The loop of the cell, as far as prompts have to do with it."""
        self.inbox = CellInbox()
        self.broker = PromptBroker(
            *("m", range(2), self.silent, self._policy),
            inbox=self.inbox,
            output=self,
            whereabouts=self.whereabouts,
            hold=self.held.append,
        )
        self._is_ready.set()
        while not self._is_over:
            self.inbox.handle()
            now = asyncio.get_running_loop().time()
            self.broker.act(now)
            await self.inbox.wait(max(0.0, min(PATIENCE, self.broker.next_at - now)))
        self.broker.close()
        self.inbox.close()

    def interrupt(self) -> None:
        self.inbox.put(lambda: self.broker.interrupt())

    def end(self, rank: int) -> None:
        def end() -> None:
            self.silent.discard(rank)
            self.broker.ended(rank)

        self.inbox.put(end)

    def close(self) -> None:
        self._is_over = True
        self.inbox.wake()
        self._thread.join(PATIENCE)

    def pause(self) -> None:
        self.events.append("pause")

    def resume(self) -> None:
        self.events.append("resume")

    def print_beside_prompt(self, text: str) -> None:
        self.events.append(text)

    async def whereabouts(self, ranks: Collection[int]) -> Mapping[int, str]:
        return dict.fromkeys(ranks, "in train.py:3")

    def ask(self, rank: int, kind: Kind = "input", mesh: str = "m") -> int:
        number = next(self._numbers)
        question = PromptQuestion("1.1", mesh, rank, number, kind, "name: ", "cell 1:7")
        self.broker.take(question, lambda answer: self.answers.put((rank, answer)))
        return number

    def answer(self) -> tuple[int, str, str]:
        rank, answer = self.answers.get(timeout=PATIENCE)
        return rank, answer.kind, answer.text


@pytest.fixture
def person() -> Person:
    return Person()


@pytest.fixture
def start() -> Iterator[Callable[..., Cell]]:
    """Make cells, which are closed at the end of the test, also if it fails."""
    cells: list[Cell] = []

    def start(person: Person | NoKeyboard, **policy: object) -> Cell:
        cells.append(Cell(person, **policy))
        return cells[-1]

    yield start
    for cell in cells:
        cell.close()


@pytest.fixture
def cell(person: Person, start: Callable[..., Cell]) -> Iterator[Cell]:
    yield start(person)
    person.lines.put(None)


def test_ranks_get_what_was_typed_and_output_is_cut_around_it(cell: Cell, person: Person) -> None:
    cell.ask(0)
    cell.ask(1)
    assert person.prompts.get(timeout=PATIENCE) == "[ranks 0-1] name: "
    person.lines.put("bob")
    assert [cell.answer(), cell.answer()] == [(0, "text", "bob"), (1, "text", "bob")]
    assert cell.events == ["pause", "resume"]


@pytest.mark.parametrize(
    ("kind", "mesh", "policy", "answer"),
    [
        ("input", "another", {}, (0, "refused", "no cell is running on this rank")),
        ("input", "m", {"sharing": "error"}, (0, "refused", "the cell runs with --stdin error")),
        ("stop", "m", {"sharing": "error"}, (0, "text", "stop")),
        ("stop", "m", {"breaks": frozenset({1})}, (0, "text", "pass")),
    ],
)
def test_what_is_answered_at_once(
    person: Person,
    start: Callable[..., Cell],
    kind: Kind,
    mesh: str,
    policy: Mapping[str, object],
    answer: tuple[int, str, str],
) -> None:
    cell = start(person, **policy)
    cell.ask(0, kind, mesh)
    assert cell.answer() == answer


@pytest.mark.parametrize("kind", ["input", "password", "stop"])
def test_without_a_keyboard_each_is_refused_at_once(start: Callable[..., Cell], kind: Kind) -> None:
    cell = start(NoKeyboard("no keyboard here"))
    cell.ask(0, kind)
    assert cell.answer() == (0, "refused", "no keyboard here")


def test_the_end_of_all_input_is_one_for_input_and_quits_the_debugger(cell: Cell, person: Person) -> None:
    person.lines.put(EOFError())
    cell.ask(0)
    cell.ask(1)
    assert {cell.answers.get(timeout=PATIENCE)[1] for _ in range(2)} == {EOF}
    cell.ask(0, "command")
    cell.end(1)
    person.lines.put(EOFError())
    assert cell.answer() == (0, "text", "q")


def test_questions_that_wait_when_the_cell_ends_are_refused(cell: Cell, person: Person) -> None:
    cell.ask(0)
    cell.ask(1)
    person.prompts.get(timeout=PATIENCE)
    person.lines.put(None)
    cell.interrupt()
    cell.close()
    assert cell.answer() == (0, "refused", "the cell has ended")


def test_a_question_while_the_cell_ends_is_refused(start: Callable[..., Cell]) -> None:
    class Closing(Person):
        """Closes the cell just when the broker asks whether there is a keyboard."""

        @property
        def refusal(self) -> str:  # type: ignore[override]
            cell.close()
            return ""

    cell = start(Closing())
    cell.ask(0)
    assert cell.answer() == (0, "refused", "no cell is running on this rank")


def test_a_keyboard_that_fails_leaves_no_prompt_waiting(
    cell: Cell, person: Person, caplog: pytest.LogCaptureFixture
) -> None:
    person.lines.put(OSError("the front end is gone"))
    cell.ask(0)
    cell.ask(1)
    assert cell.answer() == (0, "refused", "the prompt of the notebook failed")
    cell.close()
    assert "the front end is gone" in caplog.text


def test_ranks_shows_where_running_ranks_are(cell: Cell, person: Person) -> None:
    cell.ask(0, "command")
    person.lines.put("ranks")
    person.lines.put("c")
    assert cell.answer() == (0, "text", "c")
    assert "rank 0 stopped at cell 1:7   <- commands go here\nrank 1 not stopped: in train.py:3\n" in cell.events
    assert cell.held == [True, False]
