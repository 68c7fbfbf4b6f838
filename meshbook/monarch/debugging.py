"""`debug_controller`: the actor that lists the ranks of a script that wait in the debugger."""

from __future__ import annotations

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.hosts.controllers import get_or_spawn_controller
from meshbook.runtime.hosts.session import running_session


class DebugController(Actor):
    """The actor in the client's process."""

    @endpoint
    def list(self) -> list[tuple[str, int, str]]:
        """Return the mesh, the rank and the place of each debugger that waits for a command."""
        session = running_session()
        return [] if session is None else session.debugger.stopped()


def debug_controller() -> DebugController:
    """Return the controller of this run, spawned by the first call. `python -m meshbook debug` reads the commands."""
    return get_or_spawn_controller("debug_controller", DebugController).get()
