"""Measures completions while a cell runs: of a name of the notebook's, and of one of the ranks'.

    python benchmarks/completion.py [--rounds N] [--json FILE]

From the request to the reply, as a front end sees it. The cells wait, or compute without a pause. In a stock kernel the
reply comes after the cell.
"""

from __future__ import annotations

import statistics
import time

from cells import PATIENCE, SETTLED, TimedNotebook
from report import Report, arguments, seconds_of

TIMES = 40  # requests per median
LOCAL, REMOTE = "steps_d", "%%mesh pair\nmodel.wei"
COMPUTE = "end = time.time() + 600\nwhile time.time() < end: pass"
RUNNING = {
    "no cell": "",
    "a sync cell that waits": "time.sleep(600)",
    "a sync cell that computes": COMPUTE,
    "an async cell": "await asyncio.sleep(600)",
    "a %%mesh cell that waits": "%%mesh pair\ntime.sleep(600)",
    "a %%mesh cell that computes": f"%%mesh pair\n{COMPUTE}",
}


class TypingNotebook(TimedNotebook):
    """A notebook whose front end requests completions."""

    def complete(self, code: str, wanted: str) -> None:
        """Request completions of the end of the code, and wait for the reply."""
        request = self._client.complete(code, len(code))
        while (reply := self._client.get_shell_msg(timeout=PATIENCE))["parent_header"]["msg_id"] != request:
            pass
        assert wanted in reply["content"]["matches"], reply["content"]

    def measure(self, report: Report, running: str) -> None:
        for what, code, wanted in (("local", LOCAL, "steps_done"), ("remote", REMOTE, "weight")):
            self.complete(code, wanted)
            times = [seconds_of(lambda code=code, wanted=wanted: self.complete(code, wanted)) for _ in range(TIMES)]  # type: ignore[misc]
            aim = "under 60" if running != "no cell" else ""
            report.put(f"{what} name beside {running}", statistics.median(times) * 1e3, "ms", aim)


def main() -> None:
    options = arguments("Completion while cells run.", rounds=5)
    report, notebook = Report(), TypingNotebook("meshbook")
    notebook.run_well("%mesh up --gpus 4 --name pair")
    notebook.run_well("import asyncio, time\nsteps_done = 0")
    notebook.run_well("%%mesh pair\nimport time, torch\nmodel = torch.nn.Linear(2, 2)")
    for _ in range(options.rounds):
        for name, source in RUNNING.items():
            cell = notebook.start(source) if source else None
            time.sleep(SETTLED)
            notebook.measure(report, name)
            if cell is not None:
                notebook.interrupt()
                notebook.wait(cell)
    notebook.close()
    report.present(f"completion through a kernel, medians of {TIMES}", options)


if __name__ == "__main__":
    main()
