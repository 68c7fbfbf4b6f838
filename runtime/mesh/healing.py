"""Healing a mesh: dead processes are restarted under their names, and their actors are created again.

    failed ranks (ledger) -> worker specs again (agents) -> constructors, `__restore__` -> follow-up -> resolved

A restarted process has the name and the address of the one before, so all existing handles refer to it. Each node
clears its record of the end when the agent, or the process itself, reports the new incarnation.
"""

from __future__ import annotations

import contextvars
import functools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import ProcessDied, SupervisionError
from meshbook.runtime.node.call_table import PerRank
from meshbook.runtime.node.ledger import OwnedMesh
from meshbook.runtime.node.node import Node
from meshbook.runtime.node.outbound import Creation
from meshbook.runtime.wire.messages import Address

Ask = Callable[[Sequence[Address]], Sequence[Future[Any]]]
Afterwards = Callable[[list[int]], Sequence[Future[Any]]]


def heal(
    node: Node,
    owned_mesh: OwnedMesh,
    nodes: Sequence[Address],
    ask_ready: Ask,
    afterwards: Callable[[list[int], list[int]], Sequence[Future[Any]]],
    *,
    only: Collection[int] | None = None,
) -> Future[list[int]]:
    """Implement `ProcMesh.heal`: `owned_mesh` is the entry of the processes, `nodes` are their addresses by rank.

    `afterwards` is called once all constructors have run, with the healed ranks and with those whose process had died;
    it starts the follow-up steps. `only` limits the heal to these processes, without actors in other ones.
    """
    healed: Future[list[int]] = Future.pending()
    log_when_healed(node, owned_mesh, healed)
    earlier, owned_mesh.healing = owned_mesh.healing, healed
    # On the I/O thread: it records the end of a process completely, so its pending calls have failed and no later ones
    # will.
    dead = node.loop.run(lambda: node.ledger.heal(owned_mesh.key, only))
    try:
        owned_mesh.restart(dead)
        restarted = [nodes[rank] for rank in dead]
        waiting = [*ask_ready(restarted)] if restarted else []
        created = node.supervision.create_again(_find_lost(node, nodes, restarted, only), restarted=restarted)
    except BaseException as error:
        healed.fail(error)
        raise
    if earlier is not None and not earlier.done():
        waiting.append(earlier)
    touched = {name for name, _ in created}
    ranks = [rank for rank, address in enumerate(nodes) if rank in dead or address.node in touched]
    made: Future[list[int]] = Future.pending()
    go_on_after(made, healed, lambda ranks: afterwards(ranks, dead) if ranks else ())
    resolve_after(made, [*waiting, *(future for _, future in created)], ranks)
    return healed


def _find_lost(
    node: Node, nodes: Sequence[Address], restarted: Sequence[Address], only: Collection[int] | None
) -> list[tuple[OwnedMesh, list[int]]]:
    """Return the actors to create again. Actors in a process that has died since are left to the next heal."""

    def find() -> list[tuple[OwnedMesh, list[int]]]:
        alive = (
            {address.node for address in nodes if node.peers.report_of(address.node) is None} if only is None else ()
        )
        return node.ledger.heal_actors(restarted={address.node for address in restarted}, alive=alive)

    return node.loop.run(find)


def log_when_healed(node: Node, owned_mesh: OwnedMesh, healed: Future[list[int]]) -> None:
    """Send an event when the heal has succeeded, if there was anything to heal."""
    begun = time.monotonic()

    def send_event() -> None:
        if healed.exception() is None and (ranks := healed.get()):
            seconds = time.monotonic() - begun
            node.send_event("healed", owned_mesh.name, owned_mesh.procs, ranks, f"in {seconds:.3f} s")

    healed.when_done(send_event)


def create_again(node: Node, name: str, creation: Creation, ranks: Sequence[int]) -> Sequence[Future[Any]]:
    """Create these ranks of an actor mesh again. Return a future for each, which raises if that failed."""

    def explain(error: BaseException) -> BaseException:
        text = f"Creating {name} again failed, {error}"
        return ProcessDied(text, error.report) if isinstance(error, ProcessDied) else SupervisionError(text)

    reply_handler = PerRank(len(ranks), explain)
    node.calls.create(creation, ranks, reply_handler, is_restored=True)
    if (owned_mesh := node.ledger.get(creation.targets[0].actor)) is not None:
        owned_mesh.healing = Future.pending()
        resolve_after(owned_mesh.healing, reply_handler.futures, None)
    return reply_handler.futures


def go_on_after(made: Future[list[int]], done: Future[list[int]], afterwards: Afterwards) -> None:
    """Settle `done` after `made` and after the futures that `afterwards` starts, in the caller's context."""
    here = contextvars.copy_context()  # the thread that settles `made` has another context

    def go_on() -> None:
        try:
            ranks = made.get()
            following = here.run(afterwards, ranks)
        except BaseException as error:
            done.fail(error)
        else:
            resolve_after(done, following, ranks)

    made.when_done(go_on)


def resolve_after(future: Future[Any], parts: Sequence[Future[Any]], value: Any) -> None:
    """Settle a future with the value once all parts are settled, or with the error of the first part that fails."""
    lock = threading.Lock()  # guards `left`
    left = len(parts)

    def look(part: Future[Any]) -> None:
        nonlocal left
        if (error := part.exception()) is not None:
            return future.fail(error)
        with lock:
            left -= 1
            is_last = not left
        if is_last:
            future.resolve(lambda: value)
        return None

    if not parts:
        future.resolve(lambda: value)
    for part in parts:
        part.when_done(functools.partial(look, part))
