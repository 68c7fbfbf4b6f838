"""Questions of ranks to whoever sits at the notebook, and the desk of the controller where they come in.

A question carries the execution that asks (`origin`), as output does: it is answered where that cell runs, or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.ports import Port

QUESTIONS = "questions"  # the actor that a controller hosts for this
Kind = Literal["input", "password", "command", "stop"]


class PromptQuestion(msgspec.Struct, frozen=True, array_like=True):
    """What a rank wants to know: a line, a password, a debugger's command; or whether it may stop for a debugger.

    `number` counts the questions of a rank. `place` is where the debugger stands (`cell 12:7`).
    """

    origin: str
    mesh: str
    rank: int
    number: int
    kind: Kind
    prompt: str = ""
    place: str = ""


class PromptAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A line; the end of all input; or why nobody answers."""

    kind: Literal["text", "eof", "refused"]
    text: str = ""


EOF = PromptAnswer("eof")
Reply = Callable[[PromptAnswer], None]


class PromptAnswerer(Protocol):
    """Who answers the questions of one execution. Called on the receiving thread: it may only note what came."""

    def take(self, question: PromptQuestion, reply: Reply) -> None: ...
    def withdraw(self, rank: int, number: int) -> None: ...


class QuestionRouter(Actor):
    """Hands each question to who answers for its execution; hosted inline, so what was printed before it is here."""

    def __init__(self) -> None:
        self._answerers: dict[str, PromptAnswerer] = {}

    def open(self, origin: str, answerer: PromptAnswerer) -> None:
        """From now on `answerer` has the questions of this execution."""
        self._answerers[origin] = answerer

    def close(self, origin: str) -> None:
        """The execution is over; who asks on its behalf is refused."""
        self._answerers.pop(origin, None)

    @endpoint(explicit_response_port=True)
    def ask(self, port: Port[PromptAnswer], question: PromptQuestion) -> None:
        """Answer a question, at once or later."""
        here = context()

        def reply(answer: PromptAnswer) -> None:
            here.run(port.send, answer)  # from whatever thread has it

        answerer = self._answerers.get(question.origin)
        if answerer is None:
            reply(PromptAnswer("refused", "no cell runs that could ask for it"))
        else:
            answerer.take(question, reply)

    @endpoint
    def withdraw(self, origin: str, rank: int, number: int) -> None:
        """A rank does not wait for this answer any more."""
        answerer = self._answerers.get(origin)
        if answerer is not None:
            answerer.withdraw(rank, number)
