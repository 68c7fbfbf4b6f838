"""What is done to which ranks, and when: tables of what happened, and what was due."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from meshbook.magics.cells.escalation import EscalationAction, EscalationPolicy, EscalationStep

Event = tuple[float, str, int]  # when, what, which rank
Due = tuple[float, str, str]  # when, the step (with ! where it is forced), the ranks


def supervisor(events: Sequence[Event], *, stops_on_error: bool = True, until: float = 100.0) -> list[Due]:
    """What is due in a cell of the ranks 0 to 2."""
    silent = {0, 1, 2}
    policy = EscalationPolicy(silent, stops_on_error=stops_on_error)
    due: list[Due] = []
    last = 0.0
    for at, what, rank in [*events, (until, "end", 0)]:
        while (planned := policy.next_at) <= at:
            now = max(planned, last)
            due += [(round(now, 3), *_written(action)) for action in policy.due(now)]
            if policy.next_at == planned:  # it is due to nobody
                break
        last = at
        if what == "press":
            policy.press(at)
        elif what == "time is up":
            policy.time_is_up(at)
        elif what in ("held", "let go"):
            policy.is_held = what == "held"
        else:
            silent.discard(rank)
            if what in ("raised", "died"):
                policy.failed(at, died=what == "died")
    return due


def _written(action: EscalationAction) -> tuple[str, str]:
    return action.step.name.lower() + "!" * action.forced, "".join(map(str, action.ranks))


@pytest.mark.parametrize(
    ("events", "due"),
    [
        ([], []),
        ([(1, "done", 0), (2, "done", 1), (3, "done", 2)], []),
        # a person in the debugger: an error waits for him, but his interrupt does not
        (
            [(1, "held", 0), (2, "raised", 1), (9, "let go", 0)],
            [(9, "interrupt", "02"), (10.0, "abort", "02"), (12.5, "abort!", "02"), (15.0, "leave", "02")],
        ),
        ([(1, "held", 0), (2, "died", 1), (3, "press", 0), (3, "done", 0), (3, "done", 2)], [(3, "interrupt", "02")]),
        # a person
        ([(1, "press", 0), (1.1, "done", 0), (1.1, "done", 1), (1.2, "done", 2)], [(1, "interrupt", "012")]),
        (
            [(1, "press", 0), (1.1, "done", 0)],
            [(1, "interrupt", "012"), (6, "abort", "12"), (8.5, "abort!", "12"), (11, "leave", "12")],
        ),
        (
            [(1, "press", 0), (1.1, "done", 0), (2, "press", 0)],
            [(1, "interrupt", "012"), (2, "interrupt!", "12"), (2, "abort!", "12"), (7, "leave!", "12")],
        ),
        (
            [(1, "press", 0), (2, "press", 0), (2.1, "done", 0), (2.1, "done", 1), (4, "press", 0), (4.1, "died", 2)],
            [(1, "interrupt", "012"), (2, "interrupt!", "012"), (2, "abort!", "012"), (4, "kill!", "2")],
        ),
        # three in a row: what was aborted has a second to come back
        (
            [(1, "press", 0), (1.1, "press", 0), (1.2, "press", 0), (1.3, "done", 0)],
            [
                (1, "interrupt", "012"),
                (1.1, "interrupt!", "012"),
                (1.1, "abort!", "012"),
                (2.1, "kill!", "12"),
                (7.1, "leave!", "12"),
            ],
        ),
        (
            [(1, "press", 0), (1.1, "press", 0), (1.2, "press", 0), *((1.3, "done", rank) for rank in range(3))],
            [(1, "interrupt", "012"), (1.1, "interrupt!", "012"), (1.1, "abort!", "012")],
        ),
        # two, when the first has brought an abort by itself
        (
            [(1, "press", 0), (7, "press", 0), (9, "press", 0), *((9.1, "died", rank) for rank in range(3))],
            [
                (1, "interrupt", "012"),
                (6, "abort", "012"),
                (7, "interrupt!", "012"),
                (7, "abort!", "012"),
                (9, "kill!", "012"),
            ],
        ),
        # an error
        ([(1, "raised", 0), (1.4, "done", 1), (1.4, "done", 2)], []),
        ([(1, "raised", 0), (1.6, "done", 1), (1.6, "done", 2)], [(1.5, "interrupt", "12")]),
        (
            [(1, "raised", 0)],
            [(1.5, "interrupt", "12"), (2.5, "abort", "12"), (5.0, "abort!", "12"), (7.5, "leave", "12")],
        ),
        (
            [(1, "raised", 0), (1.4, "raised", 1)],
            [(1.5, "interrupt", "2"), (2.5, "abort", "2"), (5.0, "abort!", "2"), (7.5, "leave", "2")],
        ),
        # a death
        ([(1, "died", 0)], [(1, "interrupt", "12"), (1.3, "abort", "12"), (1.8, "abort!", "12"), (2.3, "leave", "12")]),
        (
            [(1, "raised", 0), (1.6, "died", 1)],
            [(1.5, "interrupt", "12"), (1.9, "abort", "2"), (2.4, "abort!", "2"), (2.9, "leave", "2")],
        ),
        # a person after an error
        (
            [(1, "raised", 0), (2, "press", 0), (3, "press", 0)],
            [
                (1.5, "interrupt", "12"),
                (2, "interrupt", "12"),
                (3, "interrupt!", "12"),
                (3, "abort!", "12"),
                (8, "leave!", "12"),
            ],
        ),
        # errors because of an interrupt change nothing
        ([(1, "press", 0), (1.1, "raised", 0), (3, "done", 1), (3, "done", 2)], [(1, "interrupt", "012")]),
        # a time limit: nobody is there to press again
        (
            [(1, "time is up", 0)],
            [(1, "interrupt", "012"), (2, "abort", "012"), (4.5, "abort!", "012"), (7, "leave", "012")],
        ),
        (
            [(1, "time is up", 0), (1.5, "press", 0)],
            [(1, "interrupt", "012"), (1.5, "interrupt!", "012"), (1.5, "abort!", "012"), (6.5, "leave!", "012")],
        ),
    ],
)
def test_the_course_of_a_cell(events: list[Event], due: list[Due]) -> None:
    assert supervisor(events) == due


@pytest.mark.parametrize("what", ["raised", "died"])
def test_with_on_error_finish_nothing_is_done_to_the_others(what: str) -> None:
    assert supervisor([(1, what, 0)], stops_on_error=False) == []
    pressed = supervisor([(1, what, 0), (2, "press", 0), (3, "done", 1), (3, "done", 2)], stops_on_error=False)
    assert pressed == [(2, "interrupt", "12")]


def test_a_step_is_due_once_and_not_for_ranks_that_have_answered() -> None:
    silent = {0}
    policy = EscalationPolicy(silent, stops_on_error=True)
    assert policy.next_at == math.inf
    policy.press(1.0)
    assert policy.due(0.9) == []
    assert [action.step for action in policy.due(1.0)] == [EscalationStep.INTERRUPT]
    assert policy.due(1.0) == []
    silent.clear()
    assert policy.due(50.0) == []


def test_the_effect_of_the_next_interrupt_is_shown() -> None:
    policy, said = EscalationPolicy({0}, stops_on_error=True), []
    for at in range(4):
        said.append(policy.advice)
        policy.press(at)
    breaks, kills = "interrupt again to break process groups", "interrupt again to kill ranks that do not answer"
    assert said == ["", breaks, kills, kills]
