"""Selects the next prompt to show, since a person answers one prompt at a time.

With `same`, identical prompts of ranks are shown once: when every rank that could still have one waits, or after 0.3 s,
since a rank without a prompt must not delay the others. A rank that reaches the same prompt later gets the same answer
at once. Prompts are identical if their text is, and each is the n-th of its rank in the cell. With `ask` each rank has
its own prompt.

Pure: it takes events and times. `debugger` handles commands, and `broker` shows the prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from meshbook.runtime.formats import name_ranks
from meshbook.runtime.telemetry.prompt_questions import PromptAnswer, PromptQuestion

Sharing: TypeAlias = Literal["same", "ask", "error"]
GRACE = 0.3  # seconds in which the other ranks may reach the same prompt


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt that is shown for these questions."""

    questions: tuple[PromptQuestion, ...]
    mesh: str = ""  # of these ranks, if there are several meshes

    @property
    def text(self) -> str:
        """`[ranks 0-3] name: `, or `[ranks 0-3 of judge] name: `."""
        of = f" of {self.mesh}" if self.mesh else ""
        return f"[{name_ranks({each.rank for each in self.questions})}{of}] {self.questions[0].prompt}"

    @property
    def is_password(self) -> bool:
        return self.questions[0].kind == "password"


@dataclass(slots=True)
class _Waiting:
    question: PromptQuestion
    since: float
    turn: int  # how many prompts this rank has had in this cell, with this one


_Like: TypeAlias = tuple[str, str, int]  # the common properties of the questions of one prompt


@dataclass(slots=True)
class PromptQueue:
    """The questions of the ranks of one cell."""

    sharing: Sharing
    mesh: str = ""  # named in prompts, if there are several
    _waiting: list[_Waiting] = field(default_factory=list)  # in order of arrival
    _turns: dict[int, int] = field(default_factory=dict)
    _answers: dict[_Like, PromptAnswer] = field(default_factory=dict)

    def asked(self, question: PromptQuestion, now: float) -> PromptAnswer | None:
        """Add the question of a rank; return the answer if it is known."""
        turn = self._turns[question.rank] = self._turns.get(question.rank, 0) + 1
        waiting = _Waiting(question, now, turn)
        if self.sharing == "same" and (known := self._answers.get(_like(waiting))) is not None:
            return known
        self._waiting.append(waiting)
        return None

    def withdrawn(self, rank: int, number: int | None = None) -> None:
        """Drop this question of a rank; without a number, all of them."""
        self._waiting = [
            each
            for each in self._waiting
            if each.question.rank != rank or (number is not None and each.question.number != number)
        ]

    @property
    def ranks(self) -> set[int]:
        """The ranks that wait for an answer."""
        return {each.question.rank for each in self._waiting}

    def due(self, now: float, others: Iterable[int]) -> Prompt | None:
        """Return the prompt that is due. `others` are the ranks that may still have a question."""
        if not self._waiting or (now < self.next_at and not self.ranks >= set(others)):
            return None
        first = self._waiting[0]
        return Prompt(tuple(each.question for each in self._alike(first)), self.mesh)

    @property
    def next_at(self) -> float:
        """When a prompt is due, whatever other ranks do; infinite if no rank waits."""
        if not self._waiting:
            return math.inf
        return self._waiting[0].since + (GRACE if self.sharing == "same" else 0.0)

    def answered(self, prompt: Prompt, answer: PromptAnswer) -> list[PromptQuestion]:
        """Return the waiting questions that this answers, also those that came after the prompt was shown."""
        first = next((each for each in self._waiting if each.question in prompt.questions), None)
        if first is None:
            return []
        answered = self._alike(first)
        if self.sharing == "same":
            self._answers[_like(first)] = answer
        self._waiting = [each for each in self._waiting if each not in answered]
        return [each.question for each in answered]

    def is_open(self, prompt: Prompt) -> bool:
        """Whether a rank still waits for its answer."""
        return any(each.question in prompt.questions for each in self._waiting)

    def _alike(self, first: _Waiting) -> list[_Waiting]:
        if self.sharing != "same":
            return [first]
        return [each for each in self._waiting if _like(each) == _like(first)]


def _like(waiting: _Waiting) -> _Like:
    return waiting.question.kind, waiting.question.prompt, waiting.turn
