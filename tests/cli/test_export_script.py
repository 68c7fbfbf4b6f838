"""`meshbook export`: the script of a notebook, and the cells that cannot be exported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from meshbook.__main__ import main
from meshbook.cli.export_script import export, make_script
from tests.support import PATIENCE

TRAINING = (
    "%mesh up --gpus 2\n%mesh status",
    "steps = 3  # of the training",
    '%%mesh --push steps\nimport torch\nimport torch.distributed as dist\n\ndist.init_process_group("gloo")',
    "%%time\n%%mesh -o history\ntotal = torch.zeros(1)\nfor step in range(steps):\n"
    "    part = torch.full((1,), float(rank + step))\n    dist.all_reduce(part)\n    total += part\ntotal.item()",
    '%%mesh 0\ntext = """first\nsecond"""\nprint(text, world_size, device)',
    "%%mesh -1\nlast = rank\nlast;",
    "%mesh down",
)


def notebook_of(*sources: str) -> nbformat.NotebookNode:
    cells = [nbformat.v4.new_markdown_cell("# Training\n\nof a sum")]
    return nbformat.v4.new_notebook(cells=cells + [nbformat.v4.new_code_cell(source) for source in sources])


def refusal_of(*sources: str) -> str:
    """Return the last line about cells that cannot be exported; empty if all can."""
    return (make_script(notebook_of(*sources), "a.ipynb")[1] or [""])[-1]


def code_of(*sources: str) -> list[str]:
    """Return the lines of the script below its docstring."""
    text, refused = make_script(notebook_of(*sources), "a.ipynb")
    assert not refused
    return text.partition('"""\n')[2].splitlines()


@pytest.mark.process
@pytest.mark.parametrize(
    "launcher",
    [
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
        ["-m", "meshbook", "run", "--procs", "2"],
    ],
    ids=["torchrun", "meshbook run"],
)
def test_the_script_runs(tmp_path: Path, launcher: list[str]) -> None:
    source, script = tmp_path / "a.ipynb", tmp_path / "a.py"
    nbformat.write(notebook_of(*TRAINING), source)
    assert main(["export", str(source)]) == 0
    assert "torchrun --nproc-per-node 2 a.py" in script.read_text()
    done = subprocess.run(
        [sys.executable, *launcher, str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    # Not by line: under torchrun, two ranks write to one pipe without buffers.
    assert sorted(re.findall(r"9\.0|first|second 2 cpu", done.stdout)) == ["9.0", "9.0", "first", "second 2 cpu"]


def test_cells_that_cannot_be_exported_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, script = tmp_path / "a.ipynb", tmp_path / "a.py"
    nbformat.write(notebook_of("%mesh up", "%%mesh\nx = 1", "print(1)", "%%mesh\n%pip install x"), source)
    assert export(source, script) == 1
    said = capsys.readouterr().err
    assert "2 cells of a.ipynb cannot be exported" in said
    assert "  cell 3 (print(1)): it runs in the notebook" in said
    assert "  cell 4 (%%mesh): it is not plain Python: %pip install x" in said
    assert not script.exists()


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("%%writefile a.py\nx = 1", "%%writefile"),
        ("!ls", "!ls"),
        ("%timeit 1", "%timeit"),
        ("%on 0 print(1)", "%on"),
        ("%mesh mode on", "%mesh mode"),
        ("x = mesh.pull('x')", "it runs in the notebook"),
        ("%%mesh --pull x\nx = 1", "--pull"),
        ("%%mesh --seq\nx = 1", "--seq"),
        ("%%mesh --push lr\nlr", "--push lr"),
        ("%%mesh failed\n1", "depends on the cell before"),
        ("%%mesh other[0]\n1", "names a mesh"),
        ("%%mesh hosts=0\n1", "dimension hosts"),
        ("%%mesh 0:\n1 +", "not plain Python"),
        ("%%mesh\npoint.gpus", "no point"),
        ("%%mesh\ndisplay(1)", "no display"),
        ("%%mesh\nawait f()", "await"),
        ("%%mesh --nonsense\n1", "--nonsense"),
    ],
    ids=lambda text: text.partition("\n")[0],
)
def test_reasons(cell: str, reason: str) -> None:
    assert reason in refusal_of("%mesh up --gpus 2", cell).partition("): ")[2]


def test_a_variable_of_both_the_notebook_and_the_ranks_is_refused() -> None:
    assert "it assigns lr" in refusal_of("%%mesh\nlr = 0.1", "lr = 1")
    assert refusal_of("lr = 1", "%%mesh\nlr = 0.1") == ""


def test_a_second_mesh_or_group_is_refused() -> None:
    assert "a second mesh" in refusal_of("%mesh up", "%mesh up --name other")
    assert "a second process group" in refusal_of("await mesh.init_process_group()", "await mesh.init_process_group()")


@pytest.mark.parametrize(
    ("selector", "condition"),
    [
        ("0", "rank == 0"),
        ("-1", "rank == world_size - 1"),
        ("0,3", "rank == 0 or rank == 3"),
        ("0-2", "0 <= rank <= 2"),
        ("::2", "rank in range(world_size)[::2]"),
        ("1:", "rank in range(world_size)[1:]"),
        ("!3", "not (rank == 3)"),
        ("gpus=1", "rank == 1"),
    ],
)
def test_selectors_become_conditions(selector: str, condition: str) -> None:
    assert f"if {condition}:" in code_of("%mesh up --gpus 4", f"%%mesh {selector}\nprint(1)")


def test_the_group_of_the_mesh_becomes_one_of_the_script() -> None:
    lines = code_of('%mesh up --gpus 2\nx = 1\nawait mesh.init_process_group("gloo")\ny = 2', "%%mesh\nprint(x, y)")
    assert 'torch.distributed.init_process_group("gloo")'.replace('"', "'") in lines
    assert lines.index("x = 1") < lines.index("y = 2")
    assert lines[-1] == "    torch.distributed.destroy_process_group()"
    assert "    torch.cuda.set_device(device)" in lines


def test_a_cell_that_is_expected_to_raise_is_refused() -> None:
    notebook = notebook_of("%%mesh\n1 / 0")
    notebook.cells[1].metadata["tags"] = ["raises-exception"]
    assert "expected to raise" in make_script(notebook, "a.ipynb")[1][0]
