"""`HostedModule`: a module on a rank of a mesh, with its forward and backward on this rank's part of the batch.

Every rank calls the same methods in the same order. Tensors that come from and go to the controller are DTensors on the
whole mesh; the module itself works with this rank's plain tensors, and with the DTensors that FSDP and tensor
parallelism make of its parameters.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten

from meshbook.runtime.tensor.failures import Failed
from meshbook.runtime.tensor.groups import PeerFailed
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.modules.batch_norm import WholeBatchStatistics
from meshbook.runtime.tensor.modules.batches import Batch, BatchParts, align_gradient, sum_over_groups
from meshbook.runtime.tensor.modules.outputs import OutputLayout, Twin, find_layouts, trusted_layouts
from meshbook.runtime.tensor.modules.plans import ModulePlan
from meshbook.runtime.tensor.sharded import placing
from meshbook.runtime.tensor.sharded.operators import ShardedOperators

MOST_KEYS: Final = 1000  # combinations of shapes and settings that are remembered
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
class ForwardRun:
    """A forward that a backward can follow."""

    owner: HostedModule
    key: int
    batch: Batch
    inputs: list[tuple[Tensor, DTensor]]  # this rank's part, and the whole tensor
    outputs: list[tuple[Tensor, OutputLayout]]


class HostedModule:
    """A module on this rank. `pickled` is the module, or a function that makes it."""

    def __init__(self, pickled: bytes, plan: ModulePlan, outputs: str, operators: ShardedOperators) -> None:
        self._operators = operators
        self._mesh: DeviceMesh = operators.mesh
        self._plan = plan
        self._rule = outputs
        self.value_ids: Sequence[int] = ()  # of the parameters and buffers, in the table of values
        self._batches = BatchParts(operators.mesh, plan)
        self._layouts: dict[Any, list[OutputLayout]] = {}
        self._described: dict[int, list[Any]] = {}  # what forward returns, by key
        self._present: dict[Any, Sequence[bool]] = {}  # which gradients backward returns
        error = None
        try:
            source = pickle.loads(pickled)
            with operators.random.active():  # every rank draws the same numbers
                self._module: nn.Module = source if isinstance(source, nn.Module) else source()
            if not isinstance(self._module, nn.Module):
                raise TypeError(f"the function returned {self._module!r}, which is not a torch.nn.Module")
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
        self._has_batch_norm = any(isinstance(each, _BatchNorm) for each in self._parts.values())
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
    ) -> tuple[Any, ForwardRun | None]:
        """Run a part of the module. Return its result with the tensors as DTensors, and what a backward needs.

        The result comes with a list that says which tensors have a gradient. `tree` is the arguments; `wanted` says
        which of their tensors need a gradient. `key` is a number for each combination of shapes and settings; `known`
        says that the controller knows what the module returns for it.
        """
        error, result, run, drew, is_inside = None, None, None, [False], False
        try:
            self._set(setting)
            if failed:
                raise RuntimeError("an argument has failed")
            leaves, spec = tree_flatten(tree)
            tensors = [each for each in leaves if isinstance(each, Tensor)]
            batch, own = self._batches.take(tensors, wanted)
            given = iter(own)
            args, kwargs = tree_unflatten([next(given) if isinstance(x, Tensor) else x for x in leaves], spec)
            is_inside = self._communicates(batch)
            if path and isinstance(self._module, FSDPModule):
                self._module._get_fsdp_state()._lazy_init()  # otherwise FSDP would take this part for the root
            with self._running(batch, setting, drew):
                returned, result_spec = tree_flatten(self._parts[path](*args, **kwargs))
            is_inside = False
            self._restore_buffers()
            found = [each for each in returned if isinstance(each, Tensor)]
            case = key, batch.dims
            if case not in self._layouts:
                self._layouts[case] = self._find_layouts(path, (args, kwargs), tensors, found, batch)
            layouts = self._layouts[case]
            pairs = list(zip(found, layouts, strict=True))
            whole = iter([self._batches.whole(each, layout, batch) for each, layout in pairs])
            returned = [next(whole) if isinstance(each, Tensor) else _plain(each) for each in returned]
            self._check_known(key, returned, known)
            result = tree_unflatten(returned, result_spec), [each.requires_grad for each in found]
            if not setting.has_grad:
                self._reshard()
            run = ForwardRun(self, key, batch, list(zip(own, tensors, strict=True)), pairs)
        except Exception as caught:
            error = caught
        if self._agree(error, drew, drew if known else None, is_inside=is_inside)[0]:
            with self._operators.random.active():  # so that the next forward draws other numbers
                torch.rand((), device=self._mesh.device_type)
        return result, run

    def _check_known(self, key: int, returned: Sequence[Any], known: bool) -> None:
        described = [Meta.of(each) if isinstance(each, Tensor) else each for each in returned]
        if not known:
            if len(self._described) >= MOST_KEYS:  # on all ranks alike
                for cache in (self._described, self._layouts, self._present):
                    cache.clear()
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

    def _find_layouts(
        self, path: str, given: Any, tensors: Sequence[Tensor], outputs: Sequence[Tensor], batch: Batch
    ) -> list[OutputLayout]:
        own = [each.shape for each in outputs]
        if self._rule == "batch" and batch.dims:
            return trusted_layouts(own, batch.own_rows)
        if self._rule == "batch" or not (batch.dims or self._plan.tensor_parallel):
            return [OutputLayout(None)] * len(own)
        rows = batch.own_rows, batch.rows
        return find_layouts(self._twin, path, given, [each.shape for each in tensors], own, rows, self._rule)

    @contextlib.contextmanager
    def _running(self, batch: Batch, setting: Setting, drew: list[bool]) -> Iterator[None]:
        enabled, dtype = setting.autocast
        with (
            self._random(batch, drew),
            torch.set_grad_enabled(setting.has_grad),
            torch.autocast(self._mesh.device_type, dtype, enabled),
            self._statistics(batch),
        ):
            yield

    def _statistics(self, batch: Batch) -> contextlib.AbstractContextManager[Any]:
        if not batch.dims:
            return contextlib.nullcontext()
        groups = [self._mesh.get_group(dim) for dim in batch.dims]
        context: contextlib.AbstractContextManager[Any] = WholeBatchStatistics(groups, batch.own_rows, batch.rows)
        return context

    @contextlib.contextmanager
    def _random(self, batch: Batch, drew: list[bool]) -> Iterator[None]:
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

    # -- backward ---------------------------------------------------------------------

    def backward(
        self, run: ForwardRun | Failed, gradients: Sequence[DTensor | None], keep: bool, known: bool, *, failed: bool
    ) -> list[DTensor | None]:
        """Return the gradients of the inputs and then the parameters, for gradients of the outputs.

        `keep` lets another backward follow. `known` says that the controller knows which of the results there are.
        """
        if isinstance(run, Failed):  # on all ranks
            raise RuntimeError("the forward has failed")
        error, is_inside = None, False
        leaves = [*(own for own, _ in run.inputs), *self._parameters]
        found: list[Tensor | None] = [None] * len(leaves)
        case = run.key, tuple(each is not None for each in gradients)
        try:
            if failed:
                raise RuntimeError("an argument has failed")
            for leaf in leaves:
                leaf.grad = None
            pairs = [
                (output, self._batches.part_of(gradient, layout, run.batch))
                for (output, layout), gradient in zip(run.outputs, gradients, strict=True)
                if gradient is not None and output.requires_grad
            ]
            self._set_divisor(run.batch)
            is_inside = self._communicates(run.batch)
            with torch.enable_grad(), self._statistics(run.batch):
                torch.autograd.backward([each for each, _ in pairs], [each for _, each in pairs], retain_graph=keep)
            is_inside = False
            found = [leaf.grad for leaf in leaves]
            for leaf in leaves:
                leaf.grad = None
        except Exception as caught:
            error = caught
        settled = self._present.get(case) if known else None
        present = self._agree(error, [each is not None for each in found], settled, is_inside=is_inside)
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
            self._batches.input_gradient(each, source, run.batch)
            for each, (_, source) in zip(found[:split], run.inputs, strict=True)
        ]
        parts = [
            align_gradient(each, parameter) if there else None
            for each, parameter, there in zip(found[split:], self._parameters, expected[split:], strict=True)
        ]
        # FSDP has summed along its own dimension.
        dims = [dim for dim in run.batch.dims if self._plan.dims[dim] != self._plan.fsdp]
        groups = [self._mesh.get_group(dim) for dim in dims]
        sum_over_groups([each for each in parts if each is not None], groups)
        for part, parameter in zip(parts, self._parameters, strict=True):
            results.append(None if part is None else self._like(part, parameter))
        return results

    def _set_divisor(self, batch: Batch) -> None:
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

    def _like(self, part: Tensor, parameter: Tensor) -> DTensor:
        if not isinstance(parameter, DTensor):
            return placing.wrap(part, self._mesh)
        layout = {"shape": parameter.shape, "stride": parameter.stride()}
        return DTensor.from_local(part, self._mesh, self._placements_of(parameter), run_check=False, **layout)

    # -- between ranks ----------------------------------------------------------------

    def _agree(
        self,
        error: Exception | None,
        flags: Sequence[bool] = (),
        expected: Sequence[bool] | None = None,
        *,
        is_inside: bool = False,
    ) -> Sequence[bool]:
        """Return which flags are set on any rank. Raises `error`, or PeerFailed if another rank has one.

        So a rank that has failed does not leave the others waiting in a later collective. On GPUs this would wait for
        all that is queued there, so it is left out once the flags are known. If this rank has failed then, or where
        others may be in a collective of the module's own, `is_inside`, it raises without them: only in these cases
        `fails_alike` is false.
        """
        self.fails_alike = False
        if error is not None and is_inside:
            raise error
        if expected is not None and self._mesh.device_type != "cpu":
            if error is not None:
                raise error  # the others do not know of it
            flags = expected
        else:
            votes = torch.tensor([error is not None, *flags], dtype=torch.uint8, device=self._mesh.device_type)
            for dim in range(self._mesh.ndim):
                dist.all_reduce(votes, dist.ReduceOp.MAX, group=self._mesh.get_group(dim))
            any_failed, *flags = map(bool, votes.tolist())
            if any_failed and error is None:
                self.fails_alike = True
                raise PeerFailed("the module has failed on another rank")
        self.fails_alike = True
        if error is not None:
            raise error
        return flags

    def _communicates(self, batch: Batch) -> bool:
        """Return whether the ranks communicate while the module runs."""
        return bool(self._plan.fsdp or self._plan.tensor_parallel or (batch.dims and self._has_batch_norm))


def _plain(value: Any) -> Any:
    return value if isinstance(value, PLAIN) else Elsewhere(type(value).__name__)
