"""`MeshFailure`: the failure of a part of a mesh, as the mesh's owner receives it.

A `Receipt` records whether a caller receives the failure that ends a call, or drops the call's future unread.
"""

from __future__ import annotations

import queue
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from meshbook.runtime import monarch_texts
from meshbook.runtime.traces import SourceLine


class MeshFailure:
    """The failure of a rank: its actor raised an error that no caller receives, or its process ended.

    It is passed to the `__supervise__` of the actor that spawned the mesh and, if that does not handle it, to the
    client's `unhandled_fault_hook`. It is valid only in the process that created it, and cannot be pickled.
    """

    def __init__(
        self,
        mesh_name: str,
        crashed_ranks: Sequence[int],
        report: str,
        handle: Callable[[], Any],
        spawned_at: SourceLine | None = None,
        remark: str = "",
        ended_by: str = "",
        receipts: Sequence[Receipt] = (),
    ) -> None:
        self.mesh_name = mesh_name
        self.crashed_ranks = list(crashed_ranks)
        self._report = report
        self._handle = handle
        self._spawned_at = spawned_at
        self.remark = remark  # what was tried before the failure was reported
        self.ended_by = ended_by  # the user's command that killed the process, such as `%mesh restart`
        self.receipts = receipts  # of the calls of this process that fail because of it

    @property
    def mesh(self) -> Any:
        """The mesh that failed: an actor mesh, or a process mesh on which its owner had no actors."""
        return self._handle()

    def report(self) -> str:
        """Return what happened and where, the root cause first."""
        return f"{self._report}\n{self.remark}" if self.remark else self._report

    def also(self, remark: str) -> MeshFailure:
        """Return the same failure with a remark on what was tried."""
        known = self.mesh_name, self.crashed_ranks, self._report, self._handle, self._spawned_at
        return MeshFailure(*known, remark, self.ended_by, self.receipts)

    @property
    def was_received(self) -> bool:
        """Whether a caller in this process has received the failure as an exception."""
        return any(receipt.is_read for receipt in self.receipts)

    @property
    def may_be_received(self) -> bool:
        """Whether a caller in this process still holds the future of a call that fails because of it."""
        return any(receipt.is_pending for receipt in self.receipts)

    def __str__(self) -> str:
        ranks = monarch_texts.crashed_ranks(self.crashed_ranks)
        spawned = f"\nmesh {self.mesh_name} was spawned at {self._spawned_at}" if self._spawned_at is not None else ""
        return f"MeshFailure of mesh {self.mesh_name}, {ranks}: {self.report()}{spawned}"

    def __repr__(self) -> str:
        return f"<MeshFailure {self.mesh_name} {monarch_texts.crashed_ranks(self.crashed_ranks)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a MeshFailure cannot be pickled: send its report() instead")


@dataclass(frozen=True, slots=True)
class UndeliverableMessageEnvelope:
    """A message without a reply that could not be delivered: a broadcast, or a value for a port.

    The actor that sent it receives this in `_handle_undeliverable_message`. A true result means that it is handled.
    """

    _sender: str
    _dest: str
    _error: str

    def sender(self) -> str:
        """Return the `actor_id` of the sender."""
        return self._sender

    def dest(self) -> str:
        """Return the destination: the process, and the actor or port in it."""
        return self._dest

    def error_msg(self) -> str:
        """Return the reason why the message could not be delivered."""
        return self._error

    def __str__(self) -> str:
        return f"a message of {self._sender} to {self._dest} could not be delivered: {self._error}"


class Receipt:
    """The receipt of one call to one or several ranks of an actor. Futures record here that they have raised the error.

    Finalizers of futures call `_notify`, so it only appends to a queue.
    """

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self.is_read = False
        self._watchers: list[queue.SimpleQueue[Any]] = []
        self._futures: list[weakref.ref[Any]] = []

    @property
    def is_pending(self) -> bool:
        """Whether no caller has received the error yet, and one still can."""
        return not self.is_read and any(future() is not None for future in self._futures)

    def follow(self, future: Any) -> None:
        """Add a future that raises the same error."""
        self._futures.append(weakref.ref(future, self._notify))

    def note_read(self) -> None:
        """Record that a future has raised the error in a caller's code."""
        self.is_read = True
        self._notify()

    def watch(self, changes: queue.SimpleQueue[Any]) -> None:
        """Put this receipt into the queue now and after each change."""
        self._watchers.append(changes)
        changes.put(self)

    def _notify(self, future: object = None) -> None:
        for changes in self._watchers:
            changes.put(self)
