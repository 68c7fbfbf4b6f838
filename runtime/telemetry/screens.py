"""The terminals of a rank's executions, and when their rows are sent: at most ten times a second.

Pure: the time is passed in. Output of no execution, such as that of a script, passes unchanged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from meshbook.runtime.telemetry.output import StreamName
from meshbook.runtime.telemetry.terminal import Emission, Terminal

MOST_SCREENS = 128  # streams that have rows, or a line without an end
INTERVAL = 0.1  # seconds between two states of the rows
REST = 1.0  # seconds after which complete lines are final

Writer = tuple[str, StreamName]  # an execution and its stream


@dataclass(slots=True)
class _Screen:
    terminal: Terminal = field(default_factory=Terminal)
    held: str | None = None  # rows that are not sent yet
    sent_at: float = -INTERVAL
    fed_at: float = 0.0


class Screens:
    """The terminals by writer: text of executions goes in, emissions to send come out."""

    def __init__(self) -> None:
        self._screens: OrderedDict[Writer, _Screen] = OrderedDict()  # in the order of the last write

    def end(self, origin: str) -> list[tuple[Writer, Emission]]:
        """Settle the rows of an execution that has ended. Its threads may continue to write."""
        mine = [writer for writer in self._screens if writer[0] == origin]
        return list(filter(_tells, [(writer, self._settle(writer)) for writer in mine]))

    def feed(self, origin: str, stream: StreamName, text: str, now: float) -> Emission | None:
        """Return what to send of this at once; None if it can wait."""
        writer = origin, stream
        if not origin:
            return Emission(text)
        screen = self._screens.get(writer)
        if screen is None:
            screen = self._screens[writer] = _Screen()
        screen.fed_at = now
        self._screens.move_to_end(writer)
        emission = screen.terminal.feed(text)
        if screen.terminal.is_blank:
            del self._screens[writer]
        return self._hold(screen, emission, now)

    def due(self, now: float) -> Iterator[tuple[Writer, Emission]]:
        """Yield what has waited long enough."""
        for writer, screen in list(self._screens.items()):
            if screen.held is not None and now - screen.sent_at >= INTERVAL:
                yield writer, self._release(screen, now)
            elif screen.terminal.is_live and now - screen.fed_at >= REST and screen.terminal.is_at_rest:
                yield writer, self._settle(writer)
        while len(self._screens) > MOST_SCREENS:
            writer = next(iter(self._screens))
            yield writer, self._settle(writer)
            self._screens.pop(writer, None)

    @property
    def has_any(self) -> bool:
        """Whether an execution has rows, or a line without an end."""
        return bool(self._screens)

    @property
    def holds_any(self) -> bool:
        """Whether rows wait to be sent."""
        return any(screen.held is not None for screen in self._screens.values())

    @property
    def is_settled(self) -> bool:
        """Whether `due` has nothing to send, now or later, until something is written."""
        return not any(each.held is not None or each.terminal.is_at_rest for each in self._screens.values())

    def held(self, now: float) -> Iterator[tuple[Writer, Emission]]:
        """Yield everything that waits."""
        for writer, screen in self._screens.items():
            if screen.held is not None:
                yield writer, self._release(screen, now)

    def _hold(self, screen: _Screen, emission: Emission, now: float) -> Emission | None:
        is_passing = not (emission.text or screen.terminal.is_complete)
        if emission.live is None or not is_passing or now - screen.sent_at >= INTERVAL:
            if emission.live is not None:
                screen.held, screen.sent_at = None, now
            return emission
        screen.held = emission.live
        return None

    def _release(self, screen: _Screen, now: float) -> Emission:
        emission = Emission("", screen.held)
        screen.held, screen.sent_at = None, now
        return emission

    def _settle(self, writer: Writer) -> Emission:
        screen = self._screens[writer]
        screen.held = None
        emission = screen.terminal.settle()
        if screen.terminal.is_blank:
            del self._screens[writer]
        return emission


def _tells(told: tuple[Writer, Emission]) -> bool:
    return bool(told[1].text) or told[1].live is not None
