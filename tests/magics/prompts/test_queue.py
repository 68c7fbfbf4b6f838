"""Which prompt of which ranks is shown, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from meshbook.magics.prompts.queue import GRACE, Prompt, PromptQueue
from meshbook.runtime.telemetry.prompt_questions import Kind, PromptAnswer, PromptQuestion

BOB = PromptAnswer("text", "bob")


class Ranks:
    """The ranks of a cell; `ask` is a rank's own act, `see` what a person is shown."""

    def __init__(self, count: int = 3, sharing: Any = "same") -> None:
        self.prompts = PromptQueue(sharing)
        self.running = set(range(count))
        self._numbers = iter(range(1, 100))
        self.now = 0.0
        self.known: dict[int, str] = {}  # rank -> what it was told at once

    def ask(self, rank: int, prompt: str = "name: ", kind: Kind = "input") -> None:
        question = PromptQuestion("1.1", "mesh", rank, next(self._numbers), kind, prompt)
        answer = self.prompts.asked(question, self.now)
        if answer is not None:
            self.known[rank] = answer.text

    def see(self) -> Prompt | None:
        return self.prompts.due(self.now, self.running - self.prompts.ranks)

    def shown(self) -> str | None:
        prompt = self.see()
        return prompt.text if prompt is not None else None

    def answer(self, answer: PromptAnswer = BOB) -> list[int]:
        """Answer what is shown; the ranks that this is for."""
        prompt = self.see()
        assert prompt is not None
        return [question.rank for question in self.prompts.answered(prompt, answer)]


def test_a_prompt_names_the_mesh_where_there_are_several() -> None:
    ranks = Ranks(1)
    ranks.prompts.mesh = "judge"
    ranks.ask(0)
    assert ranks.shown() == "[rank 0 of judge] name: "


@pytest.mark.parametrize(
    ("asking", "running", "seconds", "shown"),
    [
        ([0], 3, 0.0, None),  # the others may come yet
        ([0], 3, GRACE, "[rank 0] name: "),
        ([0, 2], 3, GRACE, "[ranks 0,2] name: "),
        ([2, 0, 1], 3, 0.0, "[ranks 0-2] name: "),  # nobody is left to wait for
        ([1], 1, 0.0, "[rank 1] name: "),
        ([], 3, 9.0, None),
    ],
)
def test_a_prompt_that_ranks_share_is_shown_once(
    asking: Sequence[int], running: int, seconds: float, shown: str | None
) -> None:
    ranks = Ranks(running if running > 1 else 0)
    for rank in asking:
        ranks.ask(rank)
    ranks.now = seconds
    assert ranks.shown() == shown


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    ranks = Ranks(2)
    ranks.ask(0)
    assert ranks.shown() is None
    ranks.running.discard(1)
    assert ranks.shown() == "[rank 0] name: "


def test_all_waiting_ranks_get_the_answer_and_those_that_came_while_it_was_shown() -> None:
    ranks = Ranks(3)
    ranks.ask(0)
    ranks.ask(1)
    ranks.now = GRACE
    prompt = ranks.see()
    ranks.ask(2)
    assert prompt is not None
    assert [question.rank for question in ranks.prompts.answered(prompt, BOB)] == [0, 1, 2]
    assert ranks.shown() is None


def test_a_rank_that_comes_later_to_the_same_prompt_gets_the_same_answer() -> None:
    ranks = Ranks(2)
    ranks.ask(0)
    ranks.now = GRACE
    assert ranks.answer() == [0]
    ranks.ask(1)
    assert ranks.known == {1: "bob"}


def test_the_next_prompt_of_the_same_text_is_another_one() -> None:
    ranks = Ranks(2)
    for _ in range(2):
        ranks.ask(0)
        ranks.ask(1)
        assert ranks.answer() == [0, 1]
    assert not ranks.known


def test_prompts_that_differ_are_shown_one_after_the_other_as_they_came() -> None:
    ranks = Ranks(3)
    ranks.ask(2, "b: ")
    ranks.ask(0, "a: ")
    ranks.ask(1, "a: ")
    assert ranks.shown() == "[rank 2] b: "
    assert ranks.answer() == [2]
    assert ranks.shown() is None  # rank 2 may come to it as well
    ranks.now = GRACE
    assert ranks.answer() == [0, 1]


def test_a_password_is_no_line() -> None:
    ranks = Ranks(2)
    ranks.ask(0, kind="password")
    ranks.ask(1)
    prompt = ranks.see()
    assert prompt is not None
    assert prompt.is_password
    assert ranks.answer() == [0]
    ranks.now = GRACE
    assert ranks.answer() == [1]


def test_each_rank_is_asked_for_itself_where_that_is_wanted() -> None:
    ranks = Ranks(3, "ask")
    ranks.ask(1)
    assert ranks.shown() == "[rank 1] name: "  # at once: nobody is waited for
    ranks.ask(0)
    assert ranks.answer() == [1]
    assert ranks.answer() == [0]
    ranks.ask(2)
    assert not ranks.known


def test_the_end_of_all_input_is_an_answer_like_others() -> None:
    ranks = Ranks(2)
    ranks.ask(0)
    ranks.now = GRACE
    ranks.answer(PromptAnswer("eof"))
    assert ranks.prompts.asked(PromptQuestion("1.1", "mesh", 1, 9, "input", "name: "), ranks.now) == PromptAnswer("eof")


def test_a_prompt_without_a_waiting_rank_is_not_shown() -> None:
    ranks = Ranks(2)
    ranks.ask(0)
    ranks.ask(1)
    prompt = ranks.see()
    assert prompt is not None
    ranks.prompts.withdrawn(0)
    assert ranks.prompts.is_open(prompt)
    assert [question.rank for question in ranks.prompts.answered(prompt, BOB)] == [1]
    ranks.prompts.withdrawn(1)
    assert not ranks.prompts.is_open(prompt)
    assert ranks.prompts.answered(prompt, BOB) == []


def test_two_threads_of_a_rank_may_ask() -> None:
    ranks = Ranks(1)
    ranks.ask(0, "a: ")
    ranks.ask(0, "b: ")
    assert ranks.shown() == "[rank 0] a: "
    ranks.prompts.withdrawn(0, 1)
    assert ranks.shown() == "[rank 0] b: "
