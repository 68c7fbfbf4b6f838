"""A worker: one process of a mesh, from its start to its exit.

The main thread runs the work that needs it (cells: signals, CUDA and matplotlib require the main thread). One thread
receives, one answers for the process while the main thread is busy, one sends the output.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import faulthandler
import functools
import inspect
import logging
import math
import os
import queue
import sys
import threading
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from meshbook.runtime import devices
from meshbook.runtime.actor.context import Context, Instance, context, provide_client
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import when_settled
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.collectives.abort import abort_after_death
from meshbook.runtime.collectives.membership import (
    GroupMembership,
    GroupPlan,
    LeftGroups,
    disable_watchdog,
    has_gpu,
    set_default_timeout,
)
from meshbook.runtime.collectives.stores import GroupStores
from meshbook.runtime.config import set_inherited_settings
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.geometry import SCALAR, Extent
from meshbook.runtime.hosts.breakpoints import Breakpoints
from meshbook.runtime.hosts.heartbeat import Heartbeat
from meshbook.runtime.hosts.joined_runs import join
from meshbook.runtime.hosts.linux import buffer_c_output_by_line
from meshbook.runtime.hosts.worker_exit import leave, run_finalisers
from meshbook.runtime.imports import when_imported
from meshbook.runtime.mesh.local_handles import local_handles_of
from meshbook.runtime.mesh.process_actor import PROCESS, ProcessActor
from meshbook.runtime.mesh.tasks import UnstartedItems, table_of
from meshbook.runtime.mesh.worker_specs import WorkerSpec
from meshbook.runtime.node.node import Node
from meshbook.runtime.node.signal_handlers import SignalHandlers
from meshbook.runtime.rdma.data_plane import DataPlane
from meshbook.runtime.resources import count_cores
from meshbook.runtime.telemetry.bar_lines import BarPoints
from meshbook.runtime.telemetry.capture import CHUNK_CHARACTERS, Capture, ReplyOutput
from meshbook.runtime.telemetry.collective_spans import watch_collectives
from meshbook.runtime.telemetry.logs import Prefix, print_logs
from meshbook.runtime.telemetry.output import TELEMETRY, LogOptions, OutputChunk
from meshbook.runtime.telemetry.status_writer import watch_steps
from meshbook.runtime.telemetry.stderr_tail import leave_traceback
from meshbook.runtime.telemetry.traffic import TransferRecord
from meshbook.runtime.traces import format_error
from meshbook.runtime.transport import PeerGone, Transport
from meshbook.runtime.transport.disturbed import DisturbedTransport
from meshbook.runtime.transport.home import Home, host_of, ip_of
from meshbook.runtime.transport.unix import UnixTransport
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.functions import note_worker

MOST_COMPILERS = 32  # processes of torch.compile that torch itself starts at most


def settle(spec: WorkerSpec) -> None:
    """Prepare the interpreter for user code: import path, empty arguments, and a fresh `__main__` module."""
    buffer_c_output_by_line()
    sys.path[:] = spec.search_path()
    sys.argv = [""]
    # Definitions in cells belong to `__main__`, which must not be the module of the fork server.
    sys.modules["__main__"] = types.ModuleType("__main__")
    note_worker()


def run(spec: WorkerSpec, folder: Path, *, is_prepared: bool = False) -> None:
    """Serve as this worker until it is stopped; then end the process. `is_prepared`: its bootstrap has run."""
    # A segmentation fault writes Python's stack to stderr, which the agent reads. Only of the faulting thread: the
    # other stacks would push it out of the last lines.
    faulthandler.enable(file=2, all_threads=False)
    set_inherited_settings(spec.world.settings)
    share_cores(spec)
    if limit := spec.world.settings.collective_timeout:
        disable_watchdog()
        when_imported("torch", functools.partial(set_default_timeout, limit))
    home = Home(folder, host_of(spec.address), host_of(spec.world.controller))
    transport = UnixTransport(spec.address.node, home, spec.world.settings)
    link = DisturbedTransport(transport, spec.world.settings.high_water_mark)
    node = make_node(link, spec)
    node.data_plane = DataPlane(node, folder, spec.world.agent, is_worker=True)
    provide_client(lambda: client_of(node, spec), lambda: node.home, join)
    capture = make_capture(node, spec, folder)
    capture.install()
    node.signal_handlers = SignalHandlers(MainThread.run.__code__)
    node.signal_handlers.install()
    node.take_place = functools.partial(move, node)
    heartbeat = Heartbeat(node, folder, spec.incarnation)
    os.register_at_fork(after_in_child=node.status.close)  # the page belongs to this process only
    devices.OWN_GPU.local_rank = spec.local_rank
    when_imported("torch", functools.partial(watch_torch, node))
    Prefix.install()
    Prefix.is_on = bool(spec.world.settings.extra.get("prefix_python_logs_with_actor", True))
    print_logs(logging.INFO if spec.world.settings.enable_log_forwarding else None)
    Breakpoints(node).install()
    ready = is_prepared or prepare(spec, folder)
    if ready:
        serve(node, spec, link)
    node.actors.release_all()
    run_finalisers()  # they may still print, log and make calls
    node.points.close()
    capture.close()
    heartbeat.close()
    node.data_plane.close(patience=0)  # the memory goes with the process
    node.close()
    leave(0 if ready else 1)


def make_node(transport: Transport, spec: WorkerSpec) -> Node:
    """Return the node of a worker, with its controller, agent, and place."""
    world = spec.world
    node = Node(transport, world.run, world.settings, spec.incarnation)
    node.controller, node.place, node.places = world.controller, spec, local_handles_of(spec)
    node.routes.trust(world.controller)
    node.routes.trust(world.agent)
    node.guide = world.agent
    node.routes.expect(spec.incarnations)
    node.take_place = functools.partial(take_place, node)
    return node


def take_place(node: Node, spec: WorkerSpec) -> WorkerSpec:
    """Give this process another rank, or the same rank of a resized mesh. Values that it determined itself are kept."""
    before: WorkerSpec = node.place
    world = msgspec.structs.replace(spec.world, rendezvous=before.world.rendezvous)
    place = msgspec.structs.replace(spec, world=world, updated_variables=before.updated_variables)
    node.places = local_handles_of(place)
    return place


def move(node: Node, spec: WorkerSpec) -> WorkerSpec:
    """As `take_place`, and update environment variables and output rank. Variables changed by user code are kept."""
    before, place = node.place, take_place(node, spec)
    for name, value in place.ranks().items():
        if os.environ.get(name) == before.ranks()[name]:
            os.environ[name] = value
    # The first host was drained. Its successor has the first rank now, which chooses the port.
    if (first := place.world.agents[0]) != before.world.agents[0]:
        variables = {"MASTER_ADDR": ip_of(host_of(first))}
        if os.environ.get("MASTER_ADDR") == before.rendezvous().get("MASTER_ADDR"):
            os.environ.update(variables)
            place = msgspec.structs.replace(place, updated_variables=place.updated_variables | variables)
    devices.OWN_GPU.local_rank = place.local_rank
    if node.capture is not None:
        node.capture.set_rank(place.rank)
    return place


def client_of(node: Node, spec: WorkerSpec) -> Context:
    """Return the context of code that runs in a worker outside of actors: a bootstrap, a thread of the user."""
    return Context(Instance("worker", "worker", SCALAR.point(0), node, spec))


def make_capture(node: Node, spec: WorkerSpec, folder: Path) -> Capture:
    """Return the capture of this process, which sends output to the controller."""
    bars = BarPoints(node.points.add_own, node.points.is_logged)

    def note_bars(chunk: OutputChunk) -> None:
        if chunk.live is not None:  # progress bars, or their last state
            bars.take(chunk.origin, chunk.live or chunk.text)

    def send(chunk: OutputChunk) -> None:
        note_bars(chunk)
        node.calls.notify(node.controller, TELEMETRY, "output", chunk)

    def pack(chunk: OutputChunk) -> Buffer | None:
        if (frame := node.calls.pack_small(node.controller, TELEMETRY, "relayed", chunk)) is not None:
            note_bars(chunk)
        return frame

    def send_packed(frame: Buffer) -> None:
        with contextlib.suppress(PeerGone):  # the controller has ended
            node.routes.send_soon(node.controller, frame)

    # A character has at most four bytes; the rest is for the other fields of the message.
    size = max(1, min(CHUNK_CHARACTERS, node.settings.max_message_bytes // 8))
    place = spec.world.mesh, spec.rank, folder, spec.address.node
    has_left, keeping = lambda: node.routes.have_left(node.controller), ReplyOutput(pack, send_packed)
    capture = Capture(send, *place, size, has_left=has_left, reply_output=keeping)
    node.capture = node.replies.capture = capture
    settings = spec.world.settings
    capture.set_options(LogOptions(shown=settings.enable_log_forwarding or settings.show_output))
    return capture


def prepare(spec: WorkerSpec, folder: Path) -> bool:
    """Run the user's bootstrap, before any actor; return whether it succeeded."""
    try:
        if spec.world.bootstrap:
            bootstrap(spec.world.bootstrap)
    except BaseException as error:
        traceback.print_exc()
        leave_traceback(folder, spec.address.node, format_error(error))
        return False
    return True


def serve(node: Node, spec: WorkerSpec, link: DisturbedTransport | None = None) -> None:
    """Serve actors until stopped. `link` is the transport that faults can be injected into, if there is one."""
    main = MainThread()
    node.run_on_main = main.submit
    table_of(node)  # created here, before two threads use it
    place = Extent(spec.world.labels, spec.world.sizes).point(spec.rank)
    process = node.actors.host(PROCESS, lambda: Process(node, main, link), rank=place, class_name="ProcessActor")
    process.start(lambda error: None)
    node.start()
    main.run()


def bootstrap(pickled: bytes) -> None:
    made = pickling.loads([pickled], "bootstrap")()
    if inspect.isawaitable(made):
        asyncio.run(_wait_for(made))


async def _wait_for(made: Any) -> None:
    await made


def share_cores(spec: WorkerSpec) -> None:
    """Share the cores among the workers of this mesh on this host, for threads and for processes of torch.compile.

    The user's OMP_NUM_THREADS and TORCHINDUCTOR_COMPILE_THREADS take precedence. torch reads them when it is loaded.
    That may have been in the fork server; then its own calls follow. Known limit: numpy's OpenBLAS has no such call,
    and uses all cores if the fork server has loaded it.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    sharers = 1 if spec.start.binding.has_own_cores else spec.local_size
    share = max(1, count_cores() // sharers)
    threads = int(given) if given.isdecimal() and int(given) else share
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    compilers = os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(min(share, MOST_COMPILERS)))
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
    inductor: Any = sys.modules.get("torch._inductor.config")
    if inductor is not None:
        inductor.compile_threads = int(compilers)


def watch_torch(node: Node) -> None:
    """Prepare torch, which this process has imported: its GPU, records of collectives and steps, stores of groups."""
    devices.OWN_GPU.install()
    watch_collectives(node.recorder, node.status)
    watch_steps(node.status)
    if (rendezvous := sys.modules.get("torch.distributed.rendezvous")) is not None:
        GroupStores(lambda: node.place.rendezvous()).install(rendezvous)


class MainThread:
    """The work queue of the main thread: it runs one function after the other until the queue is ended."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def end(self) -> None:
        self._work.put(None)


class Process(ProcessActor):
    """The process actor of this worker."""

    def __init__(self, node: Node, main: MainThread, link: DisturbedTransport | None) -> None:
        self._node = node
        self._main = main
        self._link = link
        self._membership = GroupMembership()
        self._master_port: str | None = None  # set after the start of this worker
        self._fences: set[str] = set()  # that have arrived
        self._leaving: tuple[str, str] | None = None  # the reason, and the fence that has not arrived
        node.peers.when_down.append(self._note_end)

    def _note_end(self, report: ExitReport) -> None:
        world = self._spec.world
        if not report.stopped and report.node.rpartition(".")[0] == world.mesh:
            abort_after_death(math.prod(world.sizes))

    @endpoint
    def ready(self) -> int:
        return os.getpid()

    @endpoint
    def set_logging(self, level: int, options: LogOptions) -> None:
        logging.getLogger().setLevel(level)
        logging.getLogger("__main__").setLevel(logging.NOTSET)  # a notebook's has a level of its own until then
        if self._node.capture is not None:
            shown = options.shown or self._node.settings.show_output
            self._node.capture.set_options(msgspec.structs.replace(options, shown=shown))

    @endpoint
    def fence(self, fence: str) -> None:
        self._fences.add(fence)
        if self._leaving is not None:
            self.stop(*self._leaving)

    @endpoint
    def stop(self, reason: str, fence: str = "") -> None:
        if fence and fence not in self._fences:
            self._leaving = reason, fence
            return
        self._leaving = None
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        self._node.is_leaving = True
        # Every actor ends after the messages that it has been sent; the last one ends the main thread. The agent kills
        # a worker whose actors do not end in time.
        when_settled(self._node.stop_actors(reason, but=PROCESS), self._main.end)

    @endpoint
    def leave_groups(self, size: int | None) -> LeftGroups:
        return self._membership.leave(size)

    @endpoint
    def has_gpu(self) -> bool:
        return has_gpu(self._spec.local_rank)

    @endpoint
    def set_master_port(self, port: int) -> None:
        if os.environ.get("MASTER_PORT") != (self._master_port or self._spec.world.rendezvous.get("MASTER_PORT")):
            return
        self._master_port = os.environ["MASTER_PORT"] = str(port)
        # So that a mesh that is spawned from here does not inherit it.
        updated_variables = self._spec.updated_variables | {"MASTER_PORT": self._master_port}
        self._node.place = msgspec.structs.replace(self._spec, updated_variables=updated_variables)

    @endpoint
    def open_store(self, is_alone: bool) -> tuple[str, int]:
        return self._membership.open_store(is_alone)

    @endpoint(explicit_response_port=True)
    def join_group(self, port: Port[None], plan: GroupPlan) -> None:
        # On a thread of its own: this thread must be able to abort the join if another rank does not come.
        here = contextvars.copy_context()
        threading.Thread(target=here.run, args=(self._join, port, plan), name="meshbook group", daemon=True).start()

    def _join(self, port: Port[None], plan: GroupPlan) -> None:
        try:
            self._membership.join(plan, context().message_rank.rank, self._spec.local_rank)
        except Exception as error:
            port.exception(error)
        else:
            port.send(None)

    @property
    def _spec(self) -> WorkerSpec:
        spec: WorkerSpec = self._node.place
        return spec

    @endpoint
    def take_back(self, key: str, number: int, items: list[int]) -> UnstartedItems:
        return table_of(self._node).take_back(key, number, items)

    @endpoint
    def transfers(self) -> list[TransferRecord]:
        return self._node.data_plane.traffic.rows() if self._node.data_plane is not None else []

    @endpoint
    def slow(self, seconds: float, latency: float) -> None:
        self._disturbable().slow(seconds, latency)

    @endpoint
    def cut(self, seconds: float) -> None:
        self._disturbable().cut(seconds)

    @endpoint
    def mend(self) -> None:
        self._disturbable().mend()

    def _disturbable(self) -> DisturbedTransport:
        if self._link is None:
            raise RuntimeError("this worker is a thread of its controller's process and has no link to disturb")
        return self._link
