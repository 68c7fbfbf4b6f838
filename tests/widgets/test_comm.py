"""The comm of a dashboard, where a stock kernel asks it about messages before their turn."""

from __future__ import annotations

from typing import Any

import pytest

from meshbook.widgets.comm import DashboardComm


class Kernel:
    """What ipykernel does with messages of a front end: it asks where they go, and has them handled in their turn."""

    def __init__(self) -> None:
        self.channel = DashboardComm(target_name="jupyter.widget", primary=False)
        self.heard: list[Any] = []
        self.channel.on_msg(lambda message: self.heard.append(message["content"]["data"]["content"]))

    def receive(self, *said: str) -> None:
        for each in said:
            assert self.channel._reply_subshell_for(_data(each), "main") == "main"

    def handle(self, *said: str) -> None:
        for each in said:
            self.channel.handle_msg({"header": {}, "content": {"data": _data(each)}})


def _data(said: str) -> dict[str, Any]:
    return {"method": "custom", "content": said}


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def test_a_message_before_its_turn_arrives_once(kernel: Kernel) -> None:
    kernel.receive("a", "b", "b")
    kernel.handle("a", "b")
    kernel.receive("c")
    kernel.handle("b", "c")
    assert kernel.heard == ["a", "b", "b", "c"]


def test_a_message_without_a_question_arrives_in_its_turn(kernel: Kernel) -> None:
    kernel.handle("a", "b")
    assert kernel.heard == ["a", "b"]


def test_a_message_that_never_has_its_turn_makes_no_other_arrive_twice(kernel: Kernel) -> None:
    kernel.receive("lost", "b", "c")
    kernel.handle("b", "c")
    kernel.receive("d")
    kernel.handle("d")
    assert kernel.heard == ["lost", "b", "c", "d"]
