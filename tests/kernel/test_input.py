"""`input()` on ranks: one prompt in the notebook at a time, in our kernel and in a stock one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import FRONT_DOORS

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module", params=FRONT_DOORS)
def notebook(request: pytest.FixtureRequest, make_notebook: Any) -> Iterator[KernelNotebook]:
    """Both front doors, with three ranks."""
    with make_notebook(request.param, torch=False) as notebook:
        notebook.run("%mesh up --gpus 3")
        notebook.run("%%mesh\nimport getpass, os, sys, threading, time")
        yield notebook


def test_a_prompt_that_all_share_is_shown_once(notebook: KernelNotebook) -> None:
    cell, prompts = notebook.converse("%%mesh\nname = input('name: ')\nage = input('age: ')\nname, age", "bob", "7")
    assert prompts == ["[ranks 0-2] name: ", "[ranks 0-2] age: "]
    assert cell.result == "[0-2] ('bob', '7')"


def test_each_rank_is_asked_for_itself(notebook: KernelNotebook) -> None:
    cell, prompts = notebook.converse("%%mesh --stdin ask\ninput('name: ')", "a", "b", "c")
    assert sorted(prompts) == [f"[rank {rank}] name: " for rank in range(3)]
    names = dict(zip(prompts, "abc", strict=True))
    assert cell.result == "\n".join(f"[{rank}] {names[f'[rank {rank}] name: ']!r}" for rank in range(3))


def test_a_rank_that_never_asks_delays_no_prompt(notebook: KernelNotebook) -> None:
    cell = notebook.start_asking(
        "%%mesh\nif rank == 2:\n    print('I wait'); threading.Event().wait()\nprint('I ask'); input('?')"
    )
    assert notebook.wait_for_prompt() == "[ranks 0-1] ?"
    # What was printed before is shown before the prompt, though the cell runs on.
    notebook.wait_until(lambda: "[0-1] I ask\n" in cell.stdout and "[2] I wait\n" in cell.stdout)
    notebook.interrupt()
    notebook.wait_failed(cell)


def test_a_rank_that_comes_later_to_the_same_prompt_gets_the_same_answer(
    notebook: KernelNotebook, signs: Signs
) -> None:
    path = signs.path.with_name("gate")
    os.mkfifo(path)
    cell = notebook.start_asking(f"%%mesh\nif rank == 2: open({str(path)!r}).read()\ninput('?')")
    assert notebook.wait_for_prompt() == "[ranks 0-1] ?"
    notebook.client.input("yes")
    path.write_text("go")
    assert notebook.wait(cell).result == "[0-2] 'yes'"


def test_passwords_lines_of_stdin_and_the_end_of_all_input(notebook: KernelNotebook) -> None:
    cell, prompts = notebook.converse("%%mesh\ngetpass.getpass(), list(sys.stdin)", "secret", "one", "two", "\x04")
    assert prompts == ["[ranks 0-2] Password: ", *["[ranks 0-2] "] * 3]
    assert cell.result == "[0-2] ('secret', ['one\\n', 'two\\n'])"
    assert "secret" not in cell.stdout
    cell, _ = notebook.converse("%%mesh\ninput()", "\x04")
    assert cell.error["ename"] == "EOFError"


@pytest.mark.parametrize(
    "asking", [{"code": "%%mesh\ninput('?')"}, {"code": "%%mesh --stdin error\ngetpass.getpass()"}]
)
def test_input_without_a_prompt_is_an_error_at_once(notebook: KernelNotebook, asking: dict[str, str]) -> None:
    failed = notebook.wait_failed(notebook.start(asking["code"], allow_stdin="error" in asking["code"]))
    assert failed.error["ename"] == "StdinNotImplementedError"
    assert "prompts.py" not in failed.traceback  # none of ours


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_while_a_prompt_is_open(notebook: KernelNotebook, times: int) -> None:
    cell = notebook.start_asking("%%mesh\ntry:\n    input('?')\nfinally:\n    print('tidied')")
    notebook.wait_for_prompt()
    for _ in range(times):
        notebook.interrupt()
    notebook.wait_failed(cell)
    assert cell.error["ename"] == "KeyboardInterrupt"
    number = cell.reply["execution_count"] if cell.reply else 0
    assert cell.error["evalue"] == f"interrupted; ranks 0-2 were at cell {number}:3"
    assert cell.stdout == "[0-2] tidied\n"
    notebook.client.input("too late")  # as a person may, whose front end still shows the prompt
    _, prompts = notebook.converse("%%mesh\ninput('again: ')", "x")
    assert prompts == ["[ranks 0-2] again: "]


def test_a_rank_that_dies_is_not_waited_for(notebook: KernelNotebook) -> None:
    # Selectors of options mean ranks of the cell's mesh, and not of the current one.
    notebook.run("%mesh up --gpus 2 --name pair")
    cell = notebook.run("%%mesh mesh --break 2 --first 2 --show 2\nprint('seen')")
    assert cell.stdout.startswith("mesh[2] seen\n")
    notebook.run("%%mesh pair -o pids\nimport os; os.getpid()")
    pids = notebook.evaluate("pids.values")
    cell = notebook.start_asking("%%mesh pair[1]\ninput('?')")
    assert notebook.wait_for_prompt() == "[rank 1 of pair] ?"
    os.kill(pids[1], signal.SIGKILL)
    notebook.wait_failed(cell)
    assert "rank 1" in cell.error["evalue"]
    assert "SIGKILL" in cell.error["evalue"]
    notebook.run("%mesh down pair")


def test_what_a_thread_asks_for_is_asked_while_its_cell_runs(notebook: KernelNotebook) -> None:
    cell, prompts = notebook.converse(
        "%%mesh 0\nfound = []\nthread = threading.Thread(target=lambda: found.append(input('in a thread: ')))\n"
        "thread.start(); thread.join(); found",
        "yes",
    )
    assert prompts == ["[rank 0] in a thread: "]
    assert cell.result == "[0] ['yes']"
