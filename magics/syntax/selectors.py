"""Selectors such as `%%mesh 0:4`. Text -> `Selection` (independent of meshes) -> `SelectedRegion` of ranks.

The grammar, with blanks allowed between tokens:

    selection = name | name "[" part "]" | part
    part      = ["!"] choice
    choice    = "all" | "failed" | "ok" | "changed" | dimensions | ranks
    dimensions= name "=" item {"," name "=" item}
    ranks     = item {"," item}
    item      = number | number "-" number | [number] ":" [number] [":" [number]]

Plain ranks count from 0 in the selected mesh. Numbers and slices have the meaning of list indexes, and `0-2` is 0, 1
and 2, as labels write it. The caller supplies the default mesh and the outcome of the last cell.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

from meshbook.magics.errors import SelectionError
from meshbook.runtime.geometry import Region

_OUTCOMES = {
    "failed": "no rank failed in the last cell",
    "ok": "no rank succeeded in the last cell",
    "changed": "the last cell changed no variable",
}
WORDS = ("all", *_OUTCOMES)

# Quoted text in a message is cut to this length: a pasted file does not help in a traceback.
_QUOTED_LENGTH = 60
# int() of a very long number is slow, and Python rejects it with an unrelated message.
_MOST_DIGITS = 15


@dataclass(frozen=True)
class Index:
    """One rank, or one position along a dimension; negative counts from the end."""

    value: int
    column: int = field(compare=False, default=1)


@dataclass(frozen=True)
class SpanSelector:
    """`start:stop:step`, as for a list."""

    start: int | None
    stop: int | None
    step: int | None
    column: int = field(compare=False, default=1)


@dataclass(frozen=True)
class Range:
    """`first-last`, both included; both must exist."""

    first: int
    last: int
    column: int = field(compare=False, default=1)


Item: TypeAlias = Index | SpanSelector | Range


@dataclass(frozen=True)
class Everything:
    """`all`."""


@dataclass(frozen=True)
class OutcomeSelector:
    """`failed`, `ok` or `changed`: ranks by the outcome of the last cell."""

    word: str
    column: int = field(compare=False, default=1)


@dataclass(frozen=True)
class Ranks:
    """`0,3` or `0:4`: positions in the mesh, whatever its dimensions are."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Dimension:
    """`gpus=0:4`."""

    name: str
    item: Item
    column: int = field(compare=False, default=1)


@dataclass(frozen=True)
class Dimensions:
    """`gpus=0:4,hosts=1`: a slice of the mesh."""

    items: tuple[Dimension, ...]


Choice: TypeAlias = Everything | OutcomeSelector | Ranks | Dimensions


@dataclass(frozen=True)
class Except:
    """`!3`: all ranks but the choice."""

    choice: Choice
    column: int = field(compare=False, default=1)


@dataclass(frozen=True)
class Selection:
    """A parsed selector. `mesh` is None if it names none."""

    text: str
    mesh: str | None
    part: Choice | Except
    column: int = field(compare=False, default=1)


@dataclass(frozen=True)
class LastCell:
    """The outcome of the last cell, in base ranks of the mesh it ran on (None: of the default mesh)."""

    failed: frozenset[int] = frozenset()
    ok: frozenset[int] = frozenset()
    interrupted: frozenset[int] = frozenset()  # failed ranks that were interrupted
    changed: frozenset[int] = frozenset()
    mesh: str | None = None
    serial: int = field(compare=False, default=0)  # in the order in which cells begin


@dataclass(frozen=True)
class SelectedRegion:
    """The selected ranks: a region of the mesh of that name."""

    mesh: str
    region: Region


def parse(text: str) -> Selection:
    """Parse a selector. SelectionError has the invalid part and its position."""
    return _Parser(text).selection()


def resolve(selection: Selection, meshes: Mapping[str, Region], default: str, history: LastCell) -> SelectedRegion:
    """Resolve a selection to ranks of these meshes. SelectionError if it names something that does not exist."""
    name = default if selection.mesh is None else selection.mesh
    resolver = _Resolver(selection, name, default, meshes, history)
    return SelectedRegion(name, resolver.part(selection.part))


_OF_ONE_MESH = r"\s*[^\W\d]\w*\s*(\[[^\]]*\])?\s*"
_OF_SEVERAL = re.compile(rf"{_OF_ONE_MESH}(,{_OF_ONE_MESH})+")


def split_by_mesh(text: str) -> list[str]:
    """Return the selectors of `a,b[0:2]`, each of one mesh by its name; any other selector is the only one."""
    parts = re.split(r",(?![^\[]*\])", text)
    is_several = _OF_SEVERAL.fullmatch(text) and not any(part.strip() in WORDS for part in parts)
    return [part.strip() for part in parts] if is_several else [text]


def names_one_rank(text: str) -> bool:
    """Whether a selector is one rank by its number, `3` or `NAME[-1]`; `3:4` is not, although it selects one rank."""
    part = parse(text).part
    return isinstance(part, Ranks) and len(part.items) == 1 and isinstance(part.items[0], Index)


# --- text -> Selection ---


@dataclass(frozen=True)
class _Token:
    kind: str  # "number", "name", "end", or the mark itself
    text: str
    column: int


_TOKEN = re.compile(
    r"(?P<number>(?<![0-9])-?[0-9]+)|(?P<name>[^\W\d]\w*)|(?P<mark>[!,:=\[\]]|(?<=[0-9])-(?=[0-9]))|(?P<blank>\s+)"
)


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            _fail(text, position + 1, f"unexpected character {text[position]!r}")
        kind, word = str(found.lastgroup), found.group()
        if kind != "blank":
            tokens.append(_Token(word if kind == "mark" else kind, word, position + 1))
        position = found.end()
    return [*tokens, _Token("end", "", len(text) + 1)]


class _Parser:
    """A recursive descent parser, one method per rule. It looks two tokens ahead and never backtracks."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = 0

    def selection(self) -> Selection:
        first, second = self._peek(), self._peek(1)
        has_mesh = first.kind == "name" and second.kind != "=" and (second.kind == "[" or first.text not in WORDS)
        selection = self._named() if has_mesh else Selection(self._text, None, self._part())
        if has_mesh and self._peek().kind == ",":
            self._fail(self._peek(), "only %%mesh cells take several meshes, as in `%%mesh a,b[0]`; select one here")
        self._expect("end", "a comma or the end")
        return selection

    def _named(self) -> Selection:
        name = self._take()
        part: Choice | Except = Everything()
        if self._accept("["):
            part = self._part()
            self._expect("]", "']'")
        return Selection(self._text, name.text, part, name.column)

    def _part(self) -> Choice | Except:
        mark = self._accept("!")
        return Except(self._choice(), mark.column) if mark else self._choice()

    def _choice(self) -> Choice:
        token = self._peek()
        if token.kind == "name":
            return self._dimensions() if self._peek(1).kind == "=" else self._word()
        if token.kind not in ("number", ":"):
            self._unexpected(token, "a selector such as all, 0, 0:4, !3 or gpus=0")
        return self._ranks()

    def _word(self) -> Choice:
        token = self._take()
        if token.text not in WORDS:
            hint = _suggestion(token.text, WORDS)
            self._fail(token, f"{_quoted(token.text)} is not a selector; the words are {', '.join(WORDS)}{hint}")
        return Everything() if token.text == "all" else OutcomeSelector(token.text, token.column)

    def _dimensions(self) -> Dimensions:
        items = [self._dimension()]
        while self._accept(","):
            items.append(self._dimension())
        return Dimensions(tuple(items))

    def _dimension(self) -> Dimension:
        name = self._expect("name", "a dimension, as in gpus=0:4")
        self._expect("=", "'='")
        return Dimension(name.text, self._item(), name.column)

    def _ranks(self) -> Ranks:
        items = [self._item()]
        while self._accept(","):
            items.append(self._item())
        return Ranks(tuple(items))

    def _item(self) -> Item:
        column = self._peek().column
        start = self._number()
        if start is not None and self._accept("-"):
            return self._range(start, column)
        if not self._accept(":"):
            if start is None:
                self._unexpected(self._peek(), "a number, a range such as 0-3 or a slice such as 0:4")
            return Index(start, column)
        stop = self._number()
        return SpanSelector(start, stop, self._step() if self._accept(":") else None, column)

    def _range(self, first: int, column: int) -> Range:
        token = self._peek()
        last = self._number()
        if last is None or not 0 <= first <= last:
            self._fail(token, f"a range must ascend, as 0-3 does; {first}-{token.text} does not")
        return Range(first, last, column)

    def _step(self) -> int | None:
        token = self._peek()
        step = self._number()
        if step is not None and step < 1:
            self._fail(token, f"the step {step} must be 1 or more")
        return step

    def _number(self) -> int | None:
        token = self._accept("number")
        if token is None:
            return None
        if len(token.text) > _MOST_DIGITS:
            self._fail(token, f"the number {_quoted(token.text)} is too large")
        return int(token.text)

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self) -> _Token:
        token = self._peek()
        self._next += 1
        return token

    def _accept(self, kind: str) -> _Token | None:
        return self._take() if self._peek().kind == kind else None

    def _expect(self, kind: str, meaning: str) -> _Token:
        if self._peek().kind != kind:
            self._unexpected(self._peek(), meaning)
        return self._take()

    def _unexpected(self, token: _Token, wanted: str) -> NoReturn:
        found = "the selector ends" if token.kind == "end" else f"found {_quoted(token.text)}"
        self._fail(token, f"expected {wanted}, but {found}")

    def _fail(self, token: _Token, problem: str) -> NoReturn:
        _fail(self._text, token.column, problem)


# --- Selection -> ranks ---


@dataclass(frozen=True)
class _Resolver:
    selection: Selection
    mesh: str
    default: str
    meshes: Mapping[str, Region]
    history: LastCell

    def part(self, part: Choice | Except) -> Region:
        if not isinstance(part, Except):
            return self._choice(part)
        # `!failed` after a cell without failures selects all: here an outcome may select no rank.
        choice = part.choice
        excluded = self._ranks_with(choice) if isinstance(choice, OutcomeSelector) else self._choice(choice).ranks()
        left = frozenset(self._region().ranks()).difference(excluded)
        if not left:
            self._fail(part.column, "the selector excludes all ranks")
        return self._region().pick(left)

    def _choice(self, choice: Choice) -> Region:
        match choice:
            case Everything():
                return self._region()
            case OutcomeSelector():
                return self._outcome(choice)
            case Ranks():
                return self._ranks(choice)
            case Dimensions():
                return self._dimensions(choice)

    def _region(self) -> Region:
        if self.mesh not in self.meshes:
            problem = f"unknown mesh {_quoted(self.mesh)}"
            if not self.meshes:
                self._fail(self.selection.column, f"{problem}; no mesh is up")
            problem += f"; the meshes are {', '.join(map(_quoted, self.meshes))}"
            if self.default in self.meshes and self.mesh in self.meshes[self.default].labels:
                hint = f" (it is a dimension; write {self.mesh}=0 or {self.mesh}=0:2)"
            else:
                hint = _suggestion(self.mesh, [*self.meshes, *WORDS])
            self._fail(self.selection.column, problem + hint)
        return self.meshes[self.mesh]

    def _outcome(self, outcome: OutcomeSelector) -> Region:
        ranks = self._ranks_with(outcome)
        if not ranks:
            self._fail(outcome.column, _OUTCOMES[outcome.word])
        return self._region().pick(ranks)

    def _ranks_with(self, outcome: OutcomeSelector) -> frozenset[int]:
        cells_mesh = self.default if self.history.mesh is None else self.history.mesh
        if cells_mesh != self.mesh:
            problem = f"the last cell ran on {_quoted(cells_mesh)}, not on {_quoted(self.mesh)}"
            self._fail(outcome.column, f"{problem}; write {_quoted(f'{cells_mesh}[{outcome.word}]')}")
        failed = self.history.failed - self.history.interrupted
        by_word = {"failed": failed, "ok": self.history.ok, "changed": self.history.changed}
        return by_word[outcome.word].intersection(self._region().ranks())

    def _ranks(self, ranks: Ranks) -> Region:
        base_ranks = self._region().ranks()
        places = range(len(base_ranks))
        chosen = {place for item in ranks.items for place in self._places(item, places, "rank", self._mesh_size())}
        return self._region().pick(base_ranks[place] for place in chosen)

    def _dimensions(self, dimensions: Dimensions) -> Region:
        cuts: dict[str, int | slice] = {}
        for dimension in dimensions.items:
            if dimension.name in cuts:
                self._fail(dimension.column, f"dimension {_quoted(dimension.name)} is given twice")
            cuts[dimension.name] = self._cut(dimension)
        return self._region().slice(**cuts)

    def _cut(self, dimension: Dimension) -> int | slice:
        sizes = self._region().sizes
        if dimension.name not in sizes:
            problem = f"unknown dimension {_quoted(dimension.name)}; {self._mesh_size()}"
            self._fail(dimension.column, problem + _suggestion(dimension.name, sizes))
        size = sizes[dimension.name]
        places = self._places(dimension.item, range(size), dimension.name, f"the size of {dimension.name} is {size}")
        return places[0] if isinstance(dimension.item, Index) else slice(places.start, places.stop, places.step)

    def _places(self, item: Item, places: range, meaning: str, size: str) -> range:
        """Select positions with an item, as a list index or slice does, but never none."""
        if isinstance(item, SpanSelector):
            chosen = places[item.start : item.stop : item.step]
            if not chosen:
                ends = ["" if end is None else str(end) for end in (item.start, item.stop)]
                written = ":".join(ends if item.step is None else [*ends, str(item.step)])
                self._fail(item.column, f"{meaning} {written} selects nothing; {size}")
            return chosen
        if isinstance(item, Range):
            if item.last >= len(places):
                self._fail(item.column, f"{meaning} {item.last} is out of range; {size}")
            return places[item.first : item.last + 1]
        if not -len(places) <= item.value < len(places):
            self._fail(item.column, f"{meaning} {item.value} is out of range; {size}")
        place = places[item.value]
        return range(place, place + 1)

    def _mesh_size(self) -> str:
        region = self._region()
        sizes = ", ".join(f"{label}={size}" for label, size in region.sizes.items())
        return f"the mesh {_quoted(self.mesh)} has {len(region)} ranks ({sizes or 'no dimensions'})"

    def _fail(self, column: int, problem: str) -> NoReturn:
        _fail(self.selection.text, column, problem)


# --- text of messages ---


def _fail(text: str, column: int, problem: str) -> NoReturn:
    raise SelectionError(f"selector {_quoted(text)}, column {column}: {problem}")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_LENGTH else text[:_QUOTED_LENGTH] + "…")


def _suggestion(name: str, known: Iterable[str]) -> str:
    # The time of difflib grows with the square of the length, and a long name is not a typing error.
    close: Sequence[str] = difflib.get_close_matches(name[:_QUOTED_LENGTH], list(known), n=1)
    return f". Did you mean {close[0]!r}?" if close else ""
