"""Parses names of variables in option lines: `a,b` to push, `c`, `c@0`, `c@mean` to pull. Text -> frozen values."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import cast

from meshbook.magics.syntax.argparsing import quoted, suggestion, variable
from meshbook.magics.variables.reduce import REDUCTIONS, Reduction


@dataclass(frozen=True)
class PullSpec:
    """A variable to pull: from each rank (`how` None), from one rank, or reduced over all ranks."""

    name: str
    how: Reduction | int | None = None

    def __str__(self) -> str:
        return self.name if self.how is None else f"{self.name}@{self.how}"


def push_names(text: str) -> tuple[str, ...]:
    """Parse names of variables, `a,b`."""
    return tuple(variable(name) for name in _parts(text))


def pull_specs(text: str) -> tuple[PullSpec, ...]:
    """Parse names of variables, each with its rank or reduction, `a,b@0,c@mean`."""
    wanted = tuple(_wanted(part) for part in _parts(text))
    names = [each.name for each in wanted]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise argparse.ArgumentTypeError(f"{twice[0]} is given twice; the notebook has one variable of that name")
    return wanted


def _wanted(part: str) -> PullSpec:
    name, at, how = part.partition("@")
    return PullSpec(variable(name), _how(how.strip(), part) if at else None)


def _how(how: str, part: str) -> Reduction | int:
    if re.fullmatch("-?[0-9]{1,9}", how):
        return int(how)
    if how in REDUCTIONS:
        return cast("Reduction", how)
    raise argparse.ArgumentTypeError(
        f"{quoted(part)}: expected a rank after @, or one of {', '.join(REDUCTIONS)}{suggestion(how, REDUCTIONS)}"
    )


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] or [text]
