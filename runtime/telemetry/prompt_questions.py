"""Questions of ranks to the user at the notebook, and the controller's actor that receives them.

A question carries its execution (`origin`), as output does. The notebook in which that cell runs answers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.ports import Port

QUESTIONS = "questions"  # name of the actor that a controller hosts for questions
Kind = Literal["input", "password", "command", "stop"]


class PromptQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A rank's request for a line, a password or a debugger command, or for permission to stop in a debugger.

    `number` counts the questions of a rank. `place` is the debugger's position (`cell 12:7`).
    """

    origin: str
    mesh: str
    rank: int
    number: int
    kind: Kind
    prompt: str = ""
    place: str = ""


class PromptAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A line; the end of all input; or the reason for a refusal."""

    kind: Literal["text", "eof", "refused"]
    text: str = ""


EOF = PromptAnswer("eof")
Reply = Callable[[PromptAnswer], None]


class PromptAnswerer(Protocol):
    """Answers the questions of one execution. Called on the receiving thread: it may only store the question."""

    def take(self, question: PromptQuestion, reply: Reply) -> None: ...
    def withdraw(self, rank: int, number: int) -> None: ...


class QuestionRouter(Actor):
    """Routes each question to the answerer of its execution; hosted inline, so that earlier output is already here."""

    def __init__(self) -> None:
        self._answerers: dict[str, PromptAnswerer] = {}

    def open(self, origin: str, answerer: PromptAnswerer) -> None:
        """Route the questions of this execution to `answerer` from now on."""
        self._answerers[origin] = answerer

    def close(self, origin: str) -> None:
        """Remove the answerer of this execution; later questions are refused."""
        self._answerers.pop(origin, None)

    @endpoint(explicit_response_port=True)
    def ask(self, port: Port[PromptAnswer], question: PromptQuestion) -> None:
        """Answer a question, at once or later."""
        here = context()

        def reply(answer: PromptAnswer) -> None:
            here.run(port.send, answer)  # on any thread

        answerer = self._answerers.get(question.origin)
        if answerer is None:
            reply(PromptAnswer("refused", "no running cell can prompt for it"))
        else:
            answerer.take(question, reply)

    @endpoint
    def withdraw(self, origin: str, rank: int, number: int) -> None:
        """Withdraw a question whose rank no longer waits for the answer."""
        answerer = self._answerers.get(origin)
        if answerer is not None:
            answerer.withdraw(rank, number)
