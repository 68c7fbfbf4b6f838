"""`debug_controller`: the actor that knows which ranks of a script stand in the debugger."""

from __future__ import annotations

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.hosts.controllers import get_or_spawn_controller
from meshbook.runtime.hosts.session import running_session


class DebugController(Actor):
    """Lives in the client's process."""

    @endpoint
    def list(self) -> list[tuple[str, int, str]]:
        """The mesh, the rank and the place of each debugger that waits for a command."""
        session = running_session()
        return [] if session is None else session.debugger.stopped()


def debug_controller() -> DebugController:
    """The one of this run, spawned by the first call. `python -m meshbook debug` is where commands are entered."""
    return get_or_spawn_controller("debug_controller", DebugController).get()
