"""Ordinary cells, which run here: shows in each cell the output of actors on its behalf."""

from __future__ import annotations

from typing import Any

from meshbook.magics.notebook import Notebook
from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.hosts.session import running_session


class LocalCells:
    """The hooks at the beginning and the end of each cell."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    def install(self) -> None:
        """Register the hooks."""
        events = self._notebook.shell.events
        events.register("pre_run_cell", self.before_cell)
        events.register("post_run_cell", self.after_cell)

    def before_cell(self, info: Any) -> None:
        """Show the output of actors on behalf of this cell in it."""
        session = running_session()
        if session is None:
            CURRENT.set(None)  # a value left here belongs to a closed session
            return
        origin = f"local {self._notebook.shell.execution_count}"
        screen = self._notebook.screen
        session.forwarder.screen = screen  # the session may be a new one, after `close_session()`
        screen.begin(origin, self._notebook.shell)
        CURRENT.set(Context(session.context.actor_instance, origin=origin))

    def after_cell(self, result: Any) -> None:
        """Show the pending output of the cell before the next prompt."""
        session = running_session()
        if session is not None:
            session.forwarder.flush()
