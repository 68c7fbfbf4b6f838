"""The result of a cell on every rank, which `Out[n]`, `_` and `-o NAME` hold: access and display.

Not for running cells or for the text they print (`output`). A value too large to send stays on its rank until it is
accessed.
"""

from __future__ import annotations

import builtins
import operator
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from IPython.utils.capture import RichOutput

from meshbook.magics.output.grouping import StreamName
from meshbook.magics.results.costs import CostTable
from meshbook.magics.results.value_text import bundle_of, has_value, render_outcomes
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, RankError
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.geometry import Extent, Region
from meshbook.runtime.geometry.region import Index
from meshbook.runtime.telemetry.output import DisplayChunk

ReadLog: TypeAlias = Callable[[int, StreamName], str]
ReadDisplays: TypeAlias = Callable[[int], Sequence[DisplayChunk]]
Fetch: TypeAlias = Callable[[int], Any]


def _no_displays(rank: int) -> Sequence[DisplayChunk]:
    return ()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Sources:
    """Where a result finds data that did not come with the outcomes: ranks' output, and values that stayed there.

    `release` lets the ranks discard these values. It is called once all results with these sources are gone.
    """

    texts: ReadLog
    displays: ReadDisplays = _no_displays
    fetch: Fetch | None = None
    mesh: str = ""  # prefix of ranks, if there are several meshes
    release: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        if self.release is not None:
            weakref.finalize(self, self.release).atexit = False


class RankResult:
    """The result of the cell on one rank. `value` is fetched once from the rank if it stayed there."""

    def __init__(self, rank: int, outcome: CellOutcome, sources: Sources) -> None:
        self.rank = rank
        self.outcome = outcome
        self._sources = sources

    @property
    def error(self) -> RankError | None:
        """Why the cell failed here; None if it did not."""
        return self.outcome.error

    @property
    def cost(self) -> CellCost:
        """Time and memory."""
        return self.outcome.cost

    @cached_property
    def value(self) -> Any:
        """The value of the last expression, None if there is none. Raises LookupError if it cannot be fetched."""
        value = self.outcome.value
        if value is None:
            return None
        if value.pickled is not None:
            return pickle.loads(value.pickled)
        if self._sources.fetch is None:
            raise LookupError(f"the value of rank {self.rank} was not sent: {value.note or 'it could not be pickled'}")
        return self._sources.fetch(self.rank)

    @property
    def stdout(self) -> str:
        """All text that the rank printed in this cell."""
        return self._sources.texts(self.rank, "stdout")

    @property
    def stderr(self) -> str:
        """All text that the rank wrote to stderr in this cell."""
        return self._sources.texts(self.rank, "stderr")

    @property
    def displays(self) -> list[RichOutput]:
        """The rank's displays in this cell, in their last state; `display(result[3].displays[0])` shows one again."""
        return [RichOutput(data=each.data, metadata=each.metadata) for each in self._sources.displays(self.rank)]

    if not TYPE_CHECKING:  # type checkers report missing attributes themselves

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # it exists, but its value cannot be unpickled: raise that error
                return object.__getattribute__(self, name)
            hint = "; its value is `.value`" if name == "values" else ""
            raise AttributeError(f"the result of one rank has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        return render_outcomes({self.rank: self.outcome}, self._sources.mesh)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return bundle_of({self.rank: self.outcome}, self._sources.mesh)


class MeshResult:
    """The result of a cell on all its ranks: `result[3]`, `result.at(gpus=0)`, `result.values`, `result.stack()`.

    It has the dimensions of the mesh that ran the cell. Its ranks are those of the labels in the output: ranks of the
    base mesh.
    """

    def __init__(
        self,
        region: Region,
        outcomes: Mapping[int, CellOutcome],
        sources: Sources,
    ) -> None:
        self.region = region
        self._sources = sources
        # A dead rank may have left no outcome; then it is not in the result.
        self._outcomes = {rank: outcomes[rank] for rank in sorted(region.ranks()) if rank in outcomes}
        self._results = {rank: RankResult(rank, outcome, sources) for rank, outcome in self._outcomes.items()}

    @property
    def extent(self) -> Extent:
        """The names and sizes of the dimensions."""
        return self.region.extent

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks in this result, in order."""
        return tuple(self._results)

    @property
    def has_value(self) -> bool:
        """Whether any rank's cell ended in an expression that was not None."""
        return any(map(has_value, self._outcomes.values()))

    def release_values(self) -> None:
        """Let the ranks discard values that they have not sent, unless their own variables hold them."""
        if self._sources.release is not None:
            self._sources.release()

    @property
    def values(self) -> list[Any]:
        """The values in rank order; None for a rank that failed or has none."""
        return [each.value for each in self]

    @property
    def errors(self) -> dict[int, RankError]:
        """The error of each rank that failed."""
        return {rank: each.error for rank, each in self._outcomes.items() if each.error is not None}

    @property
    def cost(self) -> CostTable:
        """Time and memory by rank, shown as a table."""
        return CostTable({rank: each.cost for rank, each in self._outcomes.items()})

    def at(self, /, **point: int) -> RankResult:
        """Return the result at coordinates: `result.at(hosts=0, gpus=3)`. Raises ValueError if several match."""
        region = self.region.slice(**point)
        if len(region) != 1:
            free = ", ".join(region.labels)
            raise ValueError(f"{len(region)} ranks match; also give {free}, or use slice()")
        return self[region.ranks()[0]]

    def slice(self, /, **dims: Index) -> MeshResult:
        """Return part of the result: `result.slice(gpus=slice(0, 2))`; an int removes its dimension."""
        return MeshResult(self.region.slice(**dims), self._outcomes, self._sources)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each rank, with its coordinates and its value, or the items of a value that is a dict.

        `pandas.DataFrame(result.rows())` makes a table of them.
        """
        rows = []
        for each in self:
            value = each.value if isinstance(each.value, Mapping) else {"value": each.value}
            rows.append({"rank": each.rank, **self.region.point_of_base_rank(each.rank), **value})
        return rows

    def stack(self) -> Any:
        """Return the values as one tensor or array of shape (ranks, ...). Raises ValueError if a rank has none."""
        missing = [rank for rank, each in self._outcomes.items() if not has_value(each)]
        if missing:
            raise ValueError(f"cannot stack: no value on {name_ranks(missing)}")
        return _stack(self.values)

    def to_numpy(self) -> Any:
        """Stack the values like `stack`, always as a NumPy array in the memory of the controller."""
        stacked = self.stack()
        return stacked.detach().cpu().numpy() if hasattr(stacked, "detach") else stacked

    @overload
    def __getitem__(self, wanted: int) -> RankResult: ...
    @overload
    def __getitem__(self, wanted: builtins.slice) -> MeshResult: ...
    @overload
    def __getitem__(self, wanted: Mapping[str, Index]) -> RankResult | MeshResult: ...
    def __getitem__(self, wanted: int | builtins.slice | Mapping[str, Index]) -> RankResult | MeshResult:
        """Return the result of one rank, or part of this result.

        A negative rank counts from the last; `result[0:4]` selects the ranks 0 to 3 that are in the result.
        `result[{"gpus": 3}]` selects by dimensions, and returns one rank's result if only one rank matches.
        """
        if isinstance(wanted, builtins.slice):
            return MeshResult(self.region.pick(self._ranks_in(wanted)), self._outcomes, self._sources)
        if isinstance(wanted, Mapping):
            part = self.slice(**wanted)
            return part if len(part.region) > 1 else self[part.region.ranks()[0]]
        try:
            index = operator.index(wanted)
        except TypeError:
            raise TypeError(
                f"a result is indexed by rank ([3], [0:4]) or by dimensions ([dict(gpus=3)]), not by {wanted!r}"
            ) from None
        return self._of_rank(index)

    def _ranks_in(self, wanted: builtins.slice) -> list[int]:
        ranks = self.ranks
        # A slice of a range counts its negative ends from the end of the range, which has to end with the last rank.
        start, stop = (
            ranks[max(end, -len(ranks))] if end is not None and end < 0 and ranks else end
            for end in (wanted.start, wanted.stop)
        )
        chosen = range(ranks[-1] + 1 if ranks else 0)[start : stop : wanted.step]
        return [rank for rank in chosen if rank in self._results]

    def _of_rank(self, index: int) -> RankResult:
        ranks = self.ranks
        if -len(ranks) <= index < 0:
            return self._results[ranks[index]]
        if index not in self._results:
            raise IndexError(f"no rank {index} in this result; it has {name_ranks(ranks)}")
        return self._results[index]

    if not TYPE_CHECKING:  # type checkers report missing attributes themselves

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)
            ranks = self.__dict__.get("_results") if hasattr(RankResult, name) and not name.startswith("_") else None
            all_of_them = "`.values` has those of all ranks, " if name == "value" else ""
            hint = f"; {all_of_them}`[{next(iter(ranks))}].{name}` that of one rank" if ranks else ""
            raise AttributeError(f"the result of a cell has no attribute {name!r}{hint}", name=name, obj=self)

    def __iter__(self) -> Iterator[RankResult]:
        return iter(self._results.values())

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return render_outcomes(self._outcomes, self._sources.mesh)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return bundle_of(self._outcomes, self._sources.mesh)


class ResultsByMesh(dict[str, MeshResult]):
    """The results of a cell that ran on several meshes, by the name of the mesh; its text has labels with the names."""

    def __repr__(self) -> str:
        return "\n".join(repr(each) for each in self.values() if each.has_value)


def _stack(values: Sequence[Any]) -> Any:
    # torch and numpy take up to seconds to import, so they are imported only to stack. A tensor value has imported
    # torch already, so plain numbers never import it.
    if "torch" in sys.modules:
        import torch

        if all(isinstance(value, torch.Tensor) for value in values):
            return torch.stack([value.to(values[0].device) for value in values])
    import numpy

    return numpy.stack(values)
