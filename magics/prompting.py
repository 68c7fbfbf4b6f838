"""Answers what the ranks of one cell ask: shows one prompt at a time, and sends each rank what was entered.

Questions come on the receiving thread. A thread of its own waits for the person, since the front end's prompt keeps
whoever waits for it. What is asked next is decided by `prompts` and `stops`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from meshbook.magics.keyboard import GivenUp, Keyboard, Nobody
from meshbook.magics.prompts import Prompt, Prompts, Sharing
from meshbook.magics.stops import DebugPrompt, Select, Stops
from meshbook.runtime.telemetry.questions import EOF, Answer, Question, Reply

logger = logging.getLogger(__name__)
OVER = Answer("refused", "no cell runs there that could ask for it")
LEAVES_WITHIN = 2.0  # seconds for the thread to end; on a pipe that is no terminal it may wait for a line for ever


class Area(Protocol):
    """The output of the cell, around the prompts."""

    def pause(self) -> None:
        """A prompt is about to be shown: publish all that ranks have printed."""

    def resume(self) -> None:
        """It is over."""

    def tell(self, text: str) -> None:
        """Show a text to the person."""


Hold = Callable[[bool], None]  # whether a person is in the debugger
Whereabouts = Callable[[Collection[int]], Mapping[int, str]]  # of these ranks, in words


@dataclass(frozen=True, slots=True)
class Manner:
    """Who is asked, and how.

    `sharing` is `--stdin`; `breaks` are the ranks whose `breakpoint()` stops (None: all); `select` reads selectors;
    `label` names the mesh in prompts, where there are several.
    """

    keyboard: Keyboard
    sharing: Sharing = "same"
    breaks: frozenset[int] | None = None
    select: Select = lambda text: ()
    label: str = ""


@dataclass(frozen=True, slots=True)
class Asking:
    """Ranks that wait for a person: in the debugger, where its `place` is known, or at a prompt."""

    ranks: tuple[int, ...]
    is_debugger: bool
    place: str = ""


UNASKED = Manner(Nobody("the cell runs where nobody can be asked"))


class Prompting:
    """Answers the ranks of one cell until it is closed."""

    def __init__(
        self,
        mesh: str,
        ranks: Iterable[int],
        manner: Manner,
        *,
        area: Area,
        whereabouts: Whereabouts,
        hold: Hold,
    ) -> None:
        self._mesh = mesh
        self._running = set(ranks)
        self._done: set[int] = set()
        self._manner = manner
        self._area = area
        self._whereabouts = whereabouts
        self._hold = hold
        self._holds = False
        self._changed = threading.Condition()  # guards all that follows
        self._prompts = Prompts(manner.sharing, manner.label)
        self._stops = Stops(manner.select, manner.label)
        self._replies: dict[tuple[int, int], Reply] = {}
        self._shown: Prompt | DebugPrompt | None = None
        self._given_up: GivenUp | None = None  # there once the thread is
        self._thread: threading.Thread | None = None
        self._is_closed = False

    # -- from the receiving thread ---------------------------------------------------

    def take(self, question: Question, reply: Reply) -> None:
        """A rank asks."""
        if (answer := self._answer_at_once(question)) is None:
            with self._changed:
                answer = self._note(question, reply)
        if answer is not None:
            reply(answer)

    def _answer_at_once(self, question: Question) -> Answer | None:
        if question.mesh != self._mesh or self._is_closed:
            return OVER
        if question.kind == "stop" and not self._stops_at(question.rank):
            return Answer("text", "pass")
        if self._manner.keyboard.refusal:
            return Answer("refused", self._manner.keyboard.refusal)
        if question.kind == "stop":
            return Answer("text", "stop")
        if self._manner.sharing == "error" and question.kind != "command":
            return Answer("refused", "the cell runs with --stdin error")
        return None

    def _stops_at(self, rank: int) -> bool:
        return self._manner.breaks is None or rank in self._manner.breaks

    def _note(self, question: Question, reply: Reply) -> Answer | None:
        if self._is_closed:  # since the look before: whoever closes it does not see this question any more
            return OVER
        now = time.monotonic()
        if question.kind == "command":
            self._stops.stopped(question, now, self._others - {question.rank})
        elif (known := self._prompts.asked(question, now)) is not None:
            return known
        self._replies[question.rank, question.number] = reply
        self._begin()
        self._look_again()
        return None

    def withdraw(self, rank: int, number: int) -> None:
        """A rank does not wait for this answer any more."""
        with self._changed:
            self._replies.pop((rank, number), None)
            self._prompts.withdrawn(rank, number)
            self._stops.withdrawn(rank, number)
            self._look_again()

    def ended(self, rank: int) -> None:
        """A rank has ended the cell, or died."""
        with self._changed:
            self._running.discard(rank)
            self._done.add(rank)
            if self._thread is not None:  # somebody has asked: in most cells nobody does
                self._prompts.withdrawn(rank)
                self._stops.ended(rank)
                self._look_again()

    def _look_again(self) -> None:
        if self._shown is not None and not self._is_open(self._shown):
            self._give_up()
        if self._holds != self._stops.is_engaged:
            self._holds = self._stops.is_engaged
            self._hold(self._holds)
        self._changed.notify()

    def _is_open(self, prompt: Prompt | DebugPrompt) -> bool:
        return (self._prompts if isinstance(prompt, Prompt) else self._stops).is_open(prompt)  # type: ignore[arg-type]

    def _give_up(self) -> None:
        if self._given_up is not None:
            self._given_up.set()

    # -- from the cell -------------------------------------------------------------------

    def asking(self) -> list[Asking]:
        """Who waits for a person now."""
        with self._changed:
            stopped = [Asking(tuple(ranks), True, place) for place, ranks in self._stops.places()]
            prompted = tuple(sorted(self._prompts.ranks))
        return [*stopped, *([Asking(prompted, False)] if prompted else [])]

    @property
    def is_asking(self) -> bool:
        """Whether a prompt is shown."""
        return self._shown is not None

    def interrupt(self) -> None:
        """End the prompt; the ranks are interrupted by who calls this."""
        with self._changed:
            for rank, number in self._replies:  # who does not heed the interrupt is refused at the end of the cell
                self._prompts.withdrawn(rank, number)
                self._stops.withdrawn(rank, number)
            self._look_again()

    def close(self) -> None:
        """The cell is over: refuse who still waits."""
        with self._changed:
            self._is_closed = True
            left, self._replies = list(self._replies.values()), {}
            self._give_up()
            self._changed.notify()
        for reply in left:
            reply(Answer("refused", "the cell has ended"))
        if self._thread is not None:
            self._thread.join(LEAVES_WITHIN)

    # -- on the thread of the prompts ------------------------------------------------------

    def _begin(self) -> None:
        if self._thread is None:
            self._given_up = GivenUp()
            self._thread = threading.Thread(target=self._run, name="meshbook prompts", daemon=True)
            self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
            self._thread.start()

    def _run(self) -> None:
        assert self._given_up is not None
        try:
            while (prompt := self._wait_for_prompt()) is not None:
                self._show(prompt)
        except Exception:
            logger.exception("the cell's prompts came to an end")
            self._refuse_all()
        finally:
            with self._changed:
                self._given_up.close()
                self._given_up = None

    def _wait_for_prompt(self) -> Prompt | DebugPrompt | None:
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                if (prompt := self._due(now)) is not None:
                    self._shown = prompt
                    return prompt
                at = min(self._prompts.next_at, self._stops.next_at)
                self._changed.wait(None if at == math.inf else max(0.0, at - now))
        return None

    def _due(self, now: float) -> Prompt | DebugPrompt | None:
        """Input comes first: a debugger asks for ever."""
        return self._prompts.due(now, self._others) or self._stops.due(now)

    @property
    def _others(self) -> set[int]:
        """The ranks that may still ask for something."""
        return self._running - self._stops.ranks - self._prompts.ranks

    def _show(self, prompt: Prompt | DebugPrompt) -> None:
        self._area.pause()
        if isinstance(prompt, DebugPrompt) and prompt.remark:
            self._area.tell(prompt.remark)
        answer = self._ask(prompt)
        with self._changed:
            self._shown = None
            assert self._given_up is not None
            self._given_up.clear()
            answered = [] if answer is None else self._settle(prompt, answer)
            self._look_again()
        self._area.resume()
        for reply, told in answered:
            reply(told)

    def _ask(self, prompt: Prompt | DebugPrompt) -> Answer | None:
        assert self._given_up is not None
        is_password = isinstance(prompt, Prompt) and prompt.is_password
        try:
            line = self._manner.keyboard.ask(prompt.text, self._given_up, is_password=is_password)
        except EOFError:
            return EOF
        return None if line is None else Answer("text", line)

    def _settle(self, prompt: Prompt | DebugPrompt, answer: Answer) -> list[tuple[Reply, Answer]]:
        """What is to be sent to whom."""
        if isinstance(prompt, Prompt):
            return self._replies_to(self._prompts.answered(prompt, answer), answer)
        line = "q" if answer == EOF else answer.text
        commands = self._stops.entered(prompt, line, time.monotonic())
        if commands.text:
            self._area.tell(commands.text)
        if commands.wants_ranks:
            self._area.tell(self._stops.describe(prompt, self._whereabouts(self._others), self._done))
        return self._replies_to(commands.to, Answer("text", commands.command))

    def _replies_to(self, questions: Iterable[Question], answer: Answer) -> list[tuple[Reply, Answer]]:
        found = [self._replies.pop((each.rank, each.number), None) for each in questions]
        return [(reply, answer) for reply in found if reply is not None]

    def _refuse_all(self) -> None:
        with self._changed:
            self._is_closed = True
            left, self._replies = list(self._replies.values()), {}
        for reply in left:
            reply(Answer("refused", "the notebook could not ask for it"))
