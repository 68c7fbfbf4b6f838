"""`mesh["x"]`: a variable on the ranks, to show, fetch, and pass to actors of those ranks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshbook.magics.results.result import MeshResult, Sources
from meshbook.magics.variables.reduce import Reduction
from meshbook.magics.variables.requests import RankRequest, run_steps
from meshbook.magics.variables.tensors import tensor_of
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, CellValue, RankError
from meshbook.runtime.cells.variables import RequestError, ShowRequest, variable_here
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.geometry import MeshTrait, Region

if TYPE_CHECKING:  # circular: it creates remote variables
    from meshbook.magics.variables.mesh_handle import NotebookProcMesh
    from meshbook.runtime.tensor.tensor import MeshTensor

REPR_SECONDS = 3.0  # seconds: a repr must not wait for a cell that trains for hours
_NO_COST = CellCost(wall=0.0, cpu=0.0, peak_rss=0)


class RemoteVariable(MeshTrait):
    """A variable on the ranks of a mesh; its repr shows the present values.

    `get()` fetches the values, `[3]` that of rank 3, `slice(gpus=0)` narrows it. Passed to an actor on these ranks it
    arrives as each rank's own value: `trainers.train.call(mesh["model"])` moves no model. `tensor()` is a mesh tensor.
    """

    def __init__(self, holder: NotebookProcMesh, name: str) -> None:
        self._holder = holder
        self.name = name

    @property
    def region(self) -> Region:
        return self._holder.region

    def _with_region(self, region: Region) -> RemoteVariable:
        return RemoteVariable(self._holder._with_region(region), self.name)

    def get(self, reduce: Reduction | None = None, dim: int = 0, force: bool = False) -> Any:
        """Fetch the values, as `mesh.pull` does."""
        return self._holder.pull(self.name, reduce=reduce, dim=dim, force=force)

    def tensor(self) -> MeshTensor:
        """Return the variable, a tensor on each rank, as a mesh tensor, outside of autograd.

        It shares the memory of the variable. Raises VariableError if a rank has no such variable, it is no dense
        tensor, or the ranks have different shapes or types.
        """
        return run_steps(tensor_of(self._holder.notebook_mesh, self._holder, self._holder.current_ranks(), self.name))

    def __getitem__(self, rank: int) -> Any:
        """Fetch the value of one rank, numbered as in labels; a negative number counts from the last."""
        ranks = self.region.ranks()
        try:
            index = operator.index(rank)
        except TypeError:
            raise TypeError(
                f"{self.name} is indexed by rank; to select by dimension, use slice(gpus=0).get()"
            ) from None
        if -len(ranks) <= index < 0:
            index = ranks[index]
        if index not in ranks:
            raise IndexError(f"rank {index} is not among {name_ranks(ranks)}")
        return self._holder._with_region(self.region.pick([index])).pull(self.name)[0]

    __iter__ = None  # otherwise Python would fetch rank 0, 1, 2, ..., one after the other

    def __repr__(self) -> str:
        return str(self._repr_mimebundle_()["text/plain"])

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        try:
            return self._look()._repr_mimebundle_()
        except MeshbookError as error:  # a repr must not raise
            return {"text/plain": f"<{self.name}: {error}>"}

    def _look(self) -> MeshResult:
        mesh, ranks = self._holder.notebook_mesh, self._holder.current_ranks()
        able = [rank for rank in ranks if rank not in mesh.dead and rank not in mesh.busy]
        answers: dict[int, CellValue | RequestError] = {rank: RequestError("the rank is dead") for rank in mesh.dead}
        if able:
            asked = RankRequest(mesh, dict.fromkeys(able, ShowRequest(self.name)), f"show {self.name}")
            answers |= asked.wait_at_most(REPR_SECONDS)
        outcomes = {rank: _outcome_of(answers.get(rank)) for rank in ranks}
        return MeshResult(mesh.procs.region.pick(ranks), outcomes, Sources(lambda rank, stream: "", mesh=mesh.label))

    def _reduce_for_wire(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return variable_here, (self._holder.notebook_mesh.procs.name, self.name)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"mesh[{self.name!r}] cannot be pickled outside of this notebook and its ranks; fetch the values with get()"
        )


def _outcome_of(answer: CellValue | RequestError | None) -> CellOutcome:
    if isinstance(answer, CellValue):
        return CellOutcome(_NO_COST, value=answer)
    text = "no answer yet; the rank may be running a cell" if answer is None else answer.reason
    return CellOutcome(_NO_COST, error=RankError("raised", "no value", text))
