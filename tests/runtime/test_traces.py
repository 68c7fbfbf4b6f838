"""Lines of the user's code, by the names that tracebacks give them; and tracebacks without ours."""

from __future__ import annotations

import asyncio
import linecache
import pickle
import re
import sys
import traceback
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import PickleError, SupervisionError, format_help
from meshbook.runtime.traces import (
    MOST_CHARACTERS,
    SourceLine,
    calling_place,
    format_error,
    format_frames,
    headline,
    is_ours,
    name_cells,
    without_ours,
)

CELL = "/tmp/ipykernel_4711/123.py"


class Shell:
    """Knows one cell, as IPython's does."""

    def __init__(self, fails: bool = False) -> None:
        self.compile = self
        self._fails = fails

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        if self._fails:
            raise RuntimeError("a shell of another make")
        return ("Cell", "In[3]") if name == CELL else None


@pytest.fixture
def in_notebook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """IPython is there, and its third cell."""

    def enter(shell: Any) -> None:
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))

    monkeypatch.setitem(linecache.cache, CELL, (9, None, ["x = 0\n", "  y = 1 / x\n"], CELL))
    enter(Shell())
    return enter


def raised_by(function: Any, *arguments: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function(*arguments)
    return caught.value


def divide(value: int) -> float:
    return 1 / value


# -- lines -------------------------------------------------------------------------------


def test_the_calling_line_is_the_one_that_is_at_it() -> None:
    """In the midst of a function of several lines."""
    before = 1
    line, here = SourceLine.of(calling_place(1)), sys._getframe().f_lineno
    after = before + 1
    assert (line.filename, line.number, line.function) == (__file__, here, sys._getframe().f_code.co_name)
    assert line.is_of_user
    assert str(line).startswith(f"{__file__}:{here}, in test_the_calling_line")
    assert str(line).endswith("\n    line, here = SourceLine.of(calling_place(1)), sys._getframe().f_lineno")
    assert after == 2


def test_frames_of_ours_are_passed_over() -> None:
    """`Future.completed` and `then` are ours, the function that they call is the user's."""
    seen: list[SourceLine] = []

    def note(value: int) -> None:
        seen.append(SourceLine.of(calling_place(2)))  # from the frame above this one: ours

    Future.completed(1).then(note).get()
    assert [line.function for line in seen] == ["test_frames_of_ours_are_passed_over"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (SourceLine("/nowhere/train.py", 12, "step"), "/nowhere/train.py:12, in step"),
        (SourceLine("/nowhere/train.py", 12, "<module>"), "/nowhere/train.py:12"),
        (SourceLine("/nowhere/train.py", 12, "<lambda>"), "/nowhere/train.py:12, in <lambda>"),
        (SourceLine("<cell 3 1b2c3d4e>", 2, "<module>"), "cell 3:2"),
        (SourceLine(CELL, 2, "<cell line: 1>"), "Cell In[3], line 2\n    y = 1 / x"),
        (SourceLine(CELL, 2, "fit"), "Cell In[3], line 2, in fit\n    y = 1 / x"),
    ],
)
def test_how_a_line_is_named(in_notebook: Any, line: SourceLine, text: str) -> None:
    assert str(line) == text
    assert str(pickle.loads(pickle.dumps(line))) == text


@pytest.mark.parametrize("shell", [None, Shell(fails=True), SimpleNamespace()])
def test_a_shell_that_knows_no_cells_leaves_the_file_name(in_notebook: Any, shell: Any) -> None:
    in_notebook(shell)
    assert str(SourceLine(CELL, 2, "fit")).startswith(f"{CELL}:2, in fit")


@pytest.mark.parametrize(
    "filename",
    [
        SourceLine.of.__func__.__code__.co_filename,  # type: ignore[attr-defined]
        asyncio.run.__code__.co_filename,
        "<frozen runpy>",
        "/lib/site-packages/IPython/core/interactiveshell.py",
        "/lib/site-packages/ipykernel/ipkernel.py",
    ],
)
def test_whose_lines_are_not_the_users(filename: str) -> None:
    assert not SourceLine(filename, 1, "f").is_of_user


@pytest.mark.parametrize("filename", [__file__, CELL, "<cell 3>", traceback.__file__, "/lib/site-packages/torch/x.py"])
def test_whose_lines_are(filename: str) -> None:
    """Those of libraries too: they may be the user's own, and they show the place."""
    assert SourceLine(filename, 1, "f").is_of_user


def test_a_line_is_found_in_a_traceback() -> None:
    error = raised_by(divide, 0)
    number = divide.__code__.co_firstlineno + 1
    assert SourceLine(__file__, number, "divide").is_in(error.__traceback__)
    assert not SourceLine(__file__, number + 1, "divide").is_in(error.__traceback__)
    assert not SourceLine(__file__, number, "divide").is_in(None)


# -- tracebacks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no\nsuch device"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (ValueError("x" * 1000), f"ValueError: {'x' * MOST_CHARACTERS}…"),
    ],
)
def test_a_headline_is_one_line(error: Exception, text: str) -> None:
    assert headline(error) == text


def test_an_error_without_words_has_a_headline() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert headline(Unspeakable()) == "Unspeakable: <exception str() failed>"


def wait_for(future: Future[Any]) -> Any:
    return future.get()


async def await_it(future: Future[Any]) -> Any:
    return await future


@pytest.mark.parametrize("wait", [wait_for, lambda future: asyncio.run(await_it(future))])
def test_frames_of_ours_and_of_asyncio_are_folded_away(wait: Any) -> None:
    """In the text of an error, of its causes, and of those in a group."""

    def run() -> None:
        try:
            wait(Future.failed(ValueError("cause")))
        except ValueError as cause:
            raise ExceptionGroup("several", [raised_by(wait, Future.failed(KeyError("inner")))]) from cause  # type: ignore[list-item]

    text = format_error(raised_by(run))
    for said in ("ValueError: cause", "direct cause", "ExceptionGroup: several", "KeyError: 'inner'", "in run"):
        assert said in text
    assert "future.py" not in text
    assert "asyncio/" not in text


def test_a_chain_may_be_long_or_a_circle() -> None:
    """It is reported, and does not end the actor that reports it."""
    error: BaseException = ValueError("0")
    for number in range(1, 3000):
        before, error = error, ValueError(str(number))
        error.__context__ = before
    assert format_error(error).count("During handling") > 900
    error.__cause__, before = before, error
    before.__cause__.__context__ = error  # type: ignore[union-attr]
    assert "ValueError: 2999" in format_error(error)


def test_ours_are_shown_where_there_are_no_others() -> None:
    """That is a mistake of ours, and should be visible; but not where the error itself is one of ours."""
    error = raised_by(lambda: Future.failed(ValueError("of ours")).get())
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert "future.py" in format_error(error)
    known = raised_by(lambda: Future.failed(PickleError("told well")).get())
    known.__traceback__ = known.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert format_error(known).splitlines() == [
        "meshbook.runtime.errors.PickleError: told well",
        format_help(PickleError.page),
    ]


def test_the_frames_alone() -> None:
    assert format_frames(ValueError()) == ""
    frames = format_frames(raised_by(wait_for, Future.failed(ValueError())))
    assert re.search(r"in wait_for\n    return future\.get\(\)\n           [~^]{12}$", frames)  # how, versions differ
    assert "future.py" not in frames


def test_a_traceback_without_ours() -> None:
    error = raised_by(wait_for, Future.failed(ValueError()))
    assert [is_ours(frame.filename) for frame in traceback.extract_tb(error.__traceback__)] == [False, False, True]
    kept = without_ours(error.__traceback__)
    assert [frame.name for frame in traceback.extract_tb(kept)] == ["raised_by", "wait_for"]
    assert without_ours(error.__traceback__.tb_next.tb_next) is None  # type: ignore[union-attr]
    assert without_ours(None) is None


REMOTE = f"""trainer.step() raised ZeroDivisionError: division by zero
Traceback (most recent call last):
  File "{CELL}", line 2, in step
  File "/home/me/model.py", line 7, in forward
    return x / 0
           ~~^~~
ZeroDivisionError: division by zero"""


def test_cells_of_the_notebook_are_named_in_what_comes_from_afar(in_notebook: Any) -> None:
    """With their lines, which only the notebook knows. The rest stays as it is."""
    named = f'  File "{CELL}", line 2, in step\n', "  Cell In[3], line 2, in step\n    y = 1 / x\n"
    assert name_cells(REMOTE) == REMOTE.replace(*named)
    assert name_cells(name_cells(REMOTE)) == name_cells(REMOTE)
    with_source = REMOTE.replace(named[0], f"{named[0]}    y = 1 / x\n")
    assert name_cells(with_source) == name_cells(REMOTE)
    assert name_cells('  File "<cell 9 1b2c3d4e>", line 2, in step') == '  File "<cell 9>", line 2, in step'
    in_notebook(None)
    assert name_cells(REMOTE) == REMOTE


def test_ipython_shows_an_error_of_ours_without_our_frames(in_notebook: Any) -> None:
    """IPython asks the error itself."""
    shown: list[Any] = []

    def structured_traceback(kind: Any, error: Any, trace: Any, tb_offset: int) -> list[str]:
        shown.append([frame.name for frame in traceback.extract_tb(trace)])
        return ["rendered"]

    in_notebook(SimpleNamespace(InteractiveTB=SimpleNamespace(structured_traceback=structured_traceback)))
    error = raised_by(wait_for, Future.failed(SupervisionError("gone")))
    assert error._render_traceback_() == ["rendered"]  # type: ignore[attr-defined]
    assert shown == [["raised_by", "wait_for"]]
