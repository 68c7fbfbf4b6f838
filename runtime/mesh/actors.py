"""`ActorMesh`: the handle of an actor on every rank of a mesh. Picklable, sliceable; it holds addresses, no node."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import random
from collections.abc import Callable, Generator, Sequence
from types import CodeType, GenericAlias
from typing import Any, Self

import msgspec

from meshbook.runtime import monarch_texts
from meshbook.runtime.actor.base import Actor, check_replacement, find_redefined
from meshbook.runtime.actor.context import CURRENT, client_context, format_actor
from meshbook.runtime.actor.endpoint import Arguments, Endpoint, endpoints_of
from meshbook.runtime.actor.explicit_calls import PlainMethod
from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.actor.values import ValueMesh
from meshbook.runtime.errors import CallError, ProcessDied, SupervisionError
from meshbook.runtime.geometry import Extent, MeshTrait, Region
from meshbook.runtime.interrupts import hold_interrupts
from meshbook.runtime.mesh.handle_pickling import Made, reduce_for_message, reduce_for_program, run_of
from meshbook.runtime.mesh.tensors import TensorEndpoint, through_engine
from meshbook.runtime.node.call_table import (
    AllReplies,
    AsCompleted,
    ClassReloads,
    Endings,
    PerRank,
    Reduction,
    RelayToPort,
    SingleReply,
    Target,
)
from meshbook.runtime.node.node import Node
from meshbook.runtime.traces import SourceLine, calling_place
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.messages import Address

_dice = random.SystemRandom()  # not the global generator: its seed belongs to the user, and forks would share its state


def current_node() -> Node:
    """Return the node of the actor or client that runs here."""
    here = CURRENT.get()
    return (here if here is not None else client_context()).actor_instance.node  # type: ignore[no-any-return]


class ActorMesh(MeshTrait):
    """Actors of one class, one per rank. Its endpoints are attributes: `mesh.step.call(x)`."""

    def __init__(
        self,
        name: str,
        cls: type[Actor],
        targets: Sequence[Target],
        region: Region,
        initialized: Future[None] | None = None,
        whole: Extent | None = None,
    ) -> None:
        self._name = name
        self._cls = cls
        self._targets = tuple(targets)  # by rank of the mesh as it was spawned; slices share it
        self._region = region
        self._whole = whole or region.extent  # of the mesh as it was spawned
        self._initialized = initialized if initialized is not None else Future.completed(None)
        self._methods = endpoints_of(cls)

    @classmethod
    def __class_getitem__(cls, actor: Any) -> GenericAlias:
        """Support `ActorMesh[Trainer]` in annotations."""
        return GenericAlias(cls, actor)

    @property
    def mesh_name(self) -> str:
        return self._name

    @property
    def region(self) -> Region:
        return self._region

    def __len__(self) -> int:
        return len(self._picked)

    @property
    def initialized(self) -> Future[None]:
        """A future that resolves once every constructor has run, or raises the error of the first that failed.

        After a heal by its owner, the future is that of the newly created actors.
        """
        known = self._initialized
        if known.done() and known.exception() is not None:
            owned_mesh = current_node().ledger.get(self._targets[0].actor)
            return known if owned_mesh is None or owned_mesh.healing is None else owned_mesh.healing
        return known

    def __await__(self) -> Generator[Any, None, Self]:
        """Wait until this mesh is initialized and return it; raises the same errors as `initialized`."""
        yield from self.initialized.__await__()
        return self

    def _with_region(self, region: Region) -> ActorMesh:
        return ActorMesh(self._name, self._cls, self._targets, region, self._initialized, self._whole)

    def __getattr__(self, name: str) -> Endpoint[Any, Any] | PlainMethod:
        if not name.startswith("__") and (method := self.__dict__.get("_methods", {}).get(name)) is not None:
            made: Endpoint[Any, Any] = TensorEndpoint(self, method)
            self.__dict__[name] = made  # later look-ups bypass `__getattr__`
            return made
        if not name.startswith("_") and callable(getattr(self.__dict__.get("_cls"), name, None)):
            return PlainMethod(self, self._cls, name)
        known = sorted(self.__dict__.get("_methods", ()))
        close = [] if name.startswith("_") else difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        listed = ", ".join(known) or "none"
        raise AttributeError(f"{self.__dict__.get('_name')} has no endpoint {name!r}; its endpoints: {listed}{hint}")

    @property
    def _keys(self) -> set[str]:
        """The keys of this mesh in its owner's ledger."""
        return {target.actor for target in self._targets}

    @functools.cached_property
    def _picked(self) -> tuple[Target, ...]:
        return tuple(self._targets[rank] for rank in self._region.ranks())

    @property
    def _addresses(self) -> tuple[Address, ...]:
        """The addresses of its ranks, for a broadcast."""
        return tuple(target.address for target in self._picked)

    @functools.cached_property
    def _extent(self) -> Extent:
        return self._region.extent

    @through_engine
    def _call(self, endpoint: str, arguments: Arguments, limit: float | None = None) -> Future[ValueMesh[Any]]:
        reply_handler = AllReplies(self._region, self._explainer(endpoint))
        future = reply_handler.future
        current_node().calls.send(self._picked, endpoint, arguments, self._extent, reply_handler, within=limit)
        if limit is not None:
            self._limit(future, endpoint, limit)
        return future

    @through_engine
    def _call_each(self, endpoint: str, arguments: Arguments) -> Sequence[Future[Any]]:
        reply_handler = PerRank(len(self._picked), self._explainer(endpoint))
        current_node().calls.send(self._picked, endpoint, arguments, self._extent, reply_handler)
        return reply_handler.futures

    def _call_rank(self, rank: int, endpoint: str, arguments: Arguments, limit: float | None) -> Future[Any]:
        reply_handler = SingleReply(self._explainer(endpoint))
        current_node().calls.send_one(self._picked[rank], endpoint, arguments, self._extent, reply_handler, rank, limit)
        if limit is not None:
            self._limit(reply_handler.future, endpoint, limit, first=rank)
        return reply_handler.future

    @through_engine
    def _call_one(self, endpoint: str, arguments: Arguments, limit: float | None = None) -> Future[Any]:
        if limit is not None:
            return self._call_rank(0, endpoint, arguments, limit)
        reply_handler = SingleReply(self._explainer(endpoint, depth=4))
        current_node().calls.send_one(self._picked[0], endpoint, arguments, self._extent, reply_handler)
        return reply_handler.future

    @through_engine
    def _choose(self, endpoint: str, arguments: Arguments, limit: float | None = None) -> Future[Any]:
        return self._call_rank(self._draw(), endpoint, arguments, limit)

    def _draw(self) -> int:
        """Return a random rank. If a rank is known to be lost, return that rank, so that the call always fails."""
        lost = current_node().supervision.find_lost(self._picked)
        return lost if lost is not None else _dice.randrange(len(self._picked))

    def _limit(self, future: Future[Any], endpoint: str, seconds: float, first: int = 0) -> None:
        name = f"{self._name}.{endpoint}"
        current_node().calls.limit([future], seconds, name=name, count=len(self._picked), first=first)

    @through_engine
    def _stream(self, endpoint: str, arguments: Arguments) -> Sequence[Future[Any]]:
        reply_handler = AsCompleted(len(self._picked), self._explainer(endpoint))
        current_node().calls.send(self._picked, endpoint, arguments, self._extent, reply_handler)
        return reply_handler.futures

    @through_engine
    def _fold(
        self, endpoint: str, arguments: Arguments, combine: Callable[[list[Callable[[], Any]]], Any]
    ) -> Future[Any]:
        reply_handler = Reduction(len(self._picked), combine, self._explainer(endpoint))
        current_node().calls.send(self._picked, endpoint, arguments, self._extent, reply_handler)
        return reply_handler.future

    @through_engine
    def _broadcast(self, endpoint: str, arguments: Arguments) -> None:
        current_node().calls.send(self._picked, endpoint, arguments, self._extent, None)

    @through_engine
    def _send(
        self, endpoint: str, arguments: Arguments, *, chosen: bool, port: tuple[Any, int], has_port: bool
    ) -> None:
        first = self._draw() if chosen else 0
        node, targets = current_node(), self._picked[first : first + 1] if chosen else self._picked
        to, relay = port if port[1] else None, None
        # An endpoint that gets the port may answer several times. Else each target replies once: then a port of this
        # node also gets the error of a target that cannot reply.
        if to is not None and not has_port and to[0].node == node.address.node:
            to, relay = None, RelayToPort(node.table, port[1], first, self._explainer(endpoint))
        node.calls.send(targets, endpoint, arguments, self._extent, relay, first=first, port=to)

    def _pass_on(self, rank: int, endpoint: str, arguments: Arguments, port: Port[Any]) -> None:
        """Call one rank, which answers to the port of a call that this process has received."""
        to = (port._address, port._number) if port._number else None
        targets = self._picked[rank : rank + 1]
        current_node().calls.send(targets, endpoint, arguments, self._extent, None, first=rank, port=to)
        port._hand_over()

    def _undecorated(self, has_port: bool) -> ActorMesh:
        """Return this mesh as a handle for calls of its undecorated methods."""
        targets = [dataclasses.replace(target, manner="port" if has_port else "method") for target in self._targets]
        return ActorMesh(self._name, self._cls, targets, self._region, self._initialized, self._whole)

    def _explainer(self, endpoint: str, depth: int = 5) -> _Explainer:
        # The frames above are `_call` or a sibling, its decorator, and a verb. The caller's frame is at this depth or
        # higher; each frame looked at costs time.
        return _Explainer(self, endpoint, *calling_place(depth))

    def _name_lost(self, node: str) -> str:
        """Return a line that names the actor that ended with this process, or ""."""
        nodes = [target.address.node for target in self._targets]
        if node not in nodes:
            return ""
        point = self._whole.point(nodes.index(node))
        actor = format_actor(f"{self._cls.__module__}.{self._cls.__qualname__}", self._name, point)
        return f"\n{monarch_texts.actor_failed(actor, node)}"

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """End the actors of this mesh or slice after the messages that were already sent to them."""
        node = current_node()
        reply_handler = Endings(self._region, lambda index: node.routes.has_ended(self._picked[index].address))
        with hold_interrupts("the actors are being stopped"):
            for key in self._keys:
                node.ledger.end(key, {target.address.node for target in self._picked})
            node.calls.stop(self._picked, reason, reply_handler)
        return reply_handler.future.then(lambda _: None)

    def reload(self, cls: type[Actor] | None = None) -> Future[None]:
        """Change the live actors of this mesh or slice to a redefined class.

        Without an argument, the new class is the one that now has the present class's name in its module: a notebook, a
        script, a module that was reloaded. The actors keep their state, and no constructor runs. Each actor changes
        between two messages: calls sent before run with the old class, calls sent after with the new one. Overlapping
        endpoints that have begun finish first, and later messages wait for that; `cancel()` withdraws the reload. The
        class is pickled by value, with what it uses of its own module.

        This handle, and handles made from it afterwards, have the new endpoints. Other handles and references of the
        same actors, and endpoints taken from them, keep the old ones. A rank that is healed later has the class that it
        was spawned with, until the next `reload`.

        Raises ValueError for a class that `spawn` would refuse, and if the actors would have to move from a thread to
        an event loop or back. The future raises ActorError if a rank could not change, for example because of different
        `__slots__`: its actor keeps the old class.
        """
        new: type[Actor] = find_redefined(self._cls) if cls is None else cls
        check_replacement(self._cls, new, TAKEN)
        arguments: Arguments = ((pickling.dumps_class(new),), {})
        old = self._cls

        def undo() -> None:
            if self._cls is new:
                self._set_class(old)

        self._set_class(new)
        reply_handler = ClassReloads(self._region, self._explainer("reload", depth=3), undo)
        targets = [dataclasses.replace(target, manner="reload") for target in self._picked]
        try:
            current_node().calls.send(targets, "reload", arguments, self._extent, reply_handler)
        except BaseException:
            undo()
            raise
        return reply_handler.future.then(lambda _: None)

    def _set_class(self, cls: type[Actor]) -> None:
        """Offer the endpoints of this class only."""
        known, self._cls, self._methods = self._methods, cls, endpoints_of(cls)
        for name in known:
            self.__dict__.pop(name, None)  # endpoints that `__getattr__` has cached

    def __repr__(self) -> str:
        return f"<ActorMesh {self._name} of {self._cls.__qualname__} {dict(self.extent)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Wait first, so the actors exist wherever the pickle is loaded.
        if not self._initialized.done():
            self._initialized.exception()
        return reduce_for_program(run_of(self._nodes), self._made())

    def _reduce_for_wire(self) -> tuple[Any, ...]:
        """Reduce for a message, without waiting. A node keeps messages for an actor that has not been created yet."""
        return reduce_for_message(run_of(self._nodes), self._made())

    @property
    def _nodes(self) -> tuple[Address, ...]:
        return tuple(target.address for target in self._targets)

    def _made(self) -> Made:
        whole = None if self._whole == self._region.extent else self._whole
        return ActorMesh, (self._name, self._cls, self._targets, self._region, None, whole)


class _Explainer(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Converts the error of a call for its caller: adds the endpoint that failed and the line that called it.

    The garbage collector skips it, since nothing that it refers to leads back to it. Each pending call has one.
    """

    mesh: ActorMesh
    endpoint: str
    code: CodeType  # of the function that called, and the instruction in it
    instruction: int

    def __call__(self, error: BaseException) -> BaseException:
        if isinstance(error, SupervisionError):
            text = f"{monarch_texts.endpoint_failed(self.mesh.mesh_name, self.endpoint)}, {error}"
            if isinstance(error, ProcessDied):
                error = ProcessDied(f"{text}{self.mesh._name_lost(error.report.node)}", error.report)
            else:
                error = SupervisionError(text)
        if isinstance(error, CallError) and (line := SourceLine.of((self.code, self.instruction))).is_of_user:
            error.called_at = line
        return error


TAKEN = frozenset(dir(ActorMesh))  # names that endpoints must not have
