"""`RDMAAction`: several transfers that start together and complete as one future."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import TransferError
from meshbook.runtime.memory.local_memory import LocalMemory, local_memory
from meshbook.runtime.rdma.backends import BufferHandle, Deadline, TransferJob, deadline_in
from meshbook.runtime.rdma.buffer import RDMABuffer
from meshbook.runtime.rdma.data_plane import own_data_plane
from meshbook.runtime.rdma.transfers import INLINE_BYTES, Transfers, TransferTask


@dataclass(frozen=True, slots=True)
class Operation:
    """One transfer of an action. `local` is the part of the memory here that is moved."""

    handle: BufferHandle
    local: LocalMemory
    is_write: bool  # from here to the buffer

    def collides(self, other: Operation) -> bool:
        """Return whether one of the two changes memory of this process that the other uses."""
        if (self.is_write and other.is_write) or self.local.device != other.local.device:
            return False
        begin, end = self.local.address, self.local.address + self.local.size
        return begin < other.local.address + other.local.size and other.local.address < end

    def __str__(self) -> str:
        verb, preposition = ("write_remote", "to") if self.is_write else ("read_remote", "from")
        return f"{verb} of {self.local.size:,} bytes {preposition} {self.handle.actor}"


class RDMAAction:
    """A batch of reads and writes of buffers, which run concurrently and complete as one future.

    `RDMAAction().read_remote(dst, buffer).write_remote(other, src).submit().get()`. An action may be submitted again,
    and then moves the bytes of that moment. It keeps its memory and buffers alive. The order of its operations is
    undefined, so it refuses operations that use the same memory of this process if one of them changes it.
    """

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._memory: dict[str, tuple[IntervalSet, IntervalSet]] = {}  # by device: written, only read

    def read_remote(self, dst: Any, src: RDMABuffer) -> Self:
        """Copy all of the buffer `src` to the start of `dst`, which is memory of this process.

        Raises ValueError if it does not fit, or if `dst` overlaps the memory of another operation of this action.
        """
        handle = _buffer(src, "src", "read_remote(dst, src) reads the RDMABuffer src into dst, memory of this process")
        local = _memory(dst, "dst", "read_remote(dst, src) reads into dst, memory of this process; src is the buffer")
        if not local.is_writable:
            raise ValueError("dst is read-only")
        if local.size < handle.size:
            raise ValueError(f"dst has {local.size:,} bytes, but the buffer src has {handle.size:,}")
        return self._add(Operation(handle, local.part(0, handle.size), is_write=False))

    def write_remote(self, dst: RDMABuffer, src: Any) -> Self:
        """Copy all of `src`, which is memory of this process, to the start of the buffer `dst`.

        Raises ValueError if it does not fit, or if another operation of this action changes memory of `src`.
        """
        handle = _buffer(
            dst, "dst", "write_remote(dst, src) writes to the RDMABuffer dst from src, memory of this process"
        )
        local = _memory(src, "src", "write_remote(dst, src) writes from src, memory of this process; dst is the buffer")
        if not handle.is_writable:
            raise ValueError(f"the buffer dst of {handle.actor} is read-only")
        if local.size > handle.size:
            raise ValueError(f"src has {local.size:,} bytes, but the buffer dst has {handle.size:,}")
        return self._add(Operation(handle, local, is_write=True))

    def fetch_add(self, src: RDMABuffer, dst: Any, add: int) -> NoReturn:
        """Not supported: only an RDMA NIC could do it. Raises NotImplementedError, which names an alternative."""
        _refuse_atomics("fetch_add")

    def compare_and_swap(self, src: RDMABuffer, dst: Any, compare: int, swap: int) -> NoReturn:
        """Not supported: only an RDMA NIC could do it. Raises NotImplementedError, which names an alternative."""
        _refuse_atomics("compare_and_swap")

    def submit(self, *, timeout: float = 60) -> Future[None]:
        """Start all operations. The future is done once each has ended, or after `timeout` seconds.

        It fails with the error of the first failed operation, in the order in which they were added; the other
        operations still run. Cancelling the future cancels all operations that are under way.
        """
        deadline = deadline_in(timeout)
        if not self._operations:
            return Future.completed(None)
        return Submission(tuple(self._operations), deadline).start(own_data_plane().transfers)

    def _add(self, new: Operation) -> Self:
        written, only_read = self._memory.setdefault(new.local.device, (IntervalSet(), IntervalSet()))
        begin, end = new.local.address, new.local.address + new.local.size
        if written.overlaps(begin, end) or (not new.is_write and only_read.overlaps(begin, end)):
            raise self._collision(new)
        (only_read if new.is_write else written).add(begin, end)
        self._operations.append(new)
        return self

    def _collision(self, new: Operation) -> ValueError:
        number, other = next((n, each) for n, each in enumerate(self._operations, 1) if new.collides(each))
        return ValueError(
            f"operation {len(self._operations) + 1} ({new}) and operation {number} ({other}) overlap in memory of this "
            "process, and at least one of them changes it; submit them one after the other"
        )

    def __repr__(self) -> str:
        return f"<RDMAAction of {len(self._operations)} operations>"


class Submission:
    """One execution of an action."""

    def __init__(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        self._operations = operations
        self._deadline = deadline
        # On the calling thread: they come after what it has queued on a GPU.
        self._jobs = [TransferJob(each.handle, 0, each.local, deadline) for each in operations]
        self._lock = threading.Lock()  # guards the next two
        self._errors: dict[int, BaseException] = {}
        self._under_way = 0
        self._task: TransferTask[None] = TransferTask(deadline, lambda: f"an action of {len(operations)} operations")
        self._done = self._task.future

    def start(self, transfers: Transfers) -> Future[None]:
        """Run the action: on the calling thread if it is short, else on threads."""
        batches = batches_of([(each.handle, each.local.size) for each in self._operations])
        self._under_way = len(batches)
        if len(batches) == 1 and self._is_short(transfers):
            self._carry_out(transfers, batches[0])
            self._ended(batches[0], None)
            return self._done
        for batch in batches:
            self._start_batch(transfers, batch)
        return self._done

    def _is_short(self, transfers: Transfers) -> bool:
        try:
            return all(transfers.is_short(job) for job in self._jobs)
        except TransferError:
            return False  # no backend reaches it: the transfer itself raises the error

    def _start_batch(self, transfers: Transfers, batch: Sequence[int]) -> None:
        ended = transfers.run(
            lambda: self._carry_out(transfers, batch), self._deadline, lambda: str(self._operations[batch[0]])
        )
        ended.when_done(lambda: self._ended(batch, ended.exception()))

    def _carry_out(self, transfers: Transfers, batch: Sequence[int]) -> None:
        for index in batch:
            try:
                transfers.move(self._jobs[index], is_write=self._operations[index].is_write)
            except Exception as error:  # reported with all others when the last operation has ended
                with self._lock:
                    self._errors[index] = error

    def _ended(self, batch: Sequence[int], error: BaseException | None) -> None:
        with self._lock:
            if error is not None:
                self._errors.setdefault(batch[0], error)
            self._under_way -= 1
            is_last = self._under_way == 0
        if is_last:
            self._settle()

    def _settle(self) -> None:
        if not self._errors:
            self._done.resolve(lambda: None)
            return
        first = min(self._errors)
        error = self._errors[first]
        more = f", and {len(self._errors) - 1} more failed" if len(self._errors) > 1 else ""
        which = f"operation {first + 1} of {len(self._operations)}, {self._operations[first]}{more}"
        self._done.fail(_with_place(error, which))


def batches_of(sizes: Sequence[tuple[BufferHandle, int]]) -> list[list[int]]:
    """Return which operations share a thread, by index: small ones of one owner together, large ones alone."""
    batches: list[list[int]] = []
    # By owner: the batch that has room, and its bytes.
    open_ones: dict[Any, tuple[list[int], int]] = {}
    for index, (handle, size) in enumerate(sizes):
        batch, filled = open_ones.get(handle.process, ([], INLINE_BYTES))
        if filled + size > INLINE_BYTES:
            batch, filled = [], 0
            batches.append(batch)
        batch.append(index)
        open_ones[handle.process] = batch, filled + size
    return batches


def _with_place(error: BaseException, which: str) -> BaseException:
    if not isinstance(error, TransferError):
        error.add_note(which)
        return error
    placed = type(error)(f"{which}: {error}")
    placed.__cause__ = error
    return placed


def _buffer(given: Any, name: str, meant: str) -> BufferHandle:
    if not isinstance(given, RDMABuffer):
        raise TypeError(f"{name} is a {type(given).__qualname__}, not an RDMABuffer: {meant}")
    return given._handle


def _memory(given: Any, name: str, meant: str) -> LocalMemory:
    if isinstance(given, RDMABuffer):
        raise TypeError(f"{name} is an RDMABuffer: {meant}")
    return local_memory(given, name)


def _refuse_atomics(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name} is not supported: one-sided transfers are not atomic. Use an endpoint of the actor that owns the "
        "memory; it changes the value and returns the previous one"
    )


class IntervalSet:
    """A set of addresses, stored as disjoint ranges: a lookup takes logarithmic time."""

    def __init__(self) -> None:
        self._begins: list[int] = []  # sorted, as are the ends
        self._ends: list[int] = []

    def overlaps(self, begin: int, end: int) -> bool:
        """Return whether any address from `begin` to before `end` is in the set."""
        first = bisect_right(self._ends, begin)  # the first that does not end before `begin`
        return first < len(self._begins) and self._begins[first] < end

    def add(self, begin: int, end: int) -> None:
        """Add these addresses; merge the ranges that they touch."""
        first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]
