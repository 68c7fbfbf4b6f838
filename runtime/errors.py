"""The error tree: what can go wrong, where the fault is, and what to do.

    MeshbookError
    ├── CallError             a call of endpoints failed; carries the replies of the other ranks
    │   ├── ActorError        an endpoint raised: the caller's arguments or the endpoint's code; the actor keeps running
    │   │   └── ItemError     the function of a `map` raised; names the item, its rank and its host
    │   ├── DeadlockError     actors that wait for each other; draws the cycle of waits
    │   ├── CallTimeout       `call(..., timeout=)` was not answered in time; reports where each silent rank is
    │   ├── CallCancelled     the future was cancelled
    │   └── SupervisionError  the callee is gone or never started: dead process, stopped mesh, failed constructor
    │       ├── ProcessDied   a worker process ended; carries signal or exit code and its last stderr
    │       │   └── BootstrapFailed  its bootstrap raised; an ActorError, too
    │       └── ItemLost      the ranks that had this item of a `map` died: the item may be the cause
    ├── WireError             a message was not delivered
    │   ├── PickleError       an argument or result cannot be pickled or unpickled; names it
    │   │   └── MessageLost   its bytes were in memory of the sender, which has ended; a SupervisionError, too
    │   ├── MessageTooLarge   over the limit of `Settings.max_message_bytes`; a SupervisionError, too
    │   ├── QueueFull         an actor sends to itself, and its queue has no room
    │   └── RefusedMessage    bytes that no peer of this run and version sent; counted, never raised to a user
    ├── LaunchError           a host agent or a fork server did not start; carries its stderr
    ├── GroupError            a process group was not created; names the rank that did not join
    └── TransferError         bulk data was not moved; names the owner of the memory, and the transfer backend
        ├── BufferDropped     the owner has dropped the buffer, or its actor has ended: get a new handle
        ├── OwnerGone         the process that owned the buffer has ended, and its memory with it
        ├── TransferTimeout   not done within its time limit
        └── ChecksumMismatch  the received bytes differ from the source: it was written to during the transfer

Foreign errors are converted to one of these at the seam where they enter, chained to their cause.

docs/errors.md explains each class. A class with a `page` adds a note with the command that shows its section.
"""

from __future__ import annotations

import concurrent.futures
import pickle
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from meshbook.runtime import monarch_texts
from meshbook.runtime.traces import SourceLine, render_in_ipython


def format_help(page: str) -> str:
    """Return `help: meshbook explain grouperror`; the empty string for no page."""
    return f"help: meshbook explain {page}" if page else ""


class MeshbookError(Exception):
    """The root of every error that meshbook itself raises.

    `page` is the section of docs/errors.md that helps with it; empty if the message says all. Tracebacks show the
    command for it as a note (PEP 678), below the message: `str()` does not contain it, so that texts may be joined and
    compared.
    """

    page: ClassVar[str] = ""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.page:
            self.add_note(format_help(self.page))


class CallError(MeshbookError):
    """A failed call. After a `call` of a mesh, this is the error of one rank; its attributes hold the rest.

    `results` is a ValueMesh of the ranks that had answered, None if none had; `failures` the errors by rank of the
    called mesh, this one included. Neither is pickled with the error. `called_at` is the line that made the call; the
    text names it if the traceback does not show it, because another thread or task waited.
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
        """Return the arguments that recreate the error."""
        return self.args

    def _render_traceback_(self) -> list[str]:
        # IPython calls this by name.
        return render_in_ipython(self)


class ActorError(CallError):
    """An endpoint raised an exception."""

    def __init__(self, message: str, exception: BaseException | bytes | None = None) -> None:
        super().__init__(message)
        self._exception = exception  # maybe pickled: unpickled on the thread that reads `exception`

    @property
    def exception(self) -> BaseException | None:
        """The original exception; None if it could not be pickled, or its class does not exist in this process."""
        if isinstance(self._exception, bytes):
            try:
                self._exception = pickle.loads(self._exception)
            except Exception:
                self._exception = None
        return self._exception  # type: ignore[return-value]

    def _parts(self) -> tuple[Any, ...]:
        return self.args[0], self._exception


class ItemError(ActorError):
    """The function of a `map` raised for one item. The other items continue.

    `item` is its position, `rank` and `host` are where it ran. `type_name`, `text` and `trace` are the exception as
    text, since `exception` is None if it could not be pickled.
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
        text: str = "",
        trace: str = "",
    ) -> None:
        super().__init__(message, exception)
        self.item = item
        self.rank = rank
        self.host = host
        self.type_name = type_name
        self.text = text
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        named = ("called_at", "item", "rank", "host", "type_name", "text", "trace")
        return type(self), self._parts(), {name: getattr(self, name) for name in named}


class DeadlockError(CallError):
    """A reply that can never come: the callee waits, perhaps through other actors, for the caller."""

    page = "deadlockerror"


class CallTimeout(CallError, TimeoutError):
    """The time limit of a call has passed; the text reports where each rank is that has not answered."""

    page = "calltimeout"


class CallCancelled(CallError, concurrent.futures.CancelledError):
    """The future was cancelled, and with it the endpoint's work for it."""


class SupervisionError(CallError, RuntimeError):
    """The callee cannot answer: its actor, process or mesh is dead, was stopped, or died during the call."""

    page = "supervisionerror"


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How a process ended: `returncode` as `subprocess` gives it (negative: a signal), and its last stderr.

    Without a return code its end was not observed, and the first line of `hint` gives the reason for its absence.
    """

    node: str
    pid: int  # 0: it never started, as far as is known
    returncode: int | None
    stderr: tuple[str, ...] = ()
    hint: str = ""
    stopped: str = ""  # why it was requested to exit, if it was
    incarnation: int = -1  # the incarnation that ended, of a process that was respawned; -1: the present one
    host: str = ""  # the name of its host, if that is not the controller's
    ended_by: str = ""  # the command that had it killed, in the user's words: `%mesh restart`
    raised: str = ""  # the traceback of its bootstrap, if that raised

    @property
    def cause(self) -> str:
        """The cause as text: `Killed(sig=9)`, `Segmentation fault(sig=11)`, `exit code 3`, `ended by %mesh restart`."""
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
        """The name of the signal, such as `SIGKILL`; the empty string for a plain exit."""
        if self.returncode is None or self.returncode >= 0:
            return ""
        try:
            return signal.Signals(-self.returncode).name
        except ValueError:
            return f"signal {-self.returncode}"

    @property
    def process(self) -> str:
        """The process as text: `procs-04d1.3, pid 4711`, or `procs-04d1.3, pid 4711 on gpu2`."""
        process = f"{self.node}, pid {self.pid}" if self.pid else self.node
        return f"{process} on {self.host}" if self.host else process

    def of_guest(self, node: str) -> ExitReport:
        """Return the report for a worker that ended with its host agent, from the agent's report."""
        how = "" if self.returncode is None else f"its host agent ended: {self.cause} ({self.process})\n"
        return ExitReport(node, 0, None, self.stderr, f"{how}{self.hint}".rstrip(), self.stopped, host=self.host)

    def __str__(self) -> str:
        if self.stopped:
            return f"{monarch_texts.STOPPED_WITH_PROCS}: {self.stopped}"
        where = ", ".join(filter(None, (self.signal_name, self.process)))
        lines = [f"{monarch_texts.PROCESS_FAILED}: {self.cause} ({where})"]
        lines += self.hint.splitlines()[self.returncode is None :]
        if self.raised:
            lines += ["its bootstrap raised:", *(f"    {line}" for line in self.raised.splitlines())]
        elif self.stderr:
            lines.append("its last lines on stderr:")
            lines += [f"    {line}" for line in self.stderr]
        return "\n".join(lines)


class ProcessDied(SupervisionError):
    """A worker process ended while a call or a mesh still needed it; `report` has the details."""

    page = "processdied"

    def __init__(self, message: str, report: ExitReport) -> None:
        super().__init__(message)
        self.report = report

    def _parts(self) -> tuple[Any, ...]:
        return self.args[0], self.report


class ItemLost(SupervisionError):
    """An item of a `map` has no result: each rank that had it died, or no rank is left.

    `item` is its position, `ranks` are those that died with it, in that order.
    """

    page = "itemlost"

    def __init__(self, message: str, item: int = 0, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.item = item
        self.ranks = ranks

    def _parts(self) -> tuple[Any, ...]:
        return self.args[0], self.item, self.ranks


class BootstrapFailed(ActorError, ProcessDied):
    """The bootstrap of a worker raised, and the worker ended; `report` has its traceback."""

    page = "bootstrapfailed"

    def __init__(self, message: str, report: ExitReport) -> None:
        ProcessDied.__init__(self, message, report)
        self._exception = None

    def _parts(self) -> tuple[Any, ...]:
        return ProcessDied._parts(self)


class WireError(MeshbookError):
    """A message was not delivered."""


class PickleError(WireError):
    """An argument or a result cannot be pickled or unpickled; the text names it."""

    page = "pickleerror"


class MessageLost(PickleError, SupervisionError):
    """An argument or a result was in memory of its sender, which has ended: heal, and call again.

    It is a SupervisionError, too, so that code that handles dead processes catches it.
    """

    page = "messagelost"


class MessageTooLarge(WireError, SupervisionError):
    """A message is larger than `Settings.max_message_bytes`. No answer can come, so it is a SupervisionError, too."""

    page = "messagetoolarge"


class QueueFull(WireError):
    """The queue of an actor is full, and only the sending thread could empty it."""

    page = "queuefull"


class RefusedMessage(WireError):
    """Bytes that no peer of this run and version sent; a node counts them and drops them."""


class LaunchError(MeshbookError):
    """A host agent or a fork server did not start; the text carries its stderr and what to try."""

    page = "launcherror"


class GroupError(MeshbookError):
    """The process group of a mesh was not created: the text names the rank that did not join, and the reason."""

    page = "grouperror"


class TransferError(MeshbookError, RuntimeError):
    """Bulk data was not moved, or not all of it: the content of the target is undefined."""

    page = "transfererror"


class BufferDropped(TransferError):
    """The buffer is no longer available: `drop()` was called, or the actor that owned it has ended."""

    page = "bufferdropped"


class OwnerGone(TransferError):
    """The process that owned the buffer has ended, and its memory with it."""

    page = "ownergone"


class TransferTimeout(TransferError, TimeoutError):
    """A transfer was not done within its time limit."""

    page = "transfertimeout"


class ChecksumMismatch(TransferError):
    """The received bytes differ from the source: it was written to during the transfer."""

    page = "checksummismatch"
