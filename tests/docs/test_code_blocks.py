"""Runs the Python blocks of README.md and of all pages in docs/, from top to bottom, as cells of one notebook.

A block is what ```` ```python ```` begins; it may have `%mesh`, `%%mesh` and `await`. Each page begins in an empty
folder, with the variable `mesh`: four ranks, which are the current mesh. HTML comments before a block change how it
runs; GitHub and the site hide them:

    <!-- not run: needs Slurm -->      the block only has to compile; the reason says what is missing here
    <!-- raises: ZeroDivisionError -->  the cell has to fail with an error of this name
    <!-- setup
    batch = torch.ones(8)               code that runs first: what the reader has, such as a model or data
    -->

All pages share a kernel, which starts the ranks anew for each page. That takes a fraction of a second, as the fork
server has imported torch already.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernel.conftest import KernelNotebook
from tests.support import few

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PART = re.compile(r"^<!--(?P<comment>.*?)-->|^```(?P<language>\w*)\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"\s*(setup\n|not run:|raises:)(.*)", re.DOTALL)
BLOCK_TIMEOUT = 240.0  # seconds, on a busy machine

# Names of the first cell stay; meshes with a variable end, and so do their processes.
NOTE_NAMES = "_names_of_all_pages = {*globals()}"
CLEAR = """
def _clear():
    from meshbook import DeviceMesh, ProcMesh
    from meshbook.magics.errors import MeshError
    from meshbook.magics.variables.mesh_handle import NotebookProcMesh

    names = {name for name in globals().keys() - _names_of_all_pages if not name.startswith("_")}
    own = {name: globals().pop(name) for name in names}
    for name in {each.notebook_mesh.name for each in own.values() if isinstance(each, NotebookProcMesh)} | {"mesh"}:
        try:
            get_ipython().run_line_magic("mesh", f"down {name} --now")
        except MeshError:
            pass  # the page has stopped it
    for value in own.values():
        if isinstance(value, DeviceMesh | ProcMesh) and not isinstance(value, NotebookProcMesh):
            stopped = value.stop()
            if stopped is not None:
                stopped.get()

_clear()
"""


@dataclass(frozen=True)
class Block:
    """A Python block of a page, with its markers."""

    line: int
    source: str
    setup: tuple[str, ...] = ()
    reason: str = ""  # why it is not run
    error: str = ""  # the class of the error with which it fails


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the Python blocks of a page; raises ValueError for a marker without a block."""
    text = page.read_text("utf-8")
    setup: list[str] = []
    other: dict[str, str] = {}
    for part in PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        if part["comment"] is not None:
            if (marker := MARKER.match(part["comment"])) is None:
                continue
            if marker[1] == "setup\n":
                setup.append(marker[2])
            else:
                other[marker[1]] = marker[2].strip()
        elif part["language"] == "python":
            yield Block(line, part["source"], tuple(setup), other.get("not run:", ""), other.get("raises:", ""))
            setup, other = [], {}
        elif setup or other:
            raise ValueError(f"{page.name}:{line}: a marker stands before a block that is not Python")
    if setup or other:
        raise ValueError(f"{page.name}: the last marker has no block")


BLOCKS = {str(page.relative_to(ROOT)): list(blocks_of(page)) for page in PAGES}
RUNNABLE = [name for name, blocks in BLOCKS.items() if any(not block.reason for block in blocks)]


def check_syntax(source: str, name: str, line: int) -> None:
    """Raise SyntaxError, with the line of the page, unless this is a cell of a notebook."""
    from IPython.core.inputtransformer2 import TransformerManager

    padding = "\n" * line
    if source.startswith("%%"):
        _, _, source = source.partition("\n")
        padding += "\n"
    transformed = TransformerManager().transform_cell(source)
    compile(padding + transformed, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_compiles(name: str) -> None:
    for block in BLOCKS[name]:
        for source in (*block.setup, block.source):
            check_syntax(source, name, block.line)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_runs_or_says_why_not(name: str) -> None:
    for block in BLOCKS[name]:
        assert not block.reason or len(block.reason.split()) > 1, f"{name}:{block.line}: give a reason"
        assert not (block.reason and (block.error or block.setup)), f"{name}:{block.line}: a block that is not run"


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelNotebook]:
    with KernelNotebook() as notebook:
        notebook.run(NOTE_NAMES)
        yield notebook
        notebook.run("import meshbook\nmeshbook.close_session()")  # waits for the agent and the fork server


@pytest.fixture
def page(kernel: KernelNotebook, tmp_path: Path) -> Iterator[KernelNotebook]:
    """A notebook with a mesh of four ranks, in an empty folder."""
    kernel.run(f"import os\nos.chdir({str(tmp_path)!r})\ndel os")
    kernel.run("%mesh up --gpus 4")
    yield kernel
    kernel.run("%mesh mode off")
    kernel.run(CLEAR)


@pytest.mark.kernel
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", few(RUNNABLE, 8))
def test_the_blocks_of_a_page_run(page: KernelNotebook, name: str) -> None:
    pytest.importorskip("torch")
    for block in BLOCKS[name]:
        if block.reason:
            continue
        for setup in block.setup:
            run_cell(page, setup, f"{name}:{block.line} (setup)")
        run_cell(page, block.source, f"{name}:{block.line}", block.error)


def run_cell(notebook: KernelNotebook, source: str, place: str, error: str = "") -> None:
    """Run a cell, which has to succeed or to fail with an error of this name."""
    cell = notebook.wait(notebook.start(source), BLOCK_TIMEOUT)
    assert cell.reply is not None
    if cell.reply["status"] == "error":
        assert cell.error["ename"] == error, f"{place}\n{cell.traceback}"
    else:
        assert not error, f"{place} does not raise {error}"
