"""The verbs of `%mesh`: for each a frozen dataclass of its arguments, with its parser and `run(notebook)`.

This file has the base class and the arguments that several verbs share, `verb_table` the table of all verbs and the
parser of a line. The other modules have the verbs by theme:

- `start_stop`: up, use, down, resize, heal, restart
- `elastic`: drain, join
- `status`: status, dash, metrics, doctor
- `debugging`: interrupt, stack, debug
- `variables`: push, pull, who, whos, diff
- `jobs`: jobs, result, cancel
- `notebook_settings`: mode, config
- `attach`, `detach`, `curves`, `trace`, `profile`, `log`, `explain`: the verb of that name
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from meshbook.magics.errors import UsageError
from meshbook.magics.syntax.argparsing import Parser, count, mesh_name, quoted, selector, shape
from meshbook.magics.syntax.selectors import parse

if TYPE_CHECKING:  # Notebook does not import the verbs, but most verbs act on it
    from meshbook.magics.notebook import Notebook


class Verb(ABC):
    """A parsed verb: a frozen dataclass, whose fields are the arguments of its parser."""

    word: ClassVar[str]
    description: ClassVar[str]

    @staticmethod
    @abstractmethod
    def add_arguments(parser: Parser) -> None:
        """Add an argument for each field, under its name."""

    @abstractmethod
    def run(self, notebook: Notebook) -> None:
        """Run the verb, and print its result; raises `UserError` if it cannot be done."""

    @classmethod
    def parser(cls) -> Parser:
        """Return the parser of the words after the verb."""
        parser = Parser(prog=f"%mesh {cls.word}", description=cls.description)
        cls.add_arguments(parser)
        return parser


def add_mesh_name(parser: Parser, meaning: str) -> None:
    """Add a mesh name as a positional argument."""
    parser.add_argument("name", metavar="NAME", nargs="?", type=mesh_name, help=meaning)


def add_selection(parser: Parser) -> None:
    """Add a selector as a positional argument."""
    parser.add_argument(
        "selection", metavar="SEL", nargs="?", default="all", type=selector, help="which ranks (default: all)"
    )


def add_mesh_option(parser: Parser) -> None:
    """Add a mesh name as an option."""
    parser.add_argument("--mesh", metavar="NAME", type=mesh_name, help="the mesh of the ranks (default: the current)")


def of_mesh(selection: str, mesh: str | None) -> str:
    """Return the selector of these ranks of this mesh; None: that of the selector. UsageError for two meshes."""
    if mesh is None or selection == "all":
        return mesh or selection
    if parse(selection).mesh is not None:
        raise UsageError(f"the selector {quoted(selection)} and --mesh {mesh} cannot be combined")
    return f"{mesh}[{selection}]"


def add_size(parser: Parser, *, required: bool) -> None:
    """Add the options for the size of a mesh."""
    size = parser.add_mutually_exclusive_group(required=required)
    size.add_argument("--gpus", metavar="N", type=count, help="number of workers")
    size.add_argument("--shape", metavar="DIM=N,...", type=shape, help="dimensions and sizes, such as hosts=2,gpus=4")
