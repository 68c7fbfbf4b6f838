"""Ordinary cells, which run here: what actors print on behalf of one is shown in it."""

from __future__ import annotations

from typing import Any

from meshbook.magics.notebook import Notebook
from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.hosts.session import running_session


class LocalCells:
    """Hears of the beginning and the end of each cell."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    def install(self) -> None:
        """Have the shell tell."""
        events = self._notebook.shell.events
        events.register("pre_run_cell", self.before_cell)
        events.register("post_run_cell", self.after_cell)

    def before_cell(self, info: Any) -> None:
        """A cell begins: what actors print on its behalf will be shown in it."""
        session = running_session()
        if session is None:
            CURRENT.set(None)  # what was there is of a session that has been closed
            return
        origin = f"local {self._notebook.shell.execution_count}"
        screen = self._notebook.screen
        session.forwarder.screen = screen  # the session may be another one, after `close_session()`
        screen.begin(origin, self._notebook.shell)
        CURRENT.set(Context(session.context.actor_instance, origin=origin))

    def after_cell(self, result: Any) -> None:
        """It ended: show what it caused before the next prompt."""
        session = running_session()
        if session is not None:
            session.forwarder.flush()
