"""`HostedModule`: a module on a rank of a mesh, with its forward and backward on this rank's part of the batch.

Every rank calls the same methods in the same order. Tensors that come from and go to the controller are DTensors on the
whole mesh; the module itself works with this rank's plain tensors, and with the DTensors that FSDP and tensor
parallelism make of its parameters.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from meshbook.runtime.tensor.groups import PeerFailed
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.modules.batch_norm import WholeBatchStatistics
from meshbook.runtime.tensor.modules.outputs import OutputLayout, Twin, layouts_of, trusted_layouts
from meshbook.runtime.tensor.modules.plans import ModulePlan
from meshbook.runtime.tensor.sharded import placing, views
from meshbook.runtime.tensor.sharded.operators import ShardedOperators

BUCKET: Final = 16 << 20  # elements of gradients that are summed in one collective
PLAIN: Final = (bool, int, float, str, bytes, complex, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class Outline:
    """What the controller has to know about a module. Parts, parameters and buffers are by name, outer ones first."""

    parts: list[tuple[str, str, str, bool]]  # name, class, what `repr` adds, whether it trains
    parameters: dict[str, int]  # name -> index in `metas`; parameters that are the same have the same
    buffers: dict[str, tuple[int, bool]]  # name -> index in `metas`, whether it is part of the state
    metas: list[Meta]
    trained: list[bool]  # of each parameter in `metas`


@dataclass(frozen=True)
class Setting:
    """How the controller wants a forward to run. None: as before."""

    autocast: tuple[bool, torch.dtype]
    has_grad: bool
    modes: list[bool] | None = None  # of each part: whether it trains
    trained: list[bool] | None = None  # of each parameter: whether it gets a gradient


class Elsewhere:
    """Stands on the controller for an output that is neither a tensor nor a plain value; it stays on the ranks."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Elsewhere) and self.kind == other.kind

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.kind} on the ranks>"


@dataclass
class _Batch:
    """How the inputs of a forward are sharded."""

    dims: tuple[int, ...] = ()  # of the mesh
    own_rows: int = 0  # entries on this rank
    rows: int = 0


@dataclass
class Run:
    """A forward that a backward can follow."""

    key: int
    batch: _Batch
    inputs: list[tuple[Tensor, DTensor]]  # this rank's part, and the whole tensor
    outputs: list[tuple[Tensor, OutputLayout]]


class HostedModule:
    """A module on this rank. `source` is the module, or a function that makes it."""

    def __init__(self, source: Any, plan: ModulePlan, outputs: str, operators: ShardedOperators) -> None:
        self._operators = operators
        self._mesh: DeviceMesh = operators.mesh
        self._plan = plan
        self._rule = outputs
        self._layouts: dict[Any, list[OutputLayout]] = {}
        self._described: dict[int, list[Any]] = {}  # what forward returns, by key
        self._present: dict[Any, Sequence[bool]] = {}  # which gradients backward returns
        error = None
        try:
            with operators.random.active():  # every rank draws the same numbers
                self._module: nn.Module = source if isinstance(source, nn.Module) else source()
            if not isinstance(self._module, nn.Module):
                raise TypeError(f"the function returned {self._module!r}, which is no torch.nn.Module")
            self._module.to(self._mesh.device_type)
            self._twin = Twin(self._module)
            plan.apply(self._module, self._mesh)
            # It warns of changes of the output in place, and here these change a detached tensor.
            kind = type(self._module).__name__
            warnings.filterwarnings("ignore", rf"FSDP2-wrapped module \({kind}\) returned a view")
            self._collect()
        except Exception as caught:
            error = caught
        self._agree(error)

    def _collect(self) -> None:
        self._parts = dict(self._module.named_modules())
        self._parameters = list(self._module.parameters())
        self._buffers = list(self._module.buffers())
        self._owned_buffers = [
            (owner, name, each) for owner in self._parts.values() for name, each in owner._buffers.items()
        ]

    # -- what the controller has to know ----------------------------------------------

    def outline(self) -> Outline:
        """Describe the module."""
        index = {id(each): number for number, each in enumerate([*self._parameters, *self._buffers])}
        parts = [(name, type(each).__name__, each.extra_repr(), each.training) for name, each in self._parts.items()]
        named = self._module.named_parameters(remove_duplicate=False)
        buffers = {
            f"{part}.{name}" if part else name: (index[id(each)], name not in owner._non_persistent_buffers_set)
            for part, owner in self._module.named_modules(remove_duplicate=False)
            for name, each in owner._buffers.items()
            if each is not None
        }
        return Outline(
            parts=parts,
            parameters={name: index[id(each)] for name, each in named},
            buffers=buffers,
            metas=[Meta.of(each) for each in self.tensors()],
            trained=[each.requires_grad for each in self._parameters],
        )

    def tensors(self) -> list[DTensor]:
        """Return the parameters and buffers. They share memory with those of the module."""
        return [self._spread(each.detach()) for each in [*self._parameters, *self._buffers]]

    def convert(self, dtype: torch.dtype) -> None:
        """Convert floating-point parameters and buffers, which are new tensors from then on."""
        self._module.to(dtype)
        self._twin.convert(dtype)
        self._collect()

    def _spread(self, tensor: Tensor) -> DTensor:
        """Return a tensor of the module as one on the whole mesh."""
        if not isinstance(tensor, DTensor):
            return placing.wrap(tensor, self._mesh)
        placements = self._placements_of(tensor)
        layout = {"shape": tensor.shape, "stride": tensor.stride()}
        return DTensor.from_local(placing.local_of(tensor), self._mesh, placements, run_check=False, **layout)

    def _placements_of(self, tensor: DTensor) -> list[Placement]:
        placements: list[Placement] = [Replicate()] * self._mesh.ndim
        for name, placement in zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=True):
            placements[self._plan.dims.index(name)] = placement
        return placements

    # -- forward ----------------------------------------------------------------------

    def forward(
        self, path: str, tree: Any, wanted: Sequence[bool], setting: Setting, key: int, known: bool, *, failed: bool
    ) -> tuple[Any, Run | None]:
        """Run a part of the module. Return its result with the tensors as DTensors, and what a backward needs.

        The result comes with a list that says which tensors have a gradient. `tree` is the arguments; `wanted` says
        which of their tensors need a gradient. `key` is a number for each combination of shapes and settings; `known`
        says that the controller knows what the module returns for it.
        """
        error, result, run, drew = None, None, None, [False]
        try:
            if failed:
                raise RuntimeError("an argument has failed")
            self._set(setting)
            leaves, spec = tree_flatten(tree)
            tensors = [each for each in leaves if isinstance(each, Tensor)]
            batch, own = self._take_inputs(tensors, wanted)
            given = iter(own)
            args, kwargs = tree_unflatten([next(given) if isinstance(x, Tensor) else x for x in leaves], spec)
            with self._running(batch, setting, drew):
                returned, result_spec = tree_flatten(self._parts[path](*args, **kwargs))
            self._restore_buffers()
            found = [each for each in returned if isinstance(each, Tensor)]
            layouts = self._layouts_of((key, batch.dims), path, (args, kwargs), tensors, found, batch)
            whole = iter([self._whole(each, layout, batch) for each, layout in zip(found, layouts, strict=True)])
            returned = [next(whole) if isinstance(each, Tensor) else _plain(each) for each in returned]
            self._check_known(key, returned, known)
            result = tree_unflatten(returned, result_spec), [each.requires_grad for each in found]
            if not setting.has_grad:
                self._reshard()
            run = Run(key, batch, list(zip(own, tensors, strict=True)), list(zip(found, layouts, strict=True)))
        except Exception as caught:
            error = caught
        if self._agree(error, drew, drew if known else None)[0]:
            with self._operators.random.active():  # so that the next forward draws other numbers
                torch.rand((), device=self._mesh.device_type)
        return result, run

    def _check_known(self, key: int, returned: Sequence[Any], known: bool) -> None:
        described = [Meta.of(each) if isinstance(each, Tensor) else each for each in returned]
        if not known:
            self._described[key] = described
        elif described != (before := self._described.setdefault(key, described)):
            raise ValueError(
                f"the module returned {described}, and {before} for the same shapes before: pass propagate='inspect' "
                "to module_to_mesh(), so that the controller asks each time"
            )

    def _set(self, setting: Setting) -> None:
        if setting.modes is not None:
            for (name, part), mode in zip(self._parts.items(), setting.modes, strict=True):
                part.training = mode
                self._twin.module.get_submodule(name).training = mode
        if setting.trained is not None:
            for parameter, trained in zip(self._parameters, setting.trained, strict=True):
                parameter.requires_grad_(trained)

    def _take_inputs(self, tensors: Sequence[DTensor], wanted: Sequence[bool]) -> tuple[_Batch, list[Tensor]]:
        """Return how the batch is sharded, and this rank's part of each tensor."""
        batch = _Batch()
        taken = []
        for tensor, wants_grad in zip(tensors, wanted, strict=True):
            views.refresh(tensor)
            placements = self._placements_for(tensor)
            held = placing.redistribute(tensor, placements)
            dims = tuple(dim for dim, each in enumerate(placements) if isinstance(each, Shard))
            if dims and placing.has_empty_shard(held):
                raise ValueError(
                    f"a batch of {tensor.shape[0]} entries leaves some ranks without any: use a larger batch, or "
                    "replicate it"
                )
            if dims and batch.dims and (batch.dims, batch.rows) != (dims, tensor.shape[0]):
                raise ValueError(
                    f"the arguments are sharded differently: {batch.rows} entries over {self._names(batch.dims)}, and "
                    f"{tensor.shape[0]} over {self._names(dims)}; redistribute one of them"
                )
            local = placing.local_of(held)
            if dims:
                batch = _Batch(dims, local.shape[0], tensor.shape[0])
            taken.append(local.detach().requires_grad_(wants_grad))
        return batch, taken

    def _placements_for(self, tensor: DTensor) -> list[Placement]:
        """Return the placements that the module takes: its batch may be sharded, all else is whole."""
        return [
            each if dim in self._plan.data_dims and each == Shard(0) and self._mesh.size(dim) > 1 else Replicate()
            for dim, each in enumerate(tensor.placements)
        ]

    def _names(self, dims: Iterable[int]) -> str:
        return ", ".join(self._plan.dims[dim] for dim in dims)

    @contextlib.contextmanager
    def _running(self, batch: _Batch, setting: Setting, drew: list[bool]) -> Iterator[None]:
        enabled, dtype = setting.autocast
        with (
            self._random(batch, drew),
            torch.set_grad_enabled(setting.has_grad),
            torch.autocast(self._mesh.device_type, dtype, enabled),
            self._statistics(batch),
        ):
            yield

    def _statistics(self, batch: _Batch) -> contextlib.AbstractContextManager[Any]:
        if not batch.dims:
            return contextlib.nullcontext()
        groups = [self._mesh.get_group(dim) for dim in batch.dims]
        context: contextlib.AbstractContextManager[Any] = WholeBatchStatistics(groups, batch.own_rows, batch.rows)
        return context

    @contextlib.contextmanager
    def _random(self, batch: _Batch, drew: list[bool]) -> Iterator[None]:
        """Draw the numbers that one process draws if the batch is whole, else others for each part of it.

        `drew` gets whether any was drawn for a part.
        """
        random = self._operators.random
        if not batch.dims:
            with random.active():
                yield
            return
        shared = random.state
        place = [self._mesh.get_local_rank(dim) for dim in batch.dims]
        digest = hashlib.blake2b(shared.numpy().tobytes() + repr(place).encode(), digest_size=7)
        random.manual_seed(int.from_bytes(digest.digest(), "big"))
        seeded = random.state
        try:
            with random.active():
                yield
            drew[0] = not torch.equal(random.state, seeded)
        finally:
            random.state = shared

    def _restore_buffers(self) -> None:
        """Copy buffers that forward has assigned anew into the old ones, which the controller knows."""
        for owner, name, buffer in self._owned_buffers:
            present = owner._buffers.get(name)
            if buffer is not None and present is not None and present is not buffer:
                owner._buffers[name] = buffer.copy_(present.detach())

    def _layouts_of(
        self, case: Any, path: str, given: Any, tensors: Sequence[Tensor], outputs: Sequence[Tensor], batch: _Batch
    ) -> list[OutputLayout]:
        if case not in self._layouts:
            self._layouts[case] = self._find_layouts(path, given, tensors, outputs, batch)
        return self._layouts[case]

    def _find_layouts(
        self, path: str, given: Any, tensors: Sequence[Tensor], outputs: Sequence[Tensor], batch: _Batch
    ) -> list[OutputLayout]:
        """`given` are this rank's arguments, `tensors` the whole ones among them."""
        own = [each.shape for each in outputs]
        if self._rule == "batch":
            return trusted_layouts(own, batch.own_rows) if batch.dims else [OutputLayout(None)] * len(own)
        if not (batch.dims or self._plan.tensor_parallel):
            return [OutputLayout(None)] * len(own)
        try:
            parts = [each.shape for each in tree_leaves(given) if isinstance(each, Tensor)]
            expected = self._twin.shapes_of(path, given, parts)
            whole = self._twin.shapes_of(path, given, [each.shape for each in tensors])
        except Exception as error:
            raise RuntimeError(
                "the module cannot be run on fake tensors, which tells where the batch is in its outputs: pass "
                "outputs='batch' to module_to_mesh() if it is the first dimension of each"
            ) from error
        if expected != own:
            raise ValueError(
                f"the module returned the shapes {[tuple(each) for each in own]} instead of "
                f"{[tuple(each) for each in expected]}: its plan leaves an output sharded, such as that of a 'colwise' "
                "layer without a 'rowwise' one behind it"
            )
        if not batch.dims:
            return [OutputLayout(None)] * len(own)
        return layouts_of(own, whole, (batch.own_rows, batch.rows), self._rule)

    def _whole(self, output: Tensor, layout: OutputLayout, batch: _Batch) -> DTensor:
        """Return an output as a tensor on the whole mesh."""
        if isinstance(output, DTensor):
            raise TypeError(
                f"the module returned a sharded tensor, ({', '.join(map(str, output.placements))}): let the last "
                "layer's style return a local tensor, as use_local_output=True does"
            )
        value = output.detach()
        if layout.is_mean:
            value = value * (batch.own_rows / batch.rows)
            for dim in batch.dims:
                dist.all_reduce(value, group=self._mesh.get_group(dim))
        if layout.batch_dim is None:
            return placing.wrap(value, self._mesh)
        shape = [*value.shape]
        shape[layout.batch_dim] = batch.rows
        stride = placing.dense_stride(shape, value.stride())
        placements = self._placements_along(layout.batch_dim, batch)
        laid_out = placing.with_order_of(value, stride)
        return DTensor.from_local(
            laid_out, self._mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
        )

    def _placements_along(self, dim: int, batch: _Batch) -> list[Placement]:
        return [Shard(dim) if index in batch.dims else Replicate() for index in range(self._mesh.ndim)]

    # -- backward ---------------------------------------------------------------------

    def backward(
        self, run: Run, gradients: Sequence[DTensor | None], keep: bool, known: bool, *, failed: bool
    ) -> list[DTensor | None]:
        """Return the gradients of the inputs and then the parameters, for gradients of the outputs.

        `keep` lets another backward follow. `known` says that the controller knows which of the results there are.
        """
        error = None
        leaves = [*(own for own, _ in run.inputs), *self._parameters]
        found: list[Tensor | None] = [None] * len(leaves)
        case = run.key, tuple(each is not None for each in gradients)
        try:
            if failed:
                raise RuntimeError("an argument has failed")
            for leaf in leaves:
                leaf.grad = None
            pairs = [
                (output, self._part_of(gradient, layout, run.batch))
                for (output, layout), gradient in zip(run.outputs, gradients, strict=True)
                if gradient is not None and output.requires_grad
            ]
            self._set_divisor(run.batch)
            with torch.enable_grad(), self._statistics(run.batch):
                torch.autograd.backward([each for each, _ in pairs], [each for _, each in pairs], retain_graph=keep)
            found = [leaf.grad for leaf in leaves]
            for leaf in leaves:
                leaf.grad = None
        except Exception as caught:
            error = caught
        settled = self._present.get(case) if known else None
        present = self._agree(error, [each is not None for each in found], settled)
        if not known:
            self._present[case] = present
        expected = self._present.setdefault(case, present)
        if any(there and not one for there, one in zip(present, expected, strict=True)):
            raise ValueError(
                "the module used parameters that it had not used for the same shapes before: pass propagate='inspect' "
                "to module_to_mesh(), so that the controller asks each time"
            )
        split = len(run.inputs)
        results: list[DTensor | None] = [
            self._input_gradient(each, source, run.batch)
            for each, (_, source) in zip(found[:split], run.inputs, strict=True)
        ]
        parts = [
            _part_of_gradient(each, parameter) if there else None
            for each, parameter, there in zip(found[split:], self._parameters, expected[split:], strict=True)
        ]
        self._sum_over_ranks([each for each in parts if each is not None], run.batch)
        for part, parameter in zip(parts, self._parameters, strict=True):
            results.append(None if part is None else self._like(part, parameter))
        return results

    def _part_of(self, gradient: DTensor, layout: OutputLayout, batch: _Batch) -> Tensor:
        """Return the gradient of this rank's output."""
        views.refresh(gradient)
        if layout.batch_dim is None:
            whole = placing.gather(gradient)
            return whole * (batch.own_rows / batch.rows) if layout.is_mean else whole
        wanted = self._placements_along(layout.batch_dim, batch)
        return placing.local_of(placing.redistribute(gradient, wanted))

    def _set_divisor(self, batch: _Batch) -> None:
        """Let FSDP sum over ranks with different entries, and average over ranks with the same."""
        if self._plan.fsdp is None:
            return
        dim = self._plan.dims.index(self._plan.fsdp)
        divisor = 1.0 if dim in batch.dims else float(self._mesh.size(dim))
        for part in self._parts.values():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(divisor)
                part.set_force_sum_reduction_for_comms(True)  # gloo cannot scale

    def _reshard(self) -> None:
        for part in self._parts.values():
            if isinstance(part, FSDPModule):
                part.reshard()

    def _input_gradient(self, gradient: Tensor | None, source: DTensor, batch: _Batch) -> DTensor | None:
        """Return the gradient of an input on the whole mesh."""
        if gradient is None:
            return None
        held = self._placements_for(source)
        # Each rank has the part that its entries of the batch contribute.
        placements = [
            Partial() if dim in batch.dims and not isinstance(each, Shard) else each for dim, each in enumerate(held)
        ]
        layout = {"shape": source.shape, "stride": placing.dense_stride(source.shape, gradient.stride())}
        made = DTensor.from_local(gradient, self._mesh, placements, run_check=False, **layout)
        wanted = [each if isinstance(each, Shard) else Replicate() for each in source.placements]
        return placing.redistribute(made, wanted)

    def _sum_over_ranks(self, gradients: Sequence[Tensor], batch: _Batch) -> None:
        """Sum gradients in place over the ranks with other entries of the batch; FSDP has summed its own."""
        dims = [dim for dim in batch.dims if self._plan.dims[dim] != self._plan.fsdp]
        for bucket in _buckets(gradients if dims else ()):
            flat = torch.cat([each.reshape(-1) for each in bucket])
            for dim in dims:
                dist.all_reduce(flat, group=self._mesh.get_group(dim))
            for each, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
                each.copy_(part.view(each.shape))

    def _like(self, part: Tensor, parameter: Tensor) -> DTensor:
        if not isinstance(parameter, DTensor):
            return placing.wrap(part, self._mesh)
        layout = {"shape": parameter.shape, "stride": parameter.stride()}
        return DTensor.from_local(part, self._mesh, self._placements_of(parameter), run_check=False, **layout)

    # -- between ranks ----------------------------------------------------------------

    def _agree(
        self, error: Exception | None, flags: Sequence[bool] = (), expected: Sequence[bool] | None = None
    ) -> Sequence[bool]:
        """Return which flags are set on any rank. Raises `error`, or PeerFailed if another rank has one.

        So a rank that has failed does not leave the others waiting in a later collective. On GPUs this would wait for
        all that is queued there, so it is left out once the flags are known.
        """
        if expected is not None and self._mesh.device_type != "cpu":
            flags = expected
        else:
            votes = torch.tensor([error is not None, *flags], dtype=torch.uint8, device=self._mesh.device_type)
            for dim in range(self._mesh.ndim):
                dist.all_reduce(votes, dist.ReduceOp.MAX, group=self._mesh.get_group(dim))
            any_failed, *flags = map(bool, votes.tolist())
            if any_failed and error is None:
                raise PeerFailed("the module has failed on another rank")
        if error is not None:
            raise error
        return flags


def _plain(value: Any) -> Any:
    return value if isinstance(value, PLAIN) else Elsewhere(type(value).__name__)


def _part_of_gradient(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter's gradient, with the parameter's placement; zeros if it has none."""
    own = placing.local_of(parameter) if isinstance(parameter, DTensor) else parameter
    if gradient is None:
        return torch.zeros_like(own)
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        gradient = placing.local_of(gradient.redistribute(placements=parameter.placements))
    # Laid out as the parameter, which is what the controller takes for granted.
    return gradient if gradient.stride() == own.stride() else torch.empty_like(own).copy_(gradient)


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in groups of one dtype, of limited size."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        bucket = by_dtype.setdefault(tensor.dtype, [])
        if bucket and sum(each.numel() for each in bucket) + tensor.numel() > BUCKET:
            yield bucket
            bucket = by_dtype[tensor.dtype] = []
        bucket.append(tensor)
    yield from by_dtype.values()
