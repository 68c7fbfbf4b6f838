"""One hosted actor: its queue, its life, and what becomes of a message in it. How it is served is in `serving`.

    post -> queue -> construct once -> (message -> endpoint -> reply) -> lost -> partings -> over

An actor's life is a line: starting, then serving, then lost (failed or stopped), then over. Whoever still waits when it
is lost gets an answer, and so does whoever asks afterwards. A stop is confirmed when it is over: what it owns has ended
by then, and `__cleanup__` has run.
"""

from __future__ import annotations

import collections
import functools
import inspect
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

from meshbook.runtime.actor.base import Actor, is_async
from meshbook.runtime.actor.context import CURRENT, Context, Instance, spawner_of
from meshbook.runtime.actor.failure import MeshFailure, UndeliverableMessageEnvelope
from meshbook.runtime.actor.redefinition import take_on
from meshbook.runtime.errors import SupervisionError
from meshbook.runtime.node.backlog import Backlog
from meshbook.runtime.node.credits import Window
from meshbook.runtime.node.ledger import Charge
from meshbook.runtime.node.repertoire import Repertoire
from meshbook.runtime.node.reports import name_place, tell_failed, tell_raised, tell_stopped
from meshbook.runtime.node.running import Running
from meshbook.runtime.node.serving import LoopServing, Notice, Step, ThreadServing
from meshbook.runtime.telemetry.spans import Recorder, Row, now
from meshbook.runtime.traces import format_error
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Call, Stop

logger = logging.getLogger(__name__)

Make = Callable[[], Actor]
Constructed = Callable[[SupervisionError | None], None]


class Host(Protocol):
    """What a hosted actor needs of its node."""

    def reply(self, to: str, call: int, value: Any, what: str, rank: int = 0) -> None: ...
    def reply_error(self, to: str, call: int, text: str, error: BaseException) -> None: ...
    def reply_lost(self, to: str, call: int, error: SupervisionError) -> None: ...
    def return_message(self, message: Call, to_whom: str, why: str) -> None: ...
    def port_to(self, node: str, call: int, rank: int, settled: Callable[[], object]) -> Any: ...
    def actor_failed(self, instance: Instance, error: SupervisionError) -> None: ...
    def actor_over(self, instance: Instance, error: SupervisionError) -> None: ...
    def charges_of(self, key: str) -> list[Charge]: ...
    def make_running(self, instance: Instance, *, is_alone: bool) -> Running: ...
    def later(self, seconds: float, callback: Callable[[], object]) -> None: ...
    def grant(self, sender: str, actor: str, messages: int, size: int) -> None: ...
    @property
    def window(self) -> Window: ...
    def lead_idle(self, ready: Callable[[], bool]) -> None: ...
    def poke(self) -> None: ...
    @property
    def patience(self) -> float: ...
    @property
    def recorder(self) -> Recorder: ...


class Aborted(Exception):
    """The actor asked for its own end as a failure."""


class HostedActor:
    """An actor and the queue of its messages. `instance` is who it is; `make` constructs it, on its own thread."""

    def __init__(self, host: Host, instance: Instance, make: Make) -> None:
        self.instance = instance
        instance.control = self
        self.queue = Backlog(instance.key, host)
        self._host = host
        self._recorder = host.recorder if host.recorder.on and spawner_of(instance.key) else None
        self._make = make
        self._actor: Any = None
        self._repertoire = Repertoire(None)
        self._owed: dict[int, Call] = {}  # by identity, since one port may be named twice: what it has yet to answer
        self._unwanted: set[tuple[str, int]] = set()  # calls that were taken back before they began
        self._notices: collections.deque[Notice] = collections.deque()
        self._stops: collections.deque[Stop] = collections.deque()  # to be confirmed when all is over
        self._unreached: set[str] = set()  # where messages went that came back, and was logged
        self._losing = threading.Lock()  # guards these three: the first reason is the reason, and is told once
        self._constructed: Constructed | None = None  # who is to be told how the constructor went
        self._lost: SupervisionError | None = None
        self._cause: BaseException | None = None
        self.is_restored = False  # it has been there before, and is lost: `__restore__` is called
        self._restoring: Awaitable[Any] | None = None  # what an `async def __restore__` has still to do, on the loop
        self._cleans_up = True
        self._is_over = False
        self._maker = 0  # the thread of its constructor, and of its sync endpoints
        self._serving: ThreadServing | LoopServing | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    # -- from the receiving thread -----------------------------------------

    def post(self, message: Call | Stop, body: Body) -> None:
        """Queue a message; never waits."""
        if self._recorder is not None and isinstance(message, Call):
            self._recorder.mark((now(), message.sender, message.call))
        self.queue.put(message, body)
        self._host.poke()
        if self._serving is not None:
            self._serving.posted()
        elif isinstance(message, Stop):
            self._host.later(self._host.patience, lambda: self._abandon(message))
        if self._lost is not None:
            # The actor's thread may have drained its queue just before: whoever puts last drains again.
            self._refuse_queued()

    def notify(self, notice: Notice) -> None:
        """Let the actor see to something that is no message."""
        self._notices.append(notice)
        if self._serving is not None:
            self._serving.wake()
            self._host.poke()

    def supervise(self, charge: Charge, failure: MeshFailure) -> None:
        """A mesh that this actor owns has failed: it handles that, or fails as well."""

        def conclude(verdict: Any, error: BaseException | None) -> None:
            if error is not None:
                raised = tell_raised(name_place(self.instance, "__supervise__"), error)
                self._fail(f"{raised}\nwhen it was told that {failure.report()}", error)
            elif not verdict:
                has_hook = getattr(self._actor, "__supervise__", None) is not None
                why = "its __supervise__ has not handled that" if has_hook else "it has no __supervise__"
                why = f"its mesh {failure.mesh_name} has failed, and {why}"
                self._fail(failure.report(), SupervisionError(failure.report()), why)

        self.notify(Notice("__supervise__", failure, self._own_context(charge.context.get(CURRENT)), conclude))

    def take_back(self, envelope: UndeliverableMessageEnvelope) -> None:
        """A message of this actor's could not be delivered: its hook is told, or else the log, once of each place."""

        def conclude(verdict: Any, error: BaseException | None) -> None:
            if (error is not None or not verdict) and envelope.dest not in self._unreached:
                self._unreached.add(envelope.dest)
                logger.warning("%s%s", envelope, f"\n{format_error(error)}" if error is not None else "")

        self.notify(Notice("_handle_undeliverable_message", envelope, self._own_context(CURRENT.get()), conclude))

    def break_off(self, sender: str, call: int) -> None:
        """Whoever made this call does not want its answer any more."""
        key = sender, call
        self._unwanted.add(key)  # first: one that is out of the queue by now looks here once it has begun
        if self._serving is not None and self._serving.break_off(key):
            self._unwanted.discard(key)

    def where(self, sender: str, call: int) -> str:
        """What this call waits for, or where it is."""
        if self._serving is None:
            return "still in its constructor"
        if (running := self._serving.at((sender, call))) is not None and (here := running.where()):
            return f"in {here}"
        present = self._serving.running.where()
        return f"in its queue; the actor is in {present}" if present else "in its queue"

    def under_way(self) -> Iterator[Row]:
        """Spans of the messages that are being handled."""
        for running in self._serving.all() if self._serving is not None else ():
            yield from running.under_way()

    def load(self) -> tuple[str, int, str]:
        """Its name, how many messages wait for it, and the endpoint that runs."""
        running = self._serving.all() if self._serving is not None else ()
        return self.instance.name, self.queue.size(), next(filter(None, (each.present for each in running)), "")

    def is_served_here(self) -> bool:
        """Whether the calling thread is one that takes messages from its queue, or keeps others from it."""
        here = threading.get_ident()
        return here == self._maker or (self._serving is not None and here == self._serving.thread)

    def held_up_by(self, sender: str, call: int) -> Running | None:
        """What keeps this call from its answer: it is being handled, or in the queue behind the present message.

        None where nothing is known to: an endpoint that answers by a port may have left that to anybody.
        """
        if self._serving is None:
            return None
        if (running := self._serving.at((sender, call))) is not None:
            return running
        is_owed = any((owed.sender, owed.call) == (sender, call) for owed in list(self._owed.values()))
        return None if is_owed else self._serving.running

    # -- on the actor's own thread -----------------------------------------

    def start(self, constructed: Constructed) -> None:
        """Construct and serve on a thread of its own; `constructed` is told how the constructor went."""
        name = f"meshbook actor {self.instance.name}"
        self._thread = threading.Thread(target=self.run, args=(constructed,), name=name, daemon=True)
        self._thread.pydev_do_not_trace = False  # type: ignore[attr-defined]  # user code: breakpoints belong here
        try:
            self._thread.start()
        except RuntimeError as error:  # there are too many already: nobody else would answer for it
            constructed(self._fail(tell_raised(f"the start of {name_place(self.instance)}", error), error))
            self._end()

    def run(self, constructed: Constructed = lambda error: None) -> None:
        """Construct the actor and serve it on the calling thread until it is stopped."""
        self._maker = threading.get_ident()
        with self._losing:
            self._constructed = constructed
        # One that was given up before its turn came is not made any more.
        if self._lost is None and self.construct(self._tell_constructed):
            self._serving = LoopServing(self) if is_async(type(self._actor)) else ThreadServing(self)
            self._serve(self._serving)
        else:
            ThreadServing(self).part()
        self._end()

    def _serve(self, serving: ThreadServing | LoopServing) -> None:
        try:
            serving.run()
        except Exception as error:  # a fault of ours: nobody takes messages from its queue any more
            logger.exception("%s could not be served any longer", self.instance)
            self._cleans_up = False
            self._fail(tell_raised(f"the serving of {name_place(self.instance)}", error), error)
            ThreadServing(self).part()

    def construct(self, constructed: Constructed) -> bool:
        """Whether it could be made."""
        CURRENT.set(self._own_context(None))
        what = "constructor"
        try:
            actor = self._make()
            what = "__restore__"
            self._restoring = self._restore(actor)
        except BaseException as error:
            where = f"the {what} of {name_place(self.instance)}"
            lost = self._fail(tell_raised(where, error), error)
            constructed(lost)
            return False
        self._actor, self._repertoire = actor, Repertoire(actor)
        if self._restoring is None:
            constructed(self._lost)  # that may have been while it was constructed
        return True

    def _tell_constructed(self, lost: SupervisionError | None) -> None:
        """Once: who has been told that it was given up does not hear of it any more."""
        with self._losing:
            constructed, self._constructed = self._constructed, None
        if constructed is not None:
            constructed(lost)

    def _restore(self, actor: Actor) -> Awaitable[Any] | None:
        """Let an actor that was lost take up where it was; what is to be awaited where that is done on the loop."""
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
        """Of what is no message: the actor in the mesh that it was spawned in."""
        rank = self.instance.rank
        place = rank.rank, rank.extent.labels, rank.extent.sizes
        return Context(self.instance, place, before.origin if before is not None else "")

    def _abandon(self, stop: Stop) -> None:
        """It does not come to be, and the actor is to be stopped: it is, as far as anybody can tell."""
        if self._serving is None and self._lost is None:
            present = "its constructor had not returned" if self._maker else "it had not begun"
            self._tell_constructed(self._stop(f"{stop.reason}; {present}"))
            self._end()

    # -- for who serves it ---------------------------------------------------

    async def restore(self) -> None:
        """Do what is left of `__restore__`; if that fails, the actor does, as with its constructor."""
        if (restoring := self._restoring) is None:
            return
        try:
            await restoring
        except BaseException as error:
            self._fail(tell_raised(f"the __restore__ of {name_place(self.instance)}", error), error)
        self._tell_constructed(self._lost)

    def wait_for_work(self) -> None:
        if self._thread is not None:  # the main thread, when lent to an actor, is interrupted by signals: it only takes
            self._host.lead_idle(self._has_work)

    def _has_work(self) -> bool:
        return not self.queue.empty()

    def make_running(self, *, is_alone: bool) -> Running:
        return self._host.make_running(self.instance, is_alone=is_alone)

    @property
    def running(self) -> Running | None:
        """What it is at."""
        return self._serving.running if self._serving is not None else None

    def is_concurrent(self, call: Call) -> bool:
        return self._repertoire.is_concurrent(call)

    def is_sync(self, call: Call) -> bool:
        return self._repertoire.is_sync(call)

    def is_reload(self, call: Call) -> bool:
        """Whether it stands between the messages before and after it: none may be under way."""
        return call.manner == "reload"

    @property
    def is_mixed(self) -> bool:
        return self._repertoire.is_mixed

    def is_unwanted(self, call: Call) -> bool:
        """Whether the call was taken back, to be asked once it has begun.

        When the queue is empty, what was noted before is of calls that are over.
        """
        if not self._unwanted:
            return False
        if (key := (call.sender, call.call)) in self._unwanted:
            self._unwanted.discard(key)
            return True
        noted = set(self._unwanted)
        if self.queue.empty():
            self._unwanted -= noted
        return False

    def take_notice(self) -> Notice | None:
        try:
            return self._notices.popleft()
        except IndexError:
            return None

    def hook(self, notice: Notice) -> Any:
        hook = getattr(self._actor, notice.hook, None)
        return hook(notice.about) if hook is not None else False

    def context_of(self, call: Call, running: Running | None) -> Context:
        return Context(self.instance, call.place, call.origin, running)

    def begin(self, call: Call, body: Body) -> Any:
        """Run the endpoint; of an async one, what is to be awaited."""
        if self.is_reload(call):
            return self._reload(body)
        ported = self._repertoire.is_ported(call)
        try:
            method = self._repertoire.find(call)
            args, kwargs = pickling.loads(body, lambda: f"an argument of {self.instance.name}.{call.endpoint}")
        except Exception as error:
            if not (ported and call.call):
                raise
            # The endpoint has not begun and cannot answer; this is the caller's mistake, not the end of the actor.
            self._host.reply_error(call.sender, call.call, f"{type(error).__name__}: {error}", error)
            return None
        return self._begin(method, (self._port_of(call), *args) if ported else args, kwargs)

    def _reload(self, body: Body) -> None:
        what = f"the new class of {self.instance.name}"
        (data,), _ = pickling.loads(body, what)
        cls = pickling.loads([data], what)
        take_on(self._actor, cls)
        self.instance.class_name = f"{cls.__module__}.{cls.__qualname__}"
        self._repertoire = Repertoire(self._actor)

    def _begin(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A function of its own: by its name `running` knows where our code ends and the user's begins.
        return method(*args, **kwargs)

    def _port_of(self, call: Call) -> Any:
        if call.call:
            self._owed[id(call)] = call
        return self._host.port_to(call.sender, call.call, call.place[0], lambda: self._owed.pop(id(call), None))

    # -- how a message ends --------------------------------------------------

    def returned(self, call: Call, value: Any) -> None:
        if not call.call or self._repertoire.is_ported(call):
            return
        if self._lost is not None and self._cause is not None:  # it aborted, and went on
            self._host.reply_lost(call.sender, call.call, self._lost)
        else:
            what = f"the result of {self.instance.name}.{call.endpoint}"
            try:
                self._host.reply(call.sender, call.call, value, what, call.place[0])
            except Exception as error:  # there may be no memory for it: who asked hears that, and the actor goes on
                where = f"the sending of the result of {name_place(self.instance, call.endpoint)}"
                self._host.reply_error(call.sender, call.call, tell_raised(where, error), error)

    def raised(self, call: Call, error: Exception) -> None:
        where = name_place(self.instance, call.endpoint)
        if self._lost is not None:
            if call.call:
                self._host.reply_lost(call.sender, call.call, self._lost)
        elif self._repertoire.is_ported(call):
            self._fail(tell_raised(where, error), error, "it raised instead of answering by its port")
        elif call.call:
            self._host.reply_error(call.sender, call.call, tell_raised(where, error), error)
        else:
            self._fail(tell_raised(where, error), error, "it raised in a broadcast, where nobody takes the error")

    def died(self, call: Call, error: BaseException) -> None:
        where = name_place(self.instance, call.endpoint)
        lost = self._fail(tell_raised(where, error), error, f"{type(error).__name__} always ends an actor")
        if call.call:
            self._host.reply_lost(call.sender, call.call, lost)

    def cancelled(self, call: Call, error: BaseException, *, wanted: bool) -> None:
        """An endpoint ended by a CancelledError: because somebody wanted that, or the actor is lost, or by itself."""
        if self._lost is not None:
            if call.call:
                self._host.reply_lost(call.sender, call.call, self._lost)
        elif not wanted:
            self.died(call, error)
        else:
            self._owed.pop(id(call), None)

    # -- the end -----------------------------------------------------------------

    def handle_stop(self, stop: Stop) -> None:
        """All messages before this one have been handled."""
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
        return self._lose(tell_failed(self.instance, report, why), cause)

    def _stop(self, reason: str) -> SupervisionError:
        return self._lose(tell_stopped(self.instance, reason), None)

    def _lose(self, text: str, cause: BaseException | None) -> SupervisionError:
        """From now on nothing is begun, and whoever asks is told this. Without a cause it is no failure."""
        with self._losing:
            if self._lost is not None:
                return self._lost
            lost = SupervisionError(text)
            lost.__cause__ = self._cause = cause
            self._lost = lost
        if cause is not None:
            self._host.actor_failed(self.instance, lost)
        self._refuse_queued()
        if self._serving is not None:
            self._serving.wake()
        for key in list(self._owed):
            if (call := self._owed.pop(key, None)) is not None:  # a thread of the actor's may just have answered
                self._host.reply_lost(call.sender, call.call, lost)
        return lost

    def partings(self) -> Iterator[Step]:
        """What is to be done now that it is lost: end what it owns, then let it clean up."""
        CURRENT.set(self._own_context(CURRENT.get()))
        for charge in self._host.charges_of(self.instance.key):
            yield functools.partial(charge.stop, f"its owner {self.instance} has ended")
        cleanup = getattr(self._actor, "__cleanup__", None)
        if cleanup is not None and self._cleans_up:
            yield lambda: cleanup(self._cause)

    def _end(self) -> None:
        assert self._lost is not None
        self._is_over = True
        self._host.actor_over(self.instance, self._lost)
        self.queue.close()
        self._confirm_stops()

    def release(self) -> None:
        """Let go of the actor, which has ended."""
        self._actor, self._repertoire = None, Repertoire(None)

    def refuse(self, message: Call | Stop, body: Body) -> None:
        """The actor is lost: say so."""
        assert self._lost is not None
        if isinstance(message, Stop):
            self._stops.append(message)
        elif message.call:
            self._host.reply_lost(message.sender, message.call, self._lost)
        else:
            self._host.return_message(message, message.actor, str(self._lost))

    def _refuse_queued(self) -> None:
        has_alarm = False
        while True:
            try:
                item = self.queue.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                self.refuse(*item)
            has_alarm = has_alarm or item is None
        if has_alarm:  # it is for the actor's thread
            self.queue.ring()
        if self._is_over:
            self._confirm_stops()

    def _confirm_stops(self) -> None:
        """Stopping twice is no error."""
        while self._stops:
            try:
                stop = self._stops.popleft()
            except IndexError:  # taken by another thread
                return
            if stop.call:
                self._host.reply(stop.sender, stop.call, None, "a stop")
