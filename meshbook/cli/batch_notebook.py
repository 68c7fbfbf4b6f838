"""`meshbook run notebook.ipynb`: a notebook as a batch job, with parameters, an executed copy and an exit status.

papermill injects the parameters, nbclient runs the cells in a kernel of this installation, nbconvert writes the page.
The executed copy records how far the run came, so that the next run of it can go on from its checkpoints.
"""

from __future__ import annotations

import ast
import asyncio
import logging
import os
import re
import shlex
import signal
import symtable
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import HTMLExporter
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from meshbook import checkpoint
from meshbook.cli import print_note
from meshbook.cli.kernelspecs import KERNELSPEC

RECORD = "meshbook_run"  # in the metadata of the executed copy
MESH_TAG = "injected-mesh"  # of the cell that starts the mesh
PARAMETERS = "parameters"  # papermill's tag of the cell below which it sets them
CHECKPOINT_DIR = "MESHBOOK_CHECKPOINT_DIR"
START_SECONDS = 180  # of the kernel, on a busy machine
SAVE_SECONDS = 10.0  # between two saves while a cell runs
# After this time an interrupted cell is interrupted again, which frees ranks that are stuck; at last it is killed.
INTERRUPT_SECONDS = 8.0
MOST_INTERRUPTS = 3
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class BatchError(Exception):
    """The notebook cannot be run; the text says why."""


@dataclass(frozen=True)
class BatchJob:
    """A notebook to run. `mesh`: options of `%mesh up` for the mesh of the run; empty: the notebook starts its own.

    `resume`: go on from the checkpoints of the run before; None: if that did not end well, and had these parameters.
    """

    source: Path
    output: Path
    parameters: Mapping[str, Any]
    mesh: tuple[str, ...] = ()
    resume: bool | None = None


def run_notebook(job: BatchJob) -> int:
    """Run the notebook; returns 0, 1 if a cell fails, or 128 plus the number of the signal that ended it."""
    try:
        notebook = prepare(job)
        environment = dict(os.environ)
        if CHECKPOINT_DIR not in environment:  # else the user chooses between resuming and starting anew
            folder = choose_checkpoints(job)
            notebook.metadata[RECORD].checkpoints = folder.name
            environment[CHECKPOINT_DIR] = str(folder)
            if (step := checkpoint.latest(folder)) is not None:
                print_note(f"resuming from the checkpoint of step {step} in {folder}")
    except BatchError as error:
        print_note(str(error))
        return 1
    client = BatchClient(notebook, output=job.output)
    failure = client.run(environment, job.source.absolute().parent)
    status = 128 + client.signal if client.signal else int(bool(failure))
    notebook.metadata[RECORD].status = "failed" if status else "completed"
    client.save()
    page, _ = HTMLExporter().from_notebook_node(notebook, resources={"metadata": {"name": job.source.stem}})
    job.output.with_suffix(".html").write_text(page, encoding="utf-8")
    print_note(f"written: {job.output}, {job.output.with_suffix('.html')}")
    if client.signal:
        print_note(f"ended by {signal.Signals(client.signal).name}")
    if failure:
        print_note(f"{job.source.name} failed in {failure}")
    return status


def prepare(job: BatchJob) -> Any:
    """Return the notebook with its parameters and the cell that starts its mesh. Raises BatchError."""
    try:
        notebook = load_notebook_node(str(job.source))
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise BatchError(f"cannot read {job.source}: {error}") from error
    if job.parameters:
        _choose_parameters_cell(notebook, job)
        logging.getLogger("papermill").setLevel(logging.ERROR)  # it warns of the same, without our prefix
        notebook = parameterize_notebook(notebook, dict(job.parameters), kernel_name="meshbook", language="python")
    notebook.cells = [cell for cell in notebook.cells if MESH_TAG not in cell.metadata.get("tags", ())]
    if job.mesh:
        words = shlex.join(["up", *job.mesh, "--fixed"])
        notebook.cells.insert(0, nbformat.v4.new_code_cell(f"%mesh {words}", metadata={"tags": [MESH_TAG]}))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.metadata[RECORD] = nbformat.NotebookNode(status="running", parameters=dict(job.parameters))
    return notebook


def _choose_parameters_cell(notebook: Any, job: BatchJob) -> None:
    """Tag the first cell that assigns all parameters, unless one is tagged. BatchError if it does not assign them."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    tagged = [cell for cell in cells if PARAMETERS in cell.metadata.get("tags", ())]
    if found := next((cell for cell in tagged or cells if job.parameters.keys() <= set(assigned_by(cell))), None):
        if not tagged:
            found.metadata["tags"] = [*found.metadata.get("tags", ()), PARAMETERS]
            print_note(f"the parameters are set below the first cell that assigns them: {first_line(found)}")
        return
    known = dict.fromkeys(name for cell in tagged or cells for name in assigned_by(cell))
    unknown = next((name for name in job.parameters if name not in known), None)
    if unknown is None:
        raise BatchError(
            f"no cell of {job.source.name} assigns all of {', '.join(job.parameters)}; assign them in one cell, which "
            f"has the tag `{PARAMETERS}`"
        )
    names = f"its parameters: {', '.join(known) or 'none'}" if tagged else "no cell assigns it"
    raise BatchError(f"{job.source.name} has no parameter {unknown!r}; {names}")


def assigned_by(cell: Any) -> list[str]:
    """Return the variables of the notebook that a cell assigns."""
    try:
        table = symtable.symtable(TransformerManager().transform_cell(cell.source), "cell", "exec")
    except SyntaxError:
        return []
    return [symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()]


def choose_checkpoints(job: BatchJob) -> Path:
    """Return the folder of the run's checkpoints: that of the run before, to resume it, or a new one.

    All runs of an executed copy have their folders beside it. BatchError if there is no run to resume.
    """
    every = job.output.with_suffix(".checkpoints").absolute()
    record = previous_run(job.output)
    resumes = job.resume
    if resumes is None:
        resumes = record.get("status") in ("running", "failed") and record.get("parameters") == dict(job.parameters)
    if resumes:
        if name := record.get("checkpoints"):
            return Path(every, name)
        if job.resume:
            raise BatchError(f"nothing to resume: {job.output} is not the executed copy of a run")
    taken = [int(path.name) for path in every.glob("*") if path.name.isdecimal()]
    return every / str(max([*taken, int(record.get("checkpoints", 0))]) + 1)


def previous_run(output: Path) -> dict[str, Any]:
    """Return the record of the run that has written this executed copy; empty if there is none."""
    try:
        return dict(nbformat.read(output, as_version=4).metadata.get(RECORD, {}))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise BatchError(
            f"cannot read the executed copy {output}: {error}; remove it, or choose another one"
        ) from error


class BatchClient(NotebookClient):
    """Runs the cells of a notebook, prints their output, and saves the executed copy after each of them."""

    def __init__(self, notebook: Any, *, output: Path) -> None:
        super().__init__(notebook, timeout=None, kernel_name=KERNELSPEC.name, extra_arguments=["--log-level=ERROR"])
        self.startup_timeout = START_SECONDS
        self.on_notebook_start = self._take_signals
        self.on_cell_start, self.on_cell_executed = self._begin_cell, self._end_cell
        self.signal = 0  # the first that has arrived
        self._output = output
        self._cell = ""  # that runs, or has run last
        self._interrupts = 0
        self._saved_at = 0.0

    def create_kernel_manager(self) -> Any:
        # The kernel of this installation, also where no kernelspec is installed, or that of another one.
        self.km = self.kernel_manager_class(
            kernel_name=self.kernel_name, kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(KERNELSPEC.parent)])
        )
        return self.km

    def run(self, environment: Mapping[str, str], folder: Path) -> str:
        """Run all cells; returns the cell that failed and its error, or an empty string."""
        self.save()
        try:
            asyncio.run(self.async_execute(env=dict(environment), cwd=str(folder)))
        except (CellExecutionError, CellTimeoutError, DeadKernelError, _Ended) as error:
            return "" if self.signal and not isinstance(error, CellExecutionError) else self._describe(error)
        except RuntimeError as error:  # the kernel did not start
            return "" if self.signal else f"the start of its kernel: {error}"
        return ""

    def save(self) -> None:
        """Write the executed copy; a copy is there at every time."""
        draft = self._output.with_name(f".{self._output.name}")
        nbformat.write(self.nb, draft)
        draft.replace(self._output)
        self._saved_at = time.monotonic()

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        """Handle a message of the kernel as nbclient does; also print it and save it."""
        output = super().process_message(msg, cell, cell_index)
        if msg["msg_type"] == "stream":
            content = msg["content"]
            stream = sys.stderr if content["name"] == "stderr" else sys.stdout
            self._print(content["text"], stream)
        if time.monotonic() - self._saved_at > SAVE_SECONDS:
            self.save()
        return output

    def _begin_cell(self, cell: Any, cell_index: int) -> None:
        if self.signal:  # the last cell has handled the interrupt
            raise _Ended
        if has_code(cell):
            number = self.code_cells_executed + 1
            print_note(f"cell {number} of {sum(map(has_code, self.nb.cells))}")
            self._cell = f"cell {number} ({first_line(cell)})"

    def _end_cell(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        for output in cell.outputs:
            if output.output_type in ("display_data", "execute_result") and "text/plain" in output.data:
                self._print(f"{output.data['text/plain']}\n", sys.stdout)
            elif output.output_type == "error":
                self._print("\n".join([*output.traceback, ""]), sys.stderr)
        self.save()

    def _print(self, text: str, stream: TextIO) -> None:
        """Print output of the notebook. If the reader has gone, as in `| head -1`, the run ends as by SIGPIPE."""
        if self.signal == signal.SIGPIPE:
            return
        try:
            print(_plain(text, stream), end="", file=stream, flush=True)
        except BrokenPipeError:
            if not self.signal:
                self._interrupt(signal.SIGPIPE)

    def _describe(self, error: BaseException) -> str:
        """Return the cell that failed, with its number and first line, and the error."""
        what = f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else str(error)
        return f"{self._cell}: {_COLOURS.sub('', what).strip().removesuffix(':')}"

    # -- signals -----------------------------------------------------------------

    def _take_signals(self, notebook: Any) -> None:
        """Replace the handlers of nbclient, which kill the kernel and lose the output of its cell."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, partial(self._interrupt, number))

    def _interrupt(self, number: int) -> None:
        """Interrupt the cell that runs. `%%mesh` cells escalate with each interrupt; at last the kernel is killed."""
        self.signal = self.signal or number
        self._interrupts += 1
        if self.km is None or not self.km.has_kernel:
            return
        if self._interrupts > MOST_INTERRUPTS:
            self._stopping = asyncio.ensure_future(self.km.shutdown_kernel(now=True))
            return
        self._stopping = asyncio.ensure_future(self.km.interrupt_kernel())
        asyncio.get_running_loop().call_later(INTERRUPT_SECONDS, self._interrupt, number)


class _Ended(CellControlSignal):
    """A signal has ended the run between two cells."""


def has_code(cell: Any) -> bool:
    """Whether a cell is run."""
    return bool(cell.cell_type == "code" and cell.source.strip())


def first_line(cell: Any) -> str:
    """Return the first line of a cell, and of one that begins with a magic for cells, the line of code below it."""
    first, *others = filter(None, map(str.strip, cell.source.splitlines()))
    return " / ".join([first, *others[:1]]) if first.startswith("%%") else first


def read_parameter(text: str) -> tuple[str, Any]:
    """Parse `lr=1e-3`: a value of JSON or Python, else text. ValueError without a name."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise ValueError(f"must be NAME=VALUE, not {text!r}")
    words = {"true": True, "false": False, "null": None}
    try:
        return name, words[value] if value in words else ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def _plain(text: str, stream: Any) -> str:
    """Return the text without colours, unless the stream is a terminal."""
    return text if stream.isatty() else _COLOURS.sub("", text)
