"""`%mesh jobs`, `result` and `cancel`: list jobs, wait for their results, interrupt them."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.output.publisher import Display, Error, LiveDisplay, Publication, publisher_for
from meshbook.magics.syntax.argparsing import Parser, job_name
from meshbook.magics.verbs import Verb


@dataclass(frozen=True)
class JobsVerb(Verb):
    """List the jobs of this notebook, including the last ones that have ended."""

    word = "jobs"
    description = "List the jobs of this notebook (cells with %%mesh -a), running and ended."

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        """Add no arguments."""

    def run(self, notebook: Notebook) -> None:
        print("\n".join(map(repr, notebook.jobs)) or "no jobs; %%mesh -a runs a cell as a job")


@dataclass(frozen=True)
class ResultVerb(Verb):
    """Wait for a job (None: the last one), and show its output, and its value or its error."""

    word = "result"
    description = "Wait for a job, and show its output and its value or error."

    job: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "job",
            metavar="N|NAME",
            nargs="?",
            type=job_name,
            help="number of the job, or the variable that holds it (default: the last job)",
        )

    def run(self, notebook: Notebook) -> None:
        job = notebook.jobs.find(self.job)
        publisher = publisher_for(notebook.shell)
        was_done = job.done()
        publisher.publish([LiveDisplay(job.bundle, update=False, is_final=was_done)])
        job.wait()
        shown: list[Publication] = [] if was_done else [LiveDisplay(job.bundle, update=True, is_final=True)]
        for each in job.output:
            if isinstance(each, LiveDisplay):  # the live area belongs to the job's own cell
                shown.append(Display(each.data, {}))
            elif not isinstance(each, Error):
                shown.append(each)
        publisher.publish(shown)
        job.result()  # raises the job's error in the cell that waits for it


ALL = "all"


@dataclass(frozen=True)
class CancelVerb(Verb):
    """Interrupt a job (None: the last one), or all of them."""

    word = "cancel"
    description = (
        "Interrupt a job, as Ctrl-C interrupts a cell. The second time breaks process groups, the third kills ranks."
    )

    job: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "job",
            metavar="N|NAME|all",
            nargs="?",
            type=job_name,
            help="number of the job, the variable that holds it, or all (default: the last job)",
        )

    def run(self, notebook: Notebook) -> None:
        jobs = list(notebook.jobs) if self.job == ALL else [notebook.jobs.find(self.job)]
        if cancelled := [job.title for job in jobs if job.cancel()]:
            print("\n".join(f"interrupted {title}" for title in cancelled))
        else:
            print("nothing to cancel: " + ("no job is running" if self.job == ALL else f"{jobs[0]!r}"))
