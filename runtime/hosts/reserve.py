"""What the agent of a host does with its spares: calls them, ends them in time, and tells what became of them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.hosts.forkserver import Exited, Started
from meshbook.runtime.hosts.handover import is_left
from meshbook.runtime.hosts.spares import Spare, SpareTable
from meshbook.runtime.mesh.birth import WorkerSpec
from meshbook.runtime.telemetry.events import Kind
from meshbook.runtime.telemetry.last_words import last_words

OnSpare = Callable[[Kind, str, Sequence[int], str], None]  # what happened to one of this mesh, and of which ranks
SendSignal = Callable[[int, int], None]


class SpareManager:
    """The spares of one host at work. `on_spare` hears what concerns their meshes."""

    def __init__(self, folder: Path, settings: Settings, send_signal: SendSignal, on_spare: OnSpare) -> None:
        self._folder = folder
        self._settings = settings
        self._send_signal = send_signal
        self._on_spare = on_spare
        self._spares = SpareTable(folder)
        self.keep, self.count, self.missing = self._spares.keep, self._spares.count, self._spares.missing
        self.meshes, self.lose_all = self._spares.meshes, self._spares.lose_all

    def take(self, birth: WorkerSpec) -> int:
        """Let a warm one become this rank; its process id, 0 where there is none."""
        if pid := self._spares.take(birth):
            self._on_spare("spare used", birth.world.mesh, [birth.rank], f"pid {pid}")
        return pid

    def started(self, started: Started) -> None:
        """One was forked, or could not be."""
        spare = self._spares.started(started.node, started.pid)
        if spare is not None and spare.is_dismissed and spare.pid:
            self._kill(spare)
        elif spare is not None and spare.birth.start.command:
            self._watch(self._kill_mute, spare)

    def exited(self, exited: Exited) -> str:
        """One has ended, unused; the mesh that needs another one for it. One that was not warm would end so again."""
        spare = self._spares.find(exited.pid)
        if spare is None:
            return ""
        mesh = spare.birth.world.mesh
        words = last_words(self._folder, spare.node, self._settings.stderr_lines)
        report = ExitReport(spare.node, exited.pid, exited.returncode, words)
        is_wanted, was_warm = mesh in self._spares.meshes(), self._spares.ended(spare)
        if is_wanted:
            self._on_spare("spare lost", mesh, [], str(report))
        return mesh if was_warm else ""

    def dismiss(self, meshes: Iterable[str]) -> None:
        """End those of these meshes, and keep none any more."""
        spares = self._spares.dismiss(meshes)
        for spare in spares:
            if spare.pid and not self._spares.is_warm(spare):  # it would go on with its bootstrap, for nobody
                self._kill(spare)
        if spares:
            self._watch(self._kill_late, spares)

    # -- those that do not do what they should ---------------------------------------

    def _kill_late(self, spares: Sequence[Spare]) -> None:
        end = time.monotonic() + self._settings.stop_timeout
        for spare in spares:
            if not spare.ended.wait(max(0.0, end - time.monotonic())) and spare.pid:
                self._kill(spare)

    def _kill_mute(self, spare: Spare) -> None:
        """A command may run on without ever becoming a spare."""
        if not spare.ended.wait(self._settings.launch_timeout) and is_left(self._folder, spare.node):
            self._kill(spare)

    def _kill(self, spare: Spare) -> None:
        if not spare.ended.is_set():
            self._send_signal(spare.pid, signal.SIGKILL)

    def _watch(self, watch: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=watch, args=arguments, name="meshbook late spares", daemon=True).start()
