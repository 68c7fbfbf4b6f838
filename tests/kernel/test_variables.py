"""Variables between the notebook and its ranks, in our kernel and in a stock one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import FRONT_DOORS

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook, Signs

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module", params=FRONT_DOORS)
def notebook(request: pytest.FixtureRequest, make_notebook: Any) -> Iterator[KernelNotebook]:
    with make_notebook(request.param) as notebook:
        notebook.run("%mesh up --gpus 3")
        notebook.run("import pickle, threading, torch")
        notebook.run("%%mesh\nimport threading, torch\nlock = threading.Lock()\nif rank: some = 1")
        yield notebook


# --- push, pull, scatter, gather ---


def test_values_go_to_all_ranks_and_come_back_by_rank(notebook: KernelNotebook) -> None:
    notebook.run("mesh.push({'a': 1}, t=torch.arange(2.))")
    assert notebook.run("%%mesh\nc, u = a + rank, t * rank\nt").result.startswith("[0-2] Tensor (2,) float32 cpu")
    assert notebook.run("mesh.pull('c'), mesh.pull('c', reduce='mean'), mesh.slice(gpus=2).pull('c')").result == (
        "([1, 2, 3], 2.0, 3)"
    )
    assert notebook.run("x, y = mesh.pull('u', 'c')\nx[2] += 1  # it is writable\nx[2], y").result == (
        "(tensor([1., 3.]), [1, 2, 3])"
    )
    assert notebook.run("mesh.slice(gpus=slice(1, 3)).push(a=7)\nmesh.pull('a')").result == "[1, 7, 7]"
    assert notebook.run("mesh['a'] = 5\ndel mesh.slice(gpus=0)['a']\nmesh.slice(gpus=2).pull('a')").result == "5"


def test_large_values_are_their_owner_s(notebook: KernelNotebook) -> None:
    """They go through shared memory, without a visible difference."""
    notebook.run("large = torch.arange(1 << 18)\nfor _ in range(2): mesh.push(large=large)\nlarge += 1")
    notebook.run("%%mesh\nlarge[0] += rank")
    notebook.run("for _ in range(2): found = mesh.pull('large')")
    assert notebook.run("[(int(each[0]), torch.equal(each[1:], large[1:] - 1)) for each in found]").result == (
        "[(0, True), (1, True), (2, True)]"
    )
    notebook.run("found[1].zero_()")
    assert notebook.run("[int(each.max()) for each in mesh.pull('large')]").result == str([(1 << 18) - 1] * 3)


def test_data_is_scattered_and_gathered(notebook: KernelNotebook) -> None:
    notebook.run("mesh.scatter('part', {'x': torch.arange(7), 'y': list('abcdefg')})")
    assert notebook.run("%%mesh\npart['y']").result == "[0] ['a', 'b', 'c']\n[1] ['d', 'e']\n[2] ['f', 'g']"
    assert notebook.run("mesh.gather('part')['x'].tolist()").result == "[0, 1, 2, 3, 4, 5, 6]"


def test_data_is_scattered_along_a_dimension_of_the_mesh(notebook: KernelNotebook) -> None:
    notebook.run("%mesh up --shape hosts=2,gpus=2 --name grid\ngrid.scatter('x', [1, 2, 3, 4], along='hosts')")
    assert notebook.run("grid.pull('x')").result == "[[1, 2], [1, 2], [3, 4], [3, 4]]"
    assert notebook.run("grid.gather('x', along='hosts')").result == "[1, 2, 3, 4]"
    failed = notebook.run_failing("grid.slice(hosts=0).scatter('x', [1, 2], along='hosts')")
    assert "has no dimension 'hosts'; it has gpus" in failed.error["evalue"]
    notebook.run("%mesh down grid")


def test_a_pushed_function_sees_the_variables_of_its_rank(notebook: KernelNotebook) -> None:
    """What the rank lacks comes along, in its latest state; what it has of its own stays."""
    notebook.run("%%mesh\nscale = 10")
    notebook.run(
        "scale, shift = 1, 5\ndef apply(x): return sum(scale * y + shift for y in (x,))\nmesh.push(apply=apply)"
    )
    assert notebook.run("%%mesh 0\napply(1)").result == "[0] 15"
    notebook.run("%%mesh\nscale = 20")
    assert notebook.run("%%mesh 0\napply(1)").result == "[0] 25"
    notebook.run("shift = 6\nmesh.push(apply=apply)")
    assert notebook.run("%%mesh 0\napply(1)").result == "[0] 26"
    notebook.run("mesh.push(shift=7)\nmesh.push(apply=apply)")
    assert notebook.run("%%mesh 0\napply(1)").result == "[0] 27"


def test_classes_of_one_cell_are_one_wherever_their_values_go(notebook: KernelNotebook) -> None:
    classes = (
        "import dataclasses, enum\nclass Stage(enum.Enum):\n    WARM, DONE = 1, 2\n"
        "@dataclasses.dataclass\nclass Setting:\n    lr: float = 0.5\n"
    )
    notebook.run(f"%%mesh\n{classes}both = Stage.DONE, Setting()")
    assert notebook.run(
        "stages, settings = zip(*mesh.pull('both'))\nlen({*stages}), settings[0] == settings[1]"
    ).result == ("(1, True)")
    notebook.run(f"%%mesh --local\n{classes}")
    notebook.run("mesh.push(both=(Stage.DONE, Setting(0.25)))")
    cell = notebook.run("%%mesh 0\nboth[0] is Stage.DONE and both[1] == Setting(0.25)")
    assert cell.result == "[0] True"
    pulled = notebook.run("stage, setting = mesh.pull('both')[0]\nstage is Stage.DONE, setting == Setting(0.25)")
    assert pulled.result == "(True, True)"
    notebook.run("@dataclasses.dataclass\nclass Setting:\n    lr: float = 1.0\nmesh.push(other=Setting())")
    assert notebook.run("%%mesh 0\nisinstance(other, Setting), other.lr").result == "[0] (False, 1.0)"


def test_a_push_waits_for_the_cell_before_it_and_is_seen_by_the_next(notebook: KernelNotebook) -> None:
    cells = [notebook.start(code) for code in ("%%mesh\nn = 1", "mesh.push(n=2)", "%%mesh\nn += 1", "mesh.pull('n')")]
    assert notebook.wait(cells[-1]).result == "[3, 3, 3]"


def test_cells_and_mesh_tensors_share_values(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\nx = torch.ones(2, 3) * rank\nodd, pair = torch.ones(1 + rank // 2), [1, 2]")
    notebook.run("x = mesh['x'].tensor()\nx.add_(1)\ny = x.reduce('gpus')\ny.requires_grad_()")
    assert (
        notebook.run("from meshbook import inspect\nmesh['y'] = y\ninspect(y)[0].tolist()").result == "[6.0, 6.0, 6.0]"
    )
    assert notebook.run("%%mesh\nx[0, 0].item(), y[0, 0].item(), y.requires_grad").result == (
        "[0] (1.0, 6.0, False)\n[1] (2.0, 6.0, False)\n[2] (3.0, 6.0, False)"
    )
    part = "part = mesh.slice(gpus=slice(1, 3))['x'].tensor()\n"
    assert notebook.run(
        part + "inspect(part.reduce('gpus') + x.slice_mesh(gpus=slice(1, 3)), gpus=1)[0, 0]"
    ).result == ("tensor(8.)")
    for code, problem in {
        "mesh['some'].tensor()": "some is not defined on rank 0",
        "mesh['pair'].tensor()": "pair is a list, not a tensor",
        "mesh['odd'].tensor()": "float32[1] on cpu on ranks 0-1; float32[2] on cpu on rank 2",
        "mesh['z'] = part": "has no value on rank 0",
        "mesh.push({'a b': x})": "'a b' is not a valid variable name",
    }.items():
        assert problem in notebook.run_failing(code).error["evalue"]
    notebook.run("from meshbook import distribute\ngrid = mesh.as_device_mesh(['data'])")
    notebook.run("mesh['d'] = distribute(torch.arange(6), grid, ['data'])")
    assert notebook.run("%%mesh\nd.to_local().tolist()").result == "[0] [0, 1]\n[1] [2, 3]\n[2] [4, 5]"
    # The slices share the engine of the mesh, and the dashboard finds it beside that of the grid.
    assert notebook.run("len(mesh.notebook_mesh.procs.tensor_engines)").result == "2"
    notebook.run("with mesh.activate(): bad = x[torch.tensor([9])]")
    assert "out of bounds" in notebook.run_failing("mesh['z'] = bad").error["evalue"]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("mesh.pull('some')", "cannot pull some: some is not defined on rank 0"),
        ("mesh.pull('somme')", "rank 0; somme is not defined on ranks 1-2 (did you mean some?)"),
        ("mesh.pull('lock')", "lock cannot be pickled: TypeError: cannot pickle '_thread.lock' object on ranks 0-2"),
        ("mesh.push(x=1, lock=threading.Lock())", "nothing was pushed: lock cannot be pickled: TypeError"),
        ("mesh.push({'2x': 1})", "'2x' is not a valid variable name"),
        ("mesh.push()", "nothing to push"),
        ("mesh.pull()", "nothing to pull"),
        ("mesh.pull(['a', 'b'])", "a variable name must be a string such as 'x', not ['a', 'b']"),
        ("mesh.pull('rank', reduce='max')", "reduce must be one of 'mean', 'cat', 'stack', 'first' or None, not 'max'"),
        (
            "mesh.pull('device', reduce='mean')",
            "cannot pull device@mean: cannot compute the mean of values of type device",
        ),
        ("mesh.scatter('x', 5)", "cannot scatter x: data of type int has no dimension 0"),
        ("mesh[0]", "to select ranks, use mesh.slice(gpus=0)"),
        ("mesh[0] = 1", "to select ranks, use mesh.slice(gpus=0)"),
        ("list(mesh)", "'NotebookProcMesh' object is not iterable"),
        ("mesh['some'][9]", "rank 9 is not among ranks 0-2"),
        ("mesh['some']['gpus']", "some is indexed by rank; to select by dimension, use slice(gpus=0).get()"),
        ("%mesh push nix", "nix is not defined in the notebook"),
        ("%mesh pull some", "cannot pull some: some is not defined on rank 0"),
        ("%mesh pull rank@0 1:", "cannot pull rank@0: its rank is not among ranks 1-2 of mesh"),
        ("%mesh pull rank@max", "'rank@max': expected a rank after @, or one of mean, cat, stack, first"),
    ],
)
def test_what_cannot_be_moved_says_why_and_where(notebook: KernelNotebook, code: str, problem: str) -> None:
    failed = notebook.run_failing(code)
    assert problem in failed.error["evalue"]
    assert ("----> 1 " in failed.traceback) == (not code.startswith("%")), failed.traceback


def test_the_verbs_move_variables_by_name(notebook: KernelNotebook) -> None:
    notebook.run("lr, name = 0.5, 'adam'\n%mesh push lr,name")
    notebook.run("lr = 0.25\n%mesh push lr 1:")
    assert notebook.run("%%mesh\nlr, name").result == "[0] (0.5, 'adam')\n[1-2] (0.25, 'adam')"
    notebook.run("%mesh pull lr,rank@mean,name@-1")
    assert notebook.run("lr, rank, name").result == "([0.5, 0.25, 0.25], 1.0, 'adam')"
    assert notebook.run("%mesh pull rank 2\nrank").result == "2"
    assert notebook.run("%mesh pull rank 2:\nrank").result == "[2]"
    for verb in ("push", "pull"):
        assert f"usage: %mesh {verb}" in notebook.run(f"%mesh {verb} --help").stdout


# --- around a cell ---


def test_a_cell_pushes_before_and_pulls_after(notebook: KernelNotebook) -> None:
    notebook.run("a, b = 2, [1]")
    cell = notebook.run("%%mesh 1: --push a,b --pull c,n,b@1,low@first\nc = a * rank\nn, low = c * 1.0, -rank\nb")
    assert cell.result == "[1-2] [1]"
    assert notebook.run("c, n, b, low").result == "([2, 4], [2.0, 4.0], [1], -1)"
    notebook.run("#mesh: --pull n@mean,t@cat\nn = rank\nt = [rank]")
    assert notebook.run("n, t").result == "(1.0, [0, 1, 2])"


def test_what_is_wrong_with_a_push_keeps_the_cell_from_running(notebook: KernelNotebook) -> None:
    notebook.run("lock = threading.Lock()\n%mesh pull rank")
    for options, problem in {
        "--push nix": "nix is not defined in the notebook",
        "--push lock": "nothing was pushed: lock cannot be pickled",
        "1: --pull c@0": "cannot pull c@0: its rank is not among ranks 1-2 of mesh",
        "--pull c,c@0": "c is given twice",
        "--pull c@maen": "Did you mean 'mean'?",
    }.items():
        assert problem in notebook.run_failing(f"%%mesh {options}\nran = True").error["evalue"]
    assert notebook.run("'ran' in mesh").result == "False"


def test_a_pull_that_fails_fails_the_cell_and_sets_nothing(notebook: KernelNotebook) -> None:
    notebook.run("kept, lost = 'before', 'before'")
    failed = notebook.run_failing(
        "%%mesh -o result --pull kept,lost\nkept = rank\nif rank == 1: lost = 1\nprint('ran')\nkept"
    )
    assert failed.error["evalue"] == (
        "the cell ran, but nothing was pulled: cannot pull kept, lost: lost is not defined on ranks 0,2"
    )
    assert (failed.stdout, notebook.run("result.values, kept").result) == ("[0-2] ran\n", "([0, 1, 2], 'before')")
    assert notebook.run_failing("%%mesh --pull kept\nkept = 1 / rank").error["ename"] == "ZeroDivisionError"
    assert notebook.run("kept").result == "'before'"


def test_variables_travel_with_a_job_and_not_behind_the_cells_after_it(notebook: KernelNotebook) -> None:
    notebook.run("step = 10")
    notebook.run("%%mesh -a -o job --push step --pull step,total@mean\ntotal = step * rank")
    notebook.run("%%mesh\nstep, total = -1, -1")
    assert notebook.run("job.result()\nstep, total").result == "([10, 10, 10], 10.0)"


# --- mesh["x"] ---

ACTOR = """
from meshbook import Actor, endpoint
class Reader(Actor):
    @endpoint
    def read(self, value):
        return value
readers = mesh.spawn("readers", Reader)
"""


def test_a_reference_shows_what_the_ranks_have(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\nx = torch.ones(2, 2) * rank\ny = 'same'")
    assert notebook.run("mesh['y']").result == "[0-2] 'same'"
    assert notebook.run("mesh['x']").result == notebook.run("%%mesh\nx").result
    notebook.run("%%mesh 0\ny = 'other'\ndel x")
    assert notebook.run("mesh['y']").result == "[0] 'other'\n[1-2] 'same'"
    assert notebook.run("mesh['y'].slice(gpus=1)").result == "[1] 'same'"
    assert notebook.run("mesh['x'].slice(gpus=0)").result == "[0] no value: x is not defined"
    assert notebook.run("mesh['y'].get(), mesh['y'][0], mesh['y'][-1], len(mesh['y'])").result == (
        "(['other', 'same', 'same'], 'other', 'same', 3)"
    )
    assert notebook.run("'y' in mesh, 'x' in mesh, 'x' in mesh.slice(gpus=1)").result == "(True, False, True)"
    assert "y" in notebook.ask("complete", "mesh['")["matches"]


def test_a_reference_arrives_at_an_actor_as_what_its_rank_has(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\nown = rank * 10")
    notebook.run(ACTOR)
    assert notebook.run("list(readers.read.call(mesh['own']).get().values())").result == "[0, 10, 20]"
    notebook.run("mesh.push(twin=mesh['own'])")
    assert notebook.run("mesh['twin']").result == "[0] 0\n[1] 10\n[2] 20"
    assert "name 'missing' is not defined" in notebook.run_failing("readers.read.call(mesh['missing']).get()").traceback
    assert "fetch the values with get()" in notebook.run_failing("pickle.dumps(mesh['own'])").error["evalue"]
    notebook.run("readers.stop().get()")


# --- what is there ---


def test_who_and_whos_list_what_cells_have_made(notebook: KernelNotebook) -> None:
    notebook.run("%mesh up --gpus 2 --name clean\n%mesh use clean")
    assert notebook.run("%mesh who clean").stdout == "no variables on ranks 0-1\n"
    notebook.run("%%mesh clean\nloss = 0.5 + rank")
    notebook.run("clean.slice(gpus=1).push(w=torch.zeros(1000))")
    assert notebook.run("%mesh who clean").stdout == "[0-1] loss\n[1] w\n"
    rows = [line.split() for line in notebook.run("%mesh whos clean").stdout.splitlines()[2:]]
    assert rows == [
        ["loss", "float", "0", "0.5"],
        ["loss", "float", "1", "1.5"],
        ["w", "Tensor", "4.0", "kB", "1", "(1000,)", "float32", "cpu"],
    ]
    assert notebook.run("%mesh who clean[0]").stdout == "[0] loss\n"
    notebook.run("%mesh down clean")


MODEL = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))  # its batches are counted by a 0-d tensor
if rank == 1:
    with torch.no_grad():
        model[0].weight[1, 2] += 0.5
step = rank // 2
"""


def test_diff_says_which_ranks_agree_and_how_far_numbers_are_apart(notebook: KernelNotebook) -> None:
    notebook.run(f"%%mesh{MODEL}")
    said = notebook.run("%mesh diff model").stdout.splitlines()
    assert said[:2] == ["model differs in 1 of 7 parts: ranks 0,2 agree, rank 1 differs", ".0.weight"]
    assert re.fullmatch(
        r" +largest difference 0\.5 at \[1, 2\]: .+ on rank.+ on rank.+; 1 of 8 numbers differ", said[-1]
    )
    assert notebook.run("%mesh diff model !1").stdout == "model is the same on ranks 0,2: Sequential  7 parts\n"
    assert notebook.run("%mesh diff step").stdout == (
        "step differs: ranks 0-1 agree, rank 2 differs\n[0-1] int  0\n[2] int  1\n"
    )
    failed = notebook.run_failing("%mesh diff nix")
    assert failed.error["evalue"] == "cannot compare nix: it is not defined on ranks 0-2"


SHARDED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = fully_shard(torch.nn.Linear(4, 3), mesh=init_device_mesh("cpu", (3,)))
"""


def test_diff_does_not_compare_the_shards_of_a_model(notebook: KernelNotebook) -> None:
    notebook.run(f"%%mesh{SHARDED}")
    assert notebook.run("%mesh diff model").stdout == (
        "model has no replicas on ranks 0-2: FSDPLinear  2 parts; "
        "2 parts are sharded over 3 ranks, without replicas to compare\n"
    )
    notebook.run("%%mesh\ndel model\ntorch.distributed.destroy_process_group()")


# --- what is large, and what takes long ---

LARGE = "from meshbook.magics.variables import operations as variables\nvariables.CONFIRM_ABOVE = 1000"


def test_more_than_a_gigabyte_is_asked_about_first(notebook: KernelNotebook) -> None:
    notebook.run(f"before = variables.CONFIRM_ABOVE if 'variables' in globals() else 1 << 30\n{LARGE}")
    notebook.run("%%mesh\nlarge = torch.zeros(100)")
    refused = notebook.run_failing("mesh.pull('large')").error["evalue"]
    assert refused.startswith("pulling large (0.0 GiB from 3 ranks) needs a confirmation")
    assert notebook.run("len(mesh.pull('large', force=True))").result == "3"
    for code, answer, status in (
        ("%mesh pull large", "y", "ok"),
        ("%mesh pull large", "", "error"),
        ("%%mesh --pull large\n1", "y", "ok"),
    ):
        cell = notebook.start(code, allow_stdin=True)
        prompt = notebook.client.get_stdin_msg(timeout=60)["content"]["prompt"]
        assert prompt == "pull large: 0.0 GiB from 3 ranks? [y/N] "
        notebook.client.input(answer)
        assert (notebook.wait(cell).reply or {})["status"] == status
    notebook.run("%%mesh -a -o job --pull large\n1")
    assert "needs a confirmation" in notebook.run_failing("job.result()").error["evalue"]
    notebook.run("variables.CONFIRM_ABOVE = before")


def test_what_waits_says_for_what(notebook: KernelNotebook, signs: Signs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    notebook.run(f"%%mesh\n{signs.definition}\nx = 1")
    notebook.run(f"%%mesh 0 -a -o job\ntell('here')\nopen({str(go)!r}).read()\nx = 2")
    signs.wait_for("here")
    number = notebook.run("print(job.title)").stdout.strip()
    shown = notebook.run("mesh['x']").result
    assert shown == f"[1-2] 1\n[0] no value: busy with {number}"
    notebook.run(
        "from meshbook.magics.variables import requests as exchange\nquiet, exchange.QUIET = exchange.QUIET, 0.1"
    )
    pull = notebook.start("mesh.pull('x')")
    notebook.wait_until(lambda: bool(pull.stdout))
    assert pull.stdout == f"waiting for {number} (rank 0) (interrupt to cancel)\n"
    go.write_text("")
    assert notebook.wait(pull).result == "[2, 1, 1]"
    notebook.run("exchange.QUIET = quiet")


STUCK = """
class Stuck:
    def __reduce__(self):
        import time
        tell('stuck')
        time.sleep(1000)
stuck = Stuck()
"""


def test_an_interrupt_ends_a_pull_here_and_on_the_ranks(notebook: KernelNotebook, signs: Signs) -> None:
    notebook.run(f"%%mesh\n{signs.definition}{STUCK}")
    for code in ("mesh.pull('stuck')", "%mesh pull stuck", "%%mesh --pull stuck\n1"):
        cell = notebook.start(code)
        signs.wait_for("stuck", 3)
        notebook.interrupt()
        assert notebook.wait_failed(cell).error["ename"] == "KeyboardInterrupt"
        assert notebook.run("%%mesh\nrank * 2").result == "[0] 0\n[1] 2\n[2] 4"


def test_a_handle_follows_its_mesh(notebook: KernelNotebook) -> None:
    notebook.run("%mesh up --gpus 2 --name other\nold = other\nother.push(v=1)")
    notebook.run("other = other.resize(gpus=3)\nother.initialized.get()\nother.push(v=2)")
    assert notebook.run("old.pull('v'), other.pull('v')").result == "([2, 2], [2, 2, 2])"
    notebook.run("other = other.resize(gpus=1)\nother.initialized.get()")
    failed = notebook.run_failing("old.pull('v')")
    assert "no longer exists: the mesh was stopped or resized" in failed.error["evalue"]
    notebook.run("copied = pickle.loads(pickle.dumps(other))")
    assert notebook.run("type(copied)").result == "meshbook.runtime.mesh.procs.ProcMesh"
    notebook.run("%mesh down other")
    assert "the mesh was stopped" in notebook.run_failing("other.pull('v')").error["evalue"]
    assert "the mesh was stopped" in (notebook.run("other['v']").result or "")
