"""`%mesh jobs`: the cells that run beside others, and how they have ended."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.parsing import Parser
from meshbook.magics.verbs.verb import Verb


@dataclass(frozen=True)
class JobsVerb(Verb):
    """List the jobs of this notebook, the last ones that have ended included."""

    word = "jobs"
    description = "List the cells that run beside others (%%mesh -a), and how they have ended."

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        """It takes none."""

    def run(self, notebook: Notebook) -> None:
        print("\n".join(map(repr, notebook.jobs)) or "no jobs: %%mesh -a starts a cell as one")
