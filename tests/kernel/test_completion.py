"""Completion and inspection as a front end asks for them, in our kernel and in a stock one. The bar is the cursor."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import FRONT_DOORS, PATIENCE

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = pytest.mark.kernel
MODEL = """%%mesh
import torch
class Model:
    def __init__(self):
        self.weight = 1

    @property
    def stuck(self):
        import threading
        threading.Event().wait()

    def step(self, batch):
        \"\"\"Train on a batch.\"\"\"
        return batch

model = Model()
tensor = torch.zeros(2, 3)
config = {"alpha": 1, "beta": {"gamma": 2}}
if rank == 1:
    only_here = 1
"""


@pytest.fixture(scope="module", params=FRONT_DOORS)
def notebook(request: pytest.FixtureRequest, make_notebook: type[KernelNotebook]) -> Iterator[KernelNotebook]:
    with make_notebook(request.param) as notebook:
        notebook.run("%mesh up --gpus 2 --name pair")
        notebook.run(MODEL)
        notebook.run("local_name = 1")
        yield notebook


def complete(notebook: KernelNotebook, cell: str) -> dict[str, str]:
    """What the cell may become by each match up to the cursor, and the kind of the match."""
    cursor = cell.index("|")
    code = cell.replace("|", "", 1)
    reply = notebook.ask("complete", code, cursor)
    assert reply["status"] == "ok"
    assert reply["cursor_end"] == cursor
    typed: list[dict[str, Any]] = reply["metadata"]["_jupyter_types_experimental"]
    assert [each["text"] for each in typed] == reply["matches"]
    return {code[: reply["cursor_start"]] + each["text"]: each["type"] for each in typed}


def settle(notebook: KernelNotebook, cell: str, expected: dict[str, str]) -> dict[str, str]:
    """Ask as a person does while typing: on a loaded machine ranks, and jedi, may be late for one request."""
    end = time.monotonic() + PATIENCE
    while (found := complete(notebook, cell)) != expected and time.monotonic() < end:
        pass
    return found


def offers(notebook: KernelNotebook, cell: str, wanted: str) -> bool:
    """Whether a match is among others; asked again, as in `settle`."""
    end = time.monotonic() + PATIENCE
    while not (found := wanted in complete(notebook, cell)) and time.monotonic() < end:
        pass
    return found


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("%%me|", {"%%mesh": "magic"}),
        ("%mesh sta|", {"%mesh status": "verb", "%mesh stack": "verb"}),
        ("%mesh stack pai|", {"%mesh stack pair": "mesh", "%mesh stack pair[": "mesh"}),
        ("%%mesh --gr|", {"%%mesh --group": "option"}),
        ("#mesh: pair[gpus=:|", {"#mesh: pair[gpus=::2": "ranks"}),
        ("%%mesh !f|", {"%%mesh !failed": "ranks"}),
        ("%%mesh\nmodel.we|", {"%%mesh\nmodel.weight": "instance"}),
        ("%%mesh\nmodel.ste|p", {"%%mesh\nmodel.step": "function"}),
        ("%%mesh\nconfig['beta']['|", {"%%mesh\nconfig['beta']['gamma": "dict key"}),
        ("#mesh: 1\nonly_|", {"#mesh: 1\nonly_here": "instance"}),
        ("%%mesh pair[0]\nonly_|", {}),
        ("%%mesh 17\nonly_|", {}),  # a line that is not understood yet means all
        ("%%mesh\nlocal_n|", {}),
        ("local_n|", {"local_name": "instance"}),
        ("%%mesh\n𝒳 = 'é'; mod|", {"%%mesh\n𝒳 = 'é'; model": "instance"}),
        ("%%mesh\nif (config[\n!ls\n  model.we|\nelse }", {"%%mesh\nif (config[\n!ls\n  model.weight": "instance"}),
    ],
)
def test_completion(notebook: KernelNotebook, cell: str, expected: dict[str, str]) -> None:
    assert settle(notebook, cell, expected) == expected


def test_the_body_offers_names_that_it_makes_itself(notebook: KernelNotebook) -> None:
    cell, expected = "%%mesh\nfor index in config:\n    inde|", {"%%mesh\nfor index in config:\n    index": "statement"}
    assert settle(notebook, cell, expected) == expected


def test_a_property_that_hangs_is_not_run(notebook: KernelNotebook) -> None:
    expected = {"%%mesh\nmodel.stuck": "property"}
    assert settle(notebook, "%%mesh\nmodel.stuc|", expected) == expected
    assert complete(notebook, "%%mesh\nmodel.stuck.we|") == {}


def test_completion_leaves_nothing_in_the_namespace(notebook: KernelNotebook) -> None:
    names = notebook.evaluate("sorted(name for name in globals() if not name.startswith('_'))")
    complete(notebook, "%%mesh\nmod|")
    assert notebook.evaluate("sorted(name for name in globals() if not name.startswith('_'))") == names


def inspect(notebook: KernelNotebook, cell: str, *, until: str = "") -> str:
    """What is shown at the cursor, without colours; asked again until it says so, as a person does."""
    cursor, text = cell.index("|"), ""
    for _ in range(50):
        reply = notebook.ask("inspect", cell.replace("|", "", 1), cursor)
        assert reply["status"] == "ok"
        text = re.sub(r"\x1b\[[0-9;]*m", "", reply["data"].get("text/plain", ""))
        assert reply["found"] is bool(text)
        if until in text:
            break
    return text


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("%%mesh\nmodel.ste|p(", ["Ranks: same on 0-1\n", "Signature: model.step(batch)", "Train on a batch."]),
        ("%%mesh\nmodel.step(1, |", ["Signature: model.step(batch)"]),
        ("%%mesh\nif (\n!ls\nmodel.step|", ["Train on a batch."]),
        ("%%mesh\nran|k", ["Ranks: on 0, differs on 1 (1)\n", "int"]),
        ("%%mesh 1\nonly_her|e", ["Ranks: on 1\n"]),
        (
            "#mesh: ok\nten|sor",
            ["Ranks: same on 0-1\n", "Shape:         (2, 3)\n", "Dtype:         torch.float32", "cpu"],
        ),
        ("%%mesh --grou|p", ["usage: %%mesh", "how to group the output"]),
        ("%%mesh|", ["usage: %%mesh"]),
        ("%mesh stack |", ["usage: %mesh stack"]),
        ("local_nam|e", ["int"]),
    ],
)
def test_inspection(notebook: KernelNotebook, cell: str, expected: list[str]) -> None:
    text = inspect(notebook, cell, until=expected[0])
    for part in expected:
        assert part in text


@pytest.mark.parametrize("cell", ["%%mesh\nlocal_nam|e", "%%mesh\nnothing_such|", "%%mesh\n|", "%%mesh 0\nonly_her|e"])
def test_what_ranks_do_not_have_is_not_found(notebook: KernelNotebook, cell: str) -> None:
    assert inspect(notebook, cell) == ""


def test_a_cell_that_inspects_shows_each_line_once(notebook: KernelNotebook) -> None:
    assert "[0-1]" in (shown := re.sub(r"\x1b\[[0-9;]*m", "", notebook.run("%%mesh\nmodel.step?").stdout))
    assert shown.count("Train on a batch.") == 1


# --- while a cell runs: in our kernel ---

SYNC = "tell('began')\nprint(open({gate!r}).read())"
ASYNC = "import asyncio\nloop = asyncio.get_running_loop()\n" + SYNC.replace(
    "open({gate!r}).read()", "await loop.run_in_executor(None, lambda: open({gate!r}).read())"
)
HOLDING = """%%mesh 0
import ctypes, os
gate = os.open({gate!r}, os.O_RDWR)
tell('began')
ctypes.PyDLL(None).read(gate, ctypes.create_string_buffer(1), 1)  # keeps the interpreter's lock
os.close(gate)"""


class Gate:
    """A named pipe at which cells wait until it is opened; each reader gets the text."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "gate")
        os.mkfifo(self.path)

    def open(self) -> None:
        with open(self.path, "w") as file:
            file.write("went on")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Cells that still wait at its end, since the test has failed, continue."""
    gate = Gate(tmp_path)
    yield gate
    with contextlib.suppress(OSError):  # no cell waits
        os.close(os.open(gate.path, os.O_WRONLY | os.O_NONBLOCK))


in_ours = pytest.mark.parametrize("notebook", ["meshbook"], indirect=True)


@in_ours
@pytest.mark.parametrize("running", [SYNC, ASYNC, f"%%mesh 0\n{SYNC}"])
def test_answers_while_a_cell_runs(notebook: KernelNotebook, signs: Signs, gate: Gate, running: str) -> None:
    notebook.run(signs.definition)
    notebook.run(f"%%mesh\n{signs.definition}")
    cell = notebook.start(running.format(gate=gate.path))
    signs.wait_for("began")
    after = notebook.start("'the next one'")
    for code, expected in (
        ("local_n|", {"local_name": "instance"}),
        ("%%mesh\nmodel.we|", {"%%mesh\nmodel.weight": "instance"}),
        ("%mesh hea|", {"%mesh heal": "verb"}),
    ):
        assert settle(notebook, code, expected) == expected
    assert notebook.ask("inspect", "local_name", 3)["found"]
    assert notebook.ask("history")["history"] is not None
    assert notebook.ask("kernel_info")["implementation"] == "meshbook"
    assert notebook.ask("comm_info")["comms"] == {}
    assert cell.reply is after.reply is None
    gate.open()
    assert "went on" in notebook.wait(cell).stdout
    assert notebook.wait(after).result == "'the next one'"


@in_ours
def test_a_request_beside_a_cell_ends_and_the_kernel_stays_busy(
    notebook: KernelNotebook, signs: Signs, gate: Gate
) -> None:
    notebook.run(signs.definition)
    cell = notebook.start(SYNC.format(gate=gate.path))
    signs.wait_for("began")
    request = notebook.follow(notebook.client.complete("local_n", 7), "")
    notebook.wait(request)
    notebook.wait_until(lambda: cell.states == ["busy", "busy"])
    assert request.states == ["busy", "idle"]
    assert not cell.is_idle
    gate.open()
    notebook.wait(cell)


@in_ours
def test_an_object_that_hangs_costs_its_own_answer(notebook: KernelNotebook, signs: Signs, gate: Gate) -> None:
    notebook.run(signs.definition)
    notebook.run(
        "import threading\nclass Stuck:\n    def __dir__(self):\n        threading.Event().wait()\nstuck = Stuck()"
    )
    cell = notebook.start(SYNC.format(gate=gate.path))
    signs.wait_for("began")
    assert complete(notebook, "stuck.|") == {}
    assert settle(notebook, "local_n|", {"local_name": "instance"})
    assert cell.reply is None
    gate.open()
    notebook.wait(cell)


@in_ours
def test_a_busy_rank_is_completed_from_its_snapshot(notebook: KernelNotebook, signs: Signs, gate: Gate) -> None:
    notebook.run(f"%%mesh\n{signs.definition}")
    assert offers(
        notebook, "%%mesh\nmodel.|", "%%mesh\nmodel.weight"
    )  # so its snapshot has it before the next cell begins
    cell = notebook.start(HOLDING.format(gate=gate.path))
    signs.wait_for("began")
    assert offers(notebook, "%%mesh\nmod|", "%%mesh\nmodel")
    assert offers(notebook, "%%mesh\nmodel.|", "%%mesh\nmodel.weight")
    assert offers(notebook, "%%mesh\nworld|", "%%mesh\nworld_size")
    assert settle(notebook, "%%mesh\nmodel.weight.|", {}) == {}
    assert cell.reply is None
    gate.open()
    notebook.wait(cell)
