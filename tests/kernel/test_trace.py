"""Where the time of a cell went: `%mesh trace` and `%mesh profile`, in our kernel and in a stock one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import FRONT_DOORS

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = pytest.mark.kernel

# Rank 1 begins to stay away from the barrier only once rank 0 is about to come there.
APART = """%%mesh
store = dist.distributed_c10d._get_default_store()
with meshbook.span("load"):
    if rank:
        store.wait(["there"])
        time.sleep(0.2)
    else:
        store.set("there", "")
dist.barrier()"""
WORK = """%%mesh
import threading, time
def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: sum(range(1000))"""
# As on a host without py-spy.
WITHOUT_SPY = """from meshbook.magics.tracing import profiler as profiling
from meshbook.runtime.actor.future import Future
profiling.begin_spying, kept = (
    lambda procs, rate: [Future.completed({each.node: 'py-spy is not installed' for each in procs.nodes})],
    profiling.begin_spying,
)"""


@pytest.fixture(scope="module", params=FRONT_DOORS)
def notebook(request: pytest.FixtureRequest, make_notebook: Any) -> Iterator[KernelNotebook]:
    with make_notebook(request.param) as notebook:
        assert "no cell has used a mesh yet" in notebook.run_failing("%mesh trace").traceback
        notebook.run("%mesh up --gpus 2")
        notebook.run("%%mesh\nimport meshbook, time, torch.distributed as dist\ndist.init_process_group('gloo')")
        notebook.run(WORK)
        yield notebook


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_the_last_mesh_cell_is_shown_and_saved(notebook: KernelNotebook, tmp_path: Path) -> None:
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
    assert waited > 50_000  # microseconds, of 200,000
    flows = [{each["id"] for each in events if each["ph"] == phase} for phase in "sf"]
    assert flows[0] == flows[1]
    assert len(flows[0]) == 2


def test_calls_of_an_ordinary_cell_are_shown_with_their_actors(notebook: KernelNotebook, tmp_path: Path) -> None:
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
    [("--cell 999", "no cell 999 was run"), ("-o /nowhere/x.json", "cannot save"), ("9", "out of range")],
)
def test_impossible_requests_are_errors(notebook: KernelNotebook, line: str, complaint: str) -> None:
    assert complaint in notebook.run_failing(f"%mesh trace {line}").traceback


def test_recording_is_not_seen_in_tracebacks(notebook: KernelNotebook) -> None:
    failed = notebook.run_failing("%%mesh\ndist.all_reduce('x')")
    assert "distributed_c10d.py" in failed.traceback
    assert "spans_of" not in failed.traceback


def test_a_cell_that_was_not_awaited_is_shown_so_far(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(f"%%mesh\n{signs.definition}")
    notebook.run("%%mesh 0 -a\ntell('here')\ntime.sleep(1000)")
    signs.wait_for("here")
    (shown,) = notebook.run("%mesh trace").displays
    assert " so far on 1 rank\n" in shown["text/plain"]
    notebook.run("%mesh interrupt")


# --- profiles ---


@pytest.mark.parametrize("inside", [False, True])
def test_a_cell_is_profiled_and_saved(notebook: KernelNotebook, tmp_path: Path, inside: bool) -> None:
    if inside:
        notebook.run(WITHOUT_SPY)
    cell = notebook.run("%%mesh --profile\ncompute(0.3)\nrank")
    if inside:
        notebook.run("profiling.begin_spying = kept")
    assert cell.result == "[0] 0\n[1] 1"
    text = cell.displays[-1]["text/plain"]
    assert "ranks [0-1]" in text.splitlines()[0]
    assert "compute (cell" in text
    assert ("ranks 0-1 sampled themselves, because py-spy is not installed" in text) is inside
    saved = notebook.run(f"%mesh profile --save {tmp_path}/profile.json")
    assert "https://www.speedscope.app" in saved.stdout
    assert "cannot save" in notebook.run_failing("%mesh profile --save /nowhere/x.json").traceback
    content = load(tmp_path / "profile.json")
    assert [each["name"] for each in content["profiles"]] == ["rank 0", "rank 1"]
    assert all(each["endValue"] > 0 for each in content["profiles"])


def test_the_next_cell_is_profiled_once_and_shown_though_it_fails(notebook: KernelNotebook, tmp_path: Path) -> None:
    assert "next %%mesh cell" in notebook.run(f"%mesh profile 1 -o {tmp_path}/profile.json").stdout
    failed = notebook.run_failing("%%mesh\ncompute(1)\nif rank: 1 / 0")
    assert "on rank 1" in failed.displays[-1]["text/plain"]
    assert [each["name"] for each in load(tmp_path / "profile.json")["profiles"]] == ["rank 1"]
    assert notebook.run("%%mesh\n1;").displays == []
    notebook.run("%mesh profile")
    notebook.run("%mesh profile --off")
    assert notebook.run("%%mesh\n1;").displays == []


def test_what_runs_is_profiled_until_it_is_interrupted(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(f"%%mesh\n{signs.definition}")
    job = "%%mesh -a\nover = threading.Event()\ntell('here')\ncompute(30)"
    notebook.run(job)
    signs.wait_for("here", 2)
    text = notebook.run("%mesh profile --seconds 0.3").displays[-1]["text/plain"]
    assert "compute (cell" in text
    endless = notebook.start("%mesh profile --seconds 1000")
    notebook.wait_until(lambda: "an interrupt ends it" in endless.stdout)
    notebook.interrupt()
    notebook.wait(endless)
    assert endless.displays[-1]["text/plain"].startswith("profile of mesh: ")
    notebook.run("%mesh interrupt")


def test_operators_of_torch_are_profiled_on_each_rank(notebook: KernelNotebook, tmp_path: Path) -> None:
    if notebook.manager.kernel_name != "meshbook":
        pytest.skip("the first profile of torch takes seconds, and is the same in both")
    notebook.run(f"%mesh profile --torch -o {tmp_path}/torch.json")
    cell = notebook.run("%%mesh\nimport torch\ny = torch.ones(64, 64) @ torch.ones(64, 64)")
    assert "aten::mm" in cell.displays[-1]["text/plain"]
    assert cell.stderr == ""
    events = load(tmp_path / "torch.json")["traceEvents"]
    assert len({each["pid"] for each in events if each["name"] == "aten::mm"}) == 2


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("%%mesh -a --profile\n1", "--profile and -a cannot be combined"),
        ("%mesh profile --torch --seconds 1", "cannot be combined with --seconds"),
        ("%mesh profile 9 --seconds 1", "out of range"),
    ],
)
def test_impossible_profiles_are_errors(notebook: KernelNotebook, code: str, complaint: str) -> None:
    assert complaint in notebook.run_failing(code).traceback
