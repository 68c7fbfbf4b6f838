"""Deadlock detection: finds actors that wait for each other in a cycle, each in a message that it cannot leave.

An actor that has waited for a while sends a probe along its own call. If that call waits too, or is queued behind a
message that waits, the probe adds that wait to its path and follows the next call. A probe that returns to an
unchanged wait has found a cycle. One cycle is only a suspicion, as a reply may be on its way on another path. A cycle
whose waits were all seen in cycles before is a deadlock. (Edge chasing, after Chandy, Misra and Haas, 1983.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from meshbook.runtime.actor.context import name_of
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import DeadlockError
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.execution import Execution
from meshbook.runtime.transport.io_loop import CallLater


class WaitStep(NamedTuple):
    """One wait, and the call that it waits for."""

    node: str
    actor: str
    endpoint: str  # the waiting endpoint
    serial: int  # number of the wait in its process
    wanted: str  # the called endpoint
    call: int  # the number of that call, made by this node
    is_alone: bool  # whether the actor begins no other message meanwhile; False for an overlapping call


Send: TypeAlias = Callable[[Target, list[WaitStep]], None]  # sends a probe to the node of the target
FOR_ROOM = -1  # instead of a call number: the wait is for room in the actor's queue
PERIOD = 0.25  # seconds between two checks of the waits; a deadlock is reported after two or three


class DeadlockDetector:
    """Checks the waits of one node. `executions` returns its actors with their executions; `send` sends a probe."""

    def __init__(
        self,
        node: str,
        executions: Callable[[], Iterable[tuple[str, Execution]]],
        send: Send,
        call_later: CallLater,
    ) -> None:
        self._node = node
        self._executions = executions
        self._send = send
        self._call_later = call_later
        self._is_awake = False
        self._seen: dict[str, int] = {}  # by actor, the serial of its wait at the last check
        # The (origin, wait) pairs of probes forwarded since then. Forwarding once avoids following every path.
        self._forwarded: set[tuple[str, int, int]] = set()
        self._checks = 0

    def wake(self) -> None:
        """Schedule a check. Cheap, since every wait calls this."""
        if not self._is_awake:
            self._is_awake = True
            self._call_later(PERIOD, self.look)

    def look(self) -> None:
        """Send probes for the waits that have lasted since the last check."""
        self._is_awake = False  # first, so that a wait that begins now schedules another check
        self._forwarded.clear()
        self._checks += 1
        waits = {key: wait for key, execution in self._executions() if (wait := execution.waiting()) is not None}
        for key, execution in self._executions():
            if key in waits and waits[key][0] == self._seen.get(key):
                self._send_on([], key, execution, waits[key])
        self._seen = {key: serial for key, (serial, _) in waits.items()}
        if waits:
            self.wake()

    def follow(self, path: list[WaitStep], key: str, execution: Execution) -> None:
        """Forward a probe for a call that depends on this execution, if the execution waits."""
        if (wait := execution.waiting()) is None:
            return
        serial, first = wait[0], path[0]
        forwarded = first.node, first.serial, serial
        if any((step.node, step.serial) == (self._node, serial) for step in path):
            self._close(path, execution, wait)
        elif forwarded not in self._forwarded:
            self._forwarded.add(forwarded)
            self.wake()  # also if only overlapping calls wait: the next check clears `_forwarded`
            self._send_on(path, key, execution, wait)

    def _send_on(self, path: list[WaitStep], key: str, execution: Execution, wait: tuple[int, Future[Any]]) -> None:
        serial, future = wait
        for target, wanted, call in future.owing():
            step = WaitStep(self._node, key, execution.endpoint, serial, wanted, call, execution.is_alone)
            self._send(target, [*path, step])

    def _close(self, ring: list[WaitStep], execution: Execution, wait: tuple[int, Future[Any]]) -> None:
        """Handle a probe that closed a cycle. One member, always the same, raises, which releases the others."""
        first = ring[0]
        if (first.node, first.serial) != (self._node, wait[0]):
            return  # the sender of the probe waits for the cycle but is not part of it
        if (first.node, first.actor) != min((step.node, step.actor) for step in ring if step.is_alone):
            return
        suspected = execution.suspected
        if all(suspected.get(step, self._checks) < self._checks for step in ring):
            wait[1].fail(DeadlockError(format_cycle(ring)))
        for step in ring:
            suspected.setdefault(step, self._checks)


def format_cycle(ring: list[WaitStep]) -> str:
    """Return the error text of a cycle, with a line for each waiting actor."""
    lines = []
    for step, following in zip(ring, [*ring[1:], ring[0]], strict=True):
        whom = f"{name_of(following.actor)}.{step.wanted}()"
        if step.call == FOR_ROOM:
            whom = f"room in the queue of {name_of(following.actor)} to send {step.wanted}()"
        lines.append(f"    {name_of(step.actor)}.{step.endpoint}() on {step.node} waits for {whom}")
    remedies = ["Do not wait inside one of these endpoints, or make it a @concurrent_endpoint."]
    if any(step.call == FOR_ROOM for step in ring):
        remedies.append("Send less at once, or raise MESHBOOK_QUEUE_MESSAGES or MESHBOOK_QUEUE_BYTES.")
    return "\n".join(
        [
            "deadlock: these actors wait for each other, and each handles one message at a time",
            *lines,
            *remedies,
        ]
    )
