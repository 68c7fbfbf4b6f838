"""Progress bars in tqdm's format, as lines of text; and the numbers in them as points of curves.

Pure. `meshbook.magics.output.progress_bars` merges the bars of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_COUNT = r"\d+(?:\.\d+)?[kMGTPEZY]?"
_TIMES = r"(?P<elapsed>[\d:]+)(?:<(?P<left>(?:\d+ days?, )?[\d:?]+))?"
_RATE = r", +(?P<rate>\?|\d+(?:\.\d+)?)(?P<unit>[^\s,\]]*)(?P<postfix>, [^\]]*)?"
_BAR = re.compile(
    rf"(?:(?P<title>.*?): )? *(?P<percent>\d+)%\|(?P<drawn>[^|]*)\| (?P<count>{_COUNT})/(?P<total>{_COUNT})"
    rf" \[{_TIMES}{_RATE}\]"
)
_COUNTER = re.compile(rf"(?:(?P<title>.*?): )?(?P<count>{_COUNT})(?P<things>[^\s\d]+) \[{_TIMES}{_RATE}\]")
_SCALES = {letter: 1000.0**power for power, letter in enumerate("kMGTPEZY", 1)}


@dataclass(frozen=True, slots=True)
class BarLine:
    """The fields of a bar's line. `total` and `drawn` are empty if the end is not known."""

    line: str
    title: str
    count: str
    total: str
    drawn: str
    elapsed: str
    left: str
    rate: str
    unit: str
    postfix: str
    things: str = ""  # the noun that a counter without an end counts

    @property
    def key(self) -> str:
        """The key by which bars of different ranks are merged: the title without its numbers."""
        return NUMBER.sub("#", self.title) + self.things

    @property
    def progress(self) -> float:
        """The fraction that is done; without an end, the amount."""
        done = value_of(self.count)
        return done / max(value_of(self.total), 1e-9) if self.total else done

    @property
    def speed(self) -> float:
        """Items per second."""
        value = 0.0 if self.rate == "?" else float(self.rate)
        per_second = not self.unit.startswith("s/")
        scale = _SCALES.get(self.unit[:1], 1.0) if per_second else 1.0
        return value * scale if per_second or not value else 1 / value

    @property
    def lag(self) -> tuple[float, int, float]:
        """The sort key that puts the slowest last: least progress, then longest elapsed time, then lowest speed."""
        seconds = 0
        for part in self.elapsed.split(":"):
            seconds = seconds * 60 + int(part or 0)
        return -self.progress, seconds, -self.speed


def parse_bar(line: str) -> BarLine | None:
    """Parse the bar in a line without colours; None for other text."""
    if not line.endswith("]"):  # most lines; cheaper than a regular expression
        return None
    found = _BAR.fullmatch(line) or _COUNTER.fullmatch(line)
    if found is None:
        return None
    parts = {name: text or "" for name, text in found.groupdict().items() if name != "percent"}
    return BarLine(**({"line": line, "total": "", "drawn": ""} | parts))


def value_of(text: str) -> float:
    """Return the number that a bar shows, such as `12` or `1.5k`."""
    if text and text[-1] in _SCALES:
        return float(text[:-1]) * _SCALES[text[-1]]
    return float(text or 0)


# -- points of curves -----------------------------------------------------------------------

LOOKED_AT = 8192  # characters at the end of a text that may have bars
MOST_NAMES = 256  # of metrics from bars in a process
MOST_BARS = 256  # that are remembered
_POSTFIX = re.compile(
    r"(?P<name>[A-Za-z_][\w/.@-]*) *= *(?P<value>[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf))%?", re.IGNORECASE
)
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_NOT_IN_NAMES = re.compile(r"[^\w .-]+|\d+")
_LEFT_OUT = {"v_num"}  # Lightning's version of a run


@dataclass(slots=True)
class _BarState:
    line: str = ""
    count: float = 0.0
    before: float = 0.0  # the counts of earlier bars with this title, such as those of earlier epochs


@dataclass(slots=True)
class BarPoints:
    """Logs the numbers in the postfixes of bars, such as `loss=0.31`, under the bar's title: `train/loss`.

    `log` gets the execution, the step and the values by name. The step is the bar's count; of a bar that begins anew it
    continues after the previous one. `is_logged` returns whether a name is logged by the program itself: its bar only
    repeats it.
    """

    log: Callable[[str, float, Mapping[str, float]], None]
    is_logged: Callable[[str], bool]
    _states: dict[tuple[str, str], _BarState] = field(default_factory=dict)  # by execution and title
    _names: set[str] = field(default_factory=set)

    def take(self, origin: str, text: str) -> None:
        """Look for bars in text that has overwritten itself."""
        if "=" not in text or "]" not in text:
            return
        for line in text[-LOOKED_AT:].splitlines():
            bar = parse_bar(_COLOURS.sub("", line).rstrip())
            if bar is not None and "=" in bar.postfix:
                self._take_bar(origin, bar)

    def _take_bar(self, origin: str, bar: BarLine) -> None:
        title = " ".join(_NOT_IN_NAMES.sub(" ", bar.title).split())
        state = self._states[origin, title] = self._states.pop((origin, title), _BarState())
        if len(self._states) > MOST_BARS:
            del self._states[next(iter(self._states))]
        if bar.line == state.line:  # the last state of a bar may come twice
            return
        count = value_of(bar.count)
        if count < state.count:
            state.before += state.count
        state.line, state.count = bar.line, count
        values = {}
        for name, value in numbers_of(bar.postfix):
            full = f"{title}/{name}" if title else name
            is_new = full not in self._names
            if self.is_logged(name) or self.is_logged(full) or (is_new and len(self._names) >= MOST_NAMES):
                continue
            self._names.add(full)
            values[full] = value
        if values:
            self.log(origin, state.before + count, values)


def numbers_of(postfix: str) -> Iterator[tuple[str, float]]:
    """Yield the names and numbers of a postfix such as `, loss=0.31, epoch=two`."""
    for part in postfix.split(","):
        found = _POSTFIX.fullmatch(part.strip())
        if found is not None and found["name"] not in _LEFT_OUT:
            yield found["name"], float(found["value"])
