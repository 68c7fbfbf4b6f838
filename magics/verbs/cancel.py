"""`%mesh cancel`: interrupt jobs."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.parsing import Parser, job_name
from meshbook.magics.verbs.verb import Verb

ALL = "all"


@dataclass(frozen=True)
class CancelVerb(Verb):
    """Interrupt a job (None: the last one), or all of them."""

    word = "cancel"
    description = "Interrupt a job, as Ctrl-C does a cell; a second time breaks process groups, a third time kills."

    job: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "job",
            metavar="N|NAME|all",
            nargs="?",
            type=job_name,
            help="its number, or its variable, or all (default: the last)",
        )

    def run(self, notebook: Notebook) -> None:
        jobs = list(notebook.jobs) if self.job == ALL else [notebook.jobs.find(self.job)]
        told = [f"{job.title} is interrupted" for job in jobs if job.cancel()]
        print("\n".join(told) or "nothing to cancel: " + ("no job runs" if self.job == ALL else f"{jobs[0]!r}"))
