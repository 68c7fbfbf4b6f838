"""Python objects of the ranks as handles of the controller, and functions whose backward runs on the ranks, too.

A remote function that returns `OpaqueRef(value)` leaves the value on each rank; the controller gets an `OpaqueRef`
without it, and passes it to other remote functions. `OpaqueObject` and `OpaqueModule` are made of such handles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from meshbook.runtime.tensor.device_mesh import get_active_mesh
from meshbook.runtime.tensor.lanes import OpaqueRef
from meshbook.runtime.tensor.remote import Named, remote
from meshbook.runtime.tensor.tensor import MeshTensor

Function = Callable[..., Any]


class OpaqueObject:
    """A Python object that each rank of the active mesh has. Subclasses name its methods by `opaque_method`.

    class Counter(OpaqueObject):
        @opaque_method
        def add(self, x):  # the rule for the shapes; the ranks call the method of their object
            return x

    counter = Counter("my_module.Counter", start=1)
    y = counter.add(x)
    """

    def __init__(self, constructor: str | Function, *args: Any, **kwargs: Any) -> None:
        """Call a constructor, or the one of this name, `module.Class`, on every rank of the active mesh."""
        self._object: OpaqueRef = _construct(constructor, args, kwargs)

    def call_method(self, name: str, propagate: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method on every rank; `propagate` is that of `remote`, a function of the same arguments."""
        return remote(_call_method, propagate=_without_target(propagate))(self._object, name, args, kwargs)


def opaque_method(rule: Function) -> Function:
    """Return a method that calls the one of its name on the ranks; the decorated function is the rule of shapes."""
    call = remote(_call_method, propagate=lambda target, name, args, kwargs: rule(target, *args, **kwargs))

    @functools.wraps(rule)
    def method(self: OpaqueObject, *args: Any, **kwargs: Any) -> Any:
        return call(self._object, rule.__name__, args, kwargs)

    return method


class OpaqueModule(OpaqueObject):
    """A module of torch on each rank of the active mesh. Its forward is one command, and its backward another.

    `parameters()` are mesh tensors that share the memory of the rank's parameters, for an optimizer of the controller.
    Creating it waits for the ranks.
    """

    def __init__(self, constructor: str | Function, *args: Any, **kwargs: Any) -> None:
        super().__init__(constructor, *args, **kwargs)
        found: dict[str, MeshTensor] = remote(_named_parameters, propagate="inspect")(self._object)
        self._parameters = {name: parameter.requires_grad_() for name, parameter in found.items()}

    def parameters(self) -> Iterator[torch.Tensor]:
        return iter(self._parameters.values())

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._parameters.items())

    def __call__(self, *args: Any, propagate: Any = "inspect", **kwargs: Any) -> Any:
        """Run the module; `propagate` says how the controller learns the shapes of the results, as in `remote`."""
        return _call_with_backward(self._object, list(self._parameters.values()), propagate, args, kwargs)


class _RemoteAutograd:
    """A `torch.autograd.Function` whose forward and backward run on the ranks."""

    def __init__(self, function: type[torch.autograd.Function], propagate: Any) -> None:
        self._function = function
        self._propagate = propagate

    def apply(self, *args: Any) -> Any:
        """Apply the function to mesh tensors and other arguments."""
        return _call_with_backward(self._function.apply, [], self._propagate, args, {})


def remote_autograd_function(function: type[torch.autograd.Function], *, propagate: Any = "inspect") -> _RemoteAutograd:
    """Return a twin of an autograd function whose forward and backward run on the ranks: `twin.apply(x)`."""
    return _RemoteAutograd(function, propagate)


cached_remote_function = functools.partial(remote, propagate="cached")


# -- on the controller ----------------------------------------------------------------


class _RemoteBackward(torch.autograd.Function):
    """A node of the controller's graph whose backward is one command."""

    @staticmethod
    def forward(ctx: Any, call: Function, *tensors: torch.Tensor) -> Any:
        ctx.mesh, ctx.graph, results = call()
        ctx.save_for_backward(*tensors)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        tensors = ctx.saved_tensors
        with ctx.mesh.activate():
            found = _differentiate(ctx.graph, list(gradients), list(tensors))
        return None, *found


def _call_with_backward(target: Any, parameters: Sequence[MeshTensor], propagate: Any, args: Any, kwargs: Any) -> Any:
    """Call a function or an object of the ranks, so that the controller's autograd includes it."""
    leaves, spec = tree_flatten((args, kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, MeshTensor) and leaf.requires_grad]
    records = torch.is_grad_enabled() and bool(inputs or any(each.requires_grad for each in parameters))
    shape: list[Any] = []

    def call() -> tuple[Any, OpaqueRef, list[MeshTensor]]:
        rule = _without_target(propagate, lambda result: (OpaqueRef(), result))
        plain = [leaf.detach() if isinstance(leaf, MeshTensor) else leaf for leaf in leaves]
        needs = [isinstance(leaf, MeshTensor) and leaf.requires_grad for leaf in leaves]
        given = *tree_unflatten(plain, spec), needs if records else []
        graph, result = remote(_run_forward, propagate=rule)(target, *given)
        results, structure = tree_flatten(result)
        shape.extend([results, structure])
        return get_active_mesh(), graph, [each for each in results if isinstance(each, MeshTensor)]

    if records:
        made = iter(_RemoteBackward.apply(call, *inputs, *parameters))
    else:
        made = iter(call()[2])
    results, structure = shape
    return tree_unflatten([next(made) if isinstance(each, MeshTensor) else each for each in results], structure)


def _without_target(propagate: Any, finish: Function = lambda result: result) -> Any:
    """Return the rule of a function that gets an object or name first, then positional and named arguments."""
    if not callable(propagate):
        return propagate
    return lambda *given: finish(propagate(*given[-3 if isinstance(given[-1], list) else -2], **_named(given)))


def _named(given: Sequence[Any]) -> dict[str, Any]:
    named: dict[str, Any] = given[-2] if isinstance(given[-1], list) else given[-1]
    return named


# -- on the ranks ---------------------------------------------------------------------


def _make(constructor: str | Function, args: Any, kwargs: Any) -> OpaqueRef:
    make = Named(constructor) if isinstance(constructor, str) else constructor
    return OpaqueRef(make(*args, **kwargs))


def _call_method(target: OpaqueRef, name: str, args: Any, kwargs: Any) -> Any:
    return getattr(target.value, name)(*args, **kwargs)


def _named_parameters(target: OpaqueRef) -> dict[str, torch.Tensor]:
    return dict(target.value.named_parameters())


def _run_forward(target: Any, args: Any, kwargs: Any, needs: list[bool]) -> Any:
    """Run a forward; return its graph, which `_run_backward` takes, and its result."""
    function = target.value if isinstance(target, OpaqueRef) else target
    leaves, spec = tree_flatten((args, kwargs))
    inputs = []
    for index, need in enumerate(needs):
        if need:
            leaves[index] = leaves[index].detach().requires_grad_()
            inputs.append(leaves[index])
    args, kwargs = tree_unflatten(leaves, spec)
    with torch.set_grad_enabled(bool(needs)):
        result = function(*args, **kwargs)
    parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return OpaqueRef((outputs, [*inputs, *parameters])), result


def _run_backward(graph: OpaqueRef, gradients: Any, tensors: Any) -> Any:
    outputs, inputs = graph.value
    pairs = [(out, grad) for out, grad in zip(outputs, gradients, strict=True) if out.requires_grad]
    roots, given = ([pair[index] for pair in pairs] for index in (0, 1))
    found = torch.autograd.grad(roots, inputs, given, allow_unused=True) if roots else [None] * len(inputs)
    return [torch.zeros_like(each) if grad is None else grad for each, grad in zip(inputs, found, strict=True)]


_construct = remote(_make, propagate=lambda *_: OpaqueRef())
_differentiate = remote(
    _run_backward, propagate=lambda graph, gradients, tensors: tree_map_only(torch.Tensor, torch.empty_like, tensors)
)
