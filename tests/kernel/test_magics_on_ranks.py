"""IPython's magics in the body of a `%%mesh` cell: they work on ranks, or an error names what does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook

pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]


@pytest.fixture(scope="module")
def notebook(make_notebook: type[KernelNotebook]) -> Iterator[KernelNotebook]:
    with make_notebook(torch=False) as notebook:
        notebook.run("%mesh up --gpus 2")
        yield notebook


@pytest.mark.parametrize("line", ["%matplotlib inline", "%matplotlib", "%pylab --no-import-all inline"])
def test_figures_appear_below_the_cell(notebook: KernelNotebook, line: str) -> None:
    pytest.importorskip("matplotlib")
    cell = notebook.run(f"%%mesh 0\n{line}\nimport matplotlib.pyplot as plt\nplt.plot([rank])\nplt.show()")
    assert any("image/png" in repr(shown) for shown in cell.displays + cell.updates)


def test_a_backend_that_draws_to_files_can_be_chosen(notebook: KernelNotebook) -> None:
    pytest.importorskip("matplotlib")
    chosen = notebook.run("%%mesh\n%matplotlib agg\nimport matplotlib\nprint(matplotlib.get_backend())")
    assert chosen.stdout.lower() == "[0-1] agg\n"
    notebook.run("%%mesh\n%matplotlib inline")


@pytest.mark.parametrize("line", ["%matplotlib qt", "%matplotlib tk", "%matplotlib widget"])
def test_windows_and_widgets_are_refused_with_what_to_use(notebook: KernelNotebook, line: str) -> None:
    pytest.importorskip("matplotlib")
    error = notebook.run_failing(f"%%mesh\n{line}").error
    assert error["ename"] == "UsageError"
    assert "%matplotlib inline" in error["evalue"]
    # IPython makes a line of text of what %gui raises.
    assert "%matplotlib inline" in notebook.run("%%mesh 0\n%gui qt").stderr


def test_configuration_and_extensions_are_those_of_each_rank(notebook: KernelNotebook) -> None:
    (notebook.folder / "own_extension.py").write_text(
        "def load_ipython_extension(shell):\n    shell.push({'own': 7})\n"
    )
    notebook.run(f"%%mesh\nimport sys\nsys.path.insert(0, {str(notebook.folder)!r})\n%load_ext own_extension")
    assert notebook.run("%%mesh\nown").result == "[0-1] 7"
    notebook.run("%%mesh\n%config InlineBackend.figure_format = 'svg'")
    notebook.run("%%mesh\n%gui")


PIP = """import fcntl, os, sys
environment = os.open(sys.prefix, os.O_RDONLY)
try:
    fcntl.flock(environment, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("alone")
else:
    print("beside others")
"""


def test_one_rank_of_a_host_installs_at_a_time(notebook: KernelNotebook) -> None:
    (notebook.folder / "pip.py").write_text(PIP)
    notebook.run(f"%%mesh\nimport os\nos.chdir({str(notebook.folder)!r})")
    assert notebook.run("%%mesh\n%pip install something").plain.splitlines()[0] == "[0-1] alone"


@pytest.mark.parametrize("line", ["%load x.py", "%history", "%recall 1", "%edit", "%save x 1", "%store rank"])
def test_what_belongs_to_the_notebook_says_so(notebook: KernelNotebook, line: str) -> None:
    error = notebook.run_failing(f"%%mesh\n{line}").error
    assert error["ename"] == "UsageError"
    assert "without %%mesh" in error["evalue"]


def test_meshbook_is_not_loaded_on_a_rank(notebook: KernelNotebook) -> None:
    assert "without %%mesh" in notebook.run_failing("%%mesh\n%load_ext meshbook").error["evalue"]


def test_a_reset_keeps_what_a_cell_finds_on_a_rank(notebook: KernelNotebook) -> None:
    notebook.run("%%mesh\nmade = 1\n%reset -f")
    kept = notebook.run("%%mesh\n(rank, world_size, 'made' in globals())")
    assert kept.result == "[0] (0, 2, False)\n[1] (1, 2, False)"


def test_commands_do_not_wait_in_a_pager(notebook: KernelNotebook) -> None:
    assert notebook.run("%%mesh\n!echo $PAGER $GIT_PAGER").stdout == "[0-1] cat cat\n"


def test_a_rank_looks_like_a_process_of_torchrun(notebook: KernelNotebook) -> None:
    """Lightning refuses to train on several ranks where `sys.ps1` is set, and starts ranks itself where no run is."""
    looks = notebook.run("%%mesh\nimport os, sys\n(hasattr(sys, 'ps1'), 'TORCHELASTIC_RUN_ID' in os.environ)")
    assert looks.result == "[0-1] (False, True)"
