"""Backward as a generator of gradients, so that the controller can do something else in between: pipelines.

    for gradient in grad_generator(loss, parameters):
        ...  # gradient of the next parameter, in the order of the parameters

Each gradient is issued when it is asked for. The nodes of the graph that it needs run then, and once only.

`grad_function` makes one node of the graph of a function that comes with its backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten


def grad_generator(
    roots: torch.Tensor | Sequence[torch.Tensor] = (),
    with_respect_to: Sequence[torch.Tensor] = (),
    grad_roots: Sequence[torch.Tensor | None] = (),
) -> Generator[torch.Tensor | None, None, None]:
    """Yield the gradients of the sum of the roots by each tensor of `with_respect_to`, in this order.

    `grad_roots` are the gradients of the roots; missing ones are 1, for roots with one element. A tensor that the roots
    do not depend on gets None. The graph can be used once. Raises RuntimeError for a root without a graph.
    """
    listed = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    given = [*grad_roots, *[None] * (len(listed) - len(grad_roots))]
    backward = _Backward()
    for root, gradient in zip(listed, given, strict=True):
        if not root.requires_grad:
            raise RuntimeError("one of the roots does not require grad, so it has no graph to differentiate")
        start = torch.ones_like(root) if gradient is None else gradient
        backward.add(torch.autograd.graph.get_gradient_edge(root), start)
    backward.count()
    for tensor in with_respect_to:
        yield backward.gradient_of(torch.autograd.graph.get_gradient_edge(tensor))


def grad_function(function: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Return a function that has a backward of its own, as one node of the graph; also as a decorator.

    `function` returns its result and the backward. The backward takes the gradients of the tensors in the result, and
    returns those of the tensors among the arguments, both in order; None stands for a missing one. Arguments and result
    may be lists, tuples and dicts. Autograd does not record the operations in either of them.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        result: list[Any] = []

        def forward(*tensors: torch.Tensor) -> Any:
            given = iter(tensors)
            inner = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            args, kwargs = tree_unflatten(inner, spec)
            made, backward = function(*args, **kwargs)
            result.extend(tree_flatten(made))
            return backward, tuple(leaf for leaf in result[0] if isinstance(leaf, torch.Tensor))

        outputs = iter(_OwnBackward.apply(forward, *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))))
        return tree_unflatten(
            [next(outputs) if isinstance(leaf, torch.Tensor) else leaf for leaf in result[0]], result[1]
        )

    return call


class _OwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.function, outputs = function(*tensors)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = ctx.function(*gradients)
        return None, *(found if isinstance(found, (tuple, list)) else [found])


class _Backward:
    """The state of a backward that runs node by node."""

    def __init__(self) -> None:
        self._sums: dict[Any, dict[int, torch.Tensor]] = {}  # node -> index of its output -> gradient so far
        self._users: dict[Any, set[Any]] = {}  # node -> nodes that have not contributed to its gradient yet
        self._roots: list[Any] = []
        self._reached: set[Any] = set()
        self._done: set[Any] = set()

    def add(self, edge: Any, gradient: torch.Tensor) -> None:
        self._roots.append(edge.node)
        self._accumulate(edge.node, edge.output_nr, gradient)

    def count(self) -> None:
        """Record which nodes each node of the graph waits for."""
        waiting = list(self._roots)
        while waiting:
            node = waiting.pop()
            if node in self._reached:
                continue
            self._reached.add(node)
            for following, _ in node.next_functions:
                if following is not None:
                    self._users.setdefault(following, set()).add(node)
                    waiting.append(following)

    def gradient_of(self, edge: Any) -> torch.Tensor | None:
        """Run what this gradient needs, and return it."""
        for node in self._needed(edge.node):
            if node is not edge.node:
                self._run(node)
        return self._sums.get(edge.node, {}).get(edge.output_nr)

    def _needed(self, target: Any) -> Iterator[Any]:
        """Yield the nodes between the roots and a node that have not run, each after those that it waits for."""
        if target not in self._reached:
            return
        stack: list[tuple[Any, Iterator[Any]]] = [(target, iter(self._users.get(target, ())))]
        seen = {target}
        while stack:
            node, users = stack[-1]
            following = next((user for user in users if user not in seen and user not in self._done), None)
            if following is None:
                stack.pop()
                yield node
            else:
                seen.add(following)
                stack.append((following, iter(self._users.get(following, ()))))

    def _run(self, node: Any) -> None:
        if node in self._done:
            return
        self._done.add(node)
        sums = self._sums.pop(node, {})
        if not sums:
            return
        edges = node.next_functions
        if not edges:  # the accumulation of a leaf's gradient is the reader's business
            self._sums[node] = sums
            return
        count = max(sums) + 1
        inputs = [sums.get(index) for index in range(max(count, len(node._input_metadata)))]
        with torch.no_grad():
            outputs: Any = _call(node, inputs)
        for (following, index), gradient in zip(edges, outputs, strict=False):
            if following is not None and gradient is not None:
                self._accumulate(following, index, gradient)

    def _accumulate(self, node: Any, index: int, gradient: torch.Tensor) -> None:
        # torch's own engine does this between nodes: the gradient of a broadcast input has the result's shape.
        expected = node._input_metadata[index]
        if gradient.shape != expected.shape:
            gradient = gradient.sum_to_size(expected.shape)
        if gradient.dtype != expected.dtype:
            gradient = gradient.to(expected.dtype)
        sums = self._sums.setdefault(node, {})
        sums[index] = sums[index] + gradient if index in sums else gradient


def _call(node: Any, inputs: list[torch.Tensor | None]) -> tuple[Any, ...]:
    """Return the gradients for the edges of a node."""
    if callable(node):
        result = node(*inputs)
        return result if isinstance(result, tuple) else (result,)
    # A torch.autograd.Function. torch's own engine gives it zeros for what has no gradient.
    some = next(each for each in inputs if each is not None)
    if node._forward_cls is not _OwnBackward:
        inputs = [
            some.new_zeros(expected.shape, dtype=expected.dtype) if each is None else each
            for each, expected in zip(inputs, node._input_metadata, strict=True)
        ]
    result = node.apply(*inputs)
    results = result if isinstance(result, tuple) else (result,)
    # It returns one for each argument, and has an edge for each tensor among them.
    needed = iter([each for each, is_needed in zip(results, node.needs_input_grad, strict=False) if is_needed])
    return tuple(None if following is None else next(needed) for following, _ in node.next_functions)
