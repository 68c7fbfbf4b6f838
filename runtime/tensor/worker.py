"""The actor of the tensor engine on each rank. The controller sends it batches of commands, and asks it for values."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from meshbook.runtime import devices
from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.collectives.abort import find_collective
from meshbook.runtime.collectives.membership import GroupMembership, has_gpu
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.tensor.executor import Executor, ValueRef, ids_in
from meshbook.runtime.tensor.failures import Failed, RemoteException
from meshbook.runtime.tensor.groups import Groups
from meshbook.runtime.tensor.layouts import Executed, Layout
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.streams import HandOffs
from meshbook.runtime.tensor.summaries import describe_values
from meshbook.runtime.tensor.templates import Command, find_operator
from meshbook.runtime.traces import headline


class TensorWorker(Actor):
    """One stream of one rank of a tensor engine. Endpoints that return values return `Failed` for a failed command."""

    def __init__(
        self,
        engine: str,
        collective_timeout: float,
        layout: Layout | None = None,
        stream: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        rank = context().actor_instance.rank.rank
        self._name = f"{engine}/{rank}"
        groups = Groups(self._name, timedelta(seconds=collective_timeout), stream)
        self._executor = _make_executor(rank, groups, layout, HandOffs.of(self._name))
        self._executor.dtype = dtype
        self._has_own_stream = stream != 0
        if self._has_own_stream:  # all threads share CUDA's default stream
            devices.OWN_GPU.use_own_stream()
        self._thread = 0  # that runs the commands
        self._stores: list[GroupMembership] = []  # each keeps the store that it has opened

    @endpoint(instrument=False)
    def run(self, first: int, commands: bytes | list[Command]) -> list[Failed]:
        """Run a batch whose commands are numbered from `first` on; return the failures that began in it."""
        self._thread = threading.get_ident()
        batch = pickle.loads(commands) if isinstance(commands, bytes) else commands
        with torch.no_grad(), self._executor.using_default_dtype():
            return self._executor.run(first, batch)

    @endpoint(instrument=False)
    def fetch(self, ids: Sequence[int]) -> list[Any]:
        """Return these values, and the failure of a check that no fetch has raised."""
        found = [_materialized(self._executor.find(each)) for each in ids]
        check = self._executor.failed_check
        return found if check is None else [*found, check]

    @endpoint(instrument=False)
    def describe(self, value: int) -> Any:
        """Return a whole result, with its metadata in place of each tensor."""
        found = self._executor.find(value)
        if (failed := self._first_failure([found])) is not None:
            return failed
        if isinstance(found, Executed):
            return found.report
        try:
            return tree_map_only(torch.Tensor, Meta.of, found)
        except NotImplementedError as error:
            return Failed(0, self._executor.rank, headline(error), str(error))

    @endpoint(instrument=False)
    def infer(self, operator: str, args: Any, kwargs: Any) -> Any:
        """Return the result of an operator on zeros, all tensors as metadata; None if it raises."""
        try:
            with torch.no_grad(), self._executor.using_default_dtype():
                args, kwargs = tree_map_only(Meta, Meta.make_zeros, (args, kwargs))
                return tree_map_only(torch.Tensor, Meta.of, find_operator(operator)(*args, **kwargs))
        except Exception:  # torch's rule has refused the arguments as well, and the controller raises its error
            return None

    @endpoint(instrument=False)
    def call(self, function: Any, tree: Any) -> Any:
        """Return the result of a remote function on this rank alone; the first failure among its arguments."""
        failed = self._first_failure([self._failed_in(tree)])
        with self._executor.using_default_dtype():
            return failed if failed is not None else self._executor.apply_function(function, tree)

    @endpoint(instrument=False)
    def run_function(self, function: Any, tree: Any) -> Any:
        """Return the result of a remote function for `RemoteFunction.call`; raise the first failure of an argument."""
        if (failed := self._failed_in(tree)) is not None:
            raise RemoteException(failed.trace, None, failed.rank)
        return self.call(function, tree)

    @endpoint(explicit_response_port=True, instrument=False)
    def pass_on(self, port: Port[Any], actors: ActorMesh, name: str, tree: Any) -> None:
        """Call the actor in this process with the values of this rank. The actor answers to the port."""
        if (failed := self._failed_in(tree)) is not None:
            port.exception(RemoteException(failed.trace, None, failed.rank))
            return
        if self._has_own_stream:  # the actor's thread has another one
            devices.wait_for_stream()
        arguments = tree_map_only(ValueRef, lambda ref: _materialized(self._executor.find(ref.id)), tree)
        try:
            actors._pass_on(context().message_rank.rank, name, arguments, port)
        except MeshbookError as error:
            port.exception(error)

    @endpoint(instrument=False)
    def placements(self, value: int) -> Any:
        """Return the placements of a value of the global view."""
        found = self._executor.find(value)
        return found if type(found) is Failed else found.placements

    @endpoint(instrument=False)
    def take_stock(self) -> Any:
        """Return what this rank of a global mesh has, once it has run all commands before; None for a new process."""
        executor: Any = self._executor
        return executor.take_stock()

    @endpoint(instrument=False)
    def definitions(self) -> Any:
        """Return what a new rank of a global mesh has to know."""
        executor: Any = self._executor
        return executor.definitions()

    @endpoint(instrument=False)
    def summarize(self, value: int, shard: int) -> Any:
        """Return the placements of a value of the global view and a description of its shard; a text if it failed."""
        found, local = self._executor.find(value), self._executor.find(shard)
        failed = next((each for each in (found, local) if isinstance(each, Failed)), None)
        return (failed.headline or failed.trace) if failed else (found.placements, describe_values(local))

    @endpoint(instrument=False)
    def survey(self) -> tuple[bool, bool]:
        """Return whether this process has a GPU for this rank, and whether its default process group is the mesh's."""
        instance = context().actor_instance
        size, rank = instance.rank.extent.nelements, instance.rank.rank
        is_member = dist.is_initialized() and (dist.get_world_size(), dist.get_rank()) == (size, rank)
        return has_gpu(int(os.environ.get("LOCAL_RANK", rank))), is_member

    @endpoint(instrument=False)
    def open_store(self, is_local: bool) -> tuple[str, int]:
        """Open the store at which the ranks of process groups meet; return its host and port."""
        membership = GroupMembership()
        self._stores.append(membership)
        return membership.open_store(is_local)

    @endpoint(instrument=False)
    def count(self) -> int:
        """Return the number of values in the table."""
        return len(self._executor.values)

    def __working__(self) -> str:
        """Return the operator that this rank computes, or the collective in which it waits for others; "" if neither.

        On another thread, while a batch runs.
        """
        if not (name := self._executor.present):
            return ""
        frames = traceback.walk_stack(sys._current_frames().get(self._thread))
        stack = [(frame.f_code.co_filename, frame.f_code.co_name) for frame, _ in frames][::-1]
        collective = find_collective(stack)
        return f"in {name}" + (f", waits in {collective}" if collective else "")

    def _failed_in(self, tree: Any) -> Failed | None:
        """Return the first failure among the values of some arguments."""
        return self._executor.find_failed(ids_in(tree))

    def _first_failure(self, values: list[Any]) -> Failed | None:
        """Return the first failure among values and the checks that no fetch has raised."""
        found = [each for each in (*values, self._executor.failed_check) if type(each) is Failed]
        return min(found, key=lambda failed: failed.command, default=None)

    def __cleanup__(self, error: Exception | None) -> None:
        self._executor.groups.close()
        HandOffs.close(self._name)


def _make_executor(rank: int, groups: Groups, layout: Layout | None, hand_offs: HandOffs) -> Executor:
    if layout is None:
        return Executor(rank, groups, hand_offs=hand_offs)
    from meshbook.runtime.tensor.sharded_executor import ShardedExecutor  # weight: 0.7 s for DTensor

    return ShardedExecutor(rank, groups, layout)


def _materialized(value: Any) -> Any:
    """Return a tensor in memory for one that torch's autograd has made without any, and 0 in all places."""
    return value.clone() if isinstance(value, torch.Tensor) and value._is_zerotensor() else value
