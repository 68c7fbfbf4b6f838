"""`send`: the primitive below the verbs of an endpoint. The caller names the port for the answers, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from meshbook.runtime.actor.endpoint import Endpoint
from meshbook.runtime.actor.ports import Port

R = TypeVar("R")


def send(
    endpoint: Endpoint[..., R],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    port: Port[R] | None = None,
    selection: Literal["all", "choose"] = "all",
) -> None:
    """Call an endpoint on all ranks, or on one drawn at random. Each answers to `port`, which may be of any process.

    A receiver from `Channel.open_ranked` gets each answer as (rank in the called mesh, value). An error is raised by
    `recv`. Without a port the answers are dropped, and an exception ends the actor, as with `broadcast`. The death of a
    rank is reported only to a port of this process, and not if the endpoint itself answers through a port.

    Raises TypeError at once for arguments that do not fit, and for anything but an endpoint or a port; ValueError for
    an unknown selection.
    """
    if not isinstance(endpoint, Endpoint):
        raise TypeError(f"send() takes an endpoint of an actor mesh, not {endpoint!r}")
    if selection not in ("all", "choose"):
        raise ValueError(f"selection must be 'all' or 'choose', not {selection!r}")
    if port is not None and not isinstance(port, Port):
        raise TypeError(f"send() takes a Port for the answers, as Channel.open() returns it, not {port!r}")
    if isinstance(args, str) or not isinstance(args, Sequence) or not isinstance(kwargs, Mapping):
        raise TypeError(f"send() takes the arguments as a list and a dict: send(endpoint, [1, 2], {{}}), not {args!r}")
    mesh, method = endpoint._mesh, endpoint._method
    arguments = tuple(args), dict(kwargs)
    method.check(*arguments)
    to = (None, 0) if port is None else (port._address, port._number)
    mesh._send(method.name, arguments, chosen=selection == "choose", port=to, has_port=method.has_port)
    if port is not None:
        port._hand_over()
