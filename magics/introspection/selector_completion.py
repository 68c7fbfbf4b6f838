"""Completion of a selector: words, meshes, dimensions, ranks. Pure: text and meshes in, matches out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from meshbook.magics.syntax.selectors import WORDS
from meshbook.runtime.cells.completion import Match

MOST_RANKS = 16  # of a mesh or dimension that are offered individually
_SELECTOR = re.compile(r"(?P<head>(?:(?P<mesh>[^\W\d]\w*)\[)?(?P<no>!?)(?P<before>[^]]*,)?)(?P<piece>[^],]*)")


@dataclass(frozen=True)
class SelectorScope:
    """The names to choose from: each mesh's sizes by dimension, the default mesh, variables and jobs."""

    meshes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    default: str = ""
    local: Sequence[str] = ()  # variables of the notebook
    remote: Sequence[str] = ()  # variables of the default mesh
    jobs: Sequence[str] = ()  # their numbers and variables
    hosts: Sequence[str] = ()  # of all meshes

    def sizes(self, mesh: str | None = None) -> Mapping[str, int]:
        return self.meshes.get(mesh or self.default, {})


def complete_selector(text: str, start: int, scope: SelectorScope) -> list[Match]:
    """Complete the end of a selector, which begins at `start` in the cell."""
    found = _SELECTOR.fullmatch(text)
    if found is None:
        return []
    at, piece = start + found.start("piece"), found["piece"]
    sizes = scope.sizes(found["mesh"])
    if "=" in piece:
        name, _, value = piece.partition("=")
        at += len(name) + 1
        return _matches(_indices(sizes.get(name, 0)), value, at)
    if before := found["before"]:
        return _matches(_after_comma(before, sizes), piece, at)
    offers = [(word, "ranks") for word in WORDS]
    if not found["head"]:
        offers += [(text, "mesh") for name in scope.meshes for text in (name, f"{name}[")]
    return _matches([*offers, *_dimensions(sizes), *_indices(_count(sizes))], piece, at)


def complete_mesh(text: str, start: int, scope: SelectorScope) -> list[Match]:
    """Complete the name of a mesh."""
    return _matches([(name, "mesh") for name in scope.meshes], text, start)


def complete_rank(text: str, start: int, scope: SelectorScope) -> list[Match]:
    """Complete one rank of the default mesh."""
    ranks = range(min(_count(scope.sizes()), MOST_RANKS))
    return _matches([(str(rank), "rank") for rank in ranks], text, start)


def _matches(offers: list[tuple[str, str]] | Iterator[tuple[str, str]], piece: str, start: int) -> list[Match]:
    return [Match(text, start, start + len(piece), kind) for text, kind in offers if text.startswith(piece)]


def _dimensions(sizes: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    return ((f"{name}=", "dimension") for name in sizes)


def _after_comma(before: str, sizes: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Offer what may follow a comma: unused dimensions, or more ranks."""
    if "=" not in before:
        return _indices(_count(sizes))
    taken = {part.partition("=")[0].strip() for part in before.split(",")}
    return _dimensions({name: size for name, size in sizes.items() if name not in taken})


def _indices(size: int) -> Iterator[tuple[str, str]]:
    """Offer indices of a dimension, or ranks of a mesh."""
    if size:
        yield from ((str(place), "ranks") for place in range(min(size, MOST_RANKS)))
        yield from ((span, "ranks") for span in ("0:", "::2", "-1"))


def _count(sizes: Mapping[str, int]) -> int:
    return math.prod(sizes.values()) if sizes else 0
