"""Actors of the runtime that have no thread: their endpoints run where messages are received."""

from __future__ import annotations

import logging

from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.node.hosting import HostedActor
from meshbook.runtime.traces import format_error
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Call, Stop

logger = logging.getLogger(__name__)


class InlineActor(HostedActor):
    """An actor of the runtime that runs on the receiving thread, in the order of arrival; it must never wait."""

    def post(self, message: Call | Stop, body: Body) -> None:
        if isinstance(message, Call):
            self.queue.count_out((message, body))
            token = CURRENT.set(self.context_of(message, None))
            try:
                self.returned(message, self.begin(message, body))
            except Exception as error:
                self.raised(message, error)
            finally:
                CURRENT.reset(token)

    def raised(self, call: Call, error: Exception) -> None:
        if call.call:
            super().raised(call, error)
        else:  # a fault of ours in one message must not be the end of it
            logger.error("%s.%s() failed\n%s", self.instance.name, call.endpoint, format_error(error))
