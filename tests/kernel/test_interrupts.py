"""Interrupts of `%%mesh` cells, by message (our kernel) and by signal (a stock kernel with the extension loaded)."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.support import FRONT_DOORS, still_running

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = pytest.mark.kernel

ENDS_WITHIN = 10.0  # seconds; what to expect is some 50 ms, which benchmarks/cells.py measures


@pytest.fixture(scope="module", params=FRONT_DOORS)
def notebook(request: pytest.FixtureRequest, make_notebook: Any) -> Iterator[KernelNotebook]:
    """Both front doors, with three ranks."""
    with make_notebook(request.param, torch=False) as notebook:
        notebook.run("%mesh up --gpus 3")
        yield notebook


@pytest.fixture(autouse=True)
def _ranks_can_tell(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(f"%%mesh\n{signs.definition}\nimport asyncio, threading, time")


WAITING = {
    "sleeping": "tell('there')\ntime.sleep(600)",
    "computing": "tell('there')\nwhile True: number += 1",
    "multiplying": ("import numpy; x = numpy.ones((100, 100))\ntell('there')\nwhile True: y = x @ x"),
    "awaiting": "tell('there')\nawait asyncio.sleep(600)",
    "locked": "tell('there')\nthreading.Event().wait()",
    "in a subprocess": (
        "from subprocess import Popen\nchild = Popen(['sleep', '600'])\n"
        "try: tell('there'); child.wait()\nfinally: child.kill(); child.wait()"
    ),
}


@pytest.mark.parametrize("wait", WAITING.values(), ids=WAITING)
def test_a_cell_is_interrupted_and_says_where_it_was(notebook: KernelNotebook, signs: Signs, wait: str) -> None:
    cell = notebook.start(f"%%mesh\nnumber = 0\n{wait}")
    signs.wait_for("there", 3)
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    assert cell.error["ename"] == "KeyboardInterrupt"
    number = cell.reply["execution_count"] if cell.reply else 0
    # A rank may still have been in `tell` when the interrupt came.
    places = rf"(ranks? [-0-9,]+ (were |was )?at cell ({number}:[345]( in \w+)?|\d+:\d in tell)(, )?)+"
    assert re.fullmatch(f"interrupted; {places}", cell.error["evalue"])
    assert cell.traceback.splitlines() == ["KeyboardInterrupt", cell.error["evalue"]]
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2"


def test_groups_of_ranks_are_distinguished(notebook: KernelNotebook, signs: Signs) -> None:
    cell = notebook.start(
        "%%mesh\ndef wait():\n    tell('there')\n    while True: time.sleep(0.01)\nif rank == 1:\n    wait()\nwait()"
    )
    signs.wait_for("there", 3)
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    # The innermost line is the same for all; what differs is in the frames of `by_rank`.
    notebook.run("import sys; frames = {rank: error.frames for rank, error in sys.last_value.by_rank.items()}")
    assert notebook.evaluate("[frames[rank][0].line for rank in range(3)]") == [7, 6, 7]


def test_ranks_keep_their_state(notebook: KernelNotebook, signs: Signs) -> None:
    cell = notebook.start("%%mesh\nbefore = rank * 11\ntell('there')\ntime.sleep(600)\nafter = 1")
    signs.wait_for("there", 3)
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    assert notebook.run("%%mesh\nbefore, 'after' in globals()").result == (
        "[0] (0, False)\n[1] (11, False)\n[2] (22, False)"
    )


def test_only_the_ranks_that_still_run_are_interrupted(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(
        "%%mesh 1\nfrom meshbook.runtime.cells.interrupts import INTERRUPTS\n"
        "def tell_when_over():\n    while INTERRUPTS.origin: pass\n    tell('over')"
    )
    cell = notebook.start(
        "%%mesh\nif rank != 1:\n    tell('there'); time.sleep(600)\n"
        "threading.Thread(target=tell_when_over).start()\n'done'"
    )
    signs.wait_for("there", 2)
    signs.wait_for("over")
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    # One may still be in `tell`.
    assert re.search(r"ranks 0,2 were at cell|rank 0 was at cell .*, rank 2 at cell", cell.error["evalue"])
    assert notebook.run("import sys; sys.last_value.result[1].value").result == "'done'"


def test_user_code_sees_keyboard_interrupt_and_may_tidy_up(notebook: KernelNotebook, signs: Signs) -> None:
    cell = notebook.start("%%mesh\ntry:\n    tell('there'); time.sleep(600)\nfinally:\n    print('tidied')")
    signs.wait_for("there", 3)
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    assert cell.stdout == "[0-2] tidied\n"
    assert cell.error["ename"] == "KeyboardInterrupt"


def test_user_code_may_catch_it(notebook: KernelNotebook, signs: Signs) -> None:
    cell = notebook.start(
        "%%mesh\ntry:\n    tell('there'); time.sleep(600)\nexcept KeyboardInterrupt:\n    print('caught')\nrank"
    )
    signs.wait_for("there", 3)
    notebook.interrupt()
    notebook.wait(cell, ENDS_WITHIN)
    assert cell.stdout == "[0-2] caught\n"
    assert cell.result == "[0] 0\n[1] 1\n[2] 2"


def test_two_interrupts_in_a_row_do_not_break_the_kernel(notebook: KernelNotebook, signs: Signs) -> None:
    cell = notebook.start("%%mesh\nkept = rank\ntell('there')\ntime.sleep(600)")
    signs.wait_for("there", 3)
    notebook.interrupt()
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    assert "interrupted" in cell.error["evalue"]
    assert notebook.run("%%mesh\nkept").result == "[0] 0\n[1] 1\n[2] 2"
    assert notebook.run("1 + 1").result == "2"


def test_a_shell_command_is_interrupted_with_the_cell(notebook: KernelNotebook, signs: Signs) -> None:
    # From within, because IPython itself fails where an interrupt comes while it starts the command.
    cell = notebook.start(f"%%mesh\n!printf 'there ' > {signs.path}; sleep 600")
    signs.wait_for("there", 3)
    notebook.interrupt()
    notebook.wait(cell, ENDS_WITHIN)
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2"


CHILDREN = {
    "os.system": "import os\nos.system(SCRIPT)",
    "subprocess.call": "import subprocess\nsubprocess.call(SCRIPT, shell=True)",
    "%%bash": "get_ipython().run_cell_magic('bash', '', SCRIPT)",
    "multiprocessing": (
        "import multiprocessing, os\n"
        "child = multiprocessing.get_context('fork').Process(target=os.system, args=(SCRIPT,))\n"
        "child.start(); child.join()"
    ),
}


@pytest.mark.parametrize("magic", ["", "%%mesh 1\n"], ids=["in the notebook", "on a rank"])
@pytest.mark.parametrize("source", CHILDREN.values(), ids=CHILDREN)
def test_children_are_interrupted_with_the_cell(
    notebook: KernelNotebook, signs: Signs, tmp_path: Path, magic: str, source: str
) -> None:
    script = f"echo $$ > {tmp_path}/pid; printf 'there ' > {signs.path}; exec sleep 600"
    cell = notebook.start(f"{magic}{source.replace('SCRIPT', repr(script))}")
    signs.wait_for("there")
    child = psutil.Process(int((tmp_path / "pid").read_text()))
    notebook.interrupt()
    notebook.wait(cell, ENDS_WITHIN)
    assert still_running([child]) == []  # a zombie has ended: the kernel may never wait for it
    assert notebook.run(f"{magic}40 + 2").result in ("42", "[1] 42")


def test_a_handler_that_raises_while_no_cell_runs_is_reported_in_the_next_cell(
    notebook: KernelNotebook, signs: Signs
) -> None:
    pid = int(notebook.run("%%mesh 1\nimport os\nos.getpid()").result.split()[1])
    source = "def handle(number, frame):\n    tell('handled')\n    raise RuntimeError('of the handler')"
    notebook.run(
        f"%%mesh 1\nimport signal\n{source}\nsignal.signal(signal.SIGUSR1, handle)\n"
        "assert signal.getsignal(signal.SIGUSR1) is handle"
    )
    for _ in range(3):
        os.kill(pid, signal.SIGUSR1)
        signs.wait_for("handled")
        cell = notebook.run("%%mesh 1\nos.getpid()")
        assert cell.result == f"[1] {pid}"
        assert "SIGUSR1" in cell.stderr
        assert "RuntimeError: of the handler" in cell.stderr
    failing = notebook.run_failing("%%mesh 1\nos.kill(os.getpid(), signal.SIGUSR1)\ntime.sleep(600)")
    assert failing.error["ename"] == "RuntimeError"
    assert notebook.run("%%mesh 1\nsignal.signal(signal.SIGUSR1, signal.SIG_DFL) is handle").stderr == ""


def test_an_interrupt_after_the_end_is_dropped(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run("%%mesh\n1")
    notebook.interrupt()
    notebook.run("%%mesh\ntime.sleep(0.01)")
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2"


def test_a_local_cell_is_interrupted_as_in_any_kernel(notebook: KernelNotebook, signs: Signs) -> None:
    # Short sleeps: a signal that comes in the instant before one begins is felt only when that is over, in any kernel.
    source = f"{signs.definition}\nimport time\ntell('local')\nwhile True: time.sleep(0.05)"
    cell = notebook.start(source)
    signs.wait_for("local")
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    assert cell.error["ename"] == "KeyboardInterrupt"
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2"


def test_a_local_cell_that_awaits_is_interrupted_at_once(notebook: KernelNotebook, signs: Signs) -> None:
    """Not only in `%%mesh` cells: ipykernel cancels it by a callback of a loop that sleeps."""
    cell = notebook.start(f"{signs.definition}\nimport asyncio\ntell('local')\nawait asyncio.sleep(600)")
    signs.wait_for("local")
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    assert cell.error["ename"] == "CancelledError"
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2"


def test_a_local_cell_that_waits_for_an_actor_is_interrupted(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(
        "from meshbook import Actor, endpoint\n"
        "class Sleeper(Actor):\n"
        "    @endpoint\n"
        "    def sleep(self):\n"
        "        import threading\n"
        f"        open({str(signs.path)!r}, 'w').write('asleep '); threading.Event().wait(3)\n"
        "sleepers = mesh.spawn('sleepers', Sleeper)"
    )
    cell = notebook.start("sleepers.sleep.call().get()")
    signs.wait_for("asleep", 3)
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    assert cell.error["ename"] == "KeyboardInterrupt"
    assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2"


def test_an_endpoint_that_runs_is_shown_and_can_be_interrupted(notebook: KernelNotebook) -> None:
    """A cell that waits shows the call, and the endpoint that a Ctrl-C leaves behind stays visible."""
    notebook.run(
        "import asyncio\n"
        "from meshbook import Actor, endpoint\n"
        "class Sleeper(Actor):\n"
        "    @endpoint\n"
        "    async def sleep(self): await asyncio.sleep(600)\n"
        "    @endpoint\n"
        "    async def answer(self): return 7\n"
        "beds = mesh.spawn('beds', Sleeper)"
    )
    cell = notebook.start("beds.sleep.call().get()")
    notebook.wait_until(lambda: "\n" in cell.stdout)
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    number = cell.reply["execution_count"] if cell.reply else 0
    called = f"called in cell {number}"
    assert cell.stdout == f"waits for beds.sleep() on ranks 0-2, {called}\n"
    assert "beds.sleep() on ranks 0-2 continues; cancel it with cancel()" in cell.traceback
    queued = notebook.start("await beds.answer.call()")
    notebook.wait_until(lambda: "\n" in queued.stdout)
    notebook.interrupt()
    notebook.wait_failed(queued, ENDS_WITHIN)
    assert queued.stdout.startswith(f"waits for beds.sleep() on ranks 0-2, {called}\n")
    assert "beds.answer() on ranks 0-2 continues" in queued.stdout
    late = notebook.run_failing("beds.answer.call().get(timeout=0.1)")
    assert late.error["evalue"] == "beds.answer() on ranks 0-2 did not answer within 0.1 s"
    assert f"  ranks 0-2 run beds.sleep(), {called} · 00:" in notebook.run("%mesh").stdout
    assert f"[0-2] actor beds: in beds.sleep(), {called}, for 00:" in notebook.run("%mesh stack").stdout
    assert notebook.run("%mesh interrupt").stdout == "interrupted beds.sleep() on 3 ranks [0-2]\n"
    notebook.run("beds.answer.call().get()")
    assert notebook.run("%mesh interrupt").stdout == "3 ranks [0-2] idle\n"
    notebook.run("beds.stop().get()")


def test_cells_that_wait_in_the_queue_are_dropped_as_a_front_end_expects(
    notebook: KernelNotebook, signs: Signs
) -> None:
    cell = notebook.start("%%mesh\ntell('there'); time.sleep(600)")
    after = notebook.start("'never'")
    signs.wait_for("there", 3)
    notebook.interrupt()
    notebook.wait_failed(cell, ENDS_WITHIN)
    notebook.wait_until(lambda: after.reply is not None)
    assert after.reply is not None
    assert after.reply["status"] in ("aborted", "error")


def test_interrupts_at_any_moment_break_neither_cell_nor_kernel(notebook: KernelNotebook, signs: Signs) -> None:
    """At the begin of a cell the kernel may cancel it, and the ranks may hear of the interrupt before they begin."""
    for _ in range(10):
        cell = notebook.start("%%mesh\ntell('there'); time.sleep(600)")
        notebook.wait_until(lambda cell=cell: bool(cell.contents("execute_input")))
        notebook.interrupt()
        notebook.wait_failed(cell, ENDS_WITHIN)
        assert cell.error["ename"] == "KeyboardInterrupt"
        assert notebook.run("%%mesh\nrank").result == "[0] 0\n[1] 1\n[2] 2"
