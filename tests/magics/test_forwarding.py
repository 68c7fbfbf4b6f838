"""Output of actors that an ordinary cell called: in that cell, labelled, bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from meshbook.magics.forwarding import CELL_CHARACTERS, REMEMBERED_CELLS, Forwarder
from meshbook.runtime.telemetry.output import DisplayChunk, OutputChunk, OutputStore

if TYPE_CHECKING:
    from tests.magics.conftest import FakeKernel

PATIENCE = 30.0


@pytest.fixture
def store() -> OutputStore:
    return OutputStore()


@pytest.fixture
def forwarder(store: OutputStore, shell: Any) -> Forwarder:
    """With one cell begun."""
    forwarder = Forwarder(SimpleNamespace(output=store))  # type: ignore[arg-type]
    forwarder.begin("local 1", shell)
    return forwarder


def say(store: OutputStore, text: str, rank: int = 0, *, origin: str = "local 1", mesh: str = "mesh-0a1b") -> None:
    store.add(OutputChunk(origin, mesh, rank, "stdout", text))


def begin_next(forwarder: Forwarder, kernel: FakeKernel, shell: Any, number: int) -> None:
    kernel.parent = f"cell {number}"
    forwarder.begin(f"local {number}", shell)


def test_lines_have_the_mesh_and_the_ranks(store: OutputStore, forwarder: Forwarder, kernel: FakeKernel) -> None:
    for rank, text in [(0, "same\n"), (2, "same\n"), (1, "other\nlin"), (1, "es\n")]:
        say(store, text, rank)
    say(store, "judged\n", mesh="the-judge-77")
    forwarder.flush()
    assert kernel.texts == [
        ("cell 1", "[mesh 0,2] same\n[mesh 1] other\n[mesh 1] lines\n"),
        ("cell 1", "[the-judge 0] judged\n"),
    ]


def test_both_streams_and_displays(store: OutputStore, forwarder: Forwarder, kernel: FakeKernel) -> None:
    store.add(OutputChunk("local 1", "mesh-0a1b", 0, "stderr", "careful\n"))
    store.add(DisplayChunk("local 1", "mesh-0a1b", 3, {"image/png": "iVBOR"}, {"width": 3}))
    forwarder.flush()
    (_, stream, _), (_, label, _), (_, image, _) = kernel.sent
    assert stream == {"name": "stderr", "text": "[mesh 0] careful\n"}
    assert label["data"] == {"text/plain": "[mesh 3]"}
    assert (image["data"], image["metadata"]) == ({"image/png": "iVBOR"}, {"width": 3})


def test_each_cell_gets_its_own(store: OutputStore, forwarder: Forwarder, kernel: FakeKernel, shell: Any) -> None:
    begin_next(forwarder, kernel, shell, 2)
    say(store, "late\n", origin="local 1")
    say(store, "mine\n", origin="local 2")
    forwarder.flush()
    assert kernel.texts == [("cell 1", "[mesh 0] late\n"), ("cell 2", "[mesh 0] mine\n")]


def test_what_no_cell_claims_goes_to_the_latest(
    store: OutputStore, forwarder: Forwarder, kernel: FakeKernel, shell: Any
) -> None:
    for number in range(2, REMEMBERED_CELLS + 2):
        begin_next(forwarder, kernel, shell, number)
    say(store, "forgotten\n", origin="local 1")
    say(store, "nobody's\n", origin="")
    forwarder.flush()
    assert kernel.texts == [(f"cell {REMEMBERED_CELLS + 1}", "[mesh 0] forgotten\n[mesh 0] nobody's\n")]


def test_before_the_first_cell_nothing_is_shown(store: OutputStore) -> None:
    forwarder = Forwarder(SimpleNamespace(output=store))  # type: ignore[arg-type]
    say(store, "early\n")
    forwarder.flush()
    assert store.recent("mesh-0a1b", 0) == "early\n"


def test_it_is_shown_without_being_asked(store: OutputStore, forwarder: Forwarder, kernel: FakeKernel) -> None:
    say(store, "soon\n")
    assert kernel.has_sent.wait(PATIENCE)
    assert kernel.texts == [("cell 1", "[mesh 0] soon\n")]


def test_a_flood_is_cut_with_an_announcement(store: OutputStore, forwarder: Forwarder, kernel: FakeKernel) -> None:
    line = "x" * 999 + "\n"
    for _ in range(2 * CELL_CHARACTERS // len(line)):
        say(store, line, 1)
    forwarder.flush()
    ((_, text),) = kernel.texts
    assert len(text) < 1.1 * CELL_CHARACTERS
    assert text.endswith("[mesh 1] … more is not shown (%mesh log 1)\n")
    say(store, line)
    forwarder.flush()
    assert len(kernel.sent) == 1
