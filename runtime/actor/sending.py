"""`send`: the primitive below the verbs of an endpoint. Who calls says where the answers go: to a port, or nowhere."""

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
    """Call an endpoint on all ranks, or on one drawn at random; each answers to `port`, which may be of any process.

    An answer comes as (rank in the called mesh, value) to a receiver of `Channel.open_ranked`, an error as an exception
    of `recv`. Without a port nobody takes an answer, and an exception ends the actor, as with `broadcast`. The death of
    a rank is told to a port of this process only, and not where the endpoint itself answers by a port.

    Raises TypeError at once for arguments that do not fit, and for what is no endpoint or port; ValueError for another
    selection.
    """
    if not isinstance(endpoint, Endpoint):
        raise TypeError(f"send() takes an endpoint of an actor mesh, not {endpoint!r}")
    if selection not in ("all", "choose"):
        raise ValueError(f"selection is 'all' or 'choose', not {selection!r}")
    if port is not None and not isinstance(port, Port):
        raise TypeError(f"send() takes a Port for the answers, as Channel.open() makes them, not {port!r}")
    if isinstance(args, str) or not isinstance(args, Sequence) or not isinstance(kwargs, Mapping):
        raise TypeError(f"send() takes the arguments as a list and a dict: send(endpoint, [1, 2], {{}}), not {args!r}")
    mesh, method = endpoint._mesh, endpoint._method
    arguments = tuple(args), dict(kwargs)
    method.check(*arguments)
    to = (None, 0) if port is None else (port._address, port._number)
    mesh._send(method.name, arguments, chosen=selection == "choose", port=to, has_port=method.has_port)
    if port is not None:
        port._hand_over()
