"""`%mesh who`, `whos`, `push`, `pull` and `diff`: list, copy and compare variables on ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser, PullSpec, pull_specs, push_names, remote_variable
from meshbook.magics.syntax.selectors import names_one_rank
from meshbook.magics.variables import operations
from meshbook.magics.variables.compare import compare
from meshbook.magics.variables.listing import format_names, format_table
from meshbook.magics.variables.requests import as_usage_errors, run_steps
from meshbook.magics.verbs import Verb, add_mesh_option, add_selection, of_mesh
from meshbook.runtime.cells.inventory import Entry


@dataclass(frozen=True)
class WhoVerb(Verb):
    """List the variables of these ranks."""

    word = "who"
    description = "List the names of the variables of ranks, grouped by rank."

    selection: str = "all"
    mesh: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_selection(parser)
        add_mesh_option(parser)

    def run(self, notebook: Notebook) -> None:
        ranks = notebook.meshes.ranks_of(of_mesh(self.selection, self.mesh))
        with as_usage_errors():
            print(self._render(run_steps(operations.inventory(*ranks))))

    def _render(self, by_rank: Mapping[int, Sequence[Entry]]) -> str:
        return format_names(by_rank)


@dataclass(frozen=True)
class WhosVerb(WhoVerb):
    """List the variables of these ranks, with their types and values."""

    word = "whos"
    description = "List the variables of ranks with type, size in memory and value; equal values are shown once."

    def _render(self, by_rank: Mapping[int, Sequence[Entry]]) -> str:
        return format_table(by_rank)


@dataclass(frozen=True)
class PushVerb(Verb):
    """Set these variables on ranks to their values in the notebook."""

    word = "push"
    description = "Set variables on ranks to their values in the notebook."

    names: tuple[str, ...]
    selection: str = "all"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument("names", metavar="NAMES", type=push_names, help="variables of the notebook: a,b,c")
        add_selection(parser)

    def run(self, notebook: Notebook) -> None:
        with as_usage_errors():
            values = notebook.values_of(self.names)
            run_steps(operations.push(*notebook.meshes.ranks_of(self.selection), values))


@dataclass(frozen=True)
class PullVerb(Verb):
    """Set these variables in the notebook to lists of their values on ranks, or as `PullSpec.how` says."""

    word = "pull"
    description = (
        "Set variables in the notebook to their values on ranks. c is a list in rank order, c@0 the value of rank 0; "
        "c@mean, c@cat, c@stack and c@first reduce the values of all ranks to one."
    )

    names: tuple[PullSpec, ...]
    selection: str = "all"
    force: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument("names", metavar="NAMES", type=pull_specs, help="variables of the ranks: a,b@0,c@mean")
        add_selection(parser)
        parser.add_argument("--force", action="store_true", help="do not ask before a large pull")

    def run(self, notebook: Notebook) -> None:
        mesh, ranks = notebook.meshes.ranks_of(self.selection)
        wanted = [self._of_one(each, ranks) for each in self.names] if names_one_rank(self.selection) else self.names
        ask = None if self.force else input
        with as_usage_errors():
            notebook.shell.user_ns.update(run_steps(operations.pull(mesh, ranks, wanted, ask=ask)))

    @staticmethod
    def _of_one(wanted: PullSpec, ranks: Sequence[int]) -> PullSpec:
        """Pull the value itself from a single rank: `%mesh pull c 0`, as `c@0` does."""
        return PullSpec(wanted.name, ranks[0]) if wanted.how is None else wanted


@dataclass(frozen=True)
class DiffVerb(Verb):
    """Show how a variable differs between these ranks."""

    word = "diff"
    description = (
        "Show in which parts a variable differs between ranks, which ranks agree, and how far numbers are apart. "
        "Equal parts are not transferred."
    )

    name: str
    selection: str = "all"
    mesh: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "name", metavar="NAME", type=remote_variable, help="variable of the ranks: a tensor, a model, …"
        )
        add_selection(parser)
        add_mesh_option(parser)

    def run(self, notebook: Notebook) -> None:
        ranks = notebook.meshes.ranks_of(of_mesh(self.selection, self.mesh))
        with as_usage_errors():
            print(run_steps(compare(*ranks, self.name)))
