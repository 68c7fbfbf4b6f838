"""The other ways in: a stock kernel with the extension, a notebook run by nbclient, IPython on a terminal.

Interrupts through a stock kernel are in `test_interrupts`, whose tests run over both kernels.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from papermill.exceptions import PapermillExecutionError

pytestmark = pytest.mark.kernel


# --- %load_ext meshbook in a stock kernel ---


@pytest.fixture(scope="module")
def stock_notebook(make_notebook: Any) -> Iterator[Any]:
    with make_notebook("python3", torch=False) as notebook:
        notebook.run("%mesh up --gpus 2")
        yield notebook


def test_a_stock_kernel_runs_cells_on_ranks(stock_notebook: Any) -> None:
    cell = stock_notebook.run("%%mesh\nprint('out')\nrank * 10")
    assert (cell.stdout, cell.result) == ("[0-1] out\n", "[0] 0\n[1] 10")
    assert stock_notebook.run("#mesh: gpus=1\nrank").result == "[1] 1"


def test_a_notebook_with_mesh_cells_is_run_within_a_cell(stock_notebook: Any, tmp_path: Path) -> None:
    source = "%%mesh\nfrom_file = rank\nprint('from the file')"
    nbformat.write(make_notebook_file(source), tmp_path / "setup.ipynb")
    assert stock_notebook.run(f"%run {tmp_path / 'setup.ipynb'}").stdout == "[0-1] from the file\n"
    assert stock_notebook.run("%%capture kept\n%%mesh\nprint(from_file)").outputs == []
    assert stock_notebook.evaluate("kept.stdout") == "[0] 0\n[1] 1\n"


def test_a_stock_kernel_shows_the_ranks_traceback(stock_notebook: Any) -> None:
    failed = stock_notebook.run_failing("%%mesh\nx = 1\nif rank: 1 / 0")
    assert failed.traceback.startswith("[rank 1] ZeroDivisionError: division by zero\n")
    assert "----> 3 if rank: 1 / 0" in failed.traceback
    assert stock_notebook.run("%%mesh failed\nrank").result == "[1] 1"


def test_a_flood_through_a_stock_kernel_ends_and_says_what_is_not_shown(stock_notebook: Any) -> None:
    cell = stock_notebook.run("%%mesh 0 -o flood\nfor n in range(20_000): print(n)\nfor n in range(1040): display(n)")
    assert len(cell.messages) < 200
    shown = "".join(output.get("text") or output.data["text/plain"] for output in cell.outputs)
    assert "lines not shown (%mesh log 0; with -o NAME, NAME[0].stdout has all" in shown
    assert "… 1,000 more displays of [0] are not shown (with -o NAME, NAME[0].displays has them)" in shown
    assert stock_notebook.evaluate("flood[0].stdout.count('\\n'), len(flood[0].displays)") == (20_000, 1040)


def test_a_stock_kernel_shows_what_actors_print(stock_notebook: Any) -> None:
    cell = stock_notebook.run(
        "from meshbook import Actor, endpoint\n"
        "class Talker(Actor):\n    @endpoint\n    def say(self): print('said')\n"
        "mesh.slice(gpus=1).spawn('talkers', Talker).say.call().get();"
    )
    stock_notebook.wait_until(lambda: bool(cell.stdout))
    assert cell.stdout == "[mesh 1] said\n"


@pytest.mark.parametrize(
    ("again", "said"),
    [
        ("%load_ext meshbook", "already loaded"),
        ("%reload_ext meshbook", ""),
        ("%unload_ext meshbook", "doesn't define how to unload it"),
        ("import meshbook; meshbook.load_ipython_extension(get_ipython())", ""),
    ],
)
def test_loading_again_changes_nothing(stock_notebook: Any, again: str, said: str) -> None:
    stock_notebook.run("%%mesh\nkept = 'still here'")
    count = "len(get_ipython().input_transformers_cleanup), len(get_ipython().events.callbacks['pre_run_cell'])"
    before = stock_notebook.evaluate(count)
    assert said in stock_notebook.run(again).stdout
    assert stock_notebook.evaluate(count) == before
    assert stock_notebook.run("%%mesh\nkept").result == "[0-1] 'still here'"


def test_the_doctor_examines_what_the_kernel_runs_in(stock_notebook: Any) -> None:
    told = stock_notebook.run("%mesh doctor").stdout
    assert f"({sys.executable})" in told
    assert re.search(r"^ok +a worker +starts in \S+ s, and answers a call in \d+ µs$", told, re.MULTILINE)
    assert stock_notebook.run("%mesh status").stdout.startswith("mesh: 2 ranks")


# --- other things of its name in the notebook's folder ---


def test_a_folder_that_is_named_meshbook_hides_nothing(open_notebook: Any) -> None:
    files = {"meshbook/__init__.py": "raise ImportError('not this one')", "own.py": "value = 7"}
    notebook = open_notebook(files=files)
    notebook.run("%mesh up --gpus 1")
    assert notebook.run("import own; own.value").result == "7"
    assert notebook.run("%%mesh\nimport own, meshbook.checkpoint; own.value").result == "[0] 7"


# --- nbclient ---


def make_notebook_file(*sources: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def execute(notebook: nbformat.NotebookNode, folder: Path, **options: Any) -> None:
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, kernel_name="meshbook", timeout=60, resources=resources, **options).execute()


def test_nbclient_stops_at_a_mesh_cell_that_fails(tmp_path: Path) -> None:
    notebook = make_notebook_file("%mesh up --gpus 2", "%%mesh\nif rank: 1 / 0", "'never'")
    with pytest.raises(CellExecutionError) as caught:
        execute(notebook, tmp_path)
    assert caught.value.ename == "ZeroDivisionError"
    assert caught.value.evalue == "[rank 1] ZeroDivisionError: division by zero (cell 2:2)"
    told = re.sub(r"\x1b\[[0-9;]*m", "", str(caught.value))
    assert "%%mesh\nif rank: 1 / 0" in told
    assert "[rank 1] ZeroDivisionError: division by zero\n" in told
    assert "----> 2 if rank: 1 / 0" in told
    assert [output.output_type for output in notebook.cells[1].outputs] == ["error"]
    assert notebook.cells[2].execution_count is None


def test_nbclient_goes_on_where_errors_are_allowed(tmp_path: Path) -> None:
    notebook = make_notebook_file("%mesh up --gpus 2", "%%mesh\nif rank: 1 / 0", "%%mesh\nrank", "%%mesh\ninput('?')")
    execute(notebook, tmp_path, allow_errors=True)
    assert notebook.cells[2].outputs[0].data["text/plain"] == "[0] 0\n[1] 1"
    assert notebook.cells[3].outputs[0].ename == "StdinNotImplementedError"


# --- papermill ---


def test_papermill_passes_parameters_and_stops_at_a_mesh_cell_that_fails(tmp_path: Path) -> None:
    source, executed = tmp_path / "source.ipynb", tmp_path / "executed.ipynb"
    notebook = make_notebook_file(
        "ranks = 1", "%mesh up --gpus {ranks}", "%%mesh\nworld_size", "%%mesh\nnope", "'never'"
    )
    notebook.cells[0].metadata["tags"] = ["parameters"]
    notebook.metadata["kernelspec"] = {"name": "meshbook", "display_name": "Meshbook", "language": "python"}
    nbformat.write(notebook, source)
    with pytest.raises(PapermillExecutionError) as caught:
        papermill.execute_notebook(source, executed, {"ranks": 2}, kernel_name="meshbook", progress_bar=False)
    assert (caught.value.ename, caught.value.exec_count) == ("NameError", 5)
    saved = {cell.source: cell for cell in nbformat.read(executed, as_version=4).cells}
    assert saved["%%mesh\nworld_size"].outputs[0].data["text/plain"] == "[0-1] 2"
    assert saved["'never'"].execution_count is None


# --- IPython on a terminal ---

SCRIPT = """
%load_ext meshbook
%mesh up --gpus 2
run = get_ipython().run_cell
run("%%mesh\\nprint('out')\\nrank * 10")
run("%%mesh\\nif rank: 1 / 0")
run("%%mesh 9\\n1")
"""


def test_the_magics_work_on_a_terminal(tmp_path: Path) -> None:
    script = tmp_path / "script.ipy"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", str(script)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ranks 0-1 up in" in said
    assert "[0-1] out\n" in said
    assert "[0] 0\n[1] 10\n" in said
    assert "[rank 1] ZeroDivisionError: division by zero\n" in said
    assert "rank 9 is out of range" in said


# --- monitoring systems ---


def test_metrics_are_scraped_while_a_cell_runs_until_they_are_switched_off(stock_notebook: Any, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    assert "no metrics are exported" in stock_notebook.run("%mesh metrics").stdout
    url = stock_notebook.run("%mesh metrics --prometheus 0").stdout.removeprefix("Prometheus: ").strip()
    gate = tmp_path / "gate"
    cell = stock_notebook.start(f"%%mesh 1\nimport os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)")
    labels = f'activity="running",host="{socket.gethostname()}",mesh="mesh"'
    stock_notebook.wait_until(lambda: f'meshbook_rank_activity{{{labels},rank="1"}} 1.0' in scrape(url))
    assert f'meshbook_rank_activity{{{labels},rank="0"}} 0.0' in scrape(url)
    gate.touch()
    stock_notebook.wait(cell)
    assert "already served at" in stock_notebook.run_failing("%mesh metrics --prometheus 0").error["evalue"]
    assert "no metrics are exported" in stock_notebook.run("%mesh metrics --off").stdout
    with pytest.raises(urllib.error.URLError):
        scrape(url)


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return str(reply.read().decode())
