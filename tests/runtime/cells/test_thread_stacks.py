"""Where the threads of a process are, read while they run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from meshbook.runtime.cells.thread_stacks import (
    MainThreadState,
    collective_of,
    read_frames,
    stack_of_main,
    stacks_of_others,
)
from tests.support import PATIENCE


def cell(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a source as a cell of the number 9 has it."""
    exec(compile(source, "<cell 9>", "exec"), names)
    return names


@pytest.fixture
def elsewhere() -> Callable[[Callable[[], Any]], Any]:
    """Calls a function on another thread, and returns what it gave."""

    def call(function: Callable[[], Any]) -> Any:
        made: list[Any] = []
        thread = threading.Thread(target=lambda: made.append(function()))
        thread.start()
        thread.join(PATIENCE)
        return made[0]

    return call


def test_the_main_thread_is_seen_from_the_cell_on(elsewhere: Callable[..., Any]) -> None:
    seen: list[Any] = []
    cell(
        "def step():\n    look()\nstep()",
        {"look": lambda: seen.append(elsewhere(lambda: read_frames(stack_of_main(None))))},
    )
    assert [(each.filename, each.line, each.function) for each in seen[0][:2]] == [
        ("<cell 9>", 3, "<module>"),
        ("<cell 9>", 2, "step"),
    ]


def test_where_no_cell_runs_there_is_no_stack(elsewhere: Callable[..., Any]) -> None:
    assert elsewhere(lambda: stack_of_main(None)) == []


def test_a_cell_that_awaits_is_seen_where_it_awaits(elsewhere: Callable[..., Any]) -> None:
    names = cell("async def inner():\n    await turn()\nasync def run():\n    await inner()", {})

    async def main() -> Any:
        gate = asyncio.Event()
        names["turn"] = gate.wait
        awaiting = names["run"]()
        task = asyncio.ensure_future(awaiting)
        await asyncio.sleep(0)
        seen = elsewhere(lambda: read_frames(stack_of_main(awaiting)))
        gate.set()
        await task
        return seen

    assert [(each.line, each.function) for each in asyncio.run(main())[:2]] == [(4, "run"), (2, "inner")]


@contextmanager
def waiting(function: Callable[[threading.Event, threading.Event], None], name: str) -> Iterator[None]:
    """A thread that waits in a function until the end."""
    there, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=function, args=(there, go_on), name=name)
    thread.start()
    assert there.wait(PATIENCE)
    yield
    go_on.set()
    thread.join()


def test_other_threads_are_seen_where_they_run_code_of_the_users() -> None:
    names = cell("def load(there, go_on):\n    there.set()\n    go_on.wait()", {})
    library = cell("", {})
    exec(compile("def beat(there, go_on):\n    there.set(); go_on.wait()", threading.__file__, "exec"), library)
    with waiting(names["load"], "meshbook actor trainer"), waiting(library["beat"], "heart"):
        stacks = {stack.thread: stack.frames for stack in stacks_of_others()}
    assert "heart" not in stacks
    assert [(frame.filename, frame.function) for frame in stacks["actor trainer"][:1]] == [("<cell 9>", "load")]


def test_a_collective_is_recognized_by_its_frames(elsewhere: Callable[..., Any]) -> None:
    torch: dict[str, Any] = {}
    source = "def all_reduce(look):\n    look()"
    exec(compile(source, "/lib/torch/distributed/distributed_c10d.py", "exec"), torch)
    seen: list[Any] = []

    def look() -> None:
        found = elsewhere(lambda: stack_of_main(None))
        seen.append((collective_of(found), MainThreadState(frames=read_frames(found)).is_in_collective))

    cell("reduce(look)\nlook()", {"reduce": torch["all_reduce"], "look": look})
    assert seen == [("all_reduce", True), ("", False)]
