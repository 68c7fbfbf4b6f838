"""Healing a mesh: processes that have died are started again under their names, and their actors are created again.

    what has failed (ledger) -> births again (agents) -> constructors, `__restore__` -> what follows -> resolved

A process that comes again has the name and the address of the one before, so that every handle, wherever it is, refers
to it. Each node clears what it knows of the end when it hears of the new life, by the agent or by the process itself.
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
    """What `ProcMesh.heal` does: `owned_mesh` is of the processes, `nodes` are theirs, by rank.

    `afterwards` is told which ranks were healed, once all are constructed, and in which of them the process had died;
    it begins what has to follow. `only` these processes, and no actors in other ones.
    """
    healed: Future[list[int]] = Future.pending()
    log_when_healed(node, owned_mesh, healed)
    earlier, owned_mesh.healing = owned_mesh.healing, healed
    # On the I/O thread: it notes the end of a process completely, so its calls have failed and no later ones will.
    dead = node.loop.run(lambda: node.ledger.heal(owned_mesh.key, only))
    try:
        owned_mesh.again(dead)
        reborn = [nodes[rank] for rank in dead]
        waiting = [*ask_ready(reborn)] if reborn else []
        created = node.supervision.create_again(_find_lost(node, nodes, reborn, only), reborn=reborn)
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
    node: Node, nodes: Sequence[Address], reborn: Sequence[Address], only: Collection[int] | None
) -> list[tuple[OwnedMesh, list[int]]]:
    """Which actors are to be created again. Those in a process that has died since are for the next heal."""

    def find() -> list[tuple[OwnedMesh, list[int]]]:
        alive = (
            {address.node for address in nodes if node.peers.report_of(address.node) is None} if only is None else ()
        )
        return node.ledger.heal_actors(reborn={address.node for address in reborn}, alive=alive)

    return node.loop.run(find)


def log_when_healed(node: Node, owned_mesh: OwnedMesh, healed: Future[list[int]]) -> None:
    """Note it as an event, where there was something to heal and that went well."""
    begun = time.monotonic()

    def tell() -> None:
        if healed.exception() is None and (ranks := healed.get()):
            seconds = time.monotonic() - begun
            node.send_event("healed", owned_mesh.name, owned_mesh.procs, ranks, f"in {seconds:.3f} s")

    healed.when_done(tell)


def create_again(node: Node, name: str, creation: Creation, ranks: Sequence[int]) -> Sequence[Future[Any]]:
    """Create these ranks of an actor mesh again: a future each, of whether that went well."""

    def explain(error: BaseException) -> BaseException:
        text = f"Creating {name} again failed, {error}"
        return ProcessDied(text, error.report) if isinstance(error, ProcessDied) else SupervisionError(text)

    reply_handler = PerRank(len(ranks), explain)
    node.calls.create(creation, ranks, reply_handler, again=True)
    if (owned_mesh := node.ledger.get(creation.targets[0].actor)) is not None:
        owned_mesh.healing = Future.pending()
        resolve_after(owned_mesh.healing, reply_handler.futures, None)
    return reply_handler.futures


def go_on_after(made: Future[list[int]], done: Future[list[int]], afterwards: Afterwards) -> None:
    """Settle `done` once `made` is, and what `afterwards` begins then, for whoever asks here."""
    here = contextvars.copy_context()  # that settles `made` is no part of the caller

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
    """Settle a future with the value once all of the parts are, or with the error of the first that fails."""
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
