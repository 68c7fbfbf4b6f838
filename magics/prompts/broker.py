"""Answers the prompts of one cell's ranks: shows one prompt at a time, and sends each rank its answer.

Questions arrive on the receiving thread, as events of the cell's inbox. In the loop of the cell, `queue` and `debugger`
decide which prompt is next. A separate thread waits for the person, since the front end's prompt blocks it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import queue
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from meshbook.magics.cells.state import CellInbox
from meshbook.magics.output.collector import OutputCollector
from meshbook.magics.prompts.debugger_groups import DebuggerGroups, DebugPrompt, Select
from meshbook.magics.prompts.keyboard import Keyboard, NoKeyboard, PromptWithdrawn
from meshbook.magics.prompts.queue import Prompt, PromptQueue, Sharing
from meshbook.runtime.telemetry.prompt_questions import EOF, PromptAnswer, PromptQuestion, Reply

logger = logging.getLogger(__name__)
NO_CELL = PromptAnswer("refused", "no cell is running on this rank")
JOIN_WITHIN = 2.0  # seconds for the thread to end; on a pipe it may wait for a line without end


Hold = Callable[[bool], None]  # takes whether a person is in the debugger
Whereabouts = Callable[[Collection[int]], Awaitable[Mapping[int, str]]]  # of these ranks, as text


@dataclass(frozen=True, slots=True)
class PromptPolicy:
    """How prompts are answered.

    `sharing` is `--stdin`; `breaks` are the ranks whose `breakpoint()` stops (None: all); `select` reads selectors;
    `label` names the mesh in prompts, if there are several.
    """

    keyboard: Keyboard
    sharing: Sharing = "same"
    breaks: frozenset[int] | None = None
    select: Select = lambda text: ()
    label: str = ""


@dataclass(frozen=True, slots=True)
class OpenPrompt:
    """Ranks that wait for a person: in the debugger, at `place` if known, or at a prompt."""

    ranks: tuple[int, ...]
    is_debugger: bool
    place: str = ""


UNASKED = PromptPolicy(NoKeyboard("this cell has no prompt"))


class PromptBroker:
    """Answers the ranks of one cell until it is closed. In the loop of the cell, except `take` and `withdraw`.

    `silent` are the ranks that have not answered the cell, as the cell keeps them.
    """

    def __init__(
        self,
        mesh: str,
        ranks: Iterable[int],
        silent: Collection[int],
        policy: PromptPolicy,
        *,
        inbox: CellInbox,
        output: OutputCollector,
        whereabouts: Whereabouts,
        hold: Hold,
    ) -> None:
        self._mesh = mesh
        self._ranks = tuple(ranks)
        self._silent = silent
        self._policy = policy
        self._inbox = inbox
        self._output = output
        self._whereabouts = whereabouts
        self._hold = hold
        self._holds = False
        self._loop = asyncio.get_running_loop()
        self._prompts = PromptQueue(policy.sharing, policy.label)
        self._stops = DebuggerGroups(policy.select, policy.label)
        self._replies: dict[tuple[int, int], Reply] = {}
        self._shown: Prompt | DebugPrompt | None = None
        self._reader: _LineReader | None = None  # from the first question on
        self._listing: asyncio.Task[None] | None = None  # collects whereabouts
        self._is_closed = False
        self.pauses: tuple[OpenPrompt, ...] = ()  # the ranks that wait for a person now; replaced at each change

    # -- from the receiving thread -------------------------------------------------

    def take(self, question: PromptQuestion, reply: Reply) -> None:
        """Queue the question of a rank, or answer it at once."""
        if (answer := self._answer_at_once(question)) is not None:
            reply(answer)
        else:
            self._inbox.put(functools.partial(self._note, question, reply))

    def withdraw(self, rank: int, number: int) -> None:
        """Drop a question: the rank no longer waits for its answer."""
        self._inbox.put(functools.partial(self._withdraw, rank, number))

    def _answer_at_once(self, question: PromptQuestion) -> PromptAnswer | None:
        if question.mesh != self._mesh or self._is_closed:
            return NO_CELL
        breaks = self._policy.breaks
        if question.kind == "stop" and breaks is not None and question.rank not in breaks:
            return PromptAnswer("text", "pass")
        if self._policy.keyboard.refusal:
            return PromptAnswer("refused", self._policy.keyboard.refusal)
        if question.kind == "stop":
            return PromptAnswer("text", "stop")
        if self._policy.sharing == "error" and question.kind != "command":
            return PromptAnswer("refused", "the cell runs with --stdin error")
        return None

    @property
    def has_asked(self) -> bool:
        """Whether any rank has had a question. Then each answer of another rank matters at once."""
        return self._reader is not None

    # -- in the loop ---------------------------------------------------------------

    def _note(self, question: PromptQuestion, reply: Reply) -> None:
        if self._is_closed:
            return reply(NO_CELL)
        now = self._loop.time()
        if self._reader is None:
            self._reader = _LineReader(self._policy.keyboard, self._inbox, self._entered, self._fail)
        if question.kind == "command":
            self._stops.stopped(question, now, self._others - {question.rank})
        elif (known := self._prompts.asked(question, now)) is not None:
            return reply(known)
        self._replies[question.rank, question.number] = reply
        return self._update()

    def _withdraw(self, rank: int, number: int) -> None:
        self._replies.pop((rank, number), None)
        self._prompts.withdrawn(rank, number)
        self._stops.withdrawn(rank, number)
        self._update()

    def ended(self, rank: int) -> None:
        """Record that a rank has ended the cell, or died."""
        if self._reader is not None:  # in most cells no rank has a prompt
            self._prompts.withdrawn(rank)
            self._stops.ended(rank)
            self._update()

    def _update(self) -> None:
        if self._reader is not None and self._shown is not None and not (self._is_closed or self._is_open(self._shown)):
            self._reader.withdraw_prompt()
        if self._holds != self._stops.is_engaged:
            self._holds = self._stops.is_engaged
            self._hold(self._holds)
        stopped = [OpenPrompt(tuple(ranks), True, place) for place, ranks in self._stops.places()]
        prompted = tuple(sorted(self._prompts.ranks))
        self.pauses = (*stopped, *([OpenPrompt(prompted, False)] if prompted else []))

    def _is_open(self, prompt: Prompt | DebugPrompt) -> bool:
        return (self._prompts if isinstance(prompt, Prompt) else self._stops).is_open(prompt)  # type: ignore[arg-type]

    def interrupt(self) -> None:
        """End the prompt; the caller interrupts the ranks."""
        for rank, number in self._replies:  # a rank that ignores the interrupt is refused at the end of the cell
            self._prompts.withdrawn(rank, number)
            self._stops.withdrawn(rank, number)
        self._update()

    def close(self) -> None:
        """Refuse the open questions and end the thread."""
        self._refuse_all("the cell has ended")
        if self._listing is not None:
            self._listing.cancel()
        if self._reader is not None:
            self._reader.close()

    def _fail(self) -> None:
        self._refuse_all("the prompt of the notebook failed")

    def _refuse_all(self, why: str) -> None:
        self._is_closed = True
        left, self._replies = list(self._replies.values()), {}
        for reply in left:
            reply(PromptAnswer("refused", why))

    # -- one prompt after the other ------------------------------------------------

    @property
    def next_at(self) -> float:
        """When a prompt may be due; infinite if none is, or one is shown."""
        if self._reader is None or self._shown is not None or self._is_closed:
            return math.inf
        return min(self._prompts.next_at, self._stops.next_at)

    def act(self, now: float) -> None:
        """Show the prompt that is due. Input comes first, since a debugger always has a next prompt."""
        if self._reader is None or self._shown is not None or self._is_closed:
            return
        prompt = self._prompts.due(now, self._others) or self._stops.due(now)
        if prompt is None:
            return
        self._shown = prompt
        self._output.pause()
        if isinstance(prompt, DebugPrompt) and prompt.remark:
            self._output.print_beside_prompt(prompt.remark)
        self._reader.ask(prompt)

    @property
    def _others(self) -> set[int]:
        """The ranks that may still have a question."""
        return set(self._silent) - self._stops.ranks - self._prompts.ranks

    def _entered(self, prompt: Prompt | DebugPrompt, answer: PromptAnswer | None) -> None:
        """Handle the answer to a prompt; None if it was withdrawn."""
        if self._is_closed:
            return
        if answer is None:
            self._conclude([])
        elif isinstance(prompt, Prompt):
            self._conclude(self._replies_to(self._prompts.answered(prompt, answer), answer))
        else:
            self._run_line(prompt, "q" if answer == EOF else answer.text)

    def _run_line(self, prompt: DebugPrompt, line: str) -> None:
        commands = self._stops.entered(prompt, line, self._loop.time())
        if commands.text:
            self._output.print_beside_prompt(commands.text)
        if commands.wants_ranks:
            self._listing = asyncio.ensure_future(self._list_ranks(prompt))
        else:
            self._conclude(self._replies_to(commands.to, PromptAnswer("text", commands.command)))

    async def _list_ranks(self, prompt: DebugPrompt) -> None:
        try:
            running = await self._whereabouts(self._others)
        except Exception:
            logger.exception("failed to query the ranks of a cell")
            return self._fail()
        done = [rank for rank in self._ranks if rank not in self._silent]
        self._output.print_beside_prompt(self._stops.format_ranks(prompt, running, done))
        self._conclude([])
        return self._inbox.wake()

    def _conclude(self, replies: list[tuple[Reply, PromptAnswer]]) -> None:
        """End the prompt: first the output of the cell continues, then the ranks do."""
        assert self._reader is not None
        self._shown = None
        self._reader.clear_withdrawal()
        self._update()
        self._output.resume()
        for reply, answer in replies:
            reply(answer)

    def _replies_to(
        self, questions: Iterable[PromptQuestion], answer: PromptAnswer
    ) -> list[tuple[Reply, PromptAnswer]]:
        found = [self._replies.pop((each.rank, each.number), None) for each in questions]
        return [(reply, answer) for reply in found if reply is not None]


class _LineReader:
    """A thread that waits for a person, one prompt at a time. Each answer is an event of the inbox."""

    def __init__(
        self,
        keyboard: Keyboard,
        inbox: CellInbox,
        entered: Callable[[Prompt | DebugPrompt, PromptAnswer | None], None],
        fail: Callable[[], None],
    ) -> None:
        self._keyboard = keyboard
        self._inbox = inbox
        self._report = entered
        self._fail = fail
        self._prompts: queue.SimpleQueue[Prompt | DebugPrompt | None] = queue.SimpleQueue()
        self._withdrawal = PromptWithdrawn()
        self._thread = threading.Thread(target=self._run, name="meshbook prompts", daemon=True)
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self._thread.start()

    def ask(self, prompt: Prompt | DebugPrompt) -> None:
        """Show this prompt."""
        self._prompts.put(prompt)

    def withdraw_prompt(self) -> None:
        """Withdraw the prompt that is shown, or is about to be."""
        self._withdrawal.set()

    def clear_withdrawal(self) -> None:
        """Clear the withdrawal, so that it does not end the next prompt."""
        self._withdrawal.clear()

    def close(self) -> None:
        """End the thread, and the prompt that it may show."""
        self.withdraw_prompt()
        self._prompts.put(None)
        self._thread.join(JOIN_WITHIN)

    def _run(self) -> None:
        try:
            while (prompt := self._prompts.get()) is not None:
                self._inbox.put(functools.partial(self._report, prompt, self._ask(prompt)))
        except Exception:
            logger.exception("the prompt thread of a cell failed")
            self._inbox.put(self._fail)
            while self._prompts.get() is not None:
                pass
        self._withdrawal.close()

    def _ask(self, prompt: Prompt | DebugPrompt) -> PromptAnswer | None:
        is_password = isinstance(prompt, Prompt) and prompt.is_password
        try:
            line = self._keyboard.ask(prompt.text, self._withdrawal, is_password=is_password)
        except EOFError:
            return EOF
        return None if line is None else PromptAnswer("text", line)
