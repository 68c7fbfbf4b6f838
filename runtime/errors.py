"""The error tree: what can go wrong, whose fault it is, and what to do.

    MeshbookError
    ├── CallError             a call of endpoints failed; carries what the other ranks answered
    │   ├── ActorError        an endpoint raised: the caller's arguments or the endpoint's code; the actor lives on
    │   │   └── ItemError     the function of a `map` raised; names the item, its rank and its host
    │   ├── DeadlockError     actors that wait for each other; draws who waits for whom
    │   ├── CallTimeout       `call(..., timeout=)` was not answered in time; says where each silent rank is
    │   ├── CallCancelled     somebody cancelled the future
    │   └── SupervisionError  the callee is gone or never came: dead process, stopped mesh, failed constructor
    │       ├── ProcessDied   a worker process ended; says signal or exit code and its last words
    │       │   └── BootstrapFailed  its bootstrap raised; an ActorError, too
    │       └── ItemLost      the ranks that had this item of a `map` died: the item may be what kills them
    ├── WireError             a message did not travel
    │   ├── PickleError       an argument or result cannot be pickled or unpickled; names it
    │   │   └── MessageLost   its bytes lay with the process that sent it, which has ended; a SupervisionError, too
    │   ├── MessageTooLarge   over the limit of `Settings.max_message_bytes`; a SupervisionError, too
    │   ├── QueueFull         an actor sends to itself, and its queue has no room
    │   └── RefusedMessage    bytes that no peer of this run and version wrote; counted, never raised at a user
    ├── LaunchError           a host agent or a fork server did not start; carries its stderr
    ├── GroupError            a process group was not made; names the rank that did not come
    └── TransferError         bulk data was not moved; the text says whose memory it was, and by which way
        ├── BufferDropped     the owner has dropped the buffer, or its actor has ended: get a new handle
        ├── OwnerGone         the process that owned the buffer has ended, and its memory with it
        ├── TransferTimeout   not done within its time limit
        └── ChecksumMismatch  the bytes here are not those over there: somebody wrote to them meanwhile

Foreign errors become one of these at the seam where they enter, chained to what caused them.
"""

from __future__ import annotations

import concurrent.futures
import pickle
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from meshbook.runtime import monarch_texts
from meshbook.runtime.traces import SourceLine, render_in_ipython


class MeshbookError(Exception):
    """The root of every error that meshbook itself raises."""


class CallError(MeshbookError):
    """A call failed. Where it was a `call` of a mesh, this is the error of one rank, and the rest is here.

    `results` is a ValueMesh of the ranks that had answered, None if none had; `failures` the errors by rank of the
    called mesh, this one included. Neither travels with a pickled error. `called_at` is the line that made the call;
    the text names it where the traceback does not show it, because somebody else waited.
    """

    results: Any = None
    failures: Mapping[int, BaseException] = MappingProxyType({})
    called_at: SourceLine | None = None

    def __str__(self) -> str:
        text = super().__str__()
        if self.called_at is None or self.called_at.is_in(self.__traceback__):
            return text
        return f"{text}\ncalled at {self.called_at}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._parts(), {"called_at": self.called_at}

    def _parts(self) -> tuple[Any, ...]:
        """What it is made of again."""
        return self.args

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this by name.
        return render_in_ipython(self)


class ActorError(CallError):
    """An endpoint raised an exception."""

    def __init__(self, message: str, exception: BaseException | bytes | None = None) -> None:
        super().__init__(message)
        self._exception = exception  # maybe pickled: the thread that asks for it unpickles it

    @property
    def exception(self) -> BaseException | None:
        """The original exception; None where it could not be pickled, or its class does not exist in this process."""
        if isinstance(self._exception, bytes):
            try:
                self._exception = pickle.loads(self._exception)
            except Exception:
                self._exception = None
        return self._exception  # type: ignore[return-value]

    def _parts(self) -> tuple[Any, ...]:
        return self.args[0], self._exception


class ItemError(ActorError):
    """The function of a `map` raised for one item. The other items go on.

    `item` is its position, `rank` and `host` are where it ran. `type_name`, `said` and `trace` are the exception as
    text, since `exception` is None where it could not be pickled.
    """

    def __init__(
        self,
        message: str,
        exception: BaseException | bytes | None = None,
        *,
        item: int = 0,
        rank: int = 0,
        host: str = "",
        type_name: str = "",
        said: str = "",
        trace: str = "",
    ) -> None:
        super().__init__(message, exception)
        self.item = item
        self.rank = rank
        self.host = host
        self.type_name = type_name
        self.said = said
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        named = ("called_at", "item", "rank", "host", "type_name", "said", "trace")
        return type(self), self._parts(), {name: getattr(self, name) for name in named}


class DeadlockError(CallError):
    """The answer can never come: who should give it waits, perhaps by way of others, for who waits for it."""


class CallTimeout(CallError, TimeoutError):
    """The time limit of a call has passed; the text says where each rank is that has not answered."""


class CallCancelled(CallError, concurrent.futures.CancelledError):
    """The future was cancelled, and with it what the endpoint was doing for it."""


class SupervisionError(CallError, RuntimeError):
    """The callee cannot answer: its actor, process or mesh is dead, was stopped, or died during the call."""


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How a process ended: `returncode` as `subprocess` gives it (negative: a signal), and its last stderr.

    Without a return code nobody saw it end, and the first line of `hint` says why it is not there.
    """

    node: str
    pid: int  # 0: it never started, as far as is known
    returncode: int | None
    stderr: tuple[str, ...] = ()
    hint: str = ""
    stopped: str = ""  # why it was told to leave, where it was
    incarnation: int = -1  # which of the lives of a process that was respawned has ended; -1: that of the present
    host: str = ""  # the name of its host, where that is not the controller's
    ended_by: str = ""  # what had it killed, in the user's words: `%mesh restart`
    raised: str = ""  # the traceback of its bootstrap, where that raised

    @property
    def cause(self) -> str:
        """`Killed(sig=9)`, `Segmentation fault(sig=11)`, `exit code 3`, `ended by %mesh restart`."""
        if self.ended_by:
            return f"ended by {self.ended_by}"
        if self.returncode is None:
            return self.hint.partition("\n")[0] or "ended for an unknown reason"
        if self.returncode >= 0:
            return f"exit code {self.returncode}"
        number = -self.returncode
        return monarch_texts.killed(signal.strsignal(number) or "signal", number)

    @property
    def signal_name(self) -> str:
        """`SIGKILL` and its like, or the empty string for a plain exit."""
        if self.returncode is None or self.returncode >= 0:
            return ""
        try:
            return signal.Signals(-self.returncode).name
        except ValueError:
            return f"signal {-self.returncode}"

    @property
    def who(self) -> str:
        """`procs-04d1.3, pid 4711`, or `procs-04d1.3, pid 4711 on gpu2`."""
        who = f"{self.node}, pid {self.pid}" if self.pid else self.node
        return f"{who} on {self.host}" if self.host else who

    def of_guest(self, node: str) -> ExitReport:
        """How a worker ended whose host agent ended like this: with it."""
        how = "" if self.returncode is None else f"its host agent ended: {self.cause} ({self.who})\n"
        return ExitReport(node, 0, None, self.stderr, f"{how}{self.hint}".rstrip(), self.stopped, host=self.host)

    def __str__(self) -> str:
        if self.stopped:
            return f"{monarch_texts.STOPPED_WITH_PROCS}: {self.stopped}"
        where = ", ".join(filter(None, (self.signal_name, self.who)))
        lines = [f"{monarch_texts.PROCESS_FAILED}: {self.cause} ({where})"]
        lines += self.hint.splitlines()[self.returncode is None :]
        if self.raised:
            lines += ["its bootstrap raised:", *(f"    {line}" for line in self.raised.splitlines())]
        elif self.stderr:
            lines.append("its last lines on stderr:")
            lines += [f"    {line}" for line in self.stderr]
        return "\n".join(lines)


class ProcessDied(SupervisionError):
    """A worker process ended while somebody still counted on it; `report` says how."""

    def __init__(self, message: str, report: ExitReport) -> None:
        super().__init__(message)
        self.report = report

    def _parts(self) -> tuple[Any, ...]:
        return self.args[0], self.report


class ItemLost(SupervisionError):
    """An item of a `map` has no result: each rank that had it died, or no rank is left.

    `item` is its position, `ranks` are those that died with it, in that order.
    """

    def __init__(self, message: str, item: int = 0, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.item = item
        self.ranks = ranks

    def _parts(self) -> tuple[Any, ...]:
        return self.args[0], self.item, self.ranks


class BootstrapFailed(ActorError, ProcessDied):
    """The bootstrap of a worker raised, and the worker ended; `report` has its traceback."""

    def __init__(self, message: str, report: ExitReport) -> None:
        ProcessDied.__init__(self, message, report)
        self._exception = None

    def _parts(self) -> tuple[Any, ...]:
        return ProcessDied._parts(self)


class WireError(MeshbookError):
    """A message did not travel."""


class PickleError(WireError):
    """An argument or a result cannot be pickled or unpickled; the text names it."""


class MessageLost(PickleError, SupervisionError):
    """An argument or a result lay in memory of the process that sent it, which has ended: heal, and ask again.

    Whoever copes with processes that die catches it with their SupervisionError.
    """


class MessageTooLarge(WireError, SupervisionError):
    """A message is larger than `Settings.max_message_bytes`. So no answer can come: a SupervisionError, too."""


class QueueFull(WireError):
    """The queue of an actor has no room, and only the thread that sends to it could make some."""


class RefusedMessage(WireError):
    """Bytes that no peer of this run and version wrote; a node counts them and drops them."""


class LaunchError(MeshbookError):
    """A host agent or a fork server did not start; the text carries its stderr and what to try."""


class GroupError(MeshbookError):
    """The process group of a mesh was not made: the text names the rank that did not come, and why."""


class TransferError(MeshbookError, RuntimeError):
    """Bulk data was not moved, or not all of it: what is in the target is undefined."""


class BufferDropped(TransferError):
    """The buffer is lent no more: `drop()` was called, or the actor that owned it has ended."""


class OwnerGone(TransferError):
    """The process that owned the buffer has ended, and its memory with it."""


class TransferTimeout(TransferError, TimeoutError):
    """A transfer was not done within its time limit."""


class ChecksumMismatch(TransferError):
    """The bytes that came are not those that are there: somebody wrote to them during the transfer."""
