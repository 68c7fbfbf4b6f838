"""Errors of many ranks as one: which are the same, which comes first, how the rest is summarized."""

import pickle
import re

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from meshbook.magics.errors import CellError, make_cell_error
from meshbook.magics.results.error_groups import MOST_TRACEBACKS, format_interrupt, group_errors, render
from meshbook.runtime.cells.outcome import Frame, RankError


def failed(type_name="ZeroDivisionError", message="division by zero", line=2, **more):
    frames = (Frame("<cell 3>", line, "<module>", "x = 1 / 0"),)
    return RankError("raised", type_name, message, frames, **more)


def interrupted(line=2, function="<module>", **more):
    return RankError("interrupted", "KeyboardInterrupt", "", (Frame("<cell 3>", line, function),), **more)


def died(**more):
    return RankError("died", "ProcessDied", "Killed (SIGKILL)\nCUDA out of memory", **more)


def consequence(line=5):
    return failed("ConnectionError", "reset by peer", line, is_consequence=True)


def test_errors_that_differ_in_numbers_share_a_traceback():
    errors = {rank: failed(message=f"rank {rank} has 0x{rank}f", rendered=("frames",)) for rank in range(30)}
    errors[30] = failed(message="rank thirty", rendered=("frames",))
    errors[31] = failed(message="rank 31 has 0x1f", line=3, rendered=("frames",))
    text = text_of(group_errors(errors, [5, 30]))
    assert text.count("frames") == 3
    first, frames, last, *others = text.partition("\n\n")[0].splitlines()
    assert (first, frames) == ("[rank 5] ZeroDivisionError: rank 5 has 0x5f", "frames")
    assert last == "ZeroDivisionError: rank 5 has 0x5f"
    assert others[:2] == ["[rank 0] ZeroDivisionError: rank 0 has 0x0f", "[rank 1] ZeroDivisionError: rank 1 has 0x1f"]
    assert others[-1].startswith("… 13 more distinct errors [17-29]")


def text_of(groups):
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(render(groups)))


# (errors, order of failure, the groups as ranks and type)
GROUPS = {
    "the same error": ({0: failed(), 1: failed()}, [1, 0], [((0, 1), "ZeroDivisionError")]),
    "another message": (
        {0: failed(message="a"), 1: failed(message="b")},
        [1, 0],
        [((1,), "ZeroDivisionError"), ((0,), "ZeroDivisionError")],
    ),
    "another place": (
        {0: failed(line=2), 1: failed(line=3), 2: failed(line=2)},
        [0, 1, 2],
        [((0, 2), "ZeroDivisionError"), ((1,), "ZeroDivisionError")],
    ),
    "who failed first comes first": (
        {0: failed("ValueError"), 1: failed("KeyError"), 2: failed("ValueError")},
        [1, 2, 0],
        [((1,), "KeyError"), ((0, 2), "ValueError")],
    ),
    "consequences come last": (
        {0: consequence(), 1: failed(), 2: consequence()},
        [0, 1, 2],
        [((1,), "ZeroDivisionError"), ((0, 2), "ConnectionError")],
    ),
    "consequences at other ports": (
        {
            0: failed("RuntimeError", "closed by [::1]:47", is_consequence=True),
            1: failed(),
            2: failed("RuntimeError", "closed by [::1]:48", is_consequence=True),
        },
        [0, 1, 2],
        [((1,), "ZeroDivisionError"), ((0, 2), "RuntimeError")],
    ),
    "what died is the cause": (
        {0: failed(), 1: consequence(), 2: died()},
        [1, 0, 2],
        [((2,), "ProcessDied"), ((0,), "ZeroDivisionError"), ((1,), "ConnectionError")],
    ),
    "ranks that the order does not name": (
        {0: failed("ValueError"), 1: failed("KeyError")},
        [1],
        [((1,), "KeyError"), ((0,), "ValueError")],
    ),
}


@pytest.mark.parametrize(("errors", "order", "expected"), GROUPS.values(), ids=GROUPS)
def test_groups(errors, order, expected):
    assert [(group.ranks, group.error.type_name) for group in group_errors(errors, order)] == expected


def test_a_group_shows_the_error_of_the_rank_that_failed_first():
    errors = {0: failed(rendered=("from 0",)), 3: failed(rendered=("from 3",))}

    (group,) = group_errors(errors, [3, 0])
    assert group.error.rendered == ("from 3",)


def test_a_traceback_has_its_ranks_its_colours_and_one_line_for_consequences():
    rendered = ("\x1b[32mCell In[3], line 2\x1b[0m", "----> 2 x = 1 / 0")
    errors = {rank: failed(rendered=rendered) for rank in (0, 1, 2, 5)} | {
        3: consequence(),
        4: consequence(9),
    }
    groups = group_errors(errors, range(6))

    assert "\x1b[32mCell In[3], line 2\x1b[0m" in render(groups)
    assert text_of(groups).splitlines() == [
        "[ranks 0-2,5] ZeroDivisionError: division by zero",
        "Cell In[3], line 2",
        "----> 2 x = 1 / 0",
        "ZeroDivisionError: division by zero",
        "",
        "ranks 3-4 failed as a consequence (ConnectionError at cell 3:5, ConnectionError at cell 3:9)",
    ]


def test_frames_replace_a_missing_rendering():
    assert text_of(group_errors({3: failed()}, [3])).splitlines() == [
        "[rank 3] ZeroDivisionError: division by zero",
        "  cell 3:2 in <module>",
        "    x = 1 / 0",
        "ZeroDivisionError: division by zero",
    ]


def test_a_long_message_is_whole_below_its_title():
    assert text_of(group_errors({3: died()}, [3])).splitlines() == [
        "[rank 3] ProcessDied: Killed (SIGKILL)",
        "CUDA out of memory",
    ]


def test_consequences_without_a_known_cause_are_shown_in_full():
    assert text_of(group_errors({0: consequence()}, [0])).startswith("[rank 0] ConnectionError: reset by peer\n")


def test_hundreds_of_distinct_errors_stay_readable():
    errors = {rank: failed(message=f"bad{'i' * rank}", rendered=("traceback",) * 30) for rank in range(512)}
    error = make_cell_error(errors, range(512))
    text = text_of(error.groups)

    assert text.count("traceback") == 30 * MOST_TRACEBACKS
    assert f"[rank 57] ZeroDivisionError: bad{'i' * 57} (cell 3:2)" in text
    assert "… 454 more distinct errors [58-511]; the error's `by_rank` has all" in text
    assert len(str(error).splitlines()) == MOST_TRACEBACKS + 1


INTERRUPTS = {
    "one place": ({0: interrupted(), 1: interrupted()}, "interrupted; ranks 0-1 were at cell 3:2"),
    "one rank": ({3: interrupted(7, "step")}, "interrupted; rank 3 was at cell 3:7 in step"),
    "two places, in order of rank": (
        {3: interrupted(7, "step"), 0: interrupted(), 1: interrupted(), 2: interrupted()},
        "interrupted; ranks 0-2 were at cell 3:2, rank 3 at cell 3:7 in step",
    ),
    "nowhere": (
        {0: RankError("interrupted", "KeyboardInterrupt", "")},
        "interrupted; rank 0 was at an unknown place",
    ),
    "interrupts sent on": (
        {0: interrupted(), 1: interrupted(is_consequence=True)},
        "interrupted; ranks 0-1 were at cell 3:2",
    ),
    "what fell with it": (
        {0: interrupted(), 1: consequence()},
        "interrupted; rank 0 was at cell 3:2; rank 1 failed as a consequence (ConnectionError at cell 3:5)",
    ),
}


@pytest.mark.parametrize(("errors", "expected"), INTERRUPTS.values(), ids=INTERRUPTS)
def test_an_interrupted_cell_says_where_it_was(errors, expected):
    error = make_cell_error(errors, list(errors))

    assert format_interrupt(error.groups) == expected
    assert str(error) == expected
    assert text_of(error.groups).splitlines() == ["KeyboardInterrupt", expected]
    assert type(error).__name__ == "KeyboardInterrupt"
    assert error.is_interrupt
    assert isinstance(error, CellError)
    assert not isinstance(error, KeyboardInterrupt)


def test_interrupts_after_an_error_are_its_consequence():
    error = make_cell_error({0: failed(), 1: interrupted(is_consequence=True)}, [0, 1])

    assert not error.is_interrupt
    assert str(error).splitlines() == [
        "[rank 0] ZeroDivisionError: division by zero (cell 3:2)",
        "rank 1 failed as a consequence (KeyboardInterrupt at cell 3:2)",
    ]


def test_the_class_has_the_name_of_the_first_error():
    error = make_cell_error({0: failed("ValueError"), 1: failed("KeyError")}, [1, 0])

    assert type(error).__name__ == "KeyError"
    assert type(error) is type(make_cell_error({0: failed("KeyError")}, [0]))
    assert error.by_rank[0].type_name == "ValueError"


def test_no_errors_make_no_error():
    with pytest.raises(ValueError, match="must not be empty"):
        make_cell_error({}, [])


def test_the_original_exception_of_a_rank():
    original = failed("ValueError", pickled=pickle.dumps(ValueError("bad", 3)))
    error = make_cell_error({0: failed(), 1: original}, [0, 1])

    with pytest.raises(ValueError, match="bad") as caught:
        error.raise_from_rank(1)
    assert caught.value.args == ("bad", 3)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("pickled", [None, b"rubbish", pickle.dumps("no exception")])
def test_an_exception_that_did_not_travel_is_a_cell_error_of_its_rank(pickled):
    error = make_cell_error({0: failed("KeyError"), 1: failed("Odd", pickled=pickled)}, [0, 1])

    with pytest.raises(CellError) as caught:
        error.raise_from_rank(1)
    assert type(caught.value).__name__ == "Odd"
    assert list(caught.value.by_rank) == [1]


def test_a_rank_that_did_not_fail_has_nothing_to_raise():
    with pytest.raises(IndexError, match="rank 2 did not fail; ranks 0-1 did"):
        make_cell_error({0: failed(), 1: failed()}, [0]).raise_from_rank(2)


def test_a_cell_error_pickles_without_its_results():
    error = make_cell_error({0: failed("ValueError"), 1: failed("KeyError")}, [1, 0], result=object())
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert (copy.by_rank, copy.groups, str(copy)) == (error.by_rank, error.groups, str(error))
    assert copy.result is None


def test_ipython_shows_the_traceback_of_the_ranks(capsys):
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.user_ns["error"] = make_cell_error({0: failed(), 1: failed()}, [0, 1])
    shell.run_cell("raise error")

    assert "[ranks 0-1] ZeroDivisionError: division by zero" in capsys.readouterr().out
