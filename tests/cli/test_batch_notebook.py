"""`meshbook run notebook.ipynb`: parameters, the mesh of the command line, the exit status, interrupts, resuming."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from meshbook.cli.batch_notebook import BatchError, BatchJob, choose_checkpoints, prepare
from tests.kernel.conftest import Signs, processes_with, without_torch
from tests.support import PATIENCE

pytestmark = pytest.mark.timeout(600)


def make_notebook(path: Path, *sources: str, parameters: int | None = None) -> Path:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    if parameters is not None:
        notebook.cells[parameters].metadata["tags"] = ["parameters"]
    nbformat.write(notebook, path)
    return path


def results_of(path: Path) -> list[str]:
    """Return the results of the cells of an executed copy, as text."""
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", ())]
    return [output.data["text/plain"] for output in outputs if output.output_type == "execute_result"]


class Batch:
    """A run of the command in a process of its own, found again with all that it has started by a variable."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self.mark = f"MESHBOOK_BATCH={folder}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "meshbook", "run", *words],
            cwd=folder,
            env=os.environ | {"MESHBOOK_BATCH": str(folder)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; returns the status and the output."""
        stdout, stderr = self.process.communicate(timeout=5 * PATIENCE)
        return self.process.returncode, stdout, stderr

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        psutil.wait_procs(processes_with(self.mark), timeout=PATIENCE)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    """Start the command in the folder of the test."""
    started: list[Batch] = []

    def begin(*words: str, **environment: str) -> Batch:
        started.append(Batch(tmp_path, *words, **environment))
        return started[-1]

    yield begin
    for each in started:
        each.close()


@pytest.fixture
def signs(tmp_path: Path) -> Iterator[Signs]:
    signs = Signs(tmp_path)
    yield signs
    signs.close()


@pytest.mark.kernel
def test_parameters_the_mesh_and_a_cell_that_fails(tmp_path: Path, run: Any) -> None:
    make_notebook(
        tmp_path / "a.ipynb",
        "lr = 0.1",
        "%mesh up --gpus 8",
        "%%mesh --push lr\nprint('to stdout')\nworld_size, lr",
        "%%mesh\nif rank == 1: 1 / 0",
        "'never'",
        parameters=0,
    )
    status, stdout, stderr = run("a.ipynb", "--gpus", "2", "-p", "lr=1e-3", **without_torch()).end()
    assert status == 1, stderr
    assert results_of(tmp_path / "a.out.ipynb") == ["[0-1] (2, 0.001)"]
    assert "[0-1] to stdout\n[0-1] (2, 0.001)\n" in stdout
    last = stderr.splitlines()[-1]
    assert last.startswith("meshbook: a.ipynb failed in cell 6 (%%mesh / if rank == 1: 1 / 0): ZeroDivisionError")
    assert "[rank 1]" in last
    assert "ZeroDivisionError" in (tmp_path / "a.out.html").read_text()
    assert not processes_with(f"MESHBOOK_BATCH={tmp_path}")


TRAINING = """%%mesh --push pipe
import torch
import torch.distributed as dist
from meshbook import checkpoint

dist.init_process_group("gloo")
state = {"total": torch.zeros(1)}
start = checkpoint.load(state) if checkpoint.latest() is not None else 0
dist.barrier()
for step in range(start + 1, 4):
    state["total"] += step
    checkpoint.save(state, step=step)
    if step == 2:
        with open(pipe, "w") as file:
            file.write("ready ")
        import threading
        threading.Event().wait()  # until it is killed
start, state["total"].item()"""


@pytest.mark.kernel
def test_a_killed_run_leaves_nothing_and_the_next_one_resumes(tmp_path: Path, run: Any, signs: Signs) -> None:
    make_notebook(tmp_path / "a.ipynb", f"pipe = {str(signs.path)!r}", "%mesh up --gpus 2", TRAINING)
    first = run("a.ipynb", "-o", "b.ipynb")
    signs.wait_for("ready", 2, timeout=4 * PATIENCE)
    first.process.kill()
    first.process.communicate()
    _, alive = psutil.wait_procs(processes_with(first.mark), timeout=PATIENCE)
    assert not alive
    status, _, stderr = run("a.ipynb", "-o", "b.ipynb").end()
    assert status == 0, stderr
    assert "resuming from the checkpoint of step 2" in stderr
    assert results_of(tmp_path / "b.ipynb") == ["[0-1] (2, 6.0)"]


@pytest.mark.kernel
def test_a_signal_ends_the_cell_and_saves_the_executed_copy(tmp_path: Path, run: Any, signs: Signs) -> None:
    make_notebook(
        tmp_path / "a.ipynb",
        "%mesh up --gpus 1",
        f"%%mesh\nimport threading\n{signs.definition}tell('ready'); threading.Event().wait()",
        "'never'",
    )
    batch = run("a.ipynb", **without_torch())
    signs.wait_for("ready", timeout=4 * PATIENCE)
    batch.process.send_signal(signal.SIGTERM)
    status, _, stderr = batch.end()
    assert status == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in stderr
    _, cell, never = nbformat.read(tmp_path / "a.out.ipynb", as_version=4).cells
    assert cell.outputs[-1].ename == "KeyboardInterrupt"
    assert never.execution_count is None
    assert not processes_with(batch.mark)


# -- without a kernel ------------------------------------------------------------------


def job(folder: Path, **options: Any) -> BatchJob:
    return BatchJob(folder / "a.ipynb", folder / "a.out.ipynb", **({"parameters": {}} | options))


def write_record(folder: Path, **record: Any) -> None:
    notebook = nbformat.v4.new_notebook(metadata={"meshbook_run": {"parameters": {}, "checkpoints": "2"} | record})
    nbformat.write(notebook, folder / "a.out.ipynb")


@pytest.mark.parametrize(
    ("record", "options", "folder"),
    [
        (None, {}, "1"),
        ({"status": "running"}, {}, "2"),
        ({"status": "failed"}, {}, "2"),
        ({"status": "completed"}, {}, "3"),
        ({"status": "failed"}, {"parameters": {"lr": 1}}, "3"),
        ({"status": "failed", "parameters": {"lr": 1}}, {"parameters": {"lr": 1}}, "2"),
        ({"status": "completed"}, {"resume": True}, "2"),
        ({"status": "failed"}, {"resume": False}, "3"),
    ],
)
def test_the_checkpoints_of_a_run(
    tmp_path: Path, record: dict[str, Any] | None, options: dict[str, Any], folder: str
) -> None:
    if record is not None:
        write_record(tmp_path, **record)
    assert choose_checkpoints(job(tmp_path, **options)) == tmp_path / "a.out.checkpoints" / folder


def test_a_new_run_takes_no_folder_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.out.checkpoints" / "7").mkdir(parents=True)
    assert choose_checkpoints(job(tmp_path)).name == "8"


@pytest.mark.parametrize("text", [None, "{", "{}"], ids=["missing", "broken", "of another program"])
def test_nothing_to_resume(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "a.out.ipynb").write_text(text)
    with pytest.raises(BatchError, match=r"a\.out\.ipynb"):
        choose_checkpoints(job(tmp_path, resume=True))


@pytest.mark.parametrize(
    ("parameters", "tagged", "said"),
    [
        ({"rl": 1}, 0, "no parameter 'rl'; its parameters: lr, steps"),
        ({"base": 1}, 0, "no parameter 'base'; its parameters: lr, steps"),
        ({"rl": 1}, None, "no parameter 'rl'; no cell assigns it"),
        ({"inner": 1}, None, "no parameter 'inner'; no cell assigns it"),
        ({"on_ranks": 1}, None, "no parameter 'on_ranks'; no cell assigns it"),
        ({"lr": 1, "later": 1}, None, "assigns all of lr, later"),
    ],
)
def test_a_parameter_that_no_cell_assigns_is_rejected(
    tmp_path: Path, parameters: dict[str, Any], tagged: int | None, said: str
) -> None:
    sources = ("lr = base * 2\nsteps: int = 3", "later = 1\ndef f(): inner = 1", "%%mesh\non_ranks = 1")
    make_notebook(tmp_path / "a.ipynb", *sources, parameters=tagged)
    with pytest.raises(BatchError, match=said):
        prepare(job(tmp_path, parameters=parameters))


def test_parameters_of_a_notebook_without_their_cell_come_below_the_one_that_assigns_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    make_notebook(tmp_path / "a.ipynb", "%matplotlib inline", "%mesh up\nlr = 2", "lr")
    notebook = prepare(job(tmp_path, parameters={"lr": 1}, mesh=("--hosts", "ssh:a,b")))
    assert [cell.source for cell in notebook.cells] == [
        *("%mesh up --hosts ssh:a,b --fixed", "%matplotlib inline", "%mesh up\nlr = 2"),
        *("# Parameters\nlr = 1\n", "lr"),
    ]
    assert caplog.records == []  # papermill's warning would have no prefix
    assert capsys.readouterr().err == (
        "meshbook: the parameters are set below the first cell that assigns them: %mesh up\n"
    )


def test_a_notebook_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text("no JSON")
    with pytest.raises(BatchError, match="cannot read"):
        prepare(job(tmp_path))
