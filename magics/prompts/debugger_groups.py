"""Ranks that are stopped in the debugger: which ranks the next command goes to, and when its prompt is shown.

    [ranks 0-3 cell 12:7] (Pdb) n            commands go to all ranks that are stopped at the same place
    [ranks 1-3 cell 12:8] (Pdb) @0 p loss    this command goes to other ranks
    [ranks 1-3 cell 12:8] (Pdb) @0           all further commands go to these ranks
    [rank 0 cell 12:11] (Pdb) c

After a command the next prompt waits for the ranks that ran it, at most two seconds: one of them may wait in a
collective for a rank that is stopped elsewhere.

Pure: it takes events and times. Ranks run the commands in `meshbook.runtime.cells.debugger`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from meshbook.magics.errors import NotInDebugger, UserError
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.telemetry.prompt_questions import PromptQuestion

GATHER = 0.3  # seconds after a first rank has stopped, for others that reach the same place
PATIENCE = 2.0  # seconds after a command, until the prompt moves to ranks that are stopped elsewhere
_LEAVING = frozenset({"c", "cont", "continue", "q", "quit", "exit"})  # commands after which a rank may not stop again

HELP = """\
Commands go to the ranks in the prompt: all ranks that are stopped at the same place.
  @SEL COMMAND    run a command on other ranks:  @0,3 n   @all c   @gpus=0 p x
  @SEL            send all further commands to these ranks
  ranks           list the ranks and where they are
  (empty line)    repeat the last command
  q               end the cell on these ranks; an interrupt ends it on all ranks
The commands are those of pdb; see `help COMMAND`:
  continue        n(ext) s(tep) r(eturn) c(ontinue) unt(il) j(ump)
  inspect         w(here) u(p) d(own) l(ist) ll a(rgs) p pp whatis display
  breakpoints     b(reak) tbreak cl(ear)
Any other line is run as Python, and so is the text after an exclamation mark.
"""

Select = Callable[[str], Collection[int]]


@dataclass(frozen=True, slots=True)
class DebugPrompt:
    """A prompt for a command to these ranks, and a remark to show before it."""

    ranks: tuple[int, ...]
    text: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Commands:
    """The meaning of a line: a command for the ranks of these questions, a text to show, or a list of all ranks."""

    to: tuple[PromptQuestion, ...] = ()
    command: str = ""
    text: str = ""
    wants_ranks: bool = False


class DebuggerGroups:
    """The stopped ranks of one cell. `select` reads a selector; `mesh` is named in prompts if there are several."""

    def __init__(self, select: Select, mesh: str = "") -> None:
        self._select = select
        self._of = f" of {mesh}" if mesh else ""
        self._stopped: dict[int, PromptQuestion] = {}
        self._focus: frozenset[int] = frozenset()  # chosen by a person; empty: all at the same place
        self._shown: tuple[int, ...] = ()  # the ranks of the last prompt
        self._awaited: set[int] = set()
        self._engaged: set[int] = set()  # in the debugger: stopped, or running a step
        self._until = -math.inf
        self._last_line = ""
        self._shown_places: dict[int, str] = {}  # the places of other ranks as last shown

    @property
    def ranks(self) -> set[int]:
        """The ranks that are stopped."""
        return set(self._stopped)

    def places(self) -> list[tuple[str, list[int]]]:
        """The places at which ranks are stopped, with their ranks."""
        return _by_place({rank: question.place for rank, question in self._stopped.items()})

    @property
    def is_engaged(self) -> bool:
        """Whether a person is in the debugger: a rank is stopped, or runs a step."""
        return bool(self._engaged)

    def stopped(self, question: PromptQuestion, now: float, others: Iterable[int]) -> None:
        """Record that a rank waits for a command; `others` are the ranks that may still stop."""
        if not self._stopped:
            if not self._awaited or now >= self._until:
                self._awaited = set(others)
            self._until = max(self._until, now + GATHER)
        self._stopped[question.rank] = question
        self._engaged.add(question.rank)
        self._awaited.discard(question.rank)

    def withdrawn(self, rank: int, number: int | None = None) -> None:
        """Record that a rank no longer waits for a command."""
        found = self._stopped.get(rank)
        if found is not None and number in (None, found.number):
            del self._stopped[rank]
            self._engaged.discard(rank)

    def ended(self, rank: int) -> None:
        """Record that a rank will not stop again."""
        self.withdrawn(rank)
        self._awaited.discard(rank)
        self._engaged.discard(rank)

    def due(self, now: float) -> DebugPrompt | None:
        """Return the prompt to show now, or None."""
        if not self._stopped or now < self.next_at:
            return None
        self._awaited.clear()
        ranks = self._group()
        places = {self._stopped[rank].place for rank in ranks}
        where = f" {places.pop()}" if len(places) == 1 else ""
        self._shown = ranks
        return DebugPrompt(ranks, f"[{name_ranks(ranks)}{self._of}{where}] (Pdb) ", self._remark(ranks))

    @property
    def next_at(self) -> float:
        """When a prompt is due; infinite if no rank is stopped."""
        if not self._stopped:
            return math.inf
        return self._until if self._awaited else -math.inf

    def is_open(self, prompt: DebugPrompt) -> bool:
        """Whether any of its ranks still waits."""
        return any(rank in self._stopped for rank in prompt.ranks)

    def entered(self, prompt: DebugPrompt, line: str, now: float) -> Commands:
        """Return the meaning of a line that a person has entered."""
        line = line.strip() or self._last_line
        self._last_line = line
        if line == "ranks":
            return Commands(wants_ranks=True)
        if line in ("help", "h", "?"):
            return Commands(text=HELP)
        if not line.startswith("@"):
            return self._send(prompt.ranks, line, now)
        selector, _, command = line[1:].partition(" ")
        try:
            chosen = self._choose(selector)
        except UserError as mistake:
            return Commands(text=f"{mistake}\n")
        if command.strip():
            return self._send(chosen, command.strip(), now)
        self._focus = frozenset(chosen)
        return Commands()

    def _choose(self, selector: str) -> tuple[int, ...]:
        """Return the stopped ranks among those that a selector selects."""
        chosen = sorted(self._select(selector))
        if stopped := tuple(rank for rank in chosen if rank in self._stopped):
            return stopped
        verb = "is" if len(chosen) == 1 else "are"
        raise NotInDebugger(f"{name_ranks(chosen)} {verb} not stopped; `ranks` lists the stopped ranks")

    def _send(self, ranks: Iterable[int], command: str, now: float) -> Commands:
        sent = tuple(self._stopped.pop(rank) for rank in ranks if rank in self._stopped)
        self._awaited = {each.rank for each in sent}
        is_leaving = command in _LEAVING
        self._until = now + (GATHER if is_leaving else PATIENCE)
        if is_leaving:
            self._engaged -= self._awaited
        # After a command to some of them, the prompt stays with the others.
        self._shown = tuple(rank for rank in self._shown if rank not in self._awaited) or self._shown
        return Commands(sent, command)

    def _group(self) -> tuple[int, ...]:
        if chosen := self._focus & self._stopped.keys():
            return tuple(sorted(chosen))
        self._focus = frozenset()
        lead = min(self._stopped.keys() & set(self._shown), default=min(self._stopped))
        place = self._stopped[lead].place
        return tuple(sorted(rank for rank, each in self._stopped.items() if each.place == place))

    def _remark(self, ranks: Collection[int]) -> str:
        """The places of the other stopped ranks, if they have changed."""
        others = {rank: each.place for rank, each in self._stopped.items() if rank not in ranks}
        news = bool(others.items() - self._shown_places.items())
        self._shown_places = others
        places = ", ".join(f"{name_ranks(ranks)} at {place}" for place, ranks in _by_place(others))
        return f"also stopped: {places}\n" if news else ""

    def format_ranks(self, prompt: DebugPrompt, running: Mapping[int, str], done: Collection[int]) -> str:
        """The text of `ranks`: the stopped ranks and their places, the other ranks, and the target of commands."""
        lines = []
        for place, ranks in _by_place({rank: each.place for rank, each in self._stopped.items()}):
            mark = "   <- commands go here" if set(ranks) & set(prompt.ranks) else ""
            lines.append(f"{name_ranks(ranks)} stopped at {place}{mark}")
        lines += [f"{name_ranks(ranks)} not stopped: {where}" for where, ranks in _by_place(running)]
        lines += [f"{name_ranks(done)} done"] if done else []
        return "".join(f"{line}\n" for line in lines)


def _by_place(places: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    ranks_at: dict[str, list[int]] = {}
    for rank in sorted(places):
        ranks_at.setdefault(places[rank], []).append(rank)
    return list(ranks_at.items())
