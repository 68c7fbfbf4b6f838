"""Remote functions: Python functions that run on the ranks, with mesh tensors as arguments and results.

The controller has to know the shapes of the results. `propagate` says how:

- a function of the same arguments, whose tensors are torch's fake ones: it returns fake tensors like the results
- "mocked": the function itself, with fake tensors; "cached": the same, once for each combination of shapes
- "inspect": the ranks are asked, so each call waits

`actors.step.rref(x)` is an endpoint that each rank calls with its own values. The rank's engine sends a message to the
actor beside it and waits for the answer, so the actor handles it in turn. `actors.step.call(x)` and the other verbs
return the answers to the caller: the rank's engine passes the call on, and does not wait.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.endpoint import Arguments, Callee, Endpoint, EndpointMethod, Options
from meshbook.runtime.actor.future import Future
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.tensor.arguments import find_faults
from meshbook.runtime.tensor.device_mesh import RemoteProcessGroup, active_place, no_mesh
from meshbook.runtime.tensor.engine import LOCALLY
from meshbook.runtime.tensor.executor import GroupRef, ValueRef
from meshbook.runtime.tensor.failures import format_call
from meshbook.runtime.tensor.lanes import Lane, OpaqueRef
from meshbook.runtime.tensor.mesh_value import Place
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.templates import Pickled, user_place
from meshbook.runtime.tensor.tensor import MeshTensor, make_tensor, unite
from meshbook.runtime.tensor.trees import rank_of
from meshbook.runtime.tensor.worker import TensorWorker

Function = Callable[..., Any]
MOST_RULES: Final = 1000  # results of "cached" kept for each function
# Each returns the function that the ranks call in place of a given one, or its name, or None if it does not know it.
function_resolvers: list[Callable[[Function], Function | str | None]] = []
_serial = itertools.count(1)


class Named:
    """A function by its name, `module.function`: each rank imports it."""

    def __init__(self, name: str) -> None:
        module, _, function = name.rpartition(".")
        if not (module and function):
            raise ValueError(f"remote() takes a function, or its name as 'module.function', not {name!r}")
        self.name = name

    @functools.cached_property
    def _function(self) -> Function:
        module, _, function = self.name.rpartition(".")
        found: Function = getattr(importlib.import_module(module), function)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Named, (self.name,)


class RemoteFunction(Endpoint[..., Any]):
    """A function that runs on every rank of the active mesh, or of its arguments' mesh. Made by `remote`.

    A call returns tensors of the ranks. `call(...)` and the other verbs of an endpoint return what it returns there.
    """

    def __init__(self, function: Function | str, propagate: Any) -> None:
        super().__init__(cast("Callee", _Ranks(self)), _ANY)
        if not isinstance(function, str):
            found = (resolve(function) for resolve in function_resolvers)
            function = next((each for each in found if each is not None), function)
        self._function: Function = Named(function) if isinstance(function, str) else function
        self._name = function if isinstance(function, str) else getattr(function, "__qualname__", repr(function))
        self._propagate = propagate
        self._number = next(_serial)
        self._known: dict[Any, Any] = {}  # results of "cached": trees with `Meta` in place of tensors

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on every rank and return at once (unless `propagate` is "inspect").

        Raises ValueError without a mesh, and TypeError for tensors that do not fit together. If the function raises on
        a rank, its results fail: a fetch raises RemoteException.
        """
        place = self._find_place(args, kwargs)
        tree = self._check(args, kwargs, place)
        if self._propagate is None:
            raise ValueError(
                f"{self._name} has no rule for the shapes of its results: pass propagate= to remote(), or use "
                "call(...) and call_on_shard_and_fetch(...), which return what it returns there"
            )
        if self._propagate == "inspect":
            return self._run_inspected(tree, place)
        described = self._infer(args, kwargs)
        leaves, spec = tree_flatten(described)
        metas = [leaf for leaf in leaves if isinstance(leaf, (Meta, OpaqueRef))]
        self._check_gradients(args, kwargs, bool(metas))
        arguments = self._pickle(tree)
        first = place.engine.new_ids(len(metas)) if metas else 0
        numbers = list(range(first, first + len(metas)))
        command = "call", self._send(place.lane), arguments, numbers, metas
        place.engine.issue(place.lane, command, user_place(1), arguments.nbytes)
        return _unflatten(leaves, spec, [_make(meta, n, place) for meta, n in zip(metas, numbers, strict=True)])

    def call_on_shard_and_fetch(self, *args: Any, shard: dict[str, int] | None = None, **kwargs: Any) -> Future[Any]:
        """Run the function on one rank and return a future of its result; see the function of this name."""
        place = self._find_place(args, kwargs)
        tree = self._check(args, kwargs, place)
        return place.engine.call_on(rank_of(place.mesh, shard, {}), self._function, tree, place.stream)

    rref = __call__

    def _on_ranks(self, arguments: Arguments) -> tuple[ActorMesh, Arguments]:
        """Return the engine's actors on the ranks, and the arguments of their endpoint `run_function`."""
        place = self._find_place(*arguments)
        tree = self._check(*arguments, place)
        place.engine.send_all()
        return place.lane.actors, ((self._function, tree), {})

    def _find_place(self, args: Any, kwargs: Any) -> Place:
        if (place := place_of(args, kwargs)) is None:
            raise ValueError(f"{self._name} is a remote function, and no mesh is active: use `with mesh.activate():`")
        return place

    def _send(self, lane: Lane) -> int:
        """Make sure that the ranks have the function; return its number there."""
        with lane.engine.lock:
            if self._number not in lane.functions:
                function = Pickled.of(self._function, f"the function {self._name}")
                lane.engine.issue(lane, ("function", self._number, function), None, function.nbytes)
                lane.functions.add(self._number)
        return self._number

    def _pickle(self, tree: Any) -> Pickled:
        return Pickled.of(tree, f"an argument of {self._name}")

    def _run_inspected(self, tree: Any, place: Place) -> Any:
        engine, lane = place.engine, place.lane
        arguments = self._pickle(tree)
        number = engine.new_ids(1)
        engine.issue(lane, ("call", self._send(lane), arguments, number), user_place(2), arguments.nbytes)
        ref = lane.new_ref(number)
        leaves, spec = tree_flatten(unite(engine, self._name, engine.describe(lane, number)))
        metas = [leaf for leaf in leaves if isinstance(leaf, (Meta, OpaqueRef))]
        first = engine.new_ids(len(metas)) if metas else 0
        engine.issue(lane, ("unpack", ref.id, list(range(first, first + len(metas)))), None)
        return _unflatten(leaves, spec, [_make(meta, first + index, place) for index, meta in enumerate(metas)])

    def _check(self, args: Any, kwargs: Any, place: Place) -> Any:
        """Return the arguments for the ranks: ids in place of tensors."""
        leaves, spec = tree_flatten((args, kwargs))
        _refuse_faults(self._name, args, kwargs, place)
        for leaf in leaves:
            if isinstance(leaf, OpaqueRef) and (leaf.place is None or leaf.place.engine is not place.engine):
                raise TypeError(
                    f"{leaf!r} is no object of the ranks of {place.mesh!r}: a remote function makes it there"
                )
        return tree_unflatten([_for_ranks(leaf, place) for leaf in leaves], spec)

    def _check_gradients(self, args: Any, kwargs: Any, has_results: bool) -> None:
        if not (has_results and torch.is_grad_enabled()):
            return
        faults = [
            (each, "requires grad, and a remote function has no backward")
            for each in _tensors_in((args, kwargs))
            if each.requires_grad
        ]
        if faults:
            raise TypeError(format_call(self._name, args, kwargs, faults))

    def _infer(self, args: Any, kwargs: Any) -> Any:
        """Return the results, with `Meta` in place of tensors."""
        if self._propagate != "cached":
            rule = self._function if self._propagate == "mocked" else self._propagate
            return _run_rule(rule, args, kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        key = (
            spec,
            torch.get_default_dtype(),
            *(leaf._meta if isinstance(leaf, MeshTensor) else (type(leaf), leaf) for leaf in leaves),
        )
        if any(isinstance(leaf, OpaqueRef) for leaf in leaves):  # a key would keep its object
            return _run_rule(self._function, args, kwargs)
        try:
            known = self._known.get(key)
        except TypeError:  # an argument that is no part of a key
            return _run_rule(self._function, args, kwargs)
        if known is None:
            if len(self._known) >= MOST_RULES:
                self._known.clear()
            known = self._known[key] = (_run_rule(self._function, args, kwargs),)
        return known[0]

    def __repr__(self) -> str:
        return f"<remote function {self._name}>"


class _Ranks:
    """The mesh of a remote function as its endpoint: the ranks that are found at each call."""

    def __init__(self, function: RemoteFunction) -> None:
        self._function = function

    @property
    def mesh_name(self) -> str:
        return self._function._name

    def __len__(self) -> int:
        return len(self._function._find_place((), {}).mesh)

    def __getattr__(self, verb: str) -> Any:
        def run(endpoint: str, arguments: Arguments, *options: Any, **more: Any) -> Any:
            workers, passed = self._function._on_ranks(arguments)
            with LOCALLY():
                return getattr(workers, verb)(endpoint, passed, *options, **more)

        if verb.startswith("__"):
            raise AttributeError(verb)
        return run


def run_function(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand for the endpoint of the engine's actors, with the signature of any function."""


_ANY: EndpointMethod[..., Any] = EndpointMethod(run_function, Options())


def remote(function: Function | str | None = None, *, propagate: Any = None) -> Any:
    """Return a remote function, which runs on every rank of the active mesh; also as a decorator.

    `function` is one, or its name `module.function`, which the ranks import. Tensors among the arguments, also in lists
    and dicts, arrive as the rank's values, and a `RemoteProcessGroup` as a process group of torch. `propagate` says how
    the controller learns the shapes of the results: see the module. Raises ValueError for another word.
    """
    if not (propagate is None or callable(propagate) or propagate in ("cached", "mocked", "inspect")):
        raise ValueError(f"propagate is a function of shapes, 'cached', 'mocked' or 'inspect', not {propagate!r}")
    if function is None:
        return functools.partial(remote, propagate=propagate)
    return RemoteFunction(function, propagate)


def call_on_shard_and_fetch(
    function: RemoteFunction | Function, *args: Any, shard: dict[str, int] | None = None, **kwargs: Any
) -> Future[Any]:
    """Run a function on one rank, with that rank's values, and return a future of its result.

    `shard` has the coordinates of the rank; missing ones are 0. The future raises RemoteException if an argument has
    failed, and ActorError if the function raises.
    """
    called = function if isinstance(function, RemoteFunction) else RemoteFunction(function, None)
    return called.call_on_shard_and_fetch(*args, shard=shard, **kwargs)


def place_of(args: Any, kwargs: Any) -> Place | None:
    """Return the active place, else that of the first mesh tensor among some arguments."""
    return active_place() or next((leaf._place for leaf in _tensors_in((args, kwargs))), None)


def _tensors_in(tree: Any) -> list[MeshTensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, MeshTensor)]


def _for_ranks(leaf: Any, place: Place) -> Any:
    if isinstance(leaf, MeshTensor):
        return ValueRef(leaf._ref.id)
    if isinstance(leaf, OpaqueRef) and leaf.ref is not None:
        return ValueRef(leaf.id_in(place.stream))
    if isinstance(leaf, RemoteProcessGroup):
        return GroupRef(leaf.name_in(place.stream))
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone()  # a call may be sent later
    return leaf


def _refuse_faults(name: str, args: Any, kwargs: Any, place: Place) -> None:
    """Raise TypeError if tensors among the arguments of a call cannot be used at a place."""
    faults = [(tensor, fault) for tensor in _tensors_in((args, kwargs)) for fault in find_faults(tensor, place)]
    if faults:
        raise TypeError(format_call(name, args, kwargs, faults))


def _make(meta: Meta | OpaqueRef, number: int, place: Place) -> MeshTensor | OpaqueRef:
    ref = place.lane.new_ref(number)
    return make_tensor(meta, ref, place) if isinstance(meta, Meta) else OpaqueRef.to(ref, place)


def _unflatten(leaves: list[Any], spec: Any, made: list[Any]) -> Any:
    """Return a result with what was made of its metadata."""
    new = iter(made)
    return tree_unflatten([next(new) if isinstance(leaf, (Meta, OpaqueRef)) else leaf for leaf in leaves], spec)


def _run_rule(rule: Function, args: Any, kwargs: Any) -> Any:
    """Call a function with fake tensors; return its result with `Meta` in place of them."""
    with torch.no_grad(), no_mesh.activate(), FakeTensorMode(allow_non_fake_inputs=True):
        fake_args, fake_kwargs = tree_map_only(MeshTensor, _fake, (args, kwargs))
        result = rule(*fake_args, **fake_kwargs)
    # Fake tensors forget the number of a stand-in.
    given = [each._meta for each in tree_leaves((args, kwargs)) if isinstance(each, MeshTensor)]
    device = next((meta.device for meta in given if meta.here != meta.device), None)
    return tree_map_only(torch.Tensor, lambda each: Meta.of(each, device), result)


def _fake(tensor: MeshTensor) -> torch.Tensor:
    """Return a fake tensor like this one; a FakeTensorMode is active."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor._meta.here)


class _CallBeside:
    """Calls an endpoint of the actor in this process."""

    def __init__(self, actors: ActorMesh, endpoint: str) -> None:
        self._actors = actors
        self._endpoint = endpoint
        self.__qualname__ = f"{actors.mesh_name}.{endpoint}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        actor = self._actors.slice(**dict(context().actor_instance.rank))
        return getattr(actor, self._endpoint).call_one(*args, **kwargs).get()


def call_by_reference(actors: ActorMesh, endpoint: str, propagate: Any, place: Place, args: Any, kwargs: Any) -> Any:
    """Call an endpoint on each rank of a place, with the rank's values of mesh tensors.

    Raises ValueError if the actors are not on the ranks of that mesh, or the endpoint has no `propagate`.
    """
    if propagate is None:
        raise ValueError(
            f"{actors.mesh_name}.{endpoint} has no rule for the shapes of its results: pass propagate= to @endpoint"
        )
    if dict(actors.extent) != dict(place.engine.procs.extent):
        raise ValueError(f"{actors!r} is not on the ranks of {place.mesh!r}: spawn it on that process mesh")
    known: dict[str, RemoteFunction] = actors.__dict__.setdefault("_references", {})
    if endpoint not in known:
        known[endpoint] = remote(_CallBeside(actors, endpoint), propagate=propagate)
    return known[endpoint](*args, **kwargs)


class _Passing(ActorMesh):
    """The engine's actors in the processes of other actors, as these: `pass_on` is a call of their endpoint."""

    def __init__(self, actors: ActorMesh, endpoint: str, workers: ActorMesh) -> None:
        beside = {target.address.node: target for target in workers._picked}
        targets = [beside[target.address.node] for target in actors._picked]
        super().__init__(actors.mesh_name, TensorWorker, targets, actors.extent.region)
        self._actors = actors
        self._passed = endpoint

    def _explainer(self, endpoint: str, depth: int = 5) -> Any:
        return self._actors._explainer(self._passed, depth + 1)


@contextlib.contextmanager
def calls_with_values(actors: ActorMesh, endpoint: str, arguments: Arguments) -> Iterator[tuple[ActorMesh, Arguments]]:
    """Yield the engine's actors beside these, and the arguments of `pass_on`, for a call with mesh tensors.

    Raises TypeError if the tensors are not on the ranks of the actors, or do not fit together.
    """
    name, tensors = f"{actors.mesh_name}.{endpoint}", _tensors_in(arguments)
    if not tensors:
        raise TypeError(f"{name}: a mesh tensor is within an object; pass it as an argument, or in lists and dicts")
    place = tensors[0]._place
    _refuse_faults(name, *arguments, place)
    nodes = {target.address.node for target in place.lane.actors._picked}
    if not nodes.issuperset(target.address.node for target in actors._picked):
        raise TypeError(f"{name}: the actors are not on the ranks of {place.mesh!r}; send fetch_shard(x).get() instead")
    # Held until the call is sent: a dropped value is deleted.
    refs = [tensor._issue_for("shard") if place.is_global else tensor._ref for tensor in tensors]
    values = iter([ValueRef(ref.id) for ref in refs])
    tree = tree_map_only(MeshTensor, lambda _: next(values), arguments)
    place.engine.send_all()
    with LOCALLY():
        yield _Passing(actors, endpoint, place.lane.actors), ((actors, endpoint, tree), {})


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _log(message: str, *args: Any, level: int = logging.WARNING) -> None:
    logging.getLogger("meshbook.ranks").log(level, message, *args)


def _set_logging_level(level: int) -> None:
    logging.getLogger().setLevel(level)


log_remote = remote(_log, propagate=_nothing)
set_logging_level_remote = remote(_set_logging_level, propagate=_nothing)
