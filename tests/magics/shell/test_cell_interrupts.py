"""When an interrupt comes: in the code of a cell, before it, after it; and while a coroutine of ours waits."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from meshbook.magics.cells.local import run_with_local
from meshbook.magics.errors import LocalError
from meshbook.magics.shell.cell_interrupts import CellInterrupts, run_interruptible
from meshbook.runtime.actor.future import Future


class Request:
    """A request that a kernel handles, whose cell is a coroutine of the test's."""

    def __init__(self, kind: str = "execute_request") -> None:
        parent = {"header": {"msg_type": kind}}
        self.kernel: Any = SimpleNamespace(get_parent=lambda channel: parent, saved_sigint_handler=None)
        self.shell: Any = SimpleNamespace(kernel=self.kernel, run_code=self._run_code)
        self.ran: list[str] = []
        self.begins: Callable[[], object] = lambda: None
        CellInterrupts(self.shell).install()
        self.kernel.pre_handler_hook()

    async def _run_code(self, code: str, result: Any, *, async_: bool) -> bool:
        self.begins()
        self.ran.append(code)
        return False

    def run(self, code: str = "code", *, async_: bool = False) -> None:
        asyncio.run(self.shell.run_code(code, async_=async_))


@pytest.fixture(autouse=True)
def _sigint() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_before_the_cell_ends_it_before_it_begins() -> None:
    request = Request()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        request.run()
    assert request.ran == []
    request.run("next")
    assert request.ran == ["next"], "one interrupt, one cell"


def test_an_interrupt_in_the_moment_in_which_the_cell_begins_is_not_lost() -> None:
    request = Request()
    request.begins = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        request.run()


def test_an_interrupt_while_a_cell_awaits_is_the_kernels() -> None:
    """Between two steps of it the loop runs, in which nothing may be raised."""
    request = Request()
    request.begins = lambda: signal.raise_signal(signal.SIGINT)
    request.run(async_=True)
    assert request.ran == ["code"]


def test_an_interrupt_after_the_cell_has_no_effect() -> None:
    request = Request()
    request.run()
    signal.raise_signal(signal.SIGINT)
    request.kernel.pre_handler_hook()
    request.run()
    assert request.ran == ["code", "code"]


def test_an_interrupt_in_the_cell_is_raised_there() -> None:
    Request()
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    shell.push({"interrupt": interrupt})
    assert isinstance(shell.run_cell("interrupt()").error_in_exec, KeyboardInterrupt)


def test_an_interrupt_between_two_statements_ends_a_cell_that_runs_here_and_on_ranks() -> None:
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    interrupts = list[str]()
    running: Any = SimpleNamespace(interrupt=lambda: interrupts.append("interrupt"), future=Future.pending())
    running.future.resolve(lambda: SimpleNamespace(region=None, _outcomes={}, _sources=None))

    class Compiler(type(shell.compile)):  # type: ignore[misc]
        def __call__(self, *args: Any) -> Any:
            if "first" in shell.user_ns:
                signal.raise_signal(signal.SIGINT)
            return super().__call__(*args)

    shell.compile = Compiler()
    run_code = shell.run_code
    with pytest.raises(LocalError, match="KeyboardInterrupt"):
        asyncio.run(run_with_local(shell, running, "first = 1\nsecond = 2", number=1, stops=False))
    assert interrupts == ["interrupt"]
    assert "second" not in shell.user_ns
    assert shell.run_code == run_code


def test_other_requests_are_interrupted_anywhere() -> None:
    Request("complete_request")
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_cell_that_the_kernel_cancels_is_interrupted_instead() -> None:
    heard = []

    async def main() -> str:
        gate = asyncio.Event()

        async def work() -> str:
            await gate.wait()
            return "done"

        def act() -> None:
            heard.append("interrupt")
            gate.set()

        cell = asyncio.ensure_future(run_interruptible(work(), act))
        asyncio.get_running_loop().call_soon(cell.cancel)
        return await cell

    assert asyncio.run(main()) == "done"
    assert heard == ["interrupt"]
