"""What of a rank's shell needs no shell; the shell itself is tested through the kernel, in a process of its own."""

from __future__ import annotations

import asyncio
import linecache
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from meshbook.runtime.cells.shell import (
    MARKS,
    CellCompiler,
    LoopRunner,
    ends_in_semicolon,
    find_end_of_comments,
    has_group,
    render_group,
    starts_tasks,
)
from meshbook.runtime.traces import short_name

WORDS = """x 1 f(a) 'text' ''' " ( ) [ \\ # : = , ; / @ é % %ls ! !! ? ?? ... In[2]"""
SCRAPS = [*WORDS.split(), "await f()", ">>> ", "... ", "In [1]: ", "%%time\n", "\n", "\nif x:\n    y\n"]


@pytest.mark.parametrize(
    ("source", "ends"),
    [
        ("1", False),
        ("1;", True),
        ("1;  # a comment", True),
        ("1;\n\n", True),
        ("x = ';'", False),
        ("1  # ;", False),
        ("", False),
        ("f(';", False),
    ],
)
def test_a_semicolon_at_the_end_hides_the_value(source: str, ends: bool) -> None:
    assert ends_in_semicolon(source) is ends


@pytest.mark.parametrize(
    ("source", "starts"),
    [
        ("task = asyncio.create_task(f())", True),
        ("for i in range(3):\n    create_task(f(i))", True),
        ("await asyncio.create_task(f())", True),
        ("def start():\n    asyncio.create_task(f())", False),
        ("loop.create_task(f())", False),  # needs no running loop
        ("create_task(", False),
        ("# create_task()", False),
    ],
)
def test_a_cell_that_starts_tasks_needs_a_running_loop(source: str, starts: bool) -> None:
    assert starts_tasks(source) is starts


@given(st.lists(st.sampled_from(SCRAPS), max_size=12).map("".join))
def test_a_source_without_marks_is_python_already(source: str) -> None:
    if MARKS.search(source) is None:
        transformed = TransformerManager().transform_cell(source)
        assert transformed.rstrip() == source.rstrip()


def test_comments_above_a_cell_have_no_marks() -> None:
    source = "#%%mesh 0 -o x?\n# !\nx = 1\n"
    assert MARKS.search(source, find_end_of_comments(source)) is None
    assert MARKS.search(source + "%pwd", find_end_of_comments(source))


@given(st.lists(st.sampled_from(SCRAPS), max_size=12).map("".join))
def test_a_source_without_marks_below_comments_is_python_already(source: str) -> None:
    source = f"#%%mesh [0] ?\n{source}"
    if MARKS.search(source, find_end_of_comments(source)) is None:
        transformed = TransformerManager().transform_cell(source)
        assert transformed.rstrip() == source.rstrip()


def test_a_cell_is_named_by_its_number_and_content() -> None:
    compiler = CellCompiler()
    compiler.number = 9
    names = [compiler.cache(source, 1) for source in ("x = 1\n", "x = 2\n", "x = 1\n")]
    assert names[0] == names[2] != names[1]
    assert {short_name(name) for name in names} == {"cell 9"}
    assert [linecache.getline(name, 1) for name in names] == ["x = 1\n", "x = 2\n", "x = 1\n"]
    assert compiler.format_code_name(names[1]) == ("Cell", "In[9]")


def raise_from(error: BaseException, source: str, filename: str = "<cell 9>") -> BaseException:
    try:
        exec(compile(source, filename, "exec"), {"error": error})
    except BaseException as raised:
        return raised
    raise AssertionError("it did not raise")


GROUP = ExceptionGroup("many", [ValueError("one"), KeyError("two")])


@pytest.mark.parametrize(
    ("error", "source", "expected"),
    [
        (ValueError(), "raise error", False),
        (GROUP, "raise error", True),
        (GROUP, "try:\n    raise error\nexcept ExceptionGroup:\n    raise ValueError", True),
        (ValueError(), "try:\n    raise error\nexcept ValueError:\n    raise KeyError", False),
    ],
)
def test_a_group_is_found(error: BaseException, source: str, expected: bool) -> None:
    assert has_group(raise_from(error, source)) is expected
    assert not has_group(None)


def test_a_group_is_rendered_from_the_cell_on() -> None:
    text = render_group(raise_from(ExceptionGroup("many", [ValueError("one"), KeyError("two")]), "\nraise error"))
    assert '  |   File "<cell 9>", line 2, in <module>\n' in text
    assert "test_shell.py" not in text
    assert "| ValueError: one" in text
    assert "| KeyError: 'two'" in text


# --- top-level await ---


@pytest.fixture
def run() -> Iterator[LoopRunner]:
    runner = LoopRunner()
    loop = asyncio.get_event_loop()
    yield runner
    loop.close()
    asyncio.set_event_loop(None)


async def as_ipython_runs(cell: Any) -> Any:
    """IPython keeps what a cell raised in its result; but not a KeyboardInterrupt, which ends the loop."""
    try:
        await cell
    except asyncio.CancelledError as error:
        return SimpleNamespace(error_in_exec=error)
    return SimpleNamespace(error_in_exec=None)


def interrupt_soon() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(interrupt)


def test_tasks_of_a_cell_live_on_to_the_next(run: LoopRunner) -> None:
    done: list[str] = []

    async def later() -> None:
        await asyncio.sleep(0)
        done.append("later")

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(later())

    async def wait(task: asyncio.Task[None]) -> None:
        await task

    task = run(begin())
    assert done == []
    run(wait(task))
    assert done == ["later"]


def test_tasks_go_on_between_cells_until_there_is_a_message(run: LoopRunner) -> None:
    counted: list[int] = []

    async def count() -> None:
        while len(counted) < 3:
            await asyncio.sleep(0)
            counted.append(1)
        threading.Thread(target=run.wake).start()

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(count())

    assert not run.has_work
    task = run(begin())
    assert run.has_work
    while not task.done():
        run.run()
    assert len(counted) == 3
    run.wake()
    run.run()  # returns, as it was woken before


def test_a_task_of_a_cell_that_did_not_await_is_work(run: LoopRunner) -> None:
    task = asyncio.get_event_loop().create_task(asyncio.sleep(0))
    assert run.has_work
    run(asyncio.sleep(0))
    assert task.done()


def test_a_loop_that_cannot_run_is_reported_once_and_left_alone(run: LoopRunner) -> None:
    """Here since another loop runs on this thread."""
    reports: list[str] = []
    run.report = reports.append
    run(asyncio.sleep(0))

    async def while_another_runs() -> bool:
        run.run()
        return run.has_work

    other = asyncio.new_event_loop()
    assert not other.run_until_complete(while_another_runs())
    other.close()
    assert ["another loop is running" in report for report in reports] == [True]
    run(asyncio.sleep(0))
    assert run.has_work


def test_a_task_that_ends_the_loop_is_reported_and_the_others_go_on(run: LoopRunner) -> None:
    reports: list[str] = []
    run.report = reports.append
    gone_on: list[str] = []
    has_ended = asyncio.Event()  # the cell

    async def leave() -> None:
        await has_ended.wait()
        raise SystemExit("of the task")

    async def go_on() -> None:
        await asyncio.wait(tasks[:1])
        gone_on.append("on")
        run.wake()

    async def begin() -> None:
        tasks.extend(map(asyncio.create_task, (leave(), go_on())))

    tasks: list[asyncio.Task[None]] = []
    run(begin())
    has_ended.set()
    while not gone_on:
        run.run()
    assert "SystemExit: of the task" in reports[0]
    assert isinstance(tasks[0].exception(), SystemExit)
    run(asyncio.sleep(0))
    asyncio.get_event_loop().close()
    assert not run.has_work  # a closed one would raise at once, again and again


def test_an_interrupt_is_raised_where_the_cell_awaited(run: LoopRunner) -> None:
    async def cell() -> None:
        interrupt_soon()
        await asyncio.Event().wait()

    error = run(as_ipython_runs(cell())).error_in_exec
    assert type(error) is KeyboardInterrupt
    names = []
    trace = error.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[:2] == ["as_ipython_runs", "cell"]


def test_a_cell_that_catches_its_cancelling_is_interrupted_all_the_same(run: LoopRunner) -> None:
    async def cell() -> None:
        interrupt_soon()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    with pytest.raises(KeyboardInterrupt):
        run(as_ipython_runs(cell()))


def test_after_an_interrupt_the_next_cell_runs(run: LoopRunner) -> None:
    async def cell() -> str:
        await asyncio.sleep(0)
        return "ran"

    async def interrupted() -> None:
        interrupt_soon()
        await asyncio.Event().wait()

    run(as_ipython_runs(interrupted()))
    assert run(cell()) == "ran"
