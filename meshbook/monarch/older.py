"""Functions that Monarch has dropped, on today's API: `proc_mesh`, `local_proc_mesh`.

Their results can be awaited, as all meshes can: `mesh = await proc_mesh(gpus=2)`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from meshbook.runtime.actor.context import context
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.machine import count_gpus
from meshbook.runtime.hosts.session import this_host
from meshbook.runtime.mesh.procs import ProcMesh


def proc_mesh(
    *,
    gpus: int | None = None,
    hosts: int = 1,
    env: Mapping[str, str] | None = None,
    setup: Callable[[], Any] | None = None,
) -> ProcMesh:
    """Start `hosts` x `gpus` processes on this machine: a mesh with these two dimensions.

    The default of `gpus` is one for each GPU, or 1 without a GPU. `env` is added to their environment, and `setup` runs
    in each before any actor. Today's form: `this_host().spawn_procs(per_host={"gpus": 2})`.
    """
    warnings.warn(
        "proc_mesh() is deprecated; use this_host().spawn_procs(per_host={...})", DeprecationWarning, stacklevel=2
    )
    dims = {"hosts": hosts, "gpus": max(1, count_gpus()) if gpus is None else gpus}
    return this_host().spawn_procs(per_host=dims, bootstrap=setup, env=env)


def local_proc_mesh(*, gpus: int | None = None, hosts: int = 1) -> ProcMesh:
    """Return this process as a mesh with the dimensions `hosts` and `gpus`, each of size 1.

    Today's form: `this_proc()`. Raises NotImplementedError for more than one rank: they would have to share the
    process.
    """
    warnings.warn("local_proc_mesh() is deprecated; use this_proc()", DeprecationWarning, stacklevel=2)
    if gpus not in (None, 1) or hosts != 1:
        raise NotImplementedError(
            f"local_proc_mesh(gpus={gpus}, hosts={hosts}): this version of meshbook does not support several "
            f"ranks in one process; proc_mesh() with the same arguments starts a process for each rank"
        )
    here = context().actor_instance.node.address
    return ProcMesh("this_proc", [here], Extent(("hosts", "gpus"), (1, 1)).region, this_host())
