"""The object to which the name of a mesh is bound in the notebook: its processes, and the variables of cells there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from IPython.core.getipython import get_ipython
from IPython.display import publish_display_data

from meshbook.magics.cells.maps import CellItemRunner
from meshbook.magics.errors import VariableError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.syntax.argparsing import PullSpec
from meshbook.magics.variables import operations, tensors
from meshbook.magics.variables.reduce import REDUCTIONS, Reduction
from meshbook.magics.variables.remote_variable import RemoteVariable
from meshbook.magics.variables.requests import run_steps
from meshbook.runtime.geometry import Region
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.policies import Respawning
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.mesh.runners import Runner
from meshbook.runtime.wire.messages import Address

if TYPE_CHECKING:
    from meshbook.runtime.telemetry.curve_exports import MetricHistory
    from meshbook.runtime.tensor.device_mesh import DeviceMesh

_NOT_GIVEN: Any = object()  # no data is given; None would be data that cannot be split


class NotebookProcMesh(ProcMesh):
    """The processes of a mesh that runs cells, with its variables: `mesh["x"]`, `push`, `pull`, `scatter`, `gather`.

    Each operation waits for the cells that already run on the ranks, and sees their effects. It pickles to an actor or
    a rank as a plain ProcMesh: only the notebook moves variables.
    """

    def __init__(self, procs: ProcMesh, mesh: NotebookMesh) -> None:
        super().__init__(
            *(procs._name, procs._nodes, procs._region, procs._hosts),
            ownership=procs._ownership,
            owned=procs._owned,
            stream_logs=procs._streams,
            policy=procs._policy,
        )
        self._initialized = procs._initialized
        self._whole: NotebookProcMesh | None = None  # of a slice: the mesh that it is a part of
        self.notebook_mesh = mesh

    def _with_region(self, region: Region) -> NotebookProcMesh:
        part = self._twin(self._nodes, region, owned=False, policy=self._policy)
        part._whole = self._whole or self
        return part

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh of the tensors on these processes; slices of a mesh share its engine."""
        return super().device_mesh if self._whole is None else self._whole.device_mesh._with_region(self.region)

    def _twin(
        self, nodes: Sequence[Address], region: Region, *, owned: bool, policy: Respawning | None
    ) -> NotebookProcMesh:
        return NotebookProcMesh(super()._twin(nodes, region, owned=owned, policy=policy), self.notebook_mesh)

    def resize(self, **sizes: int) -> NotebookProcMesh:
        return NotebookProcMesh(super().resize(**sizes), self.notebook_mesh)

    def drain(self, *hosts: str) -> NotebookProcMesh:
        return NotebookProcMesh(super().drain(*hosts), self.notebook_mesh)

    def join(self, hosts: HostMesh) -> NotebookProcMesh:
        return NotebookProcMesh(super().join(hosts), self.notebook_mesh)

    resize.__doc__ = ProcMesh.resize.__doc__
    drain.__doc__ = ProcMesh.drain.__doc__
    join.__doc__ = ProcMesh.join.__doc__

    def _make_runner(self, name: str) -> Runner:
        """Run the items of a map where cells run, so that they see the rank's variables."""
        return CellItemRunner(self.notebook_mesh, self.current_ranks(), name)

    @property
    def actors(self) -> dict[str, Any]:
        own = {key for part in self.notebook_mesh.parts for key in part._keys}  # exclude the actors that cells need
        return {name: actors for name, actors in super().actors.items() if own.isdisjoint(actors._keys)}

    def dashboard(self) -> Any:
        """The live dashboard of the mesh: a widget that shows its ranks and their output, with actions on them.

        It shows the whole mesh, also on a slice. It is the same object each time, so all views share one selection. On
        a terminal it is a snapshot as text. Raises VariableError if the mesh is down.
        """
        if not self.notebook_mesh.rank_of:
            name = self.notebook_mesh.name
            raise VariableError(f"mesh {name} is down; start it with %mesh up --name {name}")
        self.current_ranks()  # raises if these ranks no longer exist
        return self.notebook_mesh.open_dashboard()

    def history(self, *metrics: str) -> MetricHistory:
        """Return all points of these metrics that this mesh has logged by `meshbook.log`; by default of all metrics.

        `mesh.history("loss").to_pandas()` has the columns metric, run, rank, step, time (UTC) and value; there are
        `.to_arrow()` and `.to_polars()` as well. A slice has the points of its ranks only, and the whole mesh also
        those that the notebook itself has logged (rank -1). Raises HistoryError for a metric without points, or if
        pyarrow is not installed.
        """
        ranks = self.current_ranks() if self._whole is not None else None
        return self.notebook_mesh.session.metric_history(metrics, ranks, self.notebook_mesh.procs.name)

    def _ipython_display_(self) -> None:
        """Display the dashboard of the mesh if widgets are supported; of a slice, or without widgets, one line."""
        if self.nodes != self.notebook_mesh.procs.nodes or not self.notebook_mesh.rank_of or not has_kernel():
            raise NotImplementedError  # IPython falls back to `repr`
        (data, metadata), picture = self.notebook_mesh.open_dashboard().outputs()
        publish_display_data(data | {"text/plain": repr(self)}, metadata)
        publish_display_data(*picture)

    def push(self, values: Mapping[str, Any] | None = None, /, **names: Any) -> None:
        """Set variables on every rank: `mesh.push(lr=0.1)`, `mesh.push({"lr": 0.1})`.

        All ranks get equal copies; tensors of a GPU arrive on the rank's own GPU. Of a mesh tensor each rank gets its
        own value, which stays where it is. Raises VariableError if a value cannot be pickled, or cannot be created on a
        rank: that rank has then set none of them. RemoteException: the operation that makes a mesh tensor has failed.
        """
        values = dict(values or {}) | names
        ranks = self.current_ranks()
        mesh_tensors = tensors.mesh_tensors_of(values)
        if mesh_tensors:
            run_steps(tensors.assign(self.notebook_mesh, self.nodes, ranks, mesh_tensors))
        if len(mesh_tensors) < len(values) or not values:
            others = {name: value for name, value in values.items() if name not in mesh_tensors}
            run_steps(operations.push(self.notebook_mesh, ranks, others))

    def pull(self, *names: str, reduce: Reduction | None = None, dim: int = 0, force: bool = False) -> Any:
        """Return the values of a variable as a list in rank order; on a slice that is one point, the value itself.

        For several names it returns a tuple: `x, y = mesh.pull("x", "y")`. `reduce` combines the values of all ranks
        into one: "mean", "cat" and "stack" along `dim`, "first" takes that of the first rank. Tensors arrive on the
        CPU. More than 1 GiB needs a confirmation, unless `force`. Raises VariableError if a rank has no such variable,
        or cannot pickle it.
        """
        if reduce is not None and reduce not in REDUCTIONS:
            raise ValueError(f"reduce must be one of {', '.join(map(repr, REDUCTIONS))} or None, not {reduce!r}")
        wanted = [PullSpec(_check_name(name), reduce) for name in names]
        ask = None if force else input
        found = run_steps(operations.pull(self.notebook_mesh, self.current_ranks(), wanted, dim=dim, ask=ask))
        is_point = reduce is None and not self.region.labels
        values = tuple(found[name][0] if is_point else found[name] for name in names)
        return values[0] if len(values) == 1 else values

    @overload
    def scatter(self, name: str, data: Any, dim: int = 0, *, along: str | None = None) -> None: ...
    @overload
    def scatter(self, data: Any, /, *, dim: int = 0, along: str | None = None) -> None: ...
    def scatter(self, name: Any, data: Any = _NOT_GIVEN, dim: int = 0, *, along: str | None = None) -> None:
        """Split data along `dim` (0: its rows), and set the variable to one piece on each rank, in rank order.

        `mesh.scatter("batch", data)`; `mesh.scatter(data)` uses the name that the data has in the notebook. It accepts
        tensors, arrays, tables (Arrow, Polars, pandas, DuckDB relations), sequences, datasets, and dicts of these. From
        a dataset without slices a rank gets the list of its items. With `along="hosts"`, or another dimension of the
        mesh, there is one piece per host, and all ranks of a host get the same. If the division leaves a remainder, the
        first pieces have one element more. Raises VariableError for data that cannot be split.
        """
        if data is _NOT_GIVEN:
            name, data = _find_notebook_name(name), name
        places = None if along is None else [self.extent.point(rank)[self._label(along)] for rank in range(len(self))]
        run_steps(operations.scatter(self.notebook_mesh, self.current_ranks(), _check_name(name), data, dim, places))

    def gather(self, name: str, dim: int = 0, *, along: str | None = None, force: bool = False) -> Any:
        """Concatenate the pieces of all ranks along `dim`: the inverse of `scatter`; numbers become a list."""
        here = self
        if along is not None:
            here = self.slice(**{label: 0 for label in self.extent.labels if label != self._label(along)})
        return here.pull(name, reduce="cat", dim=dim, force=force)

    def _label(self, along: str) -> str:
        if along in self.extent.labels:
            return along
        raise ValueError(f"{self!r} has no dimension {along!r}; it has {', '.join(self.extent.labels)}")

    def __getitem__(self, name: str) -> RemoteVariable:
        """A variable on the ranks: its repr shows the present values, `mesh["x"].get()` fetches them."""
        return RemoteVariable(self, _check_key(name))

    def __setitem__(self, name: str, value: Any) -> None:
        self.push({_check_key(name): value})

    def __delitem__(self, name: str) -> None:
        run_steps(operations.delete(self.notebook_mesh, self.current_ranks(), _check_key(name)))

    def __contains__(self, name: object) -> bool:
        """Whether every rank has a variable of this name."""
        return isinstance(name, str) and run_steps(
            operations.is_defined(self.notebook_mesh, self.current_ranks(), name)
        )

    __iter__ = None  # otherwise Python would iterate over mesh[0], mesh[1], ...

    def _ipython_key_completions_(self) -> list[str]:
        """Complete `mesh["<TAB>` with the names after the last cell, which needs no request to the ranks."""
        return sorted({name for rank in self.current_ranks() for name in self.notebook_mesh.names.get(rank, ())})

    def current_ranks(self) -> list[int]:
        """Return the present ranks of these processes: a resize may have changed them."""
        known = [self.notebook_mesh.rank_of.get(address.node) for address in self.nodes]
        if gone := [rank for rank, now in zip(self.region.ranks(), known, strict=True) if now is None]:
            raise VariableError(f"rank {gone[0]} of {self!r} no longer exists: the mesh was stopped or resized")
        return [rank for rank in known if rank is not None]


def has_kernel() -> bool:
    """Whether this runs in a kernel, which can show widgets."""
    return getattr(get_ipython(), "kernel", None) is not None


def _check_name(name: Any) -> str:
    if isinstance(name, str):
        return name
    given = f"{name!r:.60}" if isinstance(name, list | tuple | int) else f"a {type(name).__name__}"
    raise TypeError(f"a variable name must be a string such as 'x', not {given}")


def _find_notebook_name(data: Any) -> str:
    """Return the name of the only notebook variable that is this object."""
    shell = get_ipython()
    known = dict(shell.user_ns) if shell is not None and not isinstance(data, str) else {}
    names = [str(name) for name, value in known.items() if value is data and not name.startswith("_")]
    if len(names) == 1:
        return names[0]
    why = f"several names ({', '.join(names[:3])})" if names else "no name"
    raise VariableError(f"the data has {why} in the notebook; pass a name: mesh.scatter('name', data)")


def _check_key(name: Any) -> str:
    if isinstance(name, str):
        return name
    raise TypeError(f"mesh[...] takes a variable name, not {name!r}; to select ranks, use mesh.slice(gpus=0)")
