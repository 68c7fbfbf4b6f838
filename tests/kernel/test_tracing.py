"""`%mesh trace` and spans of the user's, in our kernel and in a stock one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import Notebook

pytestmark = pytest.mark.kernel

# Rank 1 comes to the barrier only once rank 0 is there, and stays away for a moment that is measured.
APART = """%%mesh
with meshbook.span("load"):
    if rank: time.sleep(0.2)
dist.barrier()"""


@pytest.fixture(scope="module", params=["meshbook", "python3"])
def notebook(request: pytest.FixtureRequest, make_notebook: Any) -> Iterator[Notebook]:
    with make_notebook(request.param) as notebook:
        assert "no cell has used a mesh yet" in notebook.run_failing("%mesh trace").traceback
        notebook.run("%mesh up --gpus 2")
        notebook.run("%%mesh\nimport meshbook, time, torch.distributed as dist\ndist.init_process_group('gloo')")
        yield notebook


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_the_last_mesh_cell_is_shown_and_saved(notebook: Notebook, tmp_path: Path) -> None:
    number = notebook.run(APART).reply["execution_count"]  # type: ignore[index]
    notebook.run("1 + 1")
    cell = notebook.run(f"%mesh trace -o {tmp_path}/trace.json")
    (shown,) = cell.displays
    assert shown["text/plain"].startswith(f"cell {number}: ")
    assert "rank 0 waited" in shown["text/plain"]
    assert "for rank 1 in barrier" in shown["text/plain"]
    assert shown["text/html"].count("<svg") == 1
    assert f"saved as {tmp_path}/trace.json" in cell.stdout
    events = load(tmp_path / "trace.json")["traceEvents"]
    names = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    slices = [(names[each["pid"]], each["name"], each["dur"]) for each in events if each["ph"] == "X"]
    assert {(of, name) for of, name, _ in slices} >= {
        *(("mesh rank 0", name) for name in (f"cell {number}", "load", "barrier")),
        *(("mesh rank 1", name) for name in (f"cell {number}", "load", "barrier")),
        ("controller", f"cell {number}"),
    }
    (waited,) = [length for of, name, length in slices if (of, name) == ("mesh rank 0", "barrier")]
    assert waited > 100_000  # microseconds
    flows = [{each["id"] for each in events if each["ph"] == phase} for phase in "sf"]
    assert flows[0] == flows[1]
    assert len(flows[0]) == 2


def test_calls_of_an_ordinary_cell_are_shown_with_their_actors(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(
        "from meshbook import Actor, endpoint\n"
        "class Doubler(Actor):\n    @endpoint\n    def double(self, x): return 2 * x\n"
        "doublers = mesh.spawn('doublers', Doubler)\n"
        "doublers.double.call(21).get();"
    )
    (shown,) = notebook.run(f"%mesh trace 1 -o {tmp_path}/trace.json").displays
    assert "on 1 rank\n" in shown["text/plain"]
    assert "doublers.double" in shown["text/plain"]
    events = load(tmp_path / "trace.json")["traceEvents"]
    assert {each["name"] for each in events if each.get("cat") == "run"} == {"doublers.double"}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("--cell 999", "no cell 999 was run"), ("-o /nowhere/x.json", "cannot be saved"), ("9", "out of range")],
)
def test_what_cannot_be_done_is_told(notebook: Notebook, line: str, complaint: str) -> None:
    assert complaint in notebook.run_failing(f"%mesh trace {line}").traceback
