"""The terminals of a rank's executions, and when their rows are sent: at most ten times a second.

Pure: the time is passed in. Output of no execution, such as that of a script, passes unchanged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from meshbook.runtime.telemetry.output import StreamName
from meshbook.runtime.telemetry.terminal import Emission, Terminal

MOST_TERMINALS = 128  # streams that have rows, or a line without an end
INTERVAL = 0.1  # seconds between two states of the rows
REST = 1.0  # seconds after which complete lines are final

Writer = tuple[str, StreamName]  # an execution and its stream


@dataclass(slots=True)
class _TerminalState:
    terminal: Terminal = field(default_factory=Terminal)
    held: str | None = None  # rows that are not sent yet
    sent_at: float = -INTERVAL
    fed_at: float = 0.0


class Terminals:
    """The terminals by writer: text of executions goes in, emissions to send come out."""

    def __init__(self) -> None:
        self._states: OrderedDict[Writer, _TerminalState] = OrderedDict()  # in the order of the last write

    def end(self, origin: str) -> list[tuple[Writer, Emission]]:
        """Settle the rows of an execution that has ended. Its threads may continue to write."""
        mine = [writer for writer in self._states if writer[0] == origin]
        emissions = [(writer, self._settle(writer)) for writer in mine]
        return [(writer, each) for writer, each in emissions if each.text or each.live is not None]

    def feed(self, origin: str, stream: StreamName, text: str, now: float) -> Emission | None:
        """Return what to send of this at once; None if it can wait."""
        writer = origin, stream
        if not origin:
            return Emission(text)
        state = self._states.get(writer)
        if state is None:
            state = self._states[writer] = _TerminalState()
        state.fed_at = now
        self._states.move_to_end(writer)
        emission = state.terminal.feed(text)
        if state.terminal.is_blank:
            del self._states[writer]
        return self._hold(state, emission, now)

    def due(self, now: float) -> Iterator[tuple[Writer, Emission]]:
        """Yield what has waited long enough."""
        for writer, state in list(self._states.items()):
            if state.held is not None and now - state.sent_at >= INTERVAL:
                yield writer, self._release(state, now)
            elif state.terminal.is_live and now - state.fed_at >= REST and state.terminal.is_at_rest:
                yield writer, self._settle(writer)
        while len(self._states) > MOST_TERMINALS:
            writer = next(iter(self._states))
            yield writer, self._settle(writer)
            self._states.pop(writer, None)

    @property
    def has_any(self) -> bool:
        """Whether an execution has rows, or a line without an end."""
        return bool(self._states)

    @property
    def holds_any(self) -> bool:
        """Whether rows wait to be sent."""
        return any(state.held is not None for state in self._states.values())

    @property
    def is_settled(self) -> bool:
        """Whether `due` has nothing to send, now or later, until something is written."""
        return not any(each.held is not None or each.terminal.is_at_rest for each in self._states.values())

    def held(self, now: float) -> Iterator[tuple[Writer, Emission]]:
        """Yield everything that waits."""
        for writer, state in self._states.items():
            if state.held is not None:
                yield writer, self._release(state, now)

    def _hold(self, state: _TerminalState, emission: Emission, now: float) -> Emission | None:
        is_passing = not (emission.text or state.terminal.is_complete)
        if emission.live is None or not is_passing or now - state.sent_at >= INTERVAL:
            if emission.live is not None:
                state.held, state.sent_at = None, now
            return emission
        state.held = emission.live
        return None

    def _release(self, state: _TerminalState, now: float) -> Emission:
        emission = Emission("", state.held)
        state.held, state.sent_at = None, now
        return emission

    def _settle(self, writer: Writer) -> Emission:
        state = self._states[writer]
        state.held = None
        emission = state.terminal.settle()
        if state.terminal.is_blank:
            del self._states[writer]
        return emission
