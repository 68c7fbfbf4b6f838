"""`%mesh result`: wait for a job, and show what it has given."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.parsing import Parser, job_name
from meshbook.magics.publications import Display, Error, LiveDisplay, Publication
from meshbook.magics.publisher import publisher_for
from meshbook.magics.verbs.verb import Verb


@dataclass(frozen=True)
class ResultVerb(Verb):
    """Wait for a job (None: the last one), and show what it has printed, and its value or its error."""

    word = "result"
    description = "Wait for a job; show what it has printed, and its value or its error."

    job: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "job", metavar="N|NAME", nargs="?", type=job_name, help="its number, or its variable (default: the last)"
        )

    def run(self, notebook: Notebook) -> None:
        job = notebook.jobs.find(self.job)
        publisher = publisher_for(notebook.shell)
        was_done = job.done()
        publisher.publish([LiveDisplay(job.bundle, update=False, is_final=was_done)])
        job.wait()
        shown = [] if was_done else [LiveDisplay(job.bundle, update=True, is_final=True)]
        publisher.publish([*shown, *(_as_it_is_here(each) for each in job.output if not isinstance(each, Error))])
        job.result()  # the cell that asks for it fails as the job has


def _as_it_is_here(shown: Publication) -> Publication:
    """The area of a longer cell is a plain display anywhere else."""
    return Display(shown.data, {}) if isinstance(shown, LiveDisplay) else shown
