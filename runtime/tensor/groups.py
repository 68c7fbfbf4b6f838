"""Process groups of a rank, and the collectives of tensor commands over them.

A rank whose input has failed takes part all the same, or the others would wait for it: each message has one more
element, the mark, which says whether the sender has failed. Then the result has failed on all ranks of the group.

Sums, products, minima and maxima of the types that gloo adds run as its all-reduce. All else is gathered as bytes and
reduced on each rank, in the order of the ranks: O(n) times the traffic, for any type and operation. Tensors of GPUs go
through the memory of the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

REDUCTIONS = ("stack", "sum", "avg", "product", "min", "max", "band", "bor", "bxor")
NATIVE_TYPES = frozenset({torch.float32, torch.float64, torch.int32, torch.int64})
_SUM = (dist.ReduceOp.SUM, 0, 1)
# The operation, and the marks of a good and of a failed rank: no failed one is lost in the reduction of the marks.
_NATIVE = {
    "sum": _SUM,
    "avg": _SUM,
    "product": (dist.ReduceOp.PRODUCT, 1, 0),
    "min": (dist.ReduceOp.MIN, 1, 0),
    "max": (dist.ReduceOp.MAX, 0, 1),
}
_LOCAL = {
    "sum": lambda stacked: stacked.sum(0, dtype=stacked.dtype),
    "avg": lambda stacked: stacked.mean(0),
    "product": lambda stacked: stacked.prod(0, dtype=stacked.dtype),
    "min": lambda stacked: stacked.amin(0),
    "max": lambda stacked: stacked.amax(0),
    "band": lambda stacked: functools.reduce(torch.bitwise_and, stacked.unbind()),
    "bor": lambda stacked: functools.reduce(torch.bitwise_or, stacked.unbind()),
    "bxor": lambda stacked: functools.reduce(torch.bitwise_xor, stacked.unbind()),
}


class PeerFailed(RuntimeError):
    """Another rank could not contribute to a collective; its own error says why."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The store at which the ranks of new groups meet."""

    host: str
    port: int
    is_local: bool  # all ranks are on this host


@dataclass(frozen=True, slots=True)
class Grouping:
    """Disjoint groups of ranks; each rank is in at most one. Members are names of workers, unique over all meshes."""

    name: str
    rendezvous: Rendezvous
    members: tuple[tuple[str, ...], ...]


class Group:
    """A process group, seen from one of its ranks."""

    def __init__(self, group: Any) -> None:
        self.handle = group  # a torch.distributed.ProcessGroup
        self.rank = int(group.rank())
        self.size = int(group.size())
        self._sends: list[Any] = []  # unfinished sends, with the memory that they read

    def reduce(self, tensor: torch.Tensor, reduction: str, has_failed: bool = False) -> torch.Tensor:
        """Return the reduction over all ranks, in the shape of `tensor`. Raises PeerFailed."""
        if reduction not in _NATIVE or tensor.dtype not in NATIVE_TYPES:
            return _LOCAL[reduction](self.gather(tensor, has_failed))
        operation, good, bad = _NATIVE[reduction]
        buffer = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
        buffer[:-1] = tensor.reshape(-1)
        buffer[-1] = bad if has_failed else good
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        self.handle.allreduce([buffer], options).wait()
        if buffer[-1].item() != good:
            raise PeerFailed("another rank could not contribute to the reduction")
        result = buffer[:-1].view(tensor.shape)
        return (result.div_(self.size) if reduction == "avg" else result).to(tensor.device)

    def gather(self, tensor: torch.Tensor, has_failed: bool = False) -> torch.Tensor:
        """Return the tensors of all ranks, stacked along a new first dimension. Raises PeerFailed."""
        message = _to_bytes(tensor, has_failed)
        messages = [torch.empty_like(message) for _ in range(self.size)]
        self.handle.allgather([messages], [message]).wait()
        return torch.stack([_from_bytes(each, tensor.shape, tensor.dtype) for each in messages]).to(tensor.device)

    def exchange(self, tensor: torch.Tensor, has_failed: bool = False) -> torch.Tensor:
        """Send the i-th part of the first dimension to rank i; return the parts received, stacked. PeerFailed."""
        mine = torch.stack([_to_bytes(part, has_failed) for part in tensor])
        theirs = torch.empty_like(mine)
        self.handle.alltoall_base(theirs, mine, [], []).wait()
        return torch.stack([_from_bytes(each, tensor.shape[1:], tensor.dtype) for each in theirs]).to(tensor.device)

    def scatter_reduce(self, tensor: torch.Tensor, reduction: str, has_failed: bool = False) -> torch.Tensor:
        """Return this rank's part of the reduction: the first dimension of `tensor` counts the ranks. PeerFailed."""
        return _LOCAL[reduction](self.exchange(tensor, has_failed))

    def send(self, tensor: torch.Tensor, ranks: Sequence[int], tag: int, has_failed: bool = False) -> None:
        """Begin to send to these ranks. The next `send` waits for the end, so that a ring of ranks can shift."""
        for work, _ in self._sends:
            work.wait()
        message = _to_bytes(tensor, has_failed)
        self._sends = [(self.handle.send([message], rank, tag), message) for rank in ranks]

    def receive(self, shape: Sequence[int], dtype: torch.dtype, rank: int, tag: int) -> torch.Tensor:
        """Return what `rank` sends. Raises PeerFailed."""
        message = torch.empty(torch.Size(shape).numel() * dtype.itemsize + 1, dtype=torch.uint8)
        self.handle.recv([message], rank, tag).wait()
        return _from_bytes(message, shape, dtype)


def _to_bytes(tensor: torch.Tensor, has_failed: bool) -> torch.Tensor:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    message = torch.empty(flat.numel() * flat.element_size() + 1, dtype=torch.uint8)
    message[:-1] = flat.view(torch.uint8)
    message[-1] = has_failed
    return message


def _from_bytes(message: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if message[-1].item():
        raise PeerFailed("another rank could not contribute its value")
    # A copy: the bytes may begin anywhere, and values of a type need its alignment.
    return message[:-1].clone().view(dtype).view(tuple(shape))


class Groups:
    """The groups of one stream of a rank, by the name of their grouping. Streams meet in groups of their own."""

    def __init__(self, name: str, timeout: timedelta, stream: int = 0) -> None:
        self._name = name
        self._timeout = timeout
        self._stream = stream
        self._stores: dict[Rendezvous, Any] = {}
        self._groups: dict[str, Group] = {}
        self._members: dict[str, tuple[str, ...]] = {}

    def join(self, grouping: Grouping) -> None:
        """Create this rank's group; waits for its other ranks."""
        members = next(each for each in grouping.members if self._name in each)
        key = "/".join((str(self._stream), grouping.name, *members))
        rank, size = members.index(self._name), len(members)
        store = dist.PrefixStore(key, self._meet(grouping.rendezvous))
        handle = dist.ProcessGroup(store, rank, size)
        handle._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = self._timeout
        options._devices = [
            dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
            if grouping.rendezvous.is_local
            else dist.ProcessGroupGloo.create_default_device()
        ]
        backend = dist.ProcessGroupGloo(store, rank, size, options)
        backend._set_sequence_number_for_group()
        handle._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
        handle._set_group_name(key)
        self._groups[grouping.name] = Group(handle)
        self._members[grouping.name] = members

    def _meet(self, rendezvous: Rendezvous) -> Any:
        if rendezvous not in self._stores:
            self._stores[rendezvous] = dist.TCPStore(
                rendezvous.host, rendezvous.port, is_master=False, wait_for_workers=False, timeout=self._timeout
            )
        return self._stores[rendezvous]

    def find(self, name: str) -> Group:
        return self._groups[name]

    def rank_in(self, name: str, member: str) -> int:
        """Return the rank of a worker in this rank's group of a grouping."""
        return self._members[name].index(member)

    def close(self) -> None:
        self._groups.clear()
        self._stores.clear()
