"""One hosted actor: its inbox, its lifecycle, and the outcome of each message. `serving` takes messages from the inbox.

    post -> inbox -> construct once -> (message -> endpoint -> reply) -> lost -> cleanup steps -> ended

The lifecycle is linear: starting, serving, lost (failed or stopped), ended. When the actor is lost, every waiting
caller gets an error reply, and so does every later one. A stop is confirmed at the end: by then the meshes that the
actor owns have ended, and `__cleanup__` has run.
"""

from __future__ import annotations

import collections
import functools
import inspect
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from meshbook.runtime import devices, monarch_texts
from meshbook.runtime.actor.base import Actor, change_class, is_async
from meshbook.runtime.actor.context import CURRENT, Context, Instance, spawner_of
from meshbook.runtime.actor.failure import MeshFailure, UndeliverableMessageEnvelope
from meshbook.runtime.errors import CallCancelled, SupervisionError
from meshbook.runtime.node.endpoint_table import EndpointTable
from meshbook.runtime.node.execution import CallPlace, Execution, Key, RunningEndpoint
from meshbook.runtime.node.flow_control import FlowControl, OwedCredits, is_counted, size_of
from meshbook.runtime.node.ledger import OwnedMesh
from meshbook.runtime.node.reports import format_failed, format_raised, format_stopped, name_place
from meshbook.runtime.node.serving import Idle, LoopServing, Notice, Step, ThreadServing
from meshbook.runtime.telemetry.spans import CELLS, Row, is_recorded, now
from meshbook.runtime.threads import may_block
from meshbook.runtime.traces import format_error
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Call, Stop

if TYPE_CHECKING:
    from meshbook.runtime.node.node import Node

logger = logging.getLogger(__name__)

RUNTIME = "meshbook.runtime."
# The actors of the runtime that run the user's code on their own thread.
RUNNERS = {
    CELLS,
    f"{RUNTIME}mesh.tasks.MapActor",
    f"{RUNTIME}spmd.spmd_actor.SPMDActor",
    f"{RUNTIME}tensor.worker.TensorWorker",
}
Make = Callable[[], Actor]
Constructed = Callable[[SupervisionError | None], None]
Item = tuple[Call | Stop, Body]


class ActorInbox:
    """The messages of one actor, in order of arrival. An item None wakes the serving thread for other work.

    Taking a message out gives its room back to the sender. Flow control counts the calls to a spawned actor
    (`is_counted`); a stop is never held back.
    """

    def __init__(self, key: str, flow: FlowControl) -> None:
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._key = key
        self._flow = flow
        self._owed = OwedCredits(flow.window) if is_counted(key) else None
        self.put, self.empty, self.size = self._items.put, self._items.empty, self._items.qsize  # `put` never waits

    def wake(self) -> None:
        """Wake the thread that waits for the next message, so that it checks for other work."""
        self._items.put(None)

    def get(self) -> Item | None:
        """Wait for the next message and return it; None after a `wake`."""
        return self.count_out(self._items.get())

    def get_nowait(self) -> Item | None:
        """Return the next message without waiting; raises queue.Empty."""
        return self.count_out(self._items.get_nowait())

    def close(self) -> None:
        """End the accounting, as the actor has ended: report to every sender what was taken.

        Later messages are reported at once.
        """
        if self._owed is not None:
            for sender in self._owed.close():
                self._flow.report(self._owed, sender, self._key)

    def report(self, sender: str) -> None:
        """Report to this node what was taken."""
        if self._owed is not None:
            self._flow.report(self._owed, sender, self._key)

    def count_out(self, item: Item | None) -> Item | None:
        """Return the room of a message to its sender: the message has left the queue or has bypassed it."""
        if item is not None and self._owed is not None:
            message, body = item
            if isinstance(message, Call):
                sender = message.via or message.sender
                # `size_of`, inlined for the usual body of one part: this runs for each message.
                size = len(body[0]) if len(body) == 1 else size_of(body)
                if self._owed.take(sender, size):
                    self._flow.report(self._owed, sender, self._key)
        return item


def sender_of(call: Call) -> str:
    """Return the node that sent a call; the reply may go to another node."""
    return call.via or call.sender


class Aborted(Exception):
    """The actor aborted or killed itself."""


class HostedActor:
    """An actor and its inbox. `make` constructs the actor on its own thread."""

    def __init__(self, node: Node, instance: Instance, make: Make) -> None:
        self.instance = instance
        instance.control = self
        self.queue = ActorInbox(instance.key, node.flow)
        self._node = node
        self._runs_user_code = False  # known when it is constructed
        self._recorder = node.recorder if node.recorder.on and spawner_of(instance.key) else None
        self._make = make
        self._actor: Any = None
        self._endpoints = EndpointTable(None)
        self._owed: dict[int, Call] = {}  # unanswered calls by port, keyed by id(): one port may be named twice
        self.cancelled_early: set[Key] = set()  # calls that were cancelled before they began
        self._interrupted: set[Key] = set()  # the running calls that `interrupt` has cancelled
        self.notices: collections.deque[Notice] = collections.deque()
        self._stops: collections.deque[Stop] = collections.deque()  # to be confirmed at the end
        self._unreached: set[str] = set()  # destinations of returned messages that are already logged
        self._constructed: list[Constructed] = []  # at most one callback; the thread that pops it calls it
        # Why the actor is lost, and the exception if it failed. Several threads may append; the first reason counts.
        self.reasons: list[tuple[SupervisionError, BaseException | None]] = []
        self.is_restored = False  # the actor replaces a lost one: `__restore__` runs after the constructor
        self._restoring: Awaitable[Any] | None = None  # of an `async def __restore__`, to be awaited on the loop
        self._cleans_up = True
        self._is_over = False
        self._constructor_thread = 0  # the thread that runs the constructor and the sync endpoints
        self._serving: ThreadServing | LoopServing | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_lost(self) -> bool:
        return bool(self.reasons)

    @property
    def _lost(self) -> SupervisionError | None:
        return self.reasons[0][0] if self.reasons else None

    @property
    def _cause(self) -> BaseException | None:
        return self.reasons[0][1] if self.reasons else None

    # -- from the I/O thread ------------------------------------------------

    def post(self, message: Call | Stop, body: Body) -> None:
        """Add a message to the inbox; never waits."""
        if self._recorder is not None and isinstance(message, Call):
            self._recorder.mark((now(), message.sender, message.call))
        self.queue.put((message, body))
        if (serving := self._serving) is not None:
            if serving.is_asleep:
                serving.wake_for_message()
        elif isinstance(message, Stop):
            self._node.loop.call_later(self._node.patience, lambda: self._abandon(message))
        if self.reasons:
            # The actor's thread may have drained its inbox just before.
            self._refuse_queued()

    def notify(self, notice: Notice) -> None:
        """Queue a notice for the actor."""
        self.notices.append(notice)
        if self._serving is not None:
            self._serving.wake()

    def supervise(self, owned_mesh: OwnedMesh, failure: MeshFailure) -> None:
        """Pass the failure of an owned mesh to `__supervise__`; the actor fails if that does not handle it."""

        def conclude(verdict: Any, error: BaseException | None) -> None:
            if error is not None:
                raised = format_raised(name_place(self.instance, "__supervise__"), error)
                self._fail(f"{raised}\nwhile it handled this failure: {failure.report()}", error)
            elif not verdict:
                has_hook = getattr(self._actor, "__supervise__", None) is not None
                why = "its __supervise__ did not handle the failure" if has_hook else "it has no __supervise__"
                why = f"its mesh {failure.mesh_name} has failed and {why}"
                self._fail(failure.report(), SupervisionError(failure.report()), why)

        self.notify(Notice("__supervise__", failure, self._own_context(owned_mesh.context.get(CURRENT)), conclude))

    def take_back(self, envelope: UndeliverableMessageEnvelope) -> None:
        """Call the actor's hook for a message that could not be delivered.

        If the hook does not handle it, log it, once per destination.
        """

        def conclude(verdict: Any, error: BaseException | None) -> None:
            if (error is not None or not verdict) and envelope.dest() not in self._unreached:
                self._unreached.add(envelope.dest())
                logger.warning("%s%s", envelope, f"\n{format_error(error)}" if error is not None else "")

        self.notify(Notice("_handle_undeliverable_message", envelope, self._own_context(CURRENT.get()), conclude))

    def cancel(self, sender: str, call: int) -> None:
        """Cancel a call: interrupt it, or drop it before it begins."""
        key = sender, call
        self.cancelled_early.add(key)  # first: a call that has just left the queue checks this set when it begins
        if self._serving is not None and self._serving.cancel(key):
            self.cancelled_early.discard(key)

    def interrupt(self) -> list[str]:
        """Cancel the endpoints that run, and return their names. Each caller gets an ActorError."""
        running = [(key, each, each.endpoint) for each in self._executions() if (key := each.key) is not None]
        self._interrupted = {key for key, *_ in running}
        for key, execution, _ in running:
            assert self._serving is not None
            self._serving.interrupt(execution, key)
        return [f"{self.instance.name}.{endpoint}()" for *_, endpoint in running]

    def where(self, sender: str, call: int) -> CallPlace:
        """Return where this call is: in the queue, or at a line of the user's code."""
        if self._serving is None:
            return CallPlace("still in its constructor")
        execution, text = self._serving.at((sender, call)), ""
        if execution is not None and (here := execution.where()):
            text = f"in {here}"
        else:
            execution = self._serving.execution
            present = execution.where()
            text = f"in its queue; the actor is in {present}" if present else "in its queue"
        # Looked up on the class: an actor of a user may have a `__getattr__` that returns something for any name.
        describe = getattr(type(self._actor), "__working__", None)
        if describe is not None and (work := describe(self._actor)):
            text = str(work)  # an actor of the runtime says more than the place in its code
        return CallPlace(text, execution.running(self.instance.name) if self.is_of_user else None)

    @property
    def is_of_user(self) -> bool:
        """Whether a user has spawned it, and it is not the actor that runs cells."""
        name = self.instance.class_name
        return bool(spawner_of(self.instance.key)) and is_recorded(name) and name != CELLS

    def running(self) -> Iterator[tuple[RunningEndpoint, Execution]]:
        """Yield the endpoints that run."""
        for execution in self._executions():
            if (running := execution.running(self.instance.name)) is not None:
                yield running, execution

    def _executions(self) -> list[Execution]:
        return self._serving.all() if self._serving is not None else []

    def under_way(self) -> Iterator[Row]:
        """Return the spans of the messages that are being handled."""
        for execution in self._executions():
            yield from execution.under_way()

    def load(self) -> tuple[str, int, str]:
        """Return the actor's name, the number of queued messages, and the running endpoint."""
        present = filter(None, (each.present for each in self._executions()))
        return self.instance.name, self.queue.size(), next(present, "")

    def is_served_here(self) -> bool:
        """Whether the actor cannot handle a message while the calling thread waits."""
        here = threading.get_ident()
        return here == self._constructor_thread or (self._serving is not None and here == self._serving.thread)

    def held_up_by(self, sender: str, call: int) -> Execution | None:
        """Return the execution that the reply to this call depends on: its own, or that of the message before it.

        None if there is no known one: an endpoint that replies by a port may have passed the port on.
        """
        if self._serving is None:
            return None
        if (execution := self._serving.at((sender, call))) is not None:
            return execution
        is_owed = any((owed.sender, owed.call) == (sender, call) for owed in list(self._owed.values()))
        return None if is_owed else self._serving.execution

    # -- on the actor's own thread -----------------------------------------

    def start(self, constructed: Constructed) -> None:
        """Construct and serve the actor on a new thread; `constructed` gets the outcome of the constructor."""
        name = f"meshbook actor {self.instance.name}"
        self._thread = threading.Thread(target=self.run, args=(constructed,), name=name, daemon=True)
        self._thread.pydev_do_not_trace = False  # type: ignore[attr-defined]  # user code: breakpoints belong here
        try:
            self._thread.start()
        except RuntimeError as error:  # too many threads: report it here, as no other thread will
            constructed(self._fail(format_raised(f"the start of {name_place(self.instance)}", error), error))
            self._end()

    def run(self, constructed: Constructed = lambda error: None) -> None:
        """Construct the actor and serve it on the calling thread until it is stopped."""
        self._constructor_thread = threading.get_ident()
        self._constructed.append(constructed)
        # An actor that was abandoned before its start is not constructed.
        if self._lost is None and self.construct(self._report_constructed):
            self._serving = LoopServing(self) if is_async(type(self._actor)) else ThreadServing(self)
            self._serve(self._serving)
        else:
            self._report_constructed(self._lost)
            ThreadServing(self).clean_up()
        self._end()

    def _serve(self, serving: ThreadServing | LoopServing) -> None:
        try:
            serving.run()
        except Exception as error:  # a bug in the runtime: the queue is no longer served
            logger.exception("the message loop of %s failed", self.instance)
            self._cleans_up = False
            self._fail(format_raised(f"the serving of {name_place(self.instance)}", error), error)
            ThreadServing(self).clean_up()

    def construct(self, constructed: Constructed) -> bool:
        """Construct the actor; return whether that succeeded."""
        CURRENT.set(self._own_context(None))
        what = "constructor"
        try:
            actor = self._make()
            what = "__restore__"
            self._restoring = self._restore(actor)
        except BaseException as error:
            where = f"the {what} of {name_place(self.instance)}"
            lost = self._fail(format_raised(where, error), error)
            constructed(lost)
            return False
        self._actor, self._endpoints = actor, EndpointTable(actor)
        if self._restoring is None:
            constructed(self._lost)  # the actor may have been lost during its constructor
        return True

    def set_class(self, class_name: str) -> None:
        """Set the name of the actor's class, on its thread, before an object of the class exists."""
        self.instance.class_name = class_name
        # The actors of the runtime free a rank whose GPU hangs, and so must not wait for it.
        self._runs_user_code = not class_name.startswith(RUNTIME) or class_name in RUNNERS
        self._select_gpu()

    def _report_constructed(self, lost: SupervisionError | None) -> None:
        """Report the outcome of the constructor, once."""
        try:
            constructed = self._constructed.pop()
        except IndexError:
            return
        constructed(lost)

    def _restore(self, actor: Actor) -> Awaitable[Any] | None:
        """Call `__restore__` of an actor that replaces a lost one; return the awaitable of an async one."""
        restore = getattr(actor, "__restore__", None) if self.is_restored else None
        made = restore() if restore is not None else None
        if not inspect.isawaitable(made):
            return None
        if not is_async(type(actor)):
            if inspect.iscoroutine(made):
                made.close()
            raise TypeError("it is async, but its endpoints are sync: make it a plain def")
        return made

    def _own_context(self, before: Context | None) -> Context:
        """Return the context for work without a message: the actor in the mesh that it was spawned in."""
        rank = self.instance.rank
        place = rank.rank, *rank.extent.dims
        return Context(self.instance, place, before.origin if before is not None else "")

    def _abandon(self, stop: Stop) -> None:
        """Report the actor as stopped if its constructor has not returned in time after a stop."""
        if self._serving is None and self._lost is None:
            present = "its constructor had not returned" if self._constructor_thread else "it had not started"
            self._report_constructed(self._stop(f"{stop.reason}; {present}"))
            self._end()

    # -- called by `serving` -------------------------------------------------

    async def restore(self) -> None:
        """Await an async `__restore__`; if it raises, the actor fails as with its constructor."""
        if (restoring := self._restoring) is None:
            return
        try:
            await restoring
        except BaseException as error:
            self._fail(format_raised(f"the __restore__ of {name_place(self.instance)}", error), error)
        self._report_constructed(self._lost)

    def make_execution(self, *, is_alone: bool) -> Execution:
        made: Execution = self._node.actors.make_execution(self.instance, is_alone=is_alone)
        return made

    @property
    def execution(self) -> Execution | None:
        """The execution of the messages that the actor handles one at a time."""
        return self._serving.execution if self._serving is not None else None

    def is_concurrent(self, call: Call) -> bool:
        return self._endpoints.is_concurrent(call)

    def is_sync(self, call: Call) -> bool:
        return self._endpoints.is_sync(call)

    def is_reload(self, call: Call) -> bool:
        """Whether the call replaces the class: no other message may be in progress meanwhile."""
        return call.manner == "reload"

    @property
    def is_mixed(self) -> bool:
        return self._endpoints.is_mixed

    def is_cancelled_early(self, call: Call) -> bool:
        """Whether the call was cancelled before it began; call this once it has begun.

        When the queue is empty, the cancellations noted before belong to finished calls and are dropped.
        """
        if not self.cancelled_early:
            return False
        if (key := (call.sender, call.call)) in self.cancelled_early:
            self.cancelled_early.discard(key)
            return True
        noted = set(self.cancelled_early)
        if self.queue.empty():
            self.cancelled_early -= noted
        return False

    @property
    def idle(self) -> Idle | None:
        """The actor's work beside its messages."""
        return self._actor.__idle__ if hasattr(type(self._actor), "__idle__") else None  # see `where`

    def hook(self, notice: Notice) -> Any:
        self._select_gpu()
        hook = getattr(self._actor, notice.hook, None)
        return hook(notice.about) if hook is not None else False

    def context_of(self, call: Call, execution: Execution | None) -> Context:
        return Context(self.instance, call.place, call.origin, execution)

    def begin(self, call: Call, body: Body) -> Any:
        """Run the endpoint; return the awaitable of an async one."""
        if devices.OWN_GPU.is_in_use:  # before the arguments: tensors among them arrive on the current GPU
            self._select_gpu()
        if not call.manner and (method := self._endpoints.plain.get(call.endpoint)) is not None:
            args, kwargs = pickling.loads(body, functools.partial(self._describe, "an argument", call))
            return self._begin(method, args, kwargs)
        if self.is_reload(call):
            return self._reload(body)
        ported = self._endpoints.is_ported(call)
        try:
            method = self._endpoints.find(call)
            args, kwargs = pickling.loads(body, functools.partial(self._describe, "an argument", call))
        except Exception as error:
            if not (ported and call.call):
                raise
            # The endpoint has not begun and cannot reply. This is the caller's mistake, so the actor does not fail.
            self._node.replies.reply_error(call.sender, call.call, f"{type(error).__name__}: {error}", error)
            return None
        if ported:
            if call.call:
                self._owed[id(call)] = call
            replies, settled = self._node.replies, lambda: self._owed.pop(id(call), None)
            args = (replies.port_to(call.sender, call.call, call.place[0], settled), *args)
        return self._begin(method, args, kwargs)

    def _select_gpu(self) -> None:
        if self._runs_user_code:
            devices.OWN_GPU.select()

    def _describe(self, what: str, call: Call) -> str:
        return f"{what} of {self.instance.name}.{call.endpoint}"

    def _reload(self, body: Body) -> None:
        what = f"the new class of {self.instance.name}"
        (data,), _ = pickling.loads(body, what)
        cls = pickling.loads([data], what)
        change_class(self._actor, cls)
        self.set_class(f"{cls.__module__}.{cls.__qualname__}")
        self._endpoints = EndpointTable(self._actor)

    def _begin(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A separate function: `execution` finds the border between runtime code and user code by its name.
        return method(*args, **kwargs)

    # -- how a message ends --------------------------------------------------

    def returned(self, call: Call, value: Any) -> None:
        if devices.OWN_GPU.is_in_use and self._runs_user_code:
            self._node.status.note_gpu()
        self._flush(call)
        if not call.call or self._endpoints.is_ported(call):
            return
        if self.reasons and self._lost is not None and self._cause is not None:  # the endpoint aborted and returned
            self._node.replies.reply_lost(call.sender, call.call, self._lost)
        else:
            try:
                what = functools.partial(self._describe, "the result", call)
                # From this thread, at once: the reply is there also if the next message ends the process.
                self._node.replies.reply(call.sender, call.call, value, what, call.place[0])
            except Exception as error:  # for example out of memory: the caller gets the error, the actor continues
                where = f"the sending of the result of {name_place(self.instance, call.endpoint)}"
                self._node.replies.reply_error(call.sender, call.call, format_raised(where, error), error)

    def raised(self, call: Call, error: Exception) -> None:
        self._flush(call)
        where = name_place(self.instance, call.endpoint)
        if self._lost is not None:
            if call.call:
                self._node.replies.reply_lost(call.sender, call.call, self._lost)
        elif self._endpoints.is_ported(call):
            self._fail(format_raised(where, error), error, "it raised instead of answering through its port")
        elif call.call:
            text = (
                f"{format_raised(where, error)}\n{monarch_texts.actor_call_failed(self.instance.name, call.endpoint)}"
            )
            self._node.replies.reply_error(call.sender, call.call, text, error)
        else:
            self._fail(format_raised(where, error), error, "it raised in a broadcast, so no caller receives the error")

    def _flush(self, call: Call) -> None:
        """Send points and output before the reply, so that a caller with the reply has them all."""
        self._node.points.flush()
        capture, for_notebook = self._node.capture, call.origin or self._node.settings.enable_log_forwarding
        if capture is not None and for_notebook and may_block():  # a script may get more output in one message
            capture.flush_for_reply()

    def died(self, call: Call, error: BaseException) -> None:
        where = name_place(self.instance, call.endpoint)
        lost = self._fail(format_raised(where, error), error, f"{type(error).__name__} always ends an actor")
        if call.call:
            self._node.replies.reply_lost(call.sender, call.call, lost)

    def abandon(self, call: Call, error: BaseException) -> None:
        """Handle a fault of the runtime while it served this call, to which there may be no reply yet."""
        lost = self._fail(format_raised(f"the serving of {name_place(self.instance)}", error), error)
        if call.call:
            self._node.replies.reply_lost(call.sender, call.call, lost)

    def cancelled(self, call: Call, error: BaseException, *, wanted: bool) -> None:
        """Handle a CancelledError from an endpoint: a wanted cancellation, the loss of the actor, or its own raise."""
        if self._lost is not None:
            if call.call:
                self._node.replies.reply_lost(call.sender, call.call, self._lost)
        elif not wanted:
            self.died(call, error)
        else:
            self._owed.pop(id(call), None)
            if (call.sender, call.call) not in self._interrupted:
                self._node.replies.drop(call.sender, call.call)
            elif call.call:
                interrupted = CallCancelled(f"{name_place(self.instance, call.endpoint)} was interrupted")
                self._node.replies.reply_error(call.sender, call.call, str(interrupted), interrupted)

    # -- the end -----------------------------------------------------------------

    def handle_stop(self, stop: Stop) -> None:
        """Stop the actor: all earlier messages have been handled."""
        self._stop(stop.reason)
        self._stops.append(stop)

    def stop_itself(self, reason: str) -> None:
        self.post(Stop("", 0, self.instance.key, reason), ())

    def abort_itself(self, reason: str) -> None:
        self._fail(f"{name_place(self.instance)} aborted: {reason}", Aborted(reason))

    def kill_itself(self, reason: str) -> None:
        self._cleans_up = False
        self._fail(f"{name_place(self.instance)} killed itself: {reason}", Aborted(reason))

    def _fail(self, report: str, cause: BaseException, why: str = "") -> SupervisionError:
        return self._lose(format_failed(self.instance, report, why), cause)

    def _stop(self, reason: str) -> SupervisionError:
        return self._lose(format_stopped(self.instance, reason), None)

    def _lose(self, text: str, cause: BaseException | None) -> SupervisionError:
        """Mark the actor as lost: no further message begins, and every caller gets this error.

        Without a cause the loss is a stop, not a failure.
        """
        lost = SupervisionError(text)
        lost.__cause__ = cause
        self.reasons.append((lost, cause))
        if (first := self.reasons[0][0]) is not lost:
            return first
        # While the process leaves, a late message may reach an actor of the runtime that has been released.
        if cause is not None and (spawner_of(self.instance.key) or not self._node.is_leaving):
            self._node.supervision.actor_failed(self.instance, lost)
        self._refuse_queued()
        if self._serving is not None:
            self._serving.wake()
        for key in list(self._owed):
            if (call := self._owed.pop(key, None)) is not None:  # another thread of the actor may just have replied
                self._node.replies.reply_lost(call.sender, call.call, lost)
        return lost

    def cleanup_steps(self) -> Iterator[Step]:
        """Yield the cleanup steps of a lost actor: stop the meshes that it owns, then call `__cleanup__`."""
        CURRENT.set(self._own_context(CURRENT.get()))
        for owned_mesh in self._node.supervision.meshes_of(self.instance.key):
            yield functools.partial(owned_mesh.stop, f"its owner {self.instance} has ended")
        cleanup = getattr(self._actor, "__cleanup__", None)
        if cleanup is not None and self._cleans_up:
            yield lambda: cleanup(self._cause)

    def _end(self) -> None:
        assert self._lost is not None
        self._is_over = True
        self._node.actors.actor_ended(self.instance, self._lost, self._confirm_stops)
        self.queue.close()

    def release(self) -> None:
        """Drop the reference to the actor's object after the actor has ended."""
        self._actor, self._endpoints = None, EndpointTable(None)

    def refuse(self, message: Call | Stop, body: Body) -> None:
        """Reply to a message with the error of the lost actor; keep a stop for its confirmation."""
        assert self._lost is not None
        if isinstance(message, Stop):
            self._stops.append(message)
        elif message.call:
            self._node.replies.reply_lost(message.sender, message.call, self._lost)
        else:
            self._node.calls.return_message(message, message.actor, str(self._lost))

    def _refuse_queued(self) -> None:
        has_wakeup = False
        while True:
            try:
                item = self.queue.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                self.refuse(*item)
            has_wakeup = has_wakeup or item is None
        if has_wakeup:  # the wake-up was meant for the actor's thread
            (self._serving or self.queue).wake()
        if self._is_over:
            self._confirm_stops()

    def _confirm_stops(self) -> None:
        """Confirm all stops; stopping twice is no error."""
        while self._stops:
            try:
                stop = self._stops.popleft()
            except IndexError:  # taken by another thread
                return
            if stop.call:
                self._node.replies.reply(stop.sender, stop.call, None, "a stop")
