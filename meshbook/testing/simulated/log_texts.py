"""The output of ranks of a simulated mesh, and their stacks. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from meshbook.runtime.telemetry.logbook import Logbook
from meshbook.runtime.telemetry.vitals import Activity
from meshbook.testing.simulated.faults import Kind, SimulatedFaults
from meshbook.widgets.source import StackGroup, Stacks

TALKATIVE = 16  # ranks that log each step; the others log each tenth
SLOW = 1.5  # times the median; slower ranks log it
_WARNING = "\x1b[33mWARNING\x1b[0m"
_LAST_WORDS: Final[dict[Kind, tuple[str, str]]] = {
    "killed": ("\x1b[31mOut of memory: Killed process\x1b[0m\n", "stderr"),
    "failed": ("\x1b[31mRuntimeError\x1b[0m: the loss is not finite: <nan>\n", "stderr"),
    "silent": ("waiting for the file system\n", "stdout"),
    "paused": ("--Return--\n(Pdb) ", "stdout"),
    "starting": ("loading the model\n", "stdout"),
}


def failure_output(kind: Kind) -> tuple[str, str]:
    """Return the output of a rank with such a fault, and its stream."""
    return _LAST_WORDS[kind]


def place(cell: int) -> str:
    """Return the place of breakpoints in a cell."""
    return f"cell {cell}:14"


class FakeLogWriter:
    """Writes the output of the ranks into a logbook."""

    def __init__(self, logbook: Logbook, nodes: Sequence[str]) -> None:
        self._logbook = logbook
        self._nodes = nodes
        self._origin = ""

    def begin_cell(self, cell: int) -> None:
        """Assign later output to this cell."""
        self._origin = f"{cell}.0"
        self.write(0, f"training on {len(self._nodes)} ranks\n")

    def end_cell(self) -> None:
        """End the cell."""
        self._logbook.end_execution(self._origin)

    def write_step(self, step: int, took: npt.NDArray[np.float64]) -> None:
        """Write the output for a step, with its seconds for each rank."""
        loss, usual = 0.5 + 10 * math.exp(-step / 30), float(np.median(took))
        for rank in range(TALKATIVE if step % 10 else len(self._nodes))[: len(self._nodes)]:
            self.write(rank, f"step {step:3d}  loss {loss:.3f}  {took[rank] * 1000:.0f} ms\n")
        for rank in np.flatnonzero(took > SLOW * usual).tolist():
            self.write(rank, f"{_WARNING} step {step} took {took[rank] / usual:.1f} times the usual\n", "stderr")

    def write(self, rank: int, text: str, stream: str = "stdout") -> None:
        """Write a line of a rank."""
        self._logbook.take(self._nodes[rank], self._origin, stream, text)


def stacks_of(at: str, activity: npt.NDArray[np.uint8], faults: SimulatedFaults) -> Stacks:
    """Return the stacks of the main threads, ranks at one place together."""
    ranks_at: dict[str, list[int]] = {}
    for rank, doing in enumerate(activity.tolist()):
        fault = faults.by_rank.get(rank)
        if fault is None or fault.kind != "killed":
            usual = {Activity.RUNNING: "running", Activity.IN_COLLECTIVE: "waiting"}.get(Activity(doing), "idle")
            ranks_at.setdefault(usual if fault is None else fault.kind, []).append(rank)
    return Stacks(at, tuple(StackGroup(tuple(ranks), *_STACKS[at]) for at, ranks in ranks_at.items()))


_LOOP = ("cell 1:12", "for batch in loader:")
_STACKS: Final[dict[str, tuple[str, tuple[tuple[str, str], ...]]]] = {
    "idle": ("main thread: idle", ()),
    "running": ("main thread", (_LOOP, ("cell 1:7 in step", "loss = model(batch).loss"))),
    "waiting": ("main thread: in all_reduce", (_LOOP, ("cell 1:9 in step", "dist.all_reduce(gradients)"))),
    "paused": ("main thread: in the debugger", (_LOOP, ("cell 1:14 in step", "breakpoint()"))),
    "silent": ("main thread: does not answer", (_LOOP, ("data.py:88 in read", "return self._file.read(size)"))),
    "failed": ("main thread: idle, its cell has failed", ()),
    "starting": ("main thread: starting", (("model.py:31 in load", "state = torch.load(path)"),)),
}
