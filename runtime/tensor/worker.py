"""The actor of the tensor engine on each rank. The controller sends it batches of commands, and asks it for values."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.collectives.membership import GroupMembership
from meshbook.runtime.tensor.executor import Executor, ValueRef
from meshbook.runtime.tensor.failures import Failed
from meshbook.runtime.tensor.groups import Groups
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.templates import Command
from meshbook.runtime.traces import headline


class TensorWorker(Actor):
    """One rank of a tensor engine. Endpoints that return values return `Failed` where a command has failed."""

    def __init__(self, engine: str, collective_timeout: float) -> None:
        rank = context().actor_instance.rank.rank
        groups = Groups(f"{engine}/{rank}", timedelta(seconds=collective_timeout))
        self._executor = Executor(rank, groups)
        self._stores: list[GroupMembership] = []  # each keeps the store that it has opened

    @endpoint(instrument=False)
    def run(self, first: int, commands: bytes | list[Command]) -> list[Failed]:
        """Run a batch whose commands are numbered from `first` on; return the failures that began in it."""
        batch = pickle.loads(commands) if isinstance(commands, bytes) else commands
        with torch.no_grad():
            return self._executor.run(first, batch)

    @endpoint(instrument=False)
    def fetch(self, ids: Sequence[int]) -> list[Any]:
        """Return these values."""
        return [_materialized(self._executor.values[each]) for each in ids]

    @endpoint(instrument=False)
    def describe(self, value: int) -> Any:
        """Return a whole result, with its metadata in place of each tensor."""
        try:
            return tree_map_only(torch.Tensor, Meta.of, self._executor.values[value])
        except NotImplementedError as error:
            return Failed(0, self._executor.rank, headline(error), str(error))

    @endpoint(instrument=False)
    def call(self, function: Any, tree: Any) -> Any:
        """Return the result of a remote function on this rank alone; the first failure among its arguments."""
        failed = self._executor.find_failed(leaf.id for leaf in tree_leaves(tree) if isinstance(leaf, ValueRef))
        return failed if failed is not None else self._executor.apply_function(function, tree)

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

    def __cleanup__(self, error: Exception | None) -> None:
        self._executor.groups.close()


def _materialized(value: Any) -> Any:
    """Return a tensor in memory for one that torch's autograd has made without any, and 0 in all places."""
    return value.clone() if isinstance(value, torch.Tensor) and value._is_zerotensor() else value
