"""The modules that `import ipyparallel` and its like return in a notebook: each name from where meshbook defines it."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from meshbook.magics.compat.answers import AsyncMapResult, AsyncResult
from meshbook.magics.compat.balanced import LazyMapIterator, LoadBalancedView, register_joblib
from meshbook.magics.compat.calls import error_names
from meshbook.magics.compat.cluster import Client, Cluster, connect
from meshbook.magics.compat.direct import BroadcastView, DirectView
from meshbook.magics.compat.functions import ParallelFunction, ViewExecutor, ViewFunction, parallel, remote
from meshbook.magics.compat.task_dependencies import Dependency
from meshbook.magics.compat.translation import Rewriting
from meshbook.magics.compat.views import View
from meshbook.magics.notebook import Notebook
from meshbook.runtime.cells.dependencies import Dependent, depend, require
from meshbook.runtime.cells.function_calls import Reference, publish_data

ROOT = "ipyparallel"


def make_modules(notebook: Notebook, rewriting: Rewriting) -> Mapping[str, ModuleType]:
    """Return the modules that replace ipyparallel in this notebook; its views set the defaults of `rewriting`."""

    def new_client(*_: Any, **__: Any) -> Client:
        return connect(notebook, rewriting)

    def register_joblib_backend(name: str = ROOT, make_default: bool = False) -> None:
        """Let joblib run its tasks on the ranks of the mesh."""
        register_joblib(
            functools.cache(lambda: connect(notebook, rewriting).load_balanced_view()), name, make_default=make_default
        )

    clusters = {"Cluster": type("Cluster", (Cluster,), {"notebook": notebook, "rewriting": rewriting})}
    clients = {"Client": new_client}
    results = {"AsyncResult": AsyncResult, "AsyncMapResult": AsyncMapResult, "AsyncHubResult": AsyncResult}
    views = {
        "View": View,
        "DirectView": DirectView,
        "BroadcastView": BroadcastView,
        "LoadBalancedView": LoadBalancedView,
        "LazyMapIterator": LazyMapIterator,
        "ViewExecutor": ViewExecutor,
    }
    functions = {
        "remote": remote,
        "parallel": parallel,
        "RemoteFunction": ViewFunction,
        "ParallelFunction": ParallelFunction,
    }
    dependencies = {"depend": depend, "dependent": Dependent, "require": require, "Dependency": Dependency}
    constants = ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION")
    others = {name: getattr(concurrent.futures, name) for name in constants} | {
        "Reference": Reference,
        "interactive": interactive,
        "register_joblib_backend": register_joblib_backend,
        "__version__": "9.2.0",
        "version_info": (9, 2, 0),
    }
    errors = dict(error_names())
    contents: dict[str, dict[str, Any]] = {
        "": {**errors, **clusters, **clients, **results, **views, **functions, **dependencies, **others},
        "error": errors,
        "cluster": clusters,
        "cluster.cluster": clusters,
        "client": {},
        "client.client": clients,
        "client.asyncresult": results,
        "client.view": views,
        "client.remotefunction": functions,
        "controller": {},
        "controller.dependency": dependencies,
        "datapub": {"publish_data": publish_data},
        "engine": {},
        "engine.datapub": {"publish_data": publish_data},
        "joblib": {"register": register_joblib_backend},
        "util": {"interactive": interactive},
    }
    made = {f"{ROOT}.{path}" if path else ROOT: names for path, names in contents.items()}
    modules = {name: _StandInModule(name, names) for name, names in made.items()}
    for name, module in modules.items():
        above, _, own = name.rpartition(".")
        if above:
            setattr(modules[above], own, module)
    return modules


def interactive(function: Any) -> Any:
    """Decorate a function: its globals are the variables of the rank, as for a function of the notebook."""
    function.__module__ = "__main__"
    return function


class _StandInModule(ModuleType):
    def __init__(self, name: str, names: Mapping[str, Any]) -> None:
        super().__init__(name, "meshbook's stand-in for ipyparallel: clusters are meshes of this notebook.")
        self.__path__: list[str] = []  # a package without files: all its modules are known
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"meshbook does not provide {self.__name__}.{name}; docs/ipyparallel.md lists the supported names. "
            f"To use an installed ipyparallel instead, run %unload_ext meshbook.magics.compat"
        )
