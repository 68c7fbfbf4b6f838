"""The actors behind `%%mesh`: `CellActor` runs cells on the main thread; `CellControl` answers meanwhile."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import importlib
import logging
import os
import resource
import sys
import threading
import time
from bdb import BdbQuit
from collections import deque
from collections.abc import KeysView
from typing import Any

import msgspec

from meshbook.runtime import devices
from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import context, current_origin
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.cells.displays import Displays, use_text_bars
from meshbook.runtime.cells.failures import (
    drop_local_variables,
    format_interrupt,
    is_out_of_memory,
    make_quit_error,
    make_rank_error,
)
from meshbook.runtime.cells.function_calls import bind
from meshbook.runtime.cells.interrupts import INTERRUPTS
from meshbook.runtime.cells.inventory import find_largest_on_gpu
from meshbook.runtime.cells.kept_values import KeptValues
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, RankError
from meshbook.runtime.cells.packed_values import PackedValues, format_excess
from meshbook.runtime.cells.prompts import RankPrompts
from meshbook.runtime.cells.shell import LoopRunner, RankShell, RunResult, make_shell
from meshbook.runtime.cells.thread_stacks import (
    MAIN,
    MainThreadState,
    ThreadStack,
    collective_of,
    read_frames,
    stack_of_endpoint,
    stack_of_main,
    stacks_of_others,
)
from meshbook.runtime.cells.values import describe
from meshbook.runtime.cells.variables import NO_TRANSFER, Namespace, VariableRequest, VariableTransfer, handle
from meshbook.runtime.collectives.abort import abort_groups
from meshbook.runtime.formats import format_bytes
from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.tasks import BatchReply, ItemBatch, table_of
from meshbook.runtime.node.execution import RunningEndpoint
from meshbook.runtime.wire.module_edits import note_modules

# The variables with which a user asks for log messages from INFO on; a notebook forwards logs by default.
FORWARDING = ("MESHBOOK_ENABLE_LOG_FORWARDING", "HYPERACTOR_MESH_ENABLE_LOG_FORWARDING")
_wall, _cpu = time.perf_counter, time.process_time  # bound here: a cell may replace them
MOST_NAMES = 1000  # of a namespace, that are sent to the controller
MOST_LARGEST = 5  # variables that an error about memory names
MOST_REPORTS = 100  # errors between two cells: a signal or a task may raise again and again


class CellActor(Actor):
    """Runs cells in the worker's `__main__`, one at a time."""

    def __init__(self) -> None:
        instance = context().actor_instance
        self._node = instance.node
        self._spec = instance.spec
        # matplotlib draws through IPython's display, as in any notebook, unless the user has set another backend.
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        self._shell: RankShell = make_shell(Displays(self._node, lambda: self._spec), RankPrompts(self._node))
        use_text_bars()
        if logging.getLogger().level == logging.INFO and not {*FORWARDING} & os.environ.keys():
            logging.getLogger().setLevel(logging.WARNING)  # as in the notebook itself
            logging.getLogger("__main__").setLevel(logging.INFO)  # what actors of the notebook log is shown
        # As in a kernel: the commands of a cell have a terminal, at which a pager would wait for a key.
        os.environ.setdefault("PAGER", "cat")
        os.environ.setdefault("GIT_PAGER", "cat")
        self._predefined = self._shell.predefined = _names_of(self._spec)
        self._shell.user_ns.update(self._predefined)
        self._namespace = Namespace(
            *(self._shell.user_ns, self._own_names, self._shell.display_formatter),
            most_bytes=self._node.settings.max_message_bytes,
        )
        self._reported_names: KeysView[str] = {}.keys()  # the whole namespace at the last report of the user's names
        self._values = KeptValues()
        self._tasks = table_of(self._node)
        # For the next cell: the last errors that were raised while no cell ran.
        self._reports: deque[str] = deque(maxlen=MOST_REPORTS)
        self._shell.loop_runner.report = self._reports.append
        if (handlers := self._node.signal_handlers) is not None:
            handlers.runs_user_code, handlers.report = lambda frame: INTERRUPTS.is_open, self._reports.append
        INTERRUPTS.install()
        carry_context_into_threads()
        if self._node.capture is not None:
            self._node.capture.main_origin = lambda: INTERRUPTS.origin

    @property
    def __idle__(self) -> LoopRunner:
        """Tasks of cells go on while no cell runs."""
        runner: LoopRunner = self._shell.loop_runner
        return runner

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Print the failure of a mesh that a cell has spawned here; the rank continues."""
        print(failure, file=sys.stderr, flush=True)
        return True

    @endpoint
    def prepare(self) -> bool:
        """Return True once cells can run here."""
        return True

    @endpoint
    def update_names(self) -> None:
        """Update `rank`, `world_size` and the other given names after a resize, unless a cell has set them."""
        self._spec = context().actor_instance.spec
        before, self._predefined = self._predefined, _names_of(self._spec)
        self._shell.predefined = self._predefined
        names = self._shell.user_ns
        names.update({name: value for name, value in self._predefined.items() if names.get(name) is before[name]})

    @endpoint
    def add_to_path(self, first: list[str], last: list[str]) -> None:
        """Add these folders to the beginning and to the end of the import path."""
        sys.path[:0] = [entry for entry in first if entry not in sys.path]
        sys.path.extend(entry for entry in last if entry not in sys.path)
        importlib.invalidate_caches()

    @endpoint
    def run(
        self, source: str, number: int, transfer: VariableTransfer = NO_TRANSFER, *, debugs: bool = False
    ) -> CellOutcome:
        """Run a cell's source; its execution is the message's origin. Never raises the exception of the cell.

        With `debugs`, an error opens the debugger first.
        """
        origin = current_origin()
        before = self._shell.bindings()
        run = functools.partial(self._run, source, number, origin, debugs)
        outcome = run() if transfer is NO_TRANSFER else transfer.around(run, self._namespace, self._spec.rank, origin)
        if INTERRUPTS.was_aborted(origin):
            self._shell.forget_error()
        return self._with_names(outcome, before)

    def _run(self, source: str, number: int, origin: str, debugs: bool) -> CellOutcome:
        meter = CellMeter()
        self._node.status.cell(True)
        if self._node.capture is not None:
            self._node.capture.begin(origin, self._node.cast_call())
        try:
            with INTERRUPTS.during(origin):
                outcome = self._run_out(source, number, origin, debugs, meter)
        except KeyboardInterrupt as error:
            # It was raised between two lines of ours, not of the cell's; it interrupts the cell all the same.
            outcome = CellOutcome(meter.read(), error=format_interrupt(error))
        except SystemExit as error:
            outcome = CellOutcome(meter.read(), error=_exit_error(error))
        finally:
            self._node.status.cell(False)
        return outcome

    def _run_out(self, source: str, number: int, origin: str, debugs: bool, meter: CellMeter) -> CellOutcome:
        try:
            while self._reports:
                print(self._reports.popleft(), file=sys.stderr)
            ran = self._shell.run_source(source, number)
            cost = meter.read()
            outcome = self._outcome(ran, cost, origin)
            if debugs and outcome.error is not None and ran.error is not None:
                self._shell.examine(ran.error)
            if outcome.error is not None and ran.error is not None and is_out_of_memory(ran.error):
                outcome = msgspec.structs.replace(outcome, error=self._free_memory(ran.error, outcome.error))
            return outcome
        finally:  # also if a `__repr__` or the debugger is interrupted: output is sent before the reply
            self._end(origin)

    @endpoint
    def fetch(self, origin: str) -> PackedValues:
        """Return the value that a cell left here because it was large, under the name `value`."""
        parcel = self._values.pack(origin)
        if excess := format_excess(parcel, self._namespace.most_bytes):
            raise ValueError(excess)
        return parcel

    @endpoint
    def release(self, origin: str) -> None:
        """Keep the value that a cell left here only as long as the user's code does."""
        self._values.release(origin)

    @endpoint
    def handle(self, request: VariableRequest, operation: str) -> Any:
        """Read or change variables by a request; an interrupt refers to it by `operation`."""
        answer = handle(request, self._namespace, operation)
        self._end(current_origin())
        return answer

    @endpoint
    def run_items(self, work: ItemBatch, operation: str) -> BatchReply:
        """Run items of a map, with the variables of this rank as globals; an interrupt refers to it by `operation`."""
        with INTERRUPTS.during(operation):
            names = self._shell.user_ns
            done = self._tasks.run(work, names, lambda function: bind(function, names), INTERRUPTS.user_code)
        self._end(current_origin())
        return done

    @endpoint
    def forget_map(self, key: str) -> None:
        """Drop the state of a map that has ended."""
        self._tasks.forget(key)

    def _own_names(self) -> tuple[str, ...]:
        """The names that cells have made."""
        return tuple(name for name in self._shell.names() if name not in self._predefined)

    def _with_names(self, outcome: CellOutcome, before: dict[str, int]) -> CellOutcome:
        """Add to the outcome whether variables have changed, and the user's names if those have.

        If this rank dies, the controller reports from the names what was lost.
        """
        after = self._shell.bindings()
        is_reported = after.keys() == self._reported_names
        if after == before and is_reported:  # each cell waits for this, and most bind nothing new
            return outcome
        self._reported_names = after.keys()
        was, names = ({name: at[name] for name in self._shell.own(at)} for at in (before, after))
        return msgspec.structs.replace(
            outcome,
            changed=was != names,
            names=None if is_reported else tuple(name for name in names if name not in self._predefined)[:MOST_NAMES],
        )

    def _outcome(self, ran: RunResult, cost: CellCost, origin: str) -> CellOutcome:
        if isinstance(ran.error, SystemExit):
            return CellOutcome(cost, error=_exit_error(ran.error))
        if isinstance(ran.error, BdbQuit):
            return CellOutcome(cost, error=make_quit_error(ran.error))
        if ran.error is not None:
            return CellOutcome(cost, error=make_rank_error(ran.error, ran.rendered))
        if ran.value is None:
            return CellOutcome(cost)
        try:
            with INTERRUPTS.user_code():
                value = describe(ran.value, self._shell.display_formatter)
        except Exception as error:  # of the user's own `__repr__`, which IPython has shown to the shell
            return CellOutcome(cost, error=make_rank_error(error, ran.rendered))
        if ran.rendered:  # one of its other representations failed
            print("\n".join(ran.rendered), file=sys.stderr)
        if value.pickled is None:
            self._values.add(origin, ran.value)
        return CellOutcome(cost, value=value)

    def _free_memory(self, error: BaseException, report: RankError) -> RankError:
        """Drop what the error keeps on the GPU, so that the next attempt has room; add to it where the memory is."""
        before = devices.allocated()
        drop_local_variables(error)
        freed = format_bytes(before - devices.allocated())
        lines = [report.message, f"the local variables of its frames were dropped, which freed {freed} of this GPU"]
        names = self._shell.user_ns
        if largest := find_largest_on_gpu(names, self._own_names(), MOST_LARGEST):
            shown = ", ".join(f"{entry.name} ({format_bytes(entry.size or 0)})" for entry in largest)
            lines.append(f"the largest variables on the GPU: {shown}")
        return dataclasses.replace(report, message="\n".join(lines))

    def _end(self, origin: str) -> None:
        note_modules()
        if self._node.capture is not None:
            self._node.capture.end(origin, self._node.cast_call())


class CellControl(Actor):
    """Answers while the main thread is busy with a cell."""

    @endpoint
    def interrupt(self, origin: str) -> bool:
        """Raise KeyboardInterrupt in the cell of this execution; False if it is not running here."""
        return INTERRUPTS.request(origin)

    @endpoint
    def interrupt_current(self) -> bool:
        """Interrupt the cell that runs here; False if none does."""
        return bool(INTERRUPTS.origin) and INTERRUPTS.request(INTERRUPTS.origin)

    @endpoint
    def interrupt_endpoints(self) -> list[str]:
        """Cancel the endpoints that actors of the user run here; return their names."""
        interrupted: list[str] = context().actor_instance.node.actors.interrupt()
        return interrupted

    @endpoint
    def endpoints(self) -> list[RunningEndpoint]:
        """Return the endpoints that actors of the user run here."""
        return [running for running, _ in context().actor_instance.node.actors.running()]

    @endpoint
    def abort(self, origin: str, forced: bool) -> list[str]:
        """Break the process groups of this process, so that this execution leaves a collective; return the groups.

        Unless `forced`, only if the execution is in a collective: otherwise it does not wait for other ranks.
        """
        if INTERRUPTS.origin != origin or not (forced or collective_of(stack_of_main(_awaiting()))):
            return []
        with INTERRUPTS.aborting(origin):
            return abort_groups()

    @endpoint
    def abort_current(self) -> list[str]:
        """Break the process groups of this process, whatever runs here; return the groups."""
        with INTERRUPTS.aborting(INTERRUPTS.origin):
            return abort_groups()

    @endpoint
    def where(self) -> MainThreadState:
        """Return the state of the main thread."""
        if not INTERRUPTS.origin:
            return MainThreadState(is_idle=True)
        return MainThreadState(frames=read_frames(stack_of_main(_awaiting())), pause=_pause())

    @endpoint
    def stacks(self) -> list[ThreadStack]:
        """Return the stacks of the main thread, of endpoints, and of the other threads that run the user's code."""
        found = stack_of_main(_awaiting())
        collective = collective_of(found)
        remark = f"in {collective}" if collective else _pause() if INTERRUPTS.origin else "idle"
        running = context().actor_instance.node.actors.running()
        endpoints = [stack_of_endpoint(endpoint, *execution.thread_and_coroutine) for endpoint, execution in running]
        shown = {stack.thread for stack in endpoints}
        others = [stack for stack in stacks_of_others() if stack.thread not in shown]
        return [ThreadStack(MAIN, read_frames(found, with_source=True), remark), *endpoints, *others]


def _awaiting() -> Any:
    """The coroutine of the running cell, if it has top-level await."""
    return RankShell.instance().loop_runner.running if RankShell.initialized() else None


def _pause() -> str:
    """The state of a running cell that waits for a person, as `paused in the debugger`; else an empty string."""
    pause = RankShell.instance().prompts.pause if RankShell.initialized() else ""
    return f"paused {pause}" if pause else ""


class CellMeter:
    """Measures the cost of a cell, from its creation to `read`."""

    def __init__(self) -> None:
        self._wall = _wall()
        self._cpu = _cpu()
        self._gpu = devices.memory()

    def read(self) -> CellCost:
        gpu = devices.memory()
        return CellCost(
            wall=_wall() - self._wall,
            cpu=_cpu() - self._cpu,
            peak_rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            peak_gpu_memory=None if gpu is None else gpu.peak_since(self._gpu or devices.GpuMemory()),
        )


def _names_of(spec: Any) -> dict[str, Any]:
    """Return the names that a cell finds in its namespace on this rank."""
    extent = Extent(spec.world.labels, spec.world.sizes)
    return {
        "rank": spec.rank,
        "world_size": extent.nelements,
        "local_rank": spec.local_rank,
        "point": extent.point(spec.rank),
        "device": _device(spec.local_rank),
    }


def _device(local_rank: int) -> Any:
    try:
        import torch  # weight: the fork server has imported it already
    except ImportError:
        return "cpu"
    return torch.device("cuda", devices.number_of(local_rank)) if devices.count() else torch.device("cpu")


def _exit_error(error: SystemExit) -> RankError:
    converted = make_rank_error(error, ())
    return dataclasses.replace(
        converted, message=f"{converted.message} (exit() does not end a rank; %mesh down ends all ranks)".lstrip()
    )


def carry_context_into_threads() -> None:
    """Make new threads inherit the context of the cell that starts them, so that their output goes to that cell.

    Python does this by itself only from 3.14 on.
    """
    start = threading.Thread.start
    if getattr(start, "carries_context", False) or getattr(sys.flags, "thread_inherit_context", False):
        return

    def start_with_context(self: threading.Thread) -> None:
        here, run = contextvars.copy_context(), self.run
        self.run = lambda: here.run(run)  # type: ignore[method-assign]
        start(self)

    start_with_context.carries_context = True  # type: ignore[attr-defined]
    threading.Thread.start = start_with_context  # type: ignore[method-assign]
