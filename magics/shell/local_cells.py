"""Ordinary cells, which run in the notebook: the output of actors, unhandled failures and errors, each in its cell.

A failure that no actor handled ends a script. In a notebook it is shown as an error of the cell that spawned the mesh,
and the kernel keeps running.

IPython shows the errors of ordinary cells without meshbook's own frames, so they end at the user's line. `%xmode
Verbose` shows those frames as well.
"""

from __future__ import annotations

import asyncio
import functools
from types import TracebackType
from typing import Any

from meshbook.magics.notebook import Notebook
from meshbook.magics.output.actor_output import ActorOutputRouter
from meshbook.magics.output.publisher import Error, StreamText
from meshbook.magics.shell.cell_waits import CellWaits
from meshbook.runtime.actor.context import CURRENT, Context, current_origin
from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.errors import format_help
from meshbook.runtime.hosts.faults import is_default, set_unhandled_fault_hook, unhandled_fault_hook
from meshbook.runtime.hosts.session import running_session
from meshbook.runtime.traces import without_ours
from meshbook.runtime.wire.module_edits import expect_edits, note_modules


class LocalCells:
    """The hooks at the beginning and the end of each cell."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._origin = ""  # of the running cell
        self._waits: CellWaits | None = None  # of the running cell

    def install(self) -> None:
        """Register the hooks."""
        events = self._notebook.shell.events
        events.register("pre_run_cell", self.before_cell)
        events.register("post_run_cell", self.after_cell)

    def before_cell(self, info: Any) -> None:
        """Show the output of actors on behalf of this cell in it."""
        expect_edits()
        session, self._origin = running_session(), f"local {_number_of_next(self._notebook.shell)}"
        if session is None:
            CURRENT.set(None)  # a value left here belongs to a closed session
            return
        origin = self._origin
        screen = self._notebook.screen
        session.forwarder.screen = screen  # the session may be a new one, after `close_session()`
        screen.begin(origin, self._notebook.shell)
        self._waits = CellWaits(session.node, lambda line: screen.publish(origin, [StreamText("stdout", line)]))
        CURRENT.set(Context(session.context.actor_instance, origin=origin, waiter=self._waits))

    def after_cell(self, result: Any) -> None:
        """Show the output of the cell before its reply, and after an interrupt the calls that continue.

        Batch runs (nbclient) read nothing after the reply.
        """
        note_modules()
        session = running_session()
        if session is not None:
            session.forwarder.flush(self._origin)
            for mesh in self._notebook.meshes:
                mesh.share_path()
        waits, self._waits = self._waits, None
        if waits is not None and waits.cancelled and isinstance(result.error_in_exec, asyncio.CancelledError):
            print(waits.format_cancelled(), end="")


def _number_of_next(shell: Any) -> int:
    """Return the number of the cell that is about to run."""
    # Some versions of IPython have already incremented the counter, but none has stored the input.
    count, history = int(shell.execution_count), shell.history_manager
    return count if history is None else min(count, len(history.input_hist_parsed))


MOST_REPORTS = 1  # of one mesh in full; the other ranks have mostly failed for the same reason
_RED = "\x1b[31m"
_RESET = "\x1b[0m"


class UnhandledFaultDisplay:
    """Shows faults in cells, through the hook at which a script would end."""

    def __init__(self, screen: ActorOutputRouter) -> None:
        self._screen = screen
        self._seen: dict[tuple[str, str], int] = {}  # by cell and mesh: how many ranks have failed

    def install(self) -> None:
        """Set the hook, unless the user has set one."""
        if is_default(unhandled_fault_hook()):
            set_unhandled_fault_hook(self.show)

    def show(self, failure: MeshFailure) -> None:
        """Publish a failure under the cell in whose context this runs: the one that spawned the mesh.

        A process that a person ended is not a failure.
        """
        if failure.ended_by:
            return
        origin = current_origin()
        key = origin, failure.mesh_name
        self._seen[key] = count = self._seen.get(key, 0) + 1
        rank = failure.crashed_ranks[-1]
        summary = f"rank {rank} of mesh {failure.mesh_name} has failed"
        report = [*failure.report().splitlines(), format_help("meshfailure")] if count <= MOST_REPORTS else []
        title = f"{_RED}MeshFailure{_RESET}: {summary}"
        self._screen.publish(origin, [Error("MeshFailure", summary, (title, *report))])


def trim_tracebacks(shell: Any) -> None:
    """Make a shell hide our frames from now on."""
    table = shell.InteractiveTB
    show = table.structured_traceback

    @functools.wraps(show)
    def fold(etype: Any, evalue: Any = None, etb: TracebackType | None = None, *args: Any, **kwargs: Any) -> list[str]:
        if table.mode != "Verbose":
            _trim_causes(evalue)
            etb = without_ours(etb) or etb
        return show(etype, evalue, etb, *args, **kwargs)  # type: ignore[no-any-return]

    table.structured_traceback = fold


def _trim_causes(error: BaseException | None) -> None:
    """Trim the tracebacks of causes in place, since IPython reads them from the exceptions."""
    seen = {id(error)}
    cause = error.__cause__ or error.__context__ if error is not None else None
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        cause.__traceback__ = without_ours(cause.__traceback__)  # without user frames, its last line is enough
        cause = cause.__cause__ or cause.__context__
