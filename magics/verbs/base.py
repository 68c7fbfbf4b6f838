"""What a verb of `%mesh` is: what its line asks for, how that is read, what is done; and arguments of several verbs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from meshbook.magics.syntax.argparsing import Parser, count, mesh_name, selector, shape

if TYPE_CHECKING:  # it knows the verbs' lines from nowhere, but most verbs act on it
    from meshbook.magics.notebook import Notebook


class Verb(ABC):
    """A verb as its line asks for it: a frozen dataclass, whose fields are the arguments of its parser."""

    word: ClassVar[str]
    description: ClassVar[str]

    @staticmethod
    @abstractmethod
    def add_arguments(parser: Parser) -> None:
        """Let the parser read the fields, under their names."""

    @abstractmethod
    def run(self, notebook: Notebook) -> None:
        """Do it, and print what there is to say. A `Mistake` where it cannot be done."""

    @classmethod
    def parser(cls) -> Parser:
        """What reads the words after the verb."""
        parser = Parser(prog=f"%mesh {cls.word}", description=cls.description)
        cls.add_arguments(parser)
        return parser


def add_name(parser: Parser, meaning: str) -> None:
    """The name of a mesh, by position."""
    parser.add_argument("name", metavar="NAME", nargs="?", type=mesh_name, help=meaning)


def add_selection(parser: Parser) -> None:
    """A selector, by position."""
    parser.add_argument(
        "selection", metavar="SEL", nargs="?", default="all", type=selector, help="which ranks (default: all)"
    )


def add_size(parser: Parser, *, required: bool) -> None:
    """How large a mesh is to be."""
    size = parser.add_mutually_exclusive_group(required=required)
    size.add_argument("--gpus", metavar="N", type=count, help="how many workers")
    size.add_argument("--shape", metavar="DIM=N,...", type=shape, help="dimensions and sizes, such as hosts=2,gpus=4")
