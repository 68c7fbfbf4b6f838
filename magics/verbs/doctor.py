"""`%mesh doctor`: find problems of this installation and this machine."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.doctor.examination import CHECKS
from meshbook.magics.doctor.finding import examine, format_report
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.verbs.base import Verb


@dataclass(frozen=True)
class DoctorVerb(Verb):
    """Examine the installation and the machine, and name remedies."""

    word = "doctor"
    description = "Check the installation and the machine, and suggest fixes."

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        """Add no arguments."""

    def run(self, notebook: Notebook) -> None:
        notebook.session()
        print(format_report(examine(CHECKS)))
