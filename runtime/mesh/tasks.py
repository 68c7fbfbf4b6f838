"""Items of a map on a rank: the requests, which items have begun, and the outcomes.

Each argument and value is pickled on its own, so a pickling error affects only its own item.
"""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import MessageTooLarge, PickleError
from meshbook.runtime.node.node import Node
from meshbook.runtime.node.replies import pickle_exception
from meshbook.runtime.traces import format_error
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.functions import binding_to, lent

ROOM = 1 << 14  # bytes of a message for its content besides the values
Function: TypeAlias = Callable[..., Any]
Packed: TypeAlias = tuple[Buffer | pickle.PickleBuffer, ...]
Item: TypeAlias = tuple[int, int, Packed]  # its number, the number of its function, and its arguments


def pack(value: Any, what: pickling.What) -> Packed:
    """Pickle a value as part of a message, with its tensors detached. PickleError if it cannot be pickled."""
    stream, *buffers = pickling.dumps_detached(value, what)
    return (bytes(stream), *map(pickle.PickleBuffer, buffers))


def copied(packed: Packed) -> Packed:
    """Return a pickled value with buffers of its own: later changes of the value do not affect it."""
    return tuple(part if isinstance(part, bytes) else pickle.PickleBuffer(bytearray(part)) for part in packed)


def unpack(packed: Packed, what: pickling.What) -> Any:
    """Unpickle a value. PickleError if it cannot be unpickled here."""
    return pickling.loads([memoryview(part) for part in packed], what)


@dataclass(frozen=True)
class ItemBatch:
    """A request: items of the map `key`, with the functions that this rank does not have yet."""

    key: str
    number: int  # counts the requests to this rank
    functions: dict[int, Packed]
    items: tuple[Item, ...]


@dataclass(frozen=True)
class ItemFailure:
    """The error that a function raised, as text; `pickled` is the exception itself, if it can be pickled."""

    type_name: str
    said: str
    trace: str
    pickled: bytes | None = None


# The number of an item, when it began (seconds since 1970), its duration in seconds, and its value or error.
Outcome: TypeAlias = tuple[int, float, float, Packed | ItemFailure]


@dataclass(frozen=True)
class BatchReply:
    """The answer to a request: the items that were not withdrawn."""

    outcomes: tuple[Outcome, ...]
    host: str


@dataclass(frozen=True)
class UnstartedItems:
    """A rank's reply about an unanswered request: the items that it gives back, and the outcomes so far."""

    items: tuple[int, ...]
    outcomes: tuple[Outcome, ...]  # also in the answer, which may arrive first
    host: str


@dataclass
class _Map:
    """The state of one map in a process."""

    packed: dict[int, Packed] = field(default_factory=dict)  # its functions, as received
    # Its functions, each with the variables of the notebook that it has brought along.
    functions: dict[int, tuple[Function, dict[str, Any]]] = field(default_factory=dict)
    # By request and item: whether the item has begun (True) or was withdrawn (False). `setdefault` keeps the first.
    has_begun: dict[tuple[int, int], bool] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)  # of the running request
    running: int = 0
    answered: int = 0  # the last answered request
    # Guards the begin and the end of a request against `take_back`.
    ending: threading.Lock = field(default_factory=threading.Lock)


class TaskTable:
    """The maps that have items in this process. One thread runs items, another one withdraws them."""

    def __init__(self, most_bytes: int) -> None:
        self._maps: dict[str, _Map] = {}
        self._most_bytes = most_bytes - ROOM  # of the values in one answer

    def run(
        self,
        work: ItemBatch,
        names: dict[str, Any] | None = None,
        bind: Callable[[Function], Function] = lambda function: function,
        user_code: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> BatchReply:
        """Run the items that are not withdrawn.

        `names` become the globals of functions of the notebook. `bind` prepares a function, `user_code` wraps each
        call.
        """
        known = self._maps.setdefault(work.key, _Map())
        known.packed.update(work.functions)
        outcomes: list[Outcome] = []
        with known.ending:
            known.outcomes, known.running = outcomes, work.number
        room = self._most_bytes
        is_sent_later = len(work.items) > 1
        for index, function, arguments in work.items:
            if known.has_begun.setdefault((work.number, index), True):
                began, clock = time.time(), time.perf_counter()
                outcome = self._run_one(known, function, arguments, names, bind, user_code)
                outcome, room = _fit(outcome, room)
                if is_sent_later and not isinstance(outcome, ItemFailure):
                    outcome = copied(outcome)  # the next item may change an array that this one has returned
                outcomes.append((index, began, time.perf_counter() - clock, outcome))
        with known.ending:
            known.answered = work.number
            for index, _, _ in work.items:
                known.has_begun.pop((work.number, index), None)
        return BatchReply(tuple(outcomes), socket.gethostname())

    def _run_one(
        self,
        known: _Map,
        number: int,
        arguments: Packed,
        names: dict[str, Any] | None,
        bind: Callable[[Function], Function],
        user_code: Callable[[], AbstractContextManager[None]],
    ) -> Packed | ItemFailure:
        try:
            if number not in known.functions:
                with binding_to(names) as brought:
                    opened = unpack(known.packed[number], "the function of a map")
                known.functions[number] = bind(opened), brought
            function, brought = known.functions[number]
            with binding_to(names) as brought_by_arguments:
                args, kwargs = unpack(arguments, "an argument")
            with lent(names, brought | brought_by_arguments):
                with user_code():
                    value = function(*args, **kwargs)
                return pack(value, "the value")
        # An error of one item, including SystemExit and an interrupt, must not end the others.
        except BaseException as error:
            # PickleErrors are the runtime's own, and their text is complete.
            trace = "" if isinstance(error, PickleError) else format_error(error)
            try:
                said = str(error)
            except Exception:
                said = "<exception str() failed>"  # as in a traceback
            return ItemFailure(type(error).__name__, said, trace, pickle_exception(error))

    def take_back(self, key: str, number: int, items: Sequence[int]) -> UnstartedItems:
        """Withdraw those of these items that have not begun, and return them. The request may still be on its way."""
        known = self._maps.setdefault(key, _Map())
        host = socket.gethostname()
        with known.ending:
            if number <= known.answered:
                return UnstartedItems((), (), host)
            given = tuple(item for item in items if not known.has_begun.setdefault((number, item), False))
            return UnstartedItems(given, tuple(known.outcomes) if known.running == number else (), host)

    def forget(self, key: str) -> None:
        """Drop the state of a finished map."""
        self._maps.pop(key, None)


def _fit(outcome: Packed | ItemFailure, room: int) -> tuple[Packed | ItemFailure, int]:
    """Return the outcome, or an error if the message has no room for it, and the room that is left."""
    if isinstance(outcome, ItemFailure):
        return outcome, room - ROOM
    size = sum(memoryview(part).nbytes for part in outcome)
    if size <= room:
        return outcome, room - size
    said = (
        f"its value has {size:,} bytes, and the message has room for {max(room, 0):,}: use a smaller chunksize, return "
        f"less, or raise MESHBOOK_MAX_MESSAGE_BYTES where the run starts"
    )
    return ItemFailure(MessageTooLarge.__name__, said, ""), room


def table_of(node: Node) -> TaskTable:
    """Return the task table of a process. In a client it is created on first use."""
    if node.tasks is None:
        node.tasks = TaskTable(node.settings.max_message_bytes)
    table: TaskTable = node.tasks
    return table


class MapActor(Actor):
    """Runs items of one map on a rank, on its own thread."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._table = table_of(context().actor_instance.node)

    @endpoint
    def run(self, work: ItemBatch) -> BatchReply:
        """Run the items of a request."""
        return self._table.run(work)

    def __cleanup__(self, error: Exception | None) -> None:
        self._table.forget(self._key)
