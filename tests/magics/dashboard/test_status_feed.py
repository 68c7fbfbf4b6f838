"""What JupyterLab's status bar receives: the meshes after each change, once, and the dashboard on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.magics.dashboard.status_feed import MOST_PAGES, TARGET, StatusFeed


@dataclass
class FakeMesh:
    name: str
    ranks: int
    failed: set[int] = field(default_factory=set)
    stuck: set[int] = field(default_factory=set)
    dead: dict[int, str] = field(default_factory=dict)

    @property
    def extent(self) -> Any:
        return SimpleNamespace(nelements=self.ranks)


class FakeMeshes(list[FakeMesh]):
    """The meshes of a notebook, of which the last is the current one."""

    when_changed: Callable[[], object]

    def get(self) -> FakeMesh:
        return self[-1]


class FakeLoop:
    """A loop whose time passes by `run`."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []

    def add_callback(self, call: Callable[..., object], *arguments: Any) -> None:
        call(*arguments)

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        self._waiting.append(call)

    def run(self) -> int:
        """Make the calls that are due; returns how many."""
        due, self._waiting = self._waiting, []
        for call in due:
            call()
        return len(due)


class FakePage:
    """A page's comm, as the kernel has it."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    def send(self, message: Any) -> None:
        self.received.append(message)

    def on_close(self, callback: Callable[[Any], object]) -> None:
        self.close = lambda: callback({})


class FakeKernel:
    """A kernel with the feed installed."""

    def __init__(self) -> None:
        self.meshes, self.loop = FakeMeshes(), FakeLoop()
        targets: dict[str, Callable[..., object]] = {}
        self.hooks: dict[str, Callable[..., object]] = {}
        shell = SimpleNamespace(
            kernel=SimpleNamespace(comm_manager=SimpleNamespace(register_target=targets.__setitem__)),
            events=SimpleNamespace(register=self.hooks.__setitem__),
        )
        dashboards = SimpleNamespace(open=lambda name: SimpleNamespace(model_id=f"model of {name}"))
        self.mode = SimpleNamespace(line=None)
        notebook: Any = SimpleNamespace(shell=shell, meshes=self.meshes, dashboards=dashboards, mode=self.mode)
        StatusFeed(notebook, self.loop).install()
        self._open = targets[TARGET]

    def open_page(self, **data: bool) -> FakePage:
        page = FakePage()
        self._open(page, {"content": {"data": data}})
        self.loop.run()
        return page


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


def test_a_page_receives_the_meshes_when_it_opens_and_after_changes(kernel: FakeKernel) -> None:
    page = kernel.open_page()
    assert page.received.pop() == {"meshes": [], "model": "", "mode": False}
    kernel.meshes += [FakeMesh("judge", 1), FakeMesh("mesh", 8, failed={1, 2}, stuck={2}, dead={7: "killed"})]
    kernel.meshes.when_changed()
    kernel.loop.run()
    judge = {"name": "judge", "ranks": 1, "dead": 0, "failed": 0}
    current = {"name": "mesh", "ranks": 8, "dead": 1, "failed": 2}
    assert page.received == [{"meshes": [current, judge], "model": "", "mode": False}]
    assert kernel.open_page().received == page.received
    kernel.mode.line = ""
    kernel.hooks["post_run_cell"](None)
    kernel.loop.run()
    assert page.received[-1]["mode"]


def test_many_changes_are_one_message_and_the_end_of_a_cell_without_one_is_none(kernel: FakeKernel) -> None:
    page = kernel.open_page()
    mesh = FakeMesh("mesh", 64)
    kernel.meshes.append(mesh)
    for rank in range(64):
        mesh.dead[rank] = "killed"
        kernel.meshes.when_changed()
    assert kernel.loop.run() == 1
    kernel.hooks["post_run_cell"](None)
    assert kernel.loop.run() == 1
    assert [message["meshes"][0]["dead"] for message in page.received[1:]] == [64]


def test_without_pages_nothing_is_scheduled(kernel: FakeKernel) -> None:
    page = kernel.open_page()
    page.close()
    kernel.meshes.append(FakeMesh("mesh", 2))
    kernel.meshes.when_changed()
    assert kernel.loop.run() == 0
    assert len(page.received) == 1


def test_pages_that_went_without_a_word_are_forgotten(kernel: FakeKernel) -> None:
    pages = [kernel.open_page() for _ in range(MOST_PAGES + 1)]
    kernel.meshes.append(FakeMesh("mesh", 2))
    kernel.meshes.when_changed()
    kernel.loop.run()
    assert [len(page.received) for page in pages] == [1, *[2] * MOST_PAGES]
    pages[0].close()


def test_a_page_that_shows_the_dashboard_receives_its_widget(kernel: FakeKernel) -> None:
    page, other = kernel.open_page(dashboard=True), kernel.open_page()
    kernel.meshes.append(FakeMesh("mesh", 2))
    kernel.meshes.when_changed()
    kernel.loop.run()
    assert [message["model"] for message in page.received] == ["", "model of mesh"]
    assert [message["model"] for message in other.received] == ["", ""]
