"""ipyparallel's clusters and clients: a cluster is a mesh. What a notebook gets by `import ipyparallel`."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from meshbook.magics.compat.answers import AsyncResult
from meshbook.magics.compat.views import DirectView, LoadBalancedView
from meshbook.magics.meshes import DEFAULT_NAME, Meshes, NotebookMesh
from meshbook.magics.notebook import Notebook
from meshbook.magics.tracebacks import CellError
from meshbook.runtime.geometry import Extent


class Client:
    """The ranks of a mesh, by number: `rc.ids`, `rc[:]`, `rc[0]`."""

    def __init__(self, meshes: Meshes, mesh: NotebookMesh) -> None:
        self._meshes = meshes
        self._mesh = mesh

    @property
    def ids(self) -> list[int]:
        """The ranks."""
        return list(range(self._mesh.extent.nelements))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, key: int | slice | list[int]) -> DirectView:
        return self.direct_view(key)

    def direct_view(self, targets: int | slice | list[int] | str = "all") -> DirectView:
        """A view of these ranks."""
        if isinstance(targets, str):
            return DirectView(self._mesh, self.ids)
        if isinstance(targets, int | slice):
            return DirectView(self._mesh, self.ids[targets])
        return DirectView(self._mesh, [self.ids[target] for target in targets])

    def load_balanced_view(self, targets: Any = None) -> LoadBalancedView:
        """A view that gives each task to the next rank that is free."""
        return LoadBalancedView(self._mesh, self.ids)

    def wait_for_engines(self, n: int | None = None, **_: Any) -> None:
        """They are there. ValueError where they are fewer."""
        if n is not None and n > len(self):
            raise ValueError(f"{self._mesh.name} has {len(self)} ranks: start it with {n}")

    def activate(self, targets: str = "all", suffix: str = "") -> DirectView:
        """%px means the mesh that came up last."""
        view = self.direct_view()
        view.activate(suffix)
        return view

    def close(self) -> None:
        """Nothing: the mesh stays, until the cluster is stopped."""

    def shutdown(self, hub: bool = False, block: bool | None = None) -> None:
        """Take the mesh down."""
        if self._mesh in list(self._meshes):
            self._meshes.down(self._mesh.name)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_module(notebook: Notebook) -> ModuleType:
    """The module that stands in for ipyparallel in this notebook."""

    class Cluster:
        """A mesh of `n` ranks, once it is started."""

        def __init__(self, n: int | None = None, **_: Any) -> None:
            self.n = n
            self._client: Client | None = None

        def start_cluster_sync(self, n: int | None = None) -> Cluster:
            """Bring the mesh up."""
            notebook.session()
            wanted = n or self.n
            mesh = notebook.meshes.up(Extent.of(gpus=wanted) if wanted else None, _free_name(notebook.meshes))
            notebook.bind(mesh)
            notebook.meshes.use(mesh.name)  # a view of the last cluster is the active one
            self._client = Client(notebook.meshes, mesh)
            return self

        def connect_client_sync(self, **_: Any) -> Client:
            """The client of what was started."""
            return self._client or _connect(notebook)

        def start_and_connect_sync(self, n: int | None = None, activate: bool = False, **_: Any) -> Client:
            """Both."""
            return self.start_cluster_sync(n).connect_client_sync()

        async def start_and_connect(self, n: int | None = None, activate: bool = False, **_: Any) -> Client:
            """Both."""
            return self.start_and_connect_sync(n)

        def stop_cluster_sync(self) -> None:
            """Take the mesh down."""
            if self._client is not None:
                self._client.shutdown()

        def __enter__(self) -> Client:
            return self.start_and_connect_sync()

        def __exit__(self, *_: object) -> None:
            self.stop_cluster_sync()

    def connect(*_: Any, **__: Any) -> Client:
        return _connect(notebook)

    module = _StandIn("ipyparallel", "meshbook's stand-in for ipyparallel: clusters are meshes of this notebook.")
    names = {"Cluster": Cluster, "Client": connect, "DirectView": DirectView, "LoadBalancedView": LoadBalancedView}
    errors = {"RemoteError": CellError, "CompositeError": CellError}
    vars(module).update(names | errors | {"AsyncResult": AsyncResult, "error": SimpleNamespace(**errors)})
    return module


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"ipyparallel.{name} is not part of meshbook's stand-in. What meshbook has for it may be in the README; "
            f"%unload_ext meshbook.magics.compat gives ipyparallel itself back, where it is installed"
        )


def _connect(notebook: Notebook) -> Client:
    notebook.session()
    if not len(notebook.meshes):
        notebook.bind(notebook.meshes.up())
    return Client(notebook.meshes, notebook.meshes.get())


def _free_name(meshes: Meshes) -> str:
    taken = {mesh.name for mesh in meshes}
    names = [DEFAULT_NAME, *(f"{DEFAULT_NAME}_{number}" for number in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)
