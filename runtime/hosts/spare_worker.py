"""A spare: a worker that has done all preparation that does not depend on its rank, and waits to be called.

It reports that it is warm by removing the FIFO at which it waits. Then it reads the node name of the rank that it
becomes; the spec of that rank is in a file. End of file means that the spare is no longer needed. The agent's side is
in `spares`.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import sys
from pathlib import Path

from meshbook.runtime.actor.context import Context, provide_client
from meshbook.runtime.config import set_inherited_settings
from meshbook.runtime.hosts import worker
from meshbook.runtime.hosts.command_workers import bind
from meshbook.runtime.hosts.worker_exit import leave, run_finalisers
from meshbook.runtime.mesh.worker_specs import WorkerSpec


def call_file(folder: Path, node: str) -> Path:
    """Return the path of a spare's FIFO; it exists until the spare is warm."""
    return folder / f"{node}.call"


def place_file(folder: Path, node: str) -> Path:
    """Return the path of a rank's spec for the spare that becomes that rank, and that removes the file."""
    return folder / f"{node}.place"


def stand_by(spec: WorkerSpec, folder: Path) -> WorkerSpec:
    """Prepare like any worker of this mesh, then wait for a call; return the spec of the rank to become."""
    faulthandler.enable(file=2, all_threads=False)
    set_inherited_settings(spec.world.settings)
    worker.share_cores(spec)
    provide_client(_refuse)
    if not worker.prepare(spec, folder):
        leave(1)
    sys.stdout.flush()
    place = _wait(folder, spec.address.node)
    take_over(place)
    return place


def take_over(spec: WorkerSpec) -> None:
    """Set the environment and CPU binding of that rank; variables that the bootstrap has set are kept."""
    for name, value in (spec.world.rendezvous | spec.ranks()).items():
        os.environ.setdefault(name, value)
    bind(spec.start.binding.cpus)


def _wait(folder: Path, node: str) -> WorkerSpec:
    path = call_file(folder, node)
    try:
        calling = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # its agent has it open for writing
        path.unlink()
        node_to_become = os.read(calling, 4096).decode()
    except FileNotFoundError:
        node_to_become = ""  # the spare is no longer needed
    if not node_to_become:
        run_finalisers()
        leave(0)
    os.close(calling)
    place = place_file(folder, node_to_become)
    found: WorkerSpec = pickle.loads(place.read_bytes())
    place.unlink()
    return found


def _refuse() -> Context:
    raise RuntimeError("this is a spare process; it can use actors and hosts once it has become a rank")


def run(spec: WorkerSpec, folder: Path) -> None:
    """Run as this worker, or as the rank that the spare becomes, until stopped; then end the process."""
    if spec.is_spare:
        worker.run(stand_by(spec, folder), folder, is_prepared=True)
    else:
        worker.run(spec, folder)
