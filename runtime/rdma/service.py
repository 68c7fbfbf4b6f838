"""The actor of every node that others ask about the memory which its process lends."""

from __future__ import annotations

import contextvars
from typing import Protocol

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.ports import Port

RDMA = "rdma"


class Lender(Protocol):
    """What the actor needs of the station of its process. Nothing of it waits."""

    def end(self, number: int) -> Future[None]: ...


class RDMAService(Actor):
    """Hosted inline: what it does is done before the next message is received."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender

    @endpoint(explicit_response_port=True)
    def drop(self, port: Port[None], number: int) -> None:
        """Lend this no more; answered once nobody is at the memory. What is not lent (any more) is no error."""
        here = contextvars.copy_context()  # that is known later, on whichever thread looks then
        self._lender.end(number).when_done(lambda: here.run(port.send, None))
