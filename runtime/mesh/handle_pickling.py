"""Pickling of handles, and the run that an unpickled handle belongs to.

A handle in a message belongs to the sender's run. A handle in a pickle that a program makes itself (a file, a queue of
`multiprocessing`) names its run: another process may read it, which has another run or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshbook.runtime.actor.context import context, present_run, sender_run
from meshbook.runtime.transport.home import TCP, UNIX, host_of
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Address

Made = tuple[Callable[..., Any], tuple[Any, ...]]  # a callable and its arguments that make a handle
# Maps the class of a handle to its class for handles of another run (filled by `foreign_handles`).
FOREIGN_CLASSES: dict[type, type] = {}


def run_of(nodes: Sequence[Address]) -> str:
    """Return the run of these nodes, by the URL of its first host; "" for nodes that no other process can reach."""
    hosts = [host_of(node) for node in nodes]
    first = next((host for host in hosts if host.startswith(UNIX)), "")
    if not first and hosts and hosts[0].startswith(TCP):  # the address of another host does not identify the run
        return str(context().actor_instance.node.home)
    return first


def reduce_for_program(run: str, made: Made) -> tuple[Any, ...]:
    """Reduce a handle for a pickle that any process may read."""
    make, parts = made
    return (_arrive_anywhere, (run, make, *parts)) if run else made


def reduce_for_message(run: str, made: Made) -> tuple[Any, ...]:
    """Reduce a handle for a message, which is sent in the present run."""
    make, parts = made
    here = present_run()
    return (_arrive, (make, *parts)) if not here or here == run else reduce_for_program(run, made)


def load_from(run: str, body: Body, what: pickling.What) -> Any:
    """Load a value from a message of another run: handles in it belong to that run."""
    token = sender_run.set(run)
    try:
        return pickling.loads(body, what)
    finally:
        sender_run.reset(token)


def as_of(run: str, made: Any) -> Any:
    """Turn a new handle into one of another run; return any other object unchanged."""
    foreign = FOREIGN_CLASSES.get(type(made))
    if foreign is not None:
        # In place: the object has no other reference yet, and the same attributes.
        made.__class__ = foreign
        made._run_url = run
    return made


def _arrive(make: Callable[..., Any], *parts: Any) -> Any:
    made, run = make(*parts), sender_run.get()
    return as_of(run, made) if run else made


def _arrive_anywhere(run: str, make: Callable[..., Any], *parts: Any) -> Any:
    made = make(*parts)
    return made if run == present_run() else as_of(run, made)
