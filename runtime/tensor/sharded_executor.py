"""The executor of a rank in the global view: its values are DTensors, and `ShardedOperators` applies the operators."""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import weakref
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.utils._pytree import tree_leaves, tree_map_only

from meshbook.runtime import devices
from meshbook.runtime.collectives.abort import abort_groups
from meshbook.runtime.tensor.executor import Executor, Step, ValueRef, ids_in
from meshbook.runtime.tensor.failures import Failed
from meshbook.runtime.tensor.groups import Groups, PeerFailed
from meshbook.runtime.tensor.layouts import Executed, Layout, ShardReport, ShardResult
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.recovery import LOST, LOST_RUN, Definitions, Opaque, Recovery, Spread, Stock
from meshbook.runtime.tensor.sharded import placing, views
from meshbook.runtime.tensor.sharded.operators import OperatorRefused, ShardedOperators
from meshbook.runtime.tensor.sharded.rules import Way, way_of
from meshbook.runtime.tensor.templates import FIRST_SLOT, Command, Pickled
from meshbook.runtime.traces import headline

aten = torch.ops.aten
# It advises to flatten meshes. But then torch 2.13 gathers tensors wrongly that two dimensions shard unevenly.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
# DTensor finds out shapes with fake tensors, and these log each error with its trace before they raise it.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)


class ShardedExecutor(Executor):
    """Runs the commands of one rank of a global mesh. All ranks run the same commands.

    `operators` exists from the command `join_mesh` on, which needs torch's default process group.
    """

    operators: ShardedOperators

    def __init__(self, rank: int, groups: Groups, layout: Layout) -> None:
        super().__init__(rank, groups, lambda func, args, kwargs: self.operators.run(func, args, kwargs))
        self._layout = layout
        self._lost = Failed(0, rank, "", LOST, is_lost=True)  # the command may have been dropped when a rank died
        self._has_joined = False
        self._group: weakref.ref[Any] | None = None  # the default process group that the mesh uses
        self._has_left = False  # the process groups, after a failure
        self._fails_alike = False  # the operator that fails now, on all ranks
        self._handlers |= {
            "join_mesh": self._join_mesh,
            "recover": self._recover,
            "random_state": self._set_random_state,
            "execute": self._execute,
            "adopt": self._adopt,
            "part": self._keep_part,
            "redistribute": self._redistribute,
            "align": self._align,
            "whole": self._keep_whole,
            "shard": self._keep_shard,
            "module": self._make_module,
            "method": self._call_method,
        }

    def _join_mesh(self, number: int, device: str) -> None:
        """Make the device mesh over the default process group; waits for the other ranks."""
        if device == "cuda":  # before torch selects LOCAL_RANK, of which there may be none
            devices.use(devices.number_of(int(os.environ.get("LOCAL_RANK", self.rank))))
        ranks = torch.arange(dist.get_world_size()).view(self._layout.shape)
        mesh = DeviceMesh(device, ranks, mesh_dim_names=self._layout.dims)
        self._group = weakref.ref(dist.group.WORLD)
        self._has_left = False
        if self._has_joined:
            # The tensors, torch's caches and users' modules hold the mesh itself: it changes over to the new groups.
            vars(self.operators.mesh).update(vars(mesh))
        else:
            self.operators = ShardedOperators(mesh)
            self._has_joined = True

    # -- failures ---------------------------------------------------------------------

    def _fail_step(self, number: int, step: Step, command: Command, error: Exception) -> None:
        inputs = [self.values.get(each) for each in command[FIRST_SLOT : FIRST_SLOT + step.values]]
        self._fails_alike = _fails_alike(step.func, inputs, error)
        try:
            super()._fail_step(number, step, command, error)
        finally:
            self._fails_alike = False

    def _describe(self, number: int, error: Exception, is_between_ranks: bool) -> Failed:
        """Describe a failure. Unless all ranks fail alike, leave the process groups: the others may wait there."""
        is_broken = self._has_left or _is_of_groups(error)
        if (is_broken or not self._fails_alike) and not self._has_left and self._layout.size > 1:
            abort_groups(self._group)
            self._has_left = True
        failed = super()._describe(number, error, is_broken or is_between_ranks)
        return dataclasses.replace(failed, has_left=self._has_left)

    def _fail_together(self, number: int, error: Exception, inputs: Iterable[int], outputs: Iterable[int]) -> None:
        """Fail where the other ranks know of it: they raise PeerFailed, and no rank waits."""
        self._fails_alike = True
        try:
            self._fail(number, error, inputs, outputs, is_between_ranks=isinstance(error, PeerFailed))
        finally:
            self._fails_alike = False

    def _memory_of(self, value: Any) -> int:
        if not isinstance(value, DTensor):
            return super()._memory_of(value)
        view = views.detached(value)
        try:
            return super()._memory_of(placing.local_of(value if view is None else view.base))
        except RuntimeError:  # a collective that it waits for has failed
            return id(value)

    def _is_as_before(self, failed: Failed) -> bool:
        # If other ranks have changed it, a recovery drops what this rank has kept: it comes before the error is raised.
        return not (failed.is_of_peer or failed.is_lost)

    # -- recovery ---------------------------------------------------------------------

    def take_stock(self) -> Stock | None:
        """Return the placements of each tensor and the failures; None if this process is new."""
        if not self._has_joined:
            return None
        return {each: stock for each, value in self.values.items() if (stock := _stock_of(value)) is not None}

    def definitions(self) -> Definitions:
        """Return the templates, recordings and functions, for a rank that has none."""
        templates = {head: step.template for head, step in self._steps.items()}
        recordings, functions = dict(self._recordings), dict(self._functions)
        return Definitions(templates, recordings, functions, self.operators.random.state, self.dtype)

    def _recover(self, number: int, device: str, plan: Recovery) -> None:
        """Join new process groups, and take what this rank lacks from others."""
        self._join_mesh(number, device)
        for each, failed in plan.failed.items():
            self.values[each] = failed.keeping(self.values[each].kept if each in plan.kept else None)
        if (known := plan.definitions) is not None:
            self.operators.random.state = known.random_state
            if self.rank in plan.new:
                self._steps = {head: Step(template) for head, template in known.templates.items()}
                self._recordings, self._functions = known.recordings, known.functions
                self._set_default_dtype(number, known.dtype)
        sent: list[Any] = []
        memory: dict[tuple[int, int, int], torch.Tensor] = {}  # bytes, by sender, receiver and storage
        for each, moves in plan.moves.items():
            for receiver, move in moves.items():
                key = move.sender, receiver, move.spread.storage
                if not move.spread.nbytes:
                    memory[key] = torch.empty(0, dtype=torch.uint8, device=device)
                if self.rank == move.sender and key not in memory:
                    memory[key] = _storage_of(placing.local_of(self.values[each]))
                    sent.append(dist.isend(memory[key], receiver))
                elif self.rank == receiver:
                    if key not in memory:
                        memory[key] = torch.empty(move.spread.nbytes, dtype=torch.uint8, device=device)
                        dist.recv(memory[key], move.sender)
                    self.values[each] = self._rebuild(move.spread, memory[key])
        for work in sent:
            work.wait()
        if plan.new or plan.moves:
            self._separate()

    def _rebuild(self, spread: Spread, memory: torch.Tensor) -> DTensor:
        local = torch.empty(0, dtype=spread.dtype, device=memory.device)
        local.set_(memory.untyped_storage(), spread.offset, spread.local_shape, spread.local_stride)
        layout = {"shape": spread.shape, "stride": spread.stride}
        return DTensor.from_local(local, self.operators.mesh, spread.placements, run_check=False, **layout)

    def _separate(self) -> None:
        """Make values that share memory share nothing else, as on the new ranks: all ranks have to go on alike."""
        tensors = {each: value for each, value in self.values.items() if isinstance(value, DTensor)}
        storages = {each: _storage_of(placing.local_of(value)).data_ptr() for each, value in tensors.items()}
        counts = collections.Counter(storages.values())
        for each, value in tensors.items():
            if counts[storages[each]] > 1 and views.detached(value) is None:
                layout = {"shape": value.shape, "stride": value.stride()}
                local, mesh = placing.local_of(value), value.device_mesh
                self.values[each] = DTensor.from_local(local, mesh, value.placements, run_check=False, **layout)

    def _set_random_state(self, number: int, state: torch.Tensor | int) -> None:
        if isinstance(state, int):
            self.operators.random.manual_seed(state)
        else:
            self.operators.random.state = state

    # -- values -----------------------------------------------------------------------

    def _constant(self, number: int, output: int, tensor: torch.Tensor, meta: Meta) -> None:
        device = torch.device(self.operators.mesh.device_type)  # that of the controller has a number
        super()._constant(number, output, tensor, Meta.make(meta.shape, meta.stride, meta.dtype, meta.offset, device))
        if type(value := self.values[output]) is not Failed:
            self.values[output] = placing.wrap(value, self.operators.mesh)

    def _keep_part(
        self, number: int, output: int, part: torch.Tensor, meta: Meta, placements: Sequence[Placement]
    ) -> None:
        """Store a tensor of which this rank was sent its part."""
        try:
            # A copy, as the bytes of a message cannot be written to.
            local = torch.empty(part.shape, dtype=part.dtype, device=self.operators.mesh.device_type).copy_(part)
            local = placing.with_order_of(local, meta.stride)
            layout = {"shape": torch.Size(meta.shape), "stride": meta.stride}
            self.values[output] = DTensor.from_local(local, self.operators.mesh, placements, run_check=False, **layout)
        except Exception as error:
            self._fail(number, error, (), (output,))

    def _detach(self, value: Any) -> Any:
        return self.operators.run(aten.detach.default, (value,))

    def _redistribute(self, number: int, output: int, source: int, placements: Sequence[Placement]) -> None:
        """Store a copy with other placements."""
        try:
            self.values[output] = self._place(self.values[source], placements)
        except Exception as error:
            self._fail(number, error, (source,), (output,))

    def _place(self, value: DTensor, placements: Sequence[Placement]) -> DTensor:
        held = [
            Replicate() if wanted.is_partial() and wanted != present else wanted
            for wanted, present in zip(placements, value.placements, strict=True)
        ]
        placed = self.operators.redistribute(value, held)
        local, mesh = placing.local_of(placed), placed.device_mesh
        for dim, (wanted, present) in enumerate(zip(placements, held, strict=True)):
            # A sum has the value on the first rank and zeros on the others.
            if wanted != present and mesh.get_local_rank(dim):
                local = torch.zeros_like(local)
        layout = {"shape": placed.shape, "stride": placed.stride()}
        return DTensor.from_local(local, mesh, tuple(placements), run_check=False, **layout)

    def _align(self, number: int, output: int, gradient: int, tensor: int) -> None:
        """Store a gradient with the placements of its tensor, which may be the gradient itself."""
        try:
            like = [Replicate() if isinstance(each, Partial) else each for each in self.values[tensor].placements]
            # A copy: autograd may give several leaves the same gradient, and takes the result as not shared.
            self.values[output] = self.operators.redistribute(self.values[gradient], like)
        except Exception as error:
            self._fail(number, error, (gradient, tensor), (output,))

    def _keep_whole(self, number: int, output: int, source: int) -> None:
        """Store the whole value as a plain tensor, on the first rank."""
        try:
            whole = self.operators.full(self.values[source])
            self.values[output] = whole if self.rank == 0 else None
        except Exception as error:
            self._fail(number, error, (source,), (output,))

    def _keep_shard(self, number: int, output: int, source: int) -> None:
        """Store this rank's shard as a plain tensor."""
        try:
            views.refresh(self.values[source])
            self.values[output] = placing.local_of(self.values[source])
        except Exception as error:
            self._fail(number, error, (source,), (output,))

    def _execute(self, number: int, output: int, call: Pickled) -> None:
        """Call a function with copies of the shards; store its plain results, and what the controller has to know."""
        ids: Sequence[int] = ()
        try:
            function, tree = call.load()
            ids = ids_in(tree)
            tensors = {each: self._settled(self.values[each]) for each in ids}
            sharded = next((tensor for each in ids if not placing.is_replicated(tensor := tensors[each])), None)
            args, kwargs = tree_map_only(ValueRef, lambda ref: placing.local_of(tensors[ref.id]).clone(), tree)
            with torch.enable_grad():
                results = tree_map_only(torch.Tensor, self._detached, function(*args, **kwargs))
            described = tree_map_only(torch.Tensor, _describe_result, results)
            shape = () if sharded is None else tuple(placing.local_of(sharded).shape)
            report = ShardReport(described, None if sharded is None else sharded.placements, shape)
            self.values[output] = Executed(report, results)
        except Exception as error:
            self._fail(number, error, ids, (output,))

    def _settled(self, value: DTensor) -> DTensor:
        """Return a value whose parts are values themselves: sums are reduced."""
        views.refresh(value)
        whole = [Replicate() if placement.is_partial() else placement for placement in value.placements]
        return placing.redistribute(value, whole)

    def _detached(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor):
            raise TypeError("a function that runs on shards returns plain tensors; call to_local() on a DTensor")
        return tensor.detach().resolve_conj().resolve_neg().to(self.operators.mesh.device_type)

    def _adopt(self, number: int, source: int, laid_out: Sequence[Any]) -> None:
        """Store the results of a function as tensors of the mesh."""
        executed = self.values.pop(source)
        tensors = [leaf for leaf in tree_leaves(executed.results) if isinstance(leaf, torch.Tensor)]
        for (output, placements, shape, stride), tensor in zip(laid_out, tensors, strict=True):
            local = placing.with_order_of(tensor, stride)
            layout = {"shape": torch.Size(shape), "stride": stride}
            self.values[output] = DTensor.from_local(local, self.operators.mesh, placements, run_check=False, **layout)

    # -- modules ----------------------------------------------------------------------

    def _make_module(
        self,
        number: int,
        output: int,
        source: Any,
        plan: Pickled,
        outputs: str,
        restored: Sequence[int] = (),
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a module, or make it again.

        `restored` are the ids of the parameters and buffers that it had before, and `dtype` what it was converted to.
        """
        from meshbook.runtime.tensor.modules.hosted import ForwardRun, HostedModule  # weight: 0.4 s for FSDP

        try:
            state, before = self.operators.random.state, self.values.get(output)
            hosted = self.values[output] = HostedModule(source, plan.load(), outputs, self.operators)
            if not restored:
                return
            hosted.value_ids = restored
            self.operators.random.state = state
            if dtype is not None:
                hosted.convert(dtype)
            for each, value in self.values.items():
                if isinstance(value, ForwardRun) and value.owner is before:
                    self.values[each] = Failed(0, self.rank, "", LOST_RUN, is_lost=True)
            for each, own in zip(restored, hosted.tensors(), strict=True):
                if type(value := self.find(each)) is not Failed:
                    placing.local_of(own).copy_(placing.local_of(placing.redistribute(value, own.placements)))
                    self.values[each] = own
        except Exception as error:
            self._fail_together(number, error, (), (output,))

    def _call_method(
        self, number: int, target: int, name: str, arguments: Pickled, outputs: Sequence[int] | int, kept: int
    ) -> None:
        """Call a method of a module. Its result gets ids as that of a function; `kept`, if not zero, what it keeps.

        A method that keeps something, or has a backward, gets `failed=True` if an argument has failed: the ranks go
        through its collectives together.
        """
        ids: list[int] = []
        made = [*([outputs] if isinstance(outputs, int) else outputs), *([kept] if kept else [])]
        try:
            tree = arguments.load()
            ids += ids_in(tree)
            module = self.find(target)
            method = getattr(module, name)
            args, kwargs = tree_map_only(ValueRef, lambda ref: self.find(ref.id), tree)
            if name in ("forward", "backward"):
                ids += module.value_ids
                kwargs["failed"] = self.find_failed(ids) is not None
            result = method(*args, **kwargs)
            if name == "tensors" and not isinstance(outputs, int):
                module.value_ids = outputs
            if kept:
                result, self.values[kept] = result
            if isinstance(outputs, int):
                self.values[outputs] = result
            else:
                leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
                self.values.update(zip(outputs, leaves, strict=True))
        except Exception as error:
            fail = self._fail_together if getattr(self.find(target), "fails_alike", True) else self._fail
            fail(number, error, (target, *ids), made)

    def apply_function(self, function: Any, tree: Any) -> Any:
        """Call a remote function with DTensors; a plain tensor in its result is equal on all ranks."""
        result = super().apply_function(function, tree)
        return tree_map_only(torch.Tensor, self._wrap, result)

    def _wrap(self, tensor: torch.Tensor) -> DTensor:
        return tensor if isinstance(tensor, DTensor) else placing.wrap(tensor, self.operators.mesh)


# All ranks run these operators on the same data.
_ALIKE = frozenset({Way.VIEW, Way.VIEW_IN_PLACE, Way.WHOLE, Way.RANDOM, Way.RANDOM_LIKE, Way.REFUSED})


def _fails_alike(func: Any, inputs: Sequence[Any], error: Exception) -> bool:
    """Return whether an operator fails on all ranks in this way."""
    if isinstance(error, OperatorRefused):
        return True
    if isinstance(error, MemoryError) or "memory" in str(error):
        return False
    is_same = all(isinstance(each, DTensor) and placing.is_replicated(each) for each in inputs)
    return is_same or (isinstance(func, torch._ops.OpOverload) and way_of(func) in _ALIKE)


def _is_of_groups(error: Exception) -> bool:
    """Return whether a collective has failed: another rank has died, or has left the groups."""
    texts = ("gloo", "NCCL", "process group", "Connection")
    return isinstance(error, dist.DistError) or any(text in str(error) for text in texts)


def _stock_of(value: Any) -> Failed | Spread | Opaque | None:
    if isinstance(value, DTensor):
        try:
            local = placing.local_of(value)  # may still wait for other ranks
        except RuntimeError as error:
            return Failed(0, 0, headline(error), str(error), is_of_peer=True)
        storage = local.untyped_storage()
        return Spread(
            *(value.placements, tuple(value.shape), value.stride(), value.dtype),
            *(tuple(local.shape), local.stride(), local.storage_offset()),
            *(storage._cdata, storage.nbytes(), views.detached(value) is not None),
        )
    if isinstance(value, Failed):
        return value
    # Plain tensors are on their way to a fetch.
    return None if value is None or isinstance(value, (torch.Tensor, Executed)) else Opaque()


def _describe_result(tensor: torch.Tensor) -> ShardResult:
    checksum = zlib.crc32(_storage_of(tensor.contiguous().clone()).cpu().numpy())
    return ShardResult(Meta.of(tensor), checksum)


def _storage_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory that a tensor is in, as bytes."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
