"""How handles travel in pickles, and of which run they are where they arrive.

A handle in a message is of the sender's run. A handle in a pickle that a program makes itself (a file, a queue of
`multiprocessing`) names its run: the pickle may be read in another process, which has another run or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshbook.runtime.actor.context import context, present_run, sender_run
from meshbook.runtime.transport.home import TCP, UNIX, host_of
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Address

Made = tuple[Callable[..., Any], tuple[Any, ...]]  # what makes a handle, and from what
HANDED: dict[type, type] = {}  # by the class of a handle, the one of such a handle of another run (`handed` fills it)


def run_of(nodes: Sequence[Address]) -> str:
    """Return the run of these nodes, by the URL of its first host; "" for nodes that no other process can reach."""
    hosts = [host_of(node) for node in nodes]
    first = next((host for host in hosts if host.startswith(UNIX)), "")
    if not first and hosts and hosts[0].startswith(TCP):  # the address of another host does not say
        return str(context().actor_instance.node.home)
    return first


def reduce_for_program(run: str, made: Made) -> tuple[Any, ...]:
    """Reduce a handle for a pickle that may go anywhere."""
    make, parts = made
    return (_arrive_anywhere, (run, make, *parts)) if run else made


def reduce_for_message(run: str, made: Made) -> tuple[Any, ...]:
    """Reduce a handle for a message, which is sent in the present run."""
    make, parts = made
    here = present_run()
    return (_arrive, (make, *parts)) if not here or here == run else reduce_for_program(run, made)


def load_from(run: str, body: Body, what: pickling.What) -> Any:
    """Load a value from a message of another run: handles in it are of that run."""
    token = sender_run.set(run)
    try:
        return pickling.loads(body, what)
    finally:
        sender_run.reset(token)


def as_of(run: str, made: Any) -> Any:
    """Turn a new handle into one of another run; return anything else as it is."""
    handed = HANDED.get(type(made))
    if handed is not None:
        # In place: nothing else refers to it yet, and it has the same attributes.
        made.__class__ = handed
        made._run_url = run
    return made


def _arrive(make: Callable[..., Any], *parts: Any) -> Any:
    made, run = make(*parts), sender_run.get()
    return as_of(run, made) if run else made


def _arrive_anywhere(run: str, make: Callable[..., Any], *parts: Any) -> Any:
    made = make(*parts)
    return made if run == present_run() else as_of(run, made)
