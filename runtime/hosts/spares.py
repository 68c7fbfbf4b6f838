"""The spares of one host, in its agent: how many each mesh keeps, which ones run, and which one becomes a rank.

    keep -> missing -> (forked) -> started -> take -> called: it is a rank now
                                           -> ended, or dismissed with its mesh

The agent calls its spares, ends them in time, and reports their events.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.hosts.command_workers import has_spec_file
from meshbook.runtime.hosts.forkserver import Exited, Started
from meshbook.runtime.hosts.spare_worker import call_file, place_file
from meshbook.runtime.mesh.worker_specs import WorkerSpec
from meshbook.runtime.telemetry.events import Kind
from meshbook.runtime.telemetry.stderr_tail import read_last_lines, remove_files


@dataclass
class Spare:
    """One spare, from the request to its end."""

    spec: WorkerSpec
    call: int  # the write end of the FIFO it waits at, until it is called or no longer needed
    pid: int = 0
    is_dismissed: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def node(self) -> str:
        return self.spec.address.node

    def send(self, word: bytes) -> None:
        """Send the last message: the name of the node that it becomes, or empty to end it."""
        # Two threads may call this at the same time: the spare ends by itself while its mesh is stopped. So the
        # descriptor is cleared first; otherwise the second thread would close a number that is reused by then.
        call, self.call = self.call, -1
        if call >= 0:
            os.write(call, word)
            os.close(call)


@dataclass
class MeshSpares:
    """The spares of one mesh."""

    like: WorkerSpec  # the spec that they are started with
    count: int
    spares: dict[str, Spare] = field(default_factory=dict)  # the oldest first


class SpareTable:
    """All spares of this host. A spare that ends before it is warm is not replaced: the next would end likewise."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()  # guards the three below
        self._stocks: dict[str, MeshSpares] = {}
        self._by_pid: dict[int, Spare] = {}  # those that have been started and run, dismissed ones too
        self._unstarted: dict[str, Spare] = {}  # those that were dismissed before they had been started
        self._numbers = itertools.count()

    def keep(self, like: WorkerSpec, count: int) -> None:
        """Keep `count` spares for the mesh of this spec from now on."""
        with self._lock:
            self._stocks[like.world.mesh] = MeshSpares(like, count)

    def missing(self, mesh: str) -> list[WorkerSpec]:
        """Return the specs of the spares to start now, and register them."""
        with self._lock:
            stock = self._stocks.get(mesh)
            made = [self._make(stock.like) for _ in range(stock.count - len(stock.spares))] if stock is not None else []
            if stock is not None:
                stock.spares |= {spare.node: spare for spare in made}
        return [spare.spec for spare in made]

    def _make(self, like: WorkerSpec) -> Spare:
        node = f"{like.world.mesh}.spare-{next(self._numbers)}"
        address = msgspec.structs.replace(like.address, node=node)
        path = call_file(self._folder, node)
        os.mkfifo(path, 0o600)
        # Open for reading, too: otherwise the open would fail or wait until the spare reads.
        call = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return Spare(msgspec.structs.replace(like, address=address, is_spare=True), call)

    def started(self, node: str, pid: int) -> Spare | None:
        """Record that this spare was forked; pid 0: the fork failed."""
        with self._lock:
            waiting = [stock.spares[node] for stock in self._stocks.values() if node in stock.spares]
            spare = waiting[0] if waiting else self._unstarted.pop(node, None)
            if spare is not None and pid:
                spare.pid, self._by_pid[pid] = pid, spare
        if spare is not None and not pid:
            self._forget(spare)
        return spare

    def find(self, pid: int) -> Spare | None:
        """Return the spare with this process id."""
        with self._lock:
            return self._by_pid.get(pid)

    def is_warm(self, spare: Spare) -> bool:
        """Whether the spare waits to be called."""
        return bool(spare.pid) and not call_file(self._folder, spare.node).exists()

    def count(self, mesh: str) -> int:
        """Return how many warm spares wait for this mesh."""
        with self._lock:
            stock = self._stocks.get(mesh)
            return sum(map(self.is_warm, stock.spares.values())) if stock is not None else 0

    def take(self, spec: WorkerSpec) -> int:
        """Turn a warm spare into this rank, which must not be started otherwise. Return its pid, 0 if there is none.

        A spare that is not warm may never become so: if its bootstrap fails, the rank would be lost once more.
        """
        with self._lock:
            stock = self._stocks.get(spec.world.mesh)
            ready = [] if stock is None else list(filter(self.is_warm, stock.spares.values()))
            if stock is None or not ready:
                return 0
            spare = stock.spares.pop(ready[0].node)
            del self._by_pid[spare.pid]
        self._call(spare, spec)
        return spare.pid

    def _call(self, spare: Spare, spec: WorkerSpec) -> None:
        for suffix in (".out", ".err"):  # the output of its bootstrap becomes that rank's
            with contextlib.suppress(FileNotFoundError):
                (self._folder / f"{spare.node}{suffix}").rename(self._folder / f"{spec.address.node}{suffix}")
        node = spec.address.node
        with open(os.open(place_file(self._folder, node), os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            pickle.dump(spec, file)
        spare.send(node.encode())

    def ended(self, spare: Spare) -> bool:
        """Forget a spare that has ended unused; return whether to start another one."""
        was_warm = self.is_warm(spare)
        self._forget(spare)
        spare.ended.set()
        return was_warm

    def dismiss(self, meshes: Iterable[str]) -> list[Spare]:
        """End the spares of these meshes, and keep none any more. Return the spares that have to leave."""
        with self._lock:
            stocks = [self._stocks.pop(mesh) for mesh in meshes if mesh in self._stocks]
            spares = [spare for stock in stocks for spare in stock.spares.values()]
            self._unstarted |= {spare.node: spare for spare in spares if not spare.pid}
        for spare in spares:
            spare.is_dismissed = True
            spare.send(b"")
            if not spare.pid:  # it will find no FIFO to wait at
                call_file(self._folder, spare.node).unlink(missing_ok=True)
        return spares

    def meshes(self, owner: str = "") -> list[str]:
        """Return the meshes that have spares: of all owners, or of one."""
        with self._lock:
            return [mesh for mesh, stock in self._stocks.items() if owner in ("", stock.like.world.owner)]

    def lose_all(self, *, is_warm: bool) -> None:
        """Forget the spares of the warm or of the plain fork server, which has ended together with them."""
        with self._lock:
            waiting = itertools.chain.from_iterable(stock.spares.values() for stock in self._stocks.values())
            known = [*self._by_pid.values(), *waiting, *self._unstarted.values()]
            spares = [spare for spare in known if spare.spec.world.is_warm == is_warm]
            for spare in spares:
                self._unstarted.pop(spare.node, None)
        for spare in spares:
            self.ended(spare)

    def _forget(self, spare: Spare) -> None:
        with self._lock:
            self._by_pid.pop(spare.pid, None)
            if (stock := self._stocks.get(spare.spec.world.mesh)) is not None:
                stock.spares.pop(spare.node, None)
        spare.send(b"")
        call_file(self._folder, spare.node).unlink(missing_ok=True)
        remove_files(self._folder, spare.node)


OnSpare = Callable[[Kind, str, Sequence[int], str], None]  # event kind, mesh, ranks, text
SendSignal = Callable[[int, int], None]


class SpareManager:
    """Starts, calls and ends the spares of one host. `on_spare` receives the events about their meshes."""

    def __init__(self, folder: Path, settings: Settings, send_signal: SendSignal, on_spare: OnSpare) -> None:
        self._folder = folder
        self._settings = settings
        self._send_signal = send_signal
        self._on_spare = on_spare
        self._spares = SpareTable(folder)
        self.keep, self.count, self.missing = self._spares.keep, self._spares.count, self._spares.missing
        self.meshes, self.lose_all = self._spares.meshes, self._spares.lose_all

    def take(self, spec: WorkerSpec) -> int:
        """Turn a warm spare into this rank; return its process id, 0 if there is none."""
        if pid := self._spares.take(spec):
            self._on_spare("spare used", spec.world.mesh, [spec.rank], f"pid {pid}")
        return pid

    def started(self, started: Started) -> None:
        """Handle the result of forking a spare."""
        spare = self._spares.started(started.node, started.pid)
        if spare is not None and spare.is_dismissed and spare.pid:
            self._kill(spare)
        elif spare is not None and spare.spec.start.command:
            self._watch(self._kill_unless_started, spare)

    def exited(self, exited: Exited) -> str:
        """Handle the end of an unused spare; return the mesh that needs a new one, or "".

        A spare that was not warm is not replaced: the next would end likewise.
        """
        spare = self._spares.find(exited.pid)
        if spare is None:
            return ""
        mesh = spare.spec.world.mesh
        words = read_last_lines(self._folder, spare.node, self._settings.stderr_lines)
        report = ExitReport(spare.node, exited.pid, exited.returncode, words)
        is_wanted, was_warm = mesh in self._spares.meshes(), self._spares.ended(spare)
        if is_wanted:
            self._on_spare("spare lost", mesh, [], str(report))
        return mesh if was_warm else ""

    def dismiss(self, meshes: Iterable[str]) -> None:
        """End the spares of these meshes, and keep none any more."""
        spares = self._spares.dismiss(meshes)
        for spare in spares:
            if spare.pid and not self._spares.is_warm(spare):  # it would run its bootstrap to the end, without use
                self._kill(spare)
        if spares:
            self._watch(self._kill_late, spares)

    # -- spares that do not behave as expected ---------------------------------------

    def _kill_late(self, spares: Sequence[Spare]) -> None:
        end = time.monotonic() + self._settings.stop_timeout
        for spare in spares:
            if not spare.ended.wait(max(0.0, end - time.monotonic())) and spare.pid:
                self._kill(spare)

    def _kill_unless_started(self, spare: Spare) -> None:
        """Kill a command that runs without becoming a spare in time."""
        if not spare.ended.wait(self._settings.launch_timeout) and has_spec_file(self._folder, spare.node):
            self._kill(spare)

    def _kill(self, spare: Spare) -> None:
        if not spare.ended.is_set():
            self._send_signal(spare.pid, signal.SIGKILL)

    def _watch(self, watch: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=watch, args=arguments, name="meshbook late spares", daemon=True).start()
