"""`meshbook attach` and `meshbook trace`: look at runs of other programs, without changing them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec

from meshbook.cli import print_note
from meshbook.magics.tracing.chrome_trace import write_trace
from meshbook.magics.tracing.collect import Trace, take_run_trace
from meshbook.runtime.config import current_settings, runtime_root
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.formats import format_bytes
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.clients import CLIENTS
from meshbook.runtime.hosts.detached_runs import choose, format_run
from meshbook.runtime.hosts.joined_runs import join, leave_runs
from meshbook.runtime.hosts.journal import JournalTail
from meshbook.runtime.hosts.launch import is_of_a_run, sweep
from meshbook.runtime.hosts.lifeline import JOURNAL, RunRequest, RunUnreachable, send_request
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.mesh.hosts import HOST, HostActor
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.forwarding import Forwarder, ScriptScreen
from meshbook.runtime.telemetry.output import SHOWN, TELEMETRY, Chunk, OutputStore
from meshbook.runtime.transport.home import UNIX
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import BodyElsewhere, Buffer, unpack
from meshbook.runtime.wire.messages import Address

LOOK_SECONDS = 0.25  # between two looks at the files of a detached run
ANSWER_SECONDS = 10.0  # time for a host agent to answer


def follow(name: str) -> None:
    """Print the output of a detached run as it comes, until its cells end, the run ends, or a notebook attaches.

    Output from before the run was detached is left to `%mesh attach`. Raises DetachError if there is no such run.
    """
    status = choose(name)
    print_note(f"{format_run(status)}\nin a notebook, %mesh attach {status.run} takes it back")
    folder = runtime_root(current_settings()) / status.run
    forwarder = Forwarder(ScriptScreen())
    store, tail = OutputStore(), JournalTail(folder / JOURNAL)
    store.set_default(lambda chunk: forwarder.take(_shown(chunk)))
    was_busy, end = False, ""
    try:
        while not end:
            # First the status, then the output, of which nothing more comes after the end.
            end, is_busy = _state_of(folder)
            for frame in tail.read():
                _add(store, frame)
            if was_busy and not is_busy and not end:
                end = "its cells have ended"
            was_busy = is_busy
            if not end:
                time.sleep(LOOK_SECONDS)  # polling: another process writes the files
    finally:
        tail.close()
        forwarder.close()
    print_note(f"run {status.run}: {end}")


def _state_of(folder: Path) -> tuple[str, bool]:
    """Return why the output of a run has ended, or an empty string, and whether a cell of it runs."""
    try:
        answer, connection = send_request(folder, RunRequest("status"))
    except RunUnreachable:
        return "it has ended", False
    connection.close()
    assert answer.status is not None
    held = answer.status.held_by
    return f"attached by {held}" if held else "", any(mesh.busy for mesh in answer.status.meshes)


def _add(store: OutputStore, frame: Buffer) -> None:
    _, body = unpack(frame)
    if not isinstance(body, BodyElsewhere):
        (chunk,), _ = pickling.loads(body, TELEMETRY)
        store.take(chunk)


def _shown(chunk: Chunk) -> Chunk:
    """Return the chunk as one that is shown: the output of cells is not, where a notebook shows it."""
    return msgspec.structs.replace(chunk, options=SHOWN) if hasattr(chunk, "options") else chunk


# -- traces ----------------------------------------------------------------------------


def save_trace(name: str, path: Path, seconds: float | None) -> str:
    """Write what the processes of a run did in the last seconds (None: all that they know); returns a line about it.

    The run may have a controller, or be detached. Raises MeshbookError if there is no such run, OSError for the file.
    """
    here = join(f"{UNIX}{find_run(name)}")
    try:
        node = here.actor_instance.node
        assert node is not None
        trace: Trace = here.run(lambda: asyncio.run(take_run_trace(node, processes_of(node), seconds)))
    finally:
        leave_runs()
    size = write_trace(trace, path)
    ranks = sum(each.rank >= 0 for each in trace.processes)
    return f"{ranks} ranks saved as {path} ({format_bytes(size)}); open it in https://ui.perfetto.dev"


def find_run(name: str) -> Path:
    """Return the folder of the run with this id or prefix; without a name, that of the only run. MeshbookError else."""
    root = runtime_root(current_settings())
    sweep(root)
    found = [each for each in root.iterdir() if is_of_a_run(each) and (each / CLIENTS).exists()]
    matching = [each for each in found if each.name.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    there = ", ".join(sorted(each.name for each in found)) or "none"
    raise MeshbookError(
        f"{'no run' if not matching else 'more than one run'} matches {name!r}; runs on this host: {there}"
    )


def processes_of(node: Node) -> list[Address]:
    """Return the addresses of a run's controller and of its workers on all hosts."""
    assert node.guide is not None
    workers, agents = _ask_agents([node.guide])[0]
    for more, _ in _ask_agents(agents):
        workers += more
    for address in workers:
        node.routes.trust(address)
    return [node.controller, *workers]


def _ask_agents(agents: list[Address]) -> list[tuple[list[Address], list[Address]]]:
    region = Extent(("hosts",), (len(agents),)).region
    hosts = ActorMesh("hosts", HostActor, [Target(agent, HOST) for agent in agents], region)
    return [each.get(ANSWER_SECONDS) for each in hosts.neighbours.call_each()] if agents else []
