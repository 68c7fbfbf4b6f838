"""The arithmetic of `split`: the user's arguments -> the names and sizes that replace a dimension.

Not for strides: `region` lays the sizes out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SplitArgument = Sequence[str] | int


@dataclass(frozen=True)
class SplitRequest:
    """`names` are the new dimensions for each old one, `sizes` are those that the user fixed."""

    names: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]

    def sizes_in_place_of(self, label: str, size: int) -> tuple[int, ...]:
        """Return the sizes of the dimensions that replace `label`; ValueError unless they multiply to `size`."""
        names = self.names.get(label, ())
        open_names = [name for name in names if name not in self.sizes]
        if len(open_names) > 1:
            raise ValueError(
                f"Cannot infer size of {_listed(open_names)}: give the sizes of all but one of {_listed(names)}"
            )
        known = math.prod(self.sizes[name] for name in names if name in self.sizes)
        if size % known or (not open_names and known != size):
            given = ", ".join(f"{name}={self.sizes[name]}" for name in names if name in self.sizes)
            raise ValueError(f"Dimension {label!r} of size {size} is not evenly divided by {given}")
        return tuple(self.sizes.get(name, size // known) for name in names)


def read_split(arguments: Mapping[str, SplitArgument], labels: Sequence[str]) -> SplitRequest:
    """Separate the keyword arguments of `split` into new names and fixed sizes; reject those that match nothing."""
    names = {label: _names(label, given) for label, given in arguments.items() if not isinstance(given, int)}
    sizes = {name: given for name, given in arguments.items() if isinstance(given, int)}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"the size of {name!r} must be at least 1, but is {size}")
    unknown = [label for label in names if label not in labels]
    if unknown:
        raise ValueError(f"cannot split {_listed(unknown)}: the dimensions are {_listed(labels)}")
    made = {name for group in names.values() for name in group}
    unused = [name for name in sizes if name not in made]
    if unused:
        raise ValueError(f"unused size constraints: {_listed(unused)} is not among the new dimensions")
    return SplitRequest(names, sizes)


def _names(label: str, given: Sequence[str]) -> tuple[str, ...]:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    if not is_list or not given or not all(isinstance(name, str) for name in given):
        raise TypeError(f"{label}={given!r}: expected the names of new dimensions, such as ('a', 'b'), or a size")
    return tuple(given)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
