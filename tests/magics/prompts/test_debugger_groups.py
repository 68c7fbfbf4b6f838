"""Ranks in the debugger: whom a prompt is for, when it comes, and what a line does."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from meshbook.magics.errors import UserError
from meshbook.magics.prompts.debugger_groups import GATHER, PATIENCE, Commands, DebuggerGroups, DebugPrompt
from meshbook.runtime.telemetry.prompt_questions import PromptQuestion


def select(text: str) -> tuple[int, ...]:
    """Selectors enough for here."""
    known = {"all": (0, 1, 2, 3), "0": (0,), "3": (3,), "0,3": (0, 3), "gpus=1": (1,)}
    if text not in known:
        raise UserError(f"no selector {text!r}")
    return known[text]


class Ranks:
    """Four ranks."""

    def __init__(self) -> None:
        self.stops = DebuggerGroups(select)
        self.now = 0.0
        self._numbers = iter(range(1, 100))
        self.running = {0, 1, 2, 3}

    def stop(self, places: Mapping[int, int]) -> None:
        """These ranks stop at these lines."""
        for rank, line in places.items():
            question = PromptQuestion("1.1", "mesh", rank, next(self._numbers), "command", place=f"cell 1:{line}")
            self.stops.stopped(question, self.now, self.running - self.stops.ranks - {rank})

    def prompt(self) -> DebugPrompt:
        prompt = self.stops.due(self.now)
        assert prompt is not None
        return prompt

    def enter(self, line: str) -> Commands:
        return self.stops.entered(self.prompt(), line, self.now)

    def send(self, line: str) -> tuple[list[int], str]:
        """The ranks that a line is sent to, and the command."""
        commands = self.enter(line)
        assert not commands.text, commands.text
        return [question.rank for question in commands.to], commands.command


@pytest.fixture
def ranks() -> Ranks:
    """All stopped at line 7."""
    ranks = Ranks()
    ranks.stop(dict.fromkeys(range(4), 7))
    return ranks


def test_a_prompt_is_for_all_that_are_stopped_at_the_same_place(ranks: Ranks) -> None:
    assert ranks.prompt().text == "[ranks 0-3 cell 1:7] (Pdb) "
    assert ranks.send("p x") == ([0, 1, 2, 3], "p x")


@pytest.mark.parametrize(
    ("line", "to", "command"),
    [
        ("n", [0, 1, 2, 3], "n"),
        ("@0 n", [0], "n"),
        ("@0,3 p x, y", [0, 3], "p x, y"),
        ("@all c", [0, 1, 2, 3], "c"),
        ("@gpus=1   p x", [1], "p x"),
        ("  n  ", [0, 1, 2, 3], "n"),
        ("x = '@0'", [0, 1, 2, 3], "x = '@0'"),
        ("help n", [0, 1, 2, 3], "help n"),
    ],
)
def test_a_line_is_for_the_prompts_ranks_or_for_those_it_names(
    ranks: Ranks, line: str, to: list[int], command: str
) -> None:
    assert ranks.send(line) == (to, command)


def test_the_others_are_waited_for_a_moment() -> None:
    ranks = Ranks()
    ranks.stop({1: 7})
    assert ranks.stops.due(0.0) is None
    assert ranks.stops.next_at == GATHER
    ranks.stop({0: 7})
    ranks.now = GATHER
    assert ranks.prompt().ranks == (0, 1)


def test_ended_ranks_are_not_waited_for() -> None:
    ranks = Ranks()
    ranks.stop({1: 7})
    for rank in (0, 2, 3):
        ranks.stops.ended(rank)
    assert ranks.prompt().text == "[rank 1 cell 1:7] (Pdb) "


def test_ranks_that_part_are_asked_for_one_place_and_reported_once(ranks: Ranks) -> None:
    ranks.send("n")
    ranks.stop({0: 8, 1: 9, 2: 9, 3: 9})
    assert ranks.prompt() == DebugPrompt((0,), "[rank 0 cell 1:8] (Pdb) ", "also stopped: ranks 1-3 at cell 1:9\n")
    ranks.send("n")
    ranks.stop({0: 9})
    assert ranks.prompt() == DebugPrompt((0, 1, 2, 3), "[ranks 0-3 cell 1:9] (Pdb) ")


def test_a_command_to_others_leaves_the_prompt_where_it_is(ranks: Ranks) -> None:
    ranks.send("@0 n")
    ranks.stop({0: 8})
    assert ranks.prompt() == DebugPrompt((1, 2, 3), "[ranks 1-3 cell 1:7] (Pdb) ", "also stopped: rank 0 at cell 1:8\n")
    ranks.send("p x")
    ranks.stop({1: 7, 2: 7, 3: 7})
    assert ranks.prompt().remark == ""  # nothing new


def test_a_selector_alone_turns_the_prompt_to_these_ranks(ranks: Ranks) -> None:
    assert ranks.send("@3") == ([], "")
    assert ranks.prompt().text == "[rank 3 cell 1:7] (Pdb) "
    ranks.send("n")
    ranks.stop({3: 9})
    assert ranks.prompt().text == "[rank 3 cell 1:9] (Pdb) "
    ranks.send("@all")
    assert ranks.prompt().text == "[ranks 0-3] (Pdb) "  # at two places
    ranks.send("c")
    ranks.stop({1: 7, 2: 7})
    ranks.now = GATHER
    assert ranks.prompt().text == "[ranks 1-2 cell 1:7] (Pdb) "


def test_once_the_chosen_ranks_have_gone_the_others_are_asked_for(ranks: Ranks) -> None:
    ranks.send("@3")
    ranks.send("c")
    ranks.stops.ended(3)
    assert ranks.prompt().text == "[ranks 0-2 cell 1:7] (Pdb) "


@pytest.mark.parametrize(("command", "seconds"), [("n", PATIENCE), ("c", GATHER), ("q", GATHER)])
def test_ranks_that_do_not_return_delay_no_others(ranks: Ranks, command: str, seconds: float) -> None:
    """Three step into a collective that the fourth has to come to."""
    ranks.send(f"@0,3 {command}")
    assert ranks.stops.due(ranks.now) is None
    ranks.now = seconds
    assert ranks.prompt().text == "[ranks 1-2 cell 1:7] (Pdb) "
    ranks.stop({0: 8})
    assert ranks.prompt().remark == "also stopped: rank 0 at cell 1:8\n"


def test_after_a_long_step_the_ranks_gather_again(ranks: Ranks) -> None:
    ranks.send("c")
    ranks.now = 60.0
    ranks.stop({2: 12})
    assert ranks.stops.due(ranks.now) is None
    ranks.stop({0: 12, 1: 12, 3: 12})
    assert ranks.prompt().text == "[ranks 0-3 cell 1:12] (Pdb) "


def test_an_empty_line_is_the_last_one_again(ranks: Ranks) -> None:
    assert ranks.send("@0 p x") == ([0], "p x")
    ranks.stop({0: 7})
    assert ranks.send("") == ([0], "p x")


def test_help_is_about_the_ranks(ranks: Ranks) -> None:
    commands = ranks.enter("help")
    assert not commands.to
    assert "@SEL COMMAND" in commands.text


@pytest.mark.parametrize(
    ("line", "said"),
    [("@nowhere n", "no selector 'nowhere'\n"), ("@3 n", "rank 3 is not stopped; `ranks` lists the stopped ranks\n")],
)
def test_a_wrong_selector_is_reported_and_the_prompt_returns(line: str, said: str) -> None:
    ranks = Ranks()
    ranks.stop({0: 7, 1: 7})
    ranks.now = GATHER
    assert ranks.enter(line) == Commands(text=said)
    assert ranks.prompt().text == "[ranks 0-1 cell 1:7] (Pdb) "


def test_ranks_says_where_each_is(ranks: Ranks) -> None:
    ranks.send("@3 n")
    ranks.stop({3: 9})
    assert ranks.enter("ranks").wants_ranks
    ranks.stops.ended(2)
    assert ranks.stops.format_ranks(ranks.prompt(), {1: "in all_reduce (cell 1:8)"}, {2}) == (
        "ranks 0-1 stopped at cell 1:7   <- commands go here\n"
        "rank 3 stopped at cell 1:9\n"
        "rank 1 not stopped: in all_reduce (cell 1:8)\n"
        "rank 2 done\n"
    )


def test_a_prompt_whose_ranks_are_gone_is_over(ranks: Ranks) -> None:
    prompt = ranks.prompt()
    for rank in range(3):
        ranks.stops.withdrawn(rank)
    assert ranks.stops.is_open(prompt)
    ranks.stops.withdrawn(3, number=99)  # of a question that was before
    assert ranks.stops.is_open(prompt)
    ranks.stops.ended(3)
    assert not ranks.stops.is_open(prompt)


def test_a_person_is_in_the_debugger_from_a_stop_to_going_on_or_quitting(ranks: Ranks) -> None:
    ranks.send("@0,3 n")
    assert ranks.stops.is_engaged
    ranks.now = PATIENCE
    ranks.send("c")  # 1 and 2
    assert ranks.stops.is_engaged  # 0 and 3 still step
    ranks.stop({0: 8, 3: 8})
    ranks.now += GATHER
    ranks.send("@0 q")
    ranks.stops.ended(3)
    assert not ranks.stops.is_engaged
