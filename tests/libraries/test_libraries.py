"""Libraries that people train with work on ranks as under torchrun: the same programs as scripts, in cells, in actors.

The programs are in `programs/`, for two ranks; each checks what it computes. Those of a way to run them share their
processes, since to import the libraries is most of what they cost.

Each program releases its DDP model before it destroys the process group. In torch 2.13 a model that is the last holder
of a gloo group joins that group's threads while it holds the GIL. A thread that is still releasing the work of a
backward pass waits for the GIL, and the process hangs, under torchrun as well.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.conftest import KernelNotebook

# To import the libraries takes a busy machine a minute.
pytestmark = [pytest.mark.process, pytest.mark.kernel]
pytest.importorskip("torch")

HERE = Path(__file__).parent
PATIENCE = 250.0  # seconds for all programs of a launcher
IN_NOTEBOOK = 120.0  # seconds for one
# What each program needs beside torch.
NEEDS = {
    "ddp": (),
    "fsdp2": (),
    "tensor_parallel": (),
    "lightning_fabric": ("lightning",),
    "lightning_trainer": ("lightning",),
    "accelerate_loop": ("accelerate",),
    "transformers_trainer": ("transformers", "accelerate"),
    "metrics": ("torchmetrics",),
    "rpc": (),  # the last: what its agent leaves in a process can keep a later program from ending
}
IN_EACH_RUN = "ddp", "fsdp2"
MISSING = {
    name: missing
    for name, needed in NEEDS.items()
    if (missing := [package for package in needed if importlib.util.find_spec(package) is None])
}
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "spmd": ["meshbook.spmd", "--procs", "2"],
}
PROGRAMS = [
    pytest.param(
        name,
        marks=[
            pytest.mark.skipif(
                name in MISSING, reason=f"needs {', '.join(MISSING.get(name, []))}: pip install 'meshbook[libraries]'"
            ),
            *([pytest.mark.long] if name not in IN_EACH_RUN else []),
        ],
    )
    for name in NEEDS
]
BUT_RPC = [each for each in PROGRAMS if each.values != ("rpc",)]
# The loggers of meshbook for the programs that use a logger, and the metric that these then have: its steps by rank.
LOGGERS: dict[str, tuple[str, str, dict[int, list[int]]]] = {
    "lightning_trainer": ("LightningLogger", "loss", {0: [0, 1], 1: [0, 1]}),
    "accelerate_loop": ("AccelerateTracker", "loss", {0: [0, 1]}),  # accelerate logs on its main process only
    "transformers_trainer": ("TransformersCallback", "train/loss", {0: [1, 2, 3, 4], 1: [1, 2, 3, 4]}),
}
CURVES = """
import numpy
table = mesh.history({metric!r}).to_pandas()
table = table[table.run == table.run.iloc[-1]]
found = {{rank: list(part.step) for rank, part in table.groupby("rank")}}
assert found == {steps}, found
assert numpy.isfinite(table.value).all()
"""
RUNNER = """
import runpy
from meshbook import Actor, endpoint

class Runner(Actor):
    @endpoint
    def run(self, program):
        runpy.run_path(program)

runner = mesh.spawn("runner", Runner)
"""
OTHER_PROCESSES = """
from meshbook import this_host

procs = this_host().spawn_procs(per_host={"gpus": 2})
runner_of_rpc = procs.spawn("runner", Runner)
"""


def path_of(program: str) -> Path:
    return HERE / "programs" / f"{program}.py"


@pytest.fixture(scope="module", params=LAUNCHERS)
def errors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of each program under a launcher: its errors on the two ranks."""
    folder = tmp_path_factory.mktemp("errors")
    programs = [str(path_of(name)) for name in NEEDS if name not in MISSING]
    command = [sys.executable, "-m", *LAUNCHERS[request.param], str(HERE / "run_programs.py"), str(folder), *programs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launcher:
        try:
            printed, _ = launcher.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # its ranks end with it
            printed, _ = launcher.communicate()

    def read(name: str) -> str:
        found = [folder / f"{name}.{rank}" for rank in range(2)]
        return "".join(each.read_text() if each.exists() else f"it did not end: {printed}" for each in found)

    return {name: read(name) for name in NEEDS}


@pytest.fixture(scope="module")
def notebook() -> Iterator[KernelNotebook]:
    with KernelNotebook() as notebook:
        notebook.run("%mesh up --gpus 2")
        yield notebook


@pytest.fixture(scope="module")
def runner(notebook: KernelNotebook) -> KernelNotebook:
    """The notebook, with actors on its mesh that run programs."""
    notebook.run(RUNNER)
    return notebook


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_a_script(errors: dict[str, str], program: str) -> None:
    assert errors[program] == ""


@pytest.mark.parametrize("program", BUT_RPC)
def test_in_a_cell(notebook: KernelNotebook, program: str) -> None:
    logger, metric, steps = LOGGERS.get(program, ("", "", {}))
    begin = f"import meshbook.curves\nLOGGER = meshbook.curves.{logger}()\n" if logger else ""
    notebook.run(f"%%mesh\n{begin}{path_of(program).read_text()}", timeout=IN_NOTEBOOK)
    if logger:
        notebook.run(CURVES.format(metric=metric, steps=steps))


@pytest.mark.parametrize("program", BUT_RPC)
def test_in_an_actor(runner: KernelNotebook, program: str) -> None:
    runner.run(f"_ = runner.run.call({str(path_of(program))!r}).get({IN_NOTEBOOK})", timeout=IN_NOTEBOOK)


@pytest.mark.long
def test_rpc_in_a_cell(notebook: KernelNotebook) -> None:
    """Once in these processes: torch waits for ever when a second agent that has held values is to be stopped."""
    notebook.run(f"%%mesh\n{path_of('rpc').read_text()}", timeout=IN_NOTEBOOK)


@pytest.mark.long
def test_rpc_in_an_actor(runner: KernelNotebook) -> None:
    """In processes of its own, for the same reason."""
    runner.run(OTHER_PROCESSES)
    try:
        runner.run(f"_ = runner_of_rpc.run.call({str(path_of('rpc'))!r}).get({IN_NOTEBOOK})", timeout=IN_NOTEBOOK)
    finally:
        runner.run("procs.stop().get()")
