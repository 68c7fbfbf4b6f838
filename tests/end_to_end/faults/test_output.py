"""A flood of output, through a real notebook as it is run headless."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.kernel, pytest.mark.long, pytest.mark.timeout(600)]  # 15 s on a quiet machine

LINES = 1_000_000
# MiB that this process has had at most. Not `ru_maxrss`: that begins with what its parent had when it was forked.
PEAK = "int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) >> 10"
CELLS = [
    "%mesh up --gpus 2",
    f"%%mesh -o flood\nfor number in range({LINES}): print('line', number, 'of rank', rank)",
    PEAK,
    f"[flood[r].stdout == ''.join(f'line {{i}} of rank {{r}}\\n' for i in range({LINES})) for r in (0, 1)]",
    f"%%mesh -o peaks\n{PEAK}",
    "max(peaks.values)",
    "del flood\n%mesh down",
]


def test_a_million_lines_of_each_rank() -> None:
    """The cell stays small and says how many lines there were; all of them are kept, and not in the kernel's memory."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    NotebookClient(notebook, kernel_name="meshbook", timeout=None).execute()
    _, flood, of_kernel, checked, _, of_ranks, _ = notebook.cells
    shown = str(flood.outputs)
    assert len(shown) < 2_000_000
    assert f"line {LINES - 1} of rank 0" in shown
    assert "lines not shown" in shown
    assert checked.outputs[0].data["text/plain"] == "[True, True]"
    assert int(of_kernel.outputs[0].data["text/plain"]) < 300, "the text is 50, and in files"
    assert int(of_ranks.outputs[0].data["text/plain"]) < 700, "a rank of its own has some 160"
