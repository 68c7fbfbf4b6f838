"""`%load_ext meshbook`: what the notebook gets, in our kernel and in a stock one alike."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand

from meshbook.magics import changes
from meshbook.magics.faults import FaultScreen
from meshbook.magics.folding import fold_frames
from meshbook.magics.forwarding import CellScreen
from meshbook.magics.interruptible import run_interruptible
from meshbook.magics.losses import check_able
from meshbook.magics.meshes import MeshError, Meshes, NotebookMesh, describe_up
from meshbook.magics.moments import CellInterrupts
from meshbook.magics.options import CellOptions, parse_cell_options
from meshbook.magics.parsing import HelpRequested
from meshbook.magics.publications import Display, LiveDisplay
from meshbook.magics.publisher import publisher_for
from meshbook.magics.results import MeshResult
from meshbook.magics.run import CellRun
from meshbook.magics.stacks import render_stacks, take_stacks
from meshbook.magics.status import history_of, state_of
from meshbook.magics.transform import RUNNER, transform
from meshbook.magics.verbs import Down, Heal, Interrupt, Log, Resize, Restart, Stack, Status, Up, parse_verb
from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.session import Session, current_session, running_session
from meshbook.runtime.mesh.procs import ProcMesh


@magics_class
class MeshMagics(Magics):
    """`%%mesh` and `%mesh`."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.meshes = Meshes()
        self._screen = CellScreen()
        FaultScreen(self._screen).install()

    def warm_up(self) -> None:
        """Start the session in the background, so that the first `%%mesh` finds its workers' parent warm."""
        threading.Thread(target=self._session, name="meshbook warm-up", daemon=True).start()

    def _session(self) -> Session:
        session = current_session()
        session.forwarder.screen = self._screen
        return session

    # -- cells -------------------------------------------------------------------

    async def run_cell(self, line: str, source: str) -> MeshResult | None:
        """What a `%%mesh` cell becomes (see `transform`). Its value is the result, where the cell has one."""
        options = parse_cell_options(line)
        if isinstance(options, HelpRequested):
            print(options.text)
            return None
        self._session()
        if not len(self.meshes):
            await self._bring_up_default()
        mesh, selected = self.meshes.select(options.selection)
        check_able(mesh, selected.region)
        publisher = publisher_for(self.shell)
        run = CellRun(
            *(self._session(), mesh, selected.region, options, self._shown(options), publisher),
            number=self._number_of_cell(),
        )
        result = await run.run(source)
        if options.out:
            self.shell.user_ns[options.out] = result
        if options.time:
            publisher.publish([Display({"text/plain": repr(result.cost), "text/html": result.cost._repr_html_()}, {})])
        return result if result.has_value else None

    def _shown(self, options: CellOptions) -> frozenset[int] | None:
        return None if options.show is None else frozenset(self.meshes.select(options.show)[1].region.ranks())

    def _number_of_cell(self) -> int:
        # The shell's own counter stands at the next cell already, or not yet: that differs between IPython's versions.
        running = getattr(self.shell.displayhook, "exec_result", None)
        return int(getattr(running, "execution_count", None) or self.shell.execution_count)

    async def _bring_up_default(self) -> None:
        started = time.monotonic()
        interrupted = threading.Event()

        def look(ready: int, total: int) -> None:
            if interrupted.is_set():
                raise MeshError(f"interrupted when {ready} of {total} ranks were up, and so no mesh is")

        mesh = await run_interruptible(asyncio.to_thread(self.meshes.up, progress=look), interrupted.set)
        self._bind(mesh)
        print(f"no mesh was up, so one was started: {describe_up(mesh, started)}")

    @no_var_expand  # type: ignore[untyped-decorator]
    @cell_magic("mesh")  # type: ignore[untyped-decorator]
    def refuse_nested(self, line: str, cell: str) -> None:
        """Run the cell on ranks of the mesh: `%%mesh [SEL] [options]`; `%%mesh --help` tells more."""
        raise RuntimeError("%%mesh works as the first line of a cell; inside code use %mesh, or the mesh's own methods")

    # -- verbs -------------------------------------------------------------------

    @no_var_expand  # type: ignore[untyped-decorator]
    @line_magic("mesh")  # type: ignore[untyped-decorator]
    def control(self, line: str) -> None:
        """Control the meshes of this notebook: `%mesh up --gpus 4`, `status`, `down`, `log`; see `%mesh --help`."""
        match parse_verb(line):
            case HelpRequested(text):
                print(text)
            case Up() as up:
                self._up(up)
            case Status() as status:
                self._status(status)
            case Down(name, now):
                self._session()
                print(f"{self.meshes.down(name, now=now).name} is down")
            case Resize() as wanted:
                self._resize(wanted)
            case Heal(name):
                print(changes.heal(self.meshes.get(name)))
            case Interrupt(selection, kill):
                print((changes.kill_busy if kill else changes.interrupt)(*self._selected(selection)))
            case Restart(selection):
                print(changes.restart(*self._selected(selection)))
            case Stack(selection):
                print(render_stacks(changes.wait_for(take_stacks(*self._selected(selection)))))
            case Log() as log:
                self._log(log)

    def _selected(self, selection: str) -> tuple[NotebookMesh, list[int]]:
        mesh, selected = self.meshes.select(selection)
        return mesh, list(selected.region.ranks())

    def _up(self, up: Up) -> None:
        started = time.monotonic()
        self._session()
        extent = up.shape if up.shape is not None else Extent.of(gpus=up.gpus) if up.gpus else None
        bar = _Progress(self.shell)
        mesh = self.meshes.up(extent, up.name, bar, spares=up.spares)
        self._bind(mesh)
        bar.done(describe_up(mesh, started))

    def _resize(self, wanted: Resize) -> None:
        mesh = self.meshes.get(wanted.name)
        sizes = dict(wanted.shape) if wanted.shape is not None else {"gpus": wanted.gpus or 1}
        print(changes.resize(mesh, sizes))
        self._bind(mesh)

    def _bind(self, mesh: NotebookMesh) -> None:
        """The process mesh under its name, for actors; a variable of the user's own is left alone."""
        known = self.shell.user_ns.get(mesh.name)
        if known is None or isinstance(known, ProcMesh):
            self.shell.user_ns[mesh.name] = mesh.procs

    def _status(self, status: Status) -> None:
        if not len(self.meshes):
            print("no mesh is up: %mesh up --gpus 4 starts one, and so does the first %%mesh cell")
            return
        for mesh in [self.meshes.get(status.name)] if status.name else list(self.meshes):
            print("\n".join([*state_of(mesh), *([] if status.brief else history_of(mesh))]))

    def _log(self, log: Log) -> None:
        mesh = self.meshes.get()
        if not 0 <= log.rank < mesh.extent.nelements:
            raise MeshError(f"{mesh.name} has no rank {log.rank}: it has 0 to {mesh.extent.nelements - 1}")
        lines = self._session().output.recent(mesh.procs.name, log.rank).splitlines()
        print("\n".join(lines[-log.lines :]))

    # -- ordinary cells ------------------------------------------------------------

    def before_cell(self, info: Any) -> None:
        """An ordinary cell begins: what actors print on its behalf will be shown in it."""
        session = running_session()
        if session is None:
            CURRENT.set(None)  # what was there is of a session that has been closed
            return
        origin = f"local {self.shell.execution_count}"
        session.forwarder.screen = self._screen  # the session may be another one, after `close_session()`
        self._screen.begin(origin, self.shell)
        CURRENT.set(Context(session.context.actor_instance, origin=origin))

    def after_cell(self, result: Any) -> None:
        """It ended: show what it caused before the next prompt."""
        session = running_session()
        if session is not None:
            session.forwarder.flush()


class _Progress:
    """A line that says how many ranks are up, once it takes longer than a blink."""

    def __init__(self, shell: Any) -> None:
        self._publisher = publisher_for(shell)
        self._shown = ""

    def __call__(self, ready: int, total: int) -> None:
        bar = "█" * (20 * ready // total)
        self._show(f"starting ranks {bar:░<20} {ready}/{total}")

    def done(self, text: str) -> None:
        self._show(text, is_final=True) if self._shown else print(text)

    def _show(self, text: str, *, is_final: bool = False) -> None:
        if text != self._shown:
            self._publisher.publish([LiveDisplay({"text/plain": text}, bool(self._shown), is_final)])
            self._shown = text


def load(shell: Any) -> MeshMagics:
    """Install into an IPython shell; loading twice changes nothing."""
    known = shell.user_ns_hidden.get(RUNNER)
    if known is not None:
        return known.__self__  # type: ignore[no-any-return]
    magics = MeshMagics(shell)
    shell.register_magics(magics)
    shell.input_transformers_cleanup.append(transform)
    shell.push({RUNNER: magics.run_cell}, interactive=False)
    shell.events.register("pre_run_cell", magics.before_cell)
    shell.events.register("post_run_cell", magics.after_cell)
    fold_frames(shell)
    if getattr(shell, "kernel", None) is not None:
        CellInterrupts(shell).install()
    magics.warm_up()
    return magics
