"""The hosts of a notebook's meshes on other machines: `%mesh up --hosts` starts them; they end with the last mesh."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshbook import hosts
from meshbook.magics.errors import MeshError
from meshbook.runtime.errors import LaunchError, MeshbookError
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.hosts.remote_hosts import Progress
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.interrupts import allow_interrupts
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh

MOST_SHOWN = 8
RETURN_SECONDS = 15.0  # Slurm may take some seconds to release an allocation


@dataclass(eq=False)
class MeshHosts:
    """The hosts of one mesh or of several. `text` is the value of `--hosts` that has started or named them."""

    machines: HostMesh
    text: str
    is_started_here: bool = True  # by `%mesh up`; hosts that the user has started stay
    drained: list[str] = field(default_factory=list)  # the names of hosts that `%mesh drain` has removed
    joined: list[str] = field(default_factory=list)  # the values of `%mesh join`
    idle: float = 0.0  # seconds without a cell or call, after which they are returned; 0: never

    def __str__(self) -> str:
        missing = f" without {', '.join(self.drained)}" if self.drained else ""
        return self.text + "".join(f" and {text}" for text in self.joined) + missing

    def note_change(self, machines: HostMesh) -> None:
        """Note that the meshes are on these hosts now."""
        self.drained += [name for name in self.machines.names if name not in machines.names]
        self.drained = [name for name in self.drained if name not in machines.names]
        self.machines = machines

    def count_gpus(self) -> int:
        """Return the number of GPUs that every host has."""
        return self.machines.count_gpus().get()

    def close(self) -> None:
        """Return the hosts to where they come from, unless the user has started them. Ctrl-C ends the wait."""
        if self.is_started_here and not self.machines.is_shut_down:
            closed = self.machines.shutdown()
            # Lost hosts do not answer; their end is known.
            with contextlib.suppress(TimeoutError, MeshbookError), allow_interrupts():
                closed.get(RETURN_SECONDS)


def open_hosts(
    text: str,
    *,
    in_use: Mapping[str, MeshHosts],
    variables: Mapping[str, Any],
    gpus_per_host: int | None,
    progress: Progress,
) -> MeshHosts:
    """Return the hosts that `text` names: those of a mesh, a `HostMesh` among the variables, or new ones.

    Raises MeshError, with the launcher's own output, if the hosts do not come up.
    """
    if text in in_use:
        return in_use[text]
    if isinstance(known := variables.get(text), HostMesh):
        if not known.names or known.is_shut_down:
            raise MeshError(f"the hosts {text} cannot be used: they are this machine's own, or have been shut down")
        return MeshHosts(known, text, is_started_here=False)
    try:
        return MeshHosts(hosts.start(text, gpus_per_host=gpus_per_host, progress=progress), text)
    except (LaunchError, OSError, ValueError) as error:
        raise MeshError(f"--hosts {text}: {error}") from error


def format_hosts(procs: ProcMesh, session: Session) -> Iterator[str]:
    """Yield a line with the hosts of a mesh and their ranks, and one with those that are lost."""
    machines = procs.host_mesh
    ranks: dict[int, list[int]] = {}
    for rank, host in enumerate(procs.host_ranks):
        ranks.setdefault(host, []).append(rank)
    living = {host.node for host in session.remote}
    found: dict[str, list[str]] = {"hosts": [], "lost hosts": []}
    for index, (name, agent) in enumerate(zip(machines.names, machines.agents, strict=True)):
        title = "hosts" if agent.node in living else "lost hosts"
        found[title].append(f"{name} ({name_ranks(ranks.get(index, []))})")
    for title, entries in found.items():
        if entries:
            more = f" and {len(entries) - MOST_SHOWN} more" if len(entries) > MOST_SHOWN else ""
            yield f"  {title}: {', '.join(entries[:MOST_SHOWN])}{more}"
