"""An exception as data: its frames from the cell on, its text within bounds, and whose fault it is."""

from __future__ import annotations

import json
import linecache
import pickle
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import meshbook
from meshbook.runtime.cells import failures
from meshbook.runtime.cells.failures import (
    MESSAGE_CHARACTERS,
    drop_local_variables,
    is_out_of_memory,
    is_user_code,
    make_rank_error,
    with_causes,
)
from meshbook.runtime.cells.outcome import Frame, RankError


@pytest.fixture(autouse=True)
def _lines_of_cells_are_forgotten() -> Iterator[None]:
    yield
    linecache.cache.pop("<cell 3>", None)


def run_cell(source: str) -> RankError:
    """The error of a cell whose lines are known as IPython would have them known."""
    linecache.cache["<cell 3>"] = (len(source), None, source.splitlines(keepends=True), "<cell 3>")
    try:
        exec(compile(source, "<cell 3>", "exec"), {"json": json})
    except BaseException as error:
        return make_rank_error(error, ["rendered"])
    raise AssertionError("the cell did not fail")


# --- frames ---


def test_frames_begin_with_the_cell() -> None:
    error = run_cell("x = 1\ndef step():\n    1 / 0\nstep()\n")
    assert error.frames == (
        Frame("<cell 3>", 4, "<module>", "step()"),
        Frame("<cell 3>", 3, "step", "    1 / 0"),
    )
    assert (error.kind, error.type_name, error.message) == ("raised", "ZeroDivisionError", "division by zero")
    assert (error.place, error.rendered) == ("cell 3:3 in step", ("rendered",))


def test_frames_of_libraries_are_not_the_users() -> None:
    error = run_cell("json.loads('{')")
    assert [frame.is_user for frame in error.frames] == [True] + [False] * (len(error.frames) - 1)
    assert len(error.frames) > 2
    assert error.place == "cell 3:1"


@pytest.mark.parametrize(
    ("source", "place"),
    [("x = 1\n1 +* 2\n", "cell 3:2"), ("x = 1\ncompile('1 +', 'mine.py', 'exec')\n", "cell 3:2")],
)
def test_a_syntax_error_is_where_it_was_written(source: str, place: str) -> None:
    error = run_cell(source)
    assert (error.type_name, error.place) == ("SyntaxError", place)


def test_without_a_frame_of_a_cell_there_is_none() -> None:
    assert make_rank_error(ValueError("bad"), ()).frames == ()


@pytest.mark.parametrize(
    ("filename", "is_users"),
    [
        ("<cell 3>", True),
        ("/home/me/train.py", True),
        ("<string>", False),
        ("<frozen importlib._bootstrap>", False),
        (json.__file__, False),
        (torch.__file__, False),
        ("/elsewhere/lib/python3.12/site-packages/numpy/core.py", False),
        (meshbook.__file__, False),
        (failures.__file__, False),
        (str(Path(failures.__file__).resolve()), False),
    ],
)
def test_whose_code_it_is(filename: str, is_users: bool) -> None:
    assert is_user_code(filename) is is_users


# --- messages ---


def test_an_endless_message_is_cut_with_a_count() -> None:
    message = make_rank_error(ValueError("x" * 3_000_000), ()).message
    assert len(message) < MESSAGE_CHARACTERS + 50
    assert message.endswith("x… (3,000,000 characters)")


def test_a_message_that_cannot_be_made_says_so() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    error = make_rank_error(Odd(), ())
    assert (error.type_name, error.message) == ("Odd", "<exception str() failed: KeyError>")


def test_the_exception_travels_where_it_can() -> None:
    class Odd(Exception):
        def __reduce__(self) -> str:
            raise ValueError("no pickle")

    assert make_rank_error(Odd(), ()).pickled is None
    pickled = make_rank_error(KeyError("name"), ()).pickled
    assert pickled is not None
    assert pickle.loads(pickled).args == ("name",)


# --- whose fault it is ---


@pytest.mark.parametrize(
    ("error", "kind", "is_consequence"),
    [
        (ValueError("bad"), "raised", False),
        (KeyboardInterrupt(), "interrupted", False),
        (SystemExit(3), "raised", False),
        (ConnectionResetError(104, "Connection reset by peer"), "raised", True),
        (BrokenPipeError(32, "Broken pipe"), "raised", True),
        (ConnectionRefusedError(111, "Connection refused"), "raised", True),
        (ConnectionError("no route"), "raised", False),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"), "raised", True),
        (RuntimeError("NCCL communicator was aborted on rank 1"), "raised", True),
        (RuntimeError("ncclRemoteError: A call failed possibly due to a network error"), "raised", True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "raised", False),
        (ValueError("Connection reset by peer"), "raised", False),
        (torch.distributed.DistNetworkError("whatever"), "raised", True),
        (torch.distributed.DistBackendError("whatever"), "raised", True),
    ],
    ids=repr,
)
def test_the_cause_is_blamed(error: BaseException, kind: str, is_consequence: bool) -> None:
    told = make_rank_error(error, ())
    assert (told.kind, told.is_consequence) == (kind, is_consequence)


@pytest.mark.parametrize(
    ("file", "kind"), [("/lib/site-packages/IPython/utils/process.py", "interrupted"), ("/home/me/a.py", "raised")]
)
def test_an_interrupt_over_which_ipython_stumbles_is_one(file: str, kind: str) -> None:
    names: dict[str, Any] = {}
    source = "def start():\n    try: raise KeyboardInterrupt\n    except KeyboardInterrupt: child"
    exec(compile(source, file, "exec"), names)
    with pytest.raises(NameError) as caught:
        exec(compile("start()", "<cell 3>", "exec"), names)
    told = make_rank_error(caught.value, ("rendered",))
    assert (told.kind, told.frames[0].filename) == (kind, "<cell 3>")
    if kind == "interrupted":
        assert (told.type_name, told.message, told.rendered) == ("KeyboardInterrupt", "", ())


# --- out of memory ---


class Held:
    """A value whose end is seen."""


def fail_as(error: Exception) -> tuple[Exception, weakref.ref[Held]]:
    """Raise an error, then a ValueError while it is handled; a frame of the first one holds the value."""

    def allocate() -> None:
        held = Held()
        found.append(weakref.ref(held))
        raise error

    found: list[weakref.ref[Held]] = []
    try:
        try:
            allocate()
        except Exception:
            raise ValueError("the step failed")
    except ValueError as raised:
        return raised, found[0]
    raise AssertionError


def test_an_error_about_memory_keeps_no_local_variables_of_its_frames() -> None:
    error, held = fail_as(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."))
    assert is_out_of_memory(error)
    assert [frame.f_locals for each in with_causes(error) for frame, _ in traceback.walk_tb(each.__traceback__)]
    assert held() is not None
    drop_local_variables(error)
    assert held() is None


def test_an_error_about_something_else_is_not_about_memory() -> None:
    error, _ = fail_as(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_out_of_memory(error)
