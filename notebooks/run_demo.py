"""`make demo`: runs quickstart.ipynb through the real kernel and says what came out.

Writes the executed notebook and an HTML page of it to demo-output/. The exit status is not 0 when a cell
fails that should not, when the cell that should fail does not, when the curves are missing, or when an accuracy is
under 95 %.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import HTMLExporter

NOTEBOOK = Path(__file__).with_name("quickstart.ipynb")
OUTPUT = Path(__file__).parent.parent / "demo-output"
LEAST_ACCURACY = 0.95
CELL_TIMEOUT_S = 180
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def main() -> int:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    started = time.perf_counter()
    failure = execute(notebook)
    wall_s = time.perf_counter() - started
    write(notebook)

    complaints = [failure] if failure else check(notebook)
    if (summary := find_summary(notebook)) is not None:
        report(summary)
    print(f"wall time: {wall_s:.1f} s")
    print(f"written: {OUTPUT.name}/{NOTEBOOK.name}, {OUTPUT.name}/{NOTEBOOK.stem}.html")
    for complaint in complaints:
        print(f"FAILED: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def execute(notebook: nbformat.NotebookNode) -> str | None:
    """Run the cells in place, showing what each one puts out; returns what went wrong, if something did."""
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="meshbook",
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        on_cell_start=show_source,
        on_cell_executed=show_outputs,
    )
    try:
        client.execute()
    except NoSuchKernel:
        return "the kernelspec `meshbook` is not in this environment; run `make setup`"
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return f"{type(error).__name__}: {COLOURS.sub('', str(error)).strip()}"
    return None


def show_source(cell: nbformat.NotebookNode, **_: object) -> None:
    if cell.cell_type == "code":
        first, *rest = cell.source.splitlines()
        print(f"\n▸ {first}{' …' if rest else ''}", flush=True)


def show_outputs(cell: nbformat.NotebookNode, **_: object) -> None:
    for text in map(text_of, cell.outputs):
        for line in text.rstrip().splitlines():
            print(f"    {line}", flush=True)


def text_of(output: Any) -> str:
    """An output as a terminal shows it."""
    if output.output_type == "stream":
        text = output.text
    elif output.output_type == "error":
        text = "\n".join(output.traceback) or f"{output.ename}: {output.evalue}"
    else:
        text = output.data.get("text/plain", "")
    return text if sys.stdout.isatty() else COLOURS.sub("", text)


def write(notebook: nbformat.NotebookNode) -> None:
    OUTPUT.mkdir(exist_ok=True)
    nbformat.write(notebook, OUTPUT / NOTEBOOK.name)
    page, _ = HTMLExporter().from_notebook_node(notebook, resources={"metadata": {"name": "Meshbook quickstart"}})
    (OUTPUT / f"{NOTEBOOK.stem}.html").write_text(page, encoding="utf-8")


def check(notebook: nbformat.NotebookNode) -> list[str]:
    """What is wrong with a notebook that ran to its end."""
    complaints = [
        f"the cell `{cell.id}` should have failed on rank 3 and did not"
        for cell in notebook.cells
        if "raises-exception" in cell.metadata.get("tags", ())
        and not any(output.output_type == "error" for output in cell.outputs)
    ]
    if not any("<svg" in output.get("data", {}).get("text/html", "") for output in outputs_of(notebook)):
        complaints.append("the notebook has no curves")
    summary = find_summary(notebook)
    if summary is None:
        return [*complaints, "the notebook printed no line that begins with `summary:`"]
    for name in ("accuracy", "actor_accuracy"):
        if summary[name] < LEAST_ACCURACY:
            complaints.append(f"{name} is {summary[name]:.1%}, less than {LEAST_ACCURACY:.0%}")
    return complaints


def find_summary(notebook: nbformat.NotebookNode) -> dict[str, Any] | None:
    """What the notebook says of itself in its line `summary: {...}`."""
    for output in outputs_of(notebook):
        for line in output.get("text", "").splitlines():
            if line.startswith("summary: "):
                found: dict[str, Any] = json.loads(line.removeprefix("summary: "))
                return found
    return None


def outputs_of(notebook: nbformat.NotebookNode) -> Iterator[Any]:
    """Yield the outputs of all cells."""
    for cell in notebook.cells:
        yield from cell.get("outputs", ())


def report(summary: dict[str, Any]) -> None:
    print("\nfinal loss      cells   actors")
    pairs = zip(summary["final_losses"], summary["actor_final_losses"], strict=True)
    for rank, (in_cells, in_actors) in enumerate(pairs):
        print(f"  rank {rank}     {in_cells:8.3f} {in_actors:8.3f}")
    print(
        f"accuracy on held-out digits: {summary['accuracy']:.1%} in %%mesh cells, "
        f"{summary['actor_accuracy']:.1%} with actors"
    )


if __name__ == "__main__":
    sys.exit(main())
