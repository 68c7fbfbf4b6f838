"""Publishing for one cell: the messages, whose they are, and what a terminal shows."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from jupyter_client.session import Session

from meshbook.magics.output.model import CellOutput
from meshbook.magics.output.publisher import (
    Display,
    LiveDisplay,
    StreamText,
    TerminalPublisher,
    publisher_for,
    send_any_text,
)

if TYPE_CHECKING:
    from tests.magics.conftest import FakeKernel

TEXT = {"text/plain": "figure"}


@pytest.mark.parametrize(
    ("publication", "kind", "content"),
    [
        (StreamText("stderr", "careful\n"), "stream", {"name": "stderr", "text": "careful\n"}),
        (
            Display(TEXT, {"width": 3}),
            "display_data",
            {"data": TEXT, "metadata": {"width": 3}, "transient": {}},
        ),
    ],
)
def test_a_publication_becomes_a_message(
    kernel: FakeKernel, shell: Any, publication: Any, kind: str, content: dict[str, Any]
) -> None:
    publisher_for(shell).publish([publication])
    assert kernel.sent == [(kind, content, "cell 1")]


def test_the_live_area_is_one_display(kernel: FakeKernel, shell: Any) -> None:
    publisher_for(shell).publish([LiveDisplay(TEXT, update=False), LiveDisplay(TEXT, update=True)])
    assert [kind for kind, _, _ in kernel.sent] == ["display_data", "update_display_data"]
    first, second = (content["transient"]["display_id"] for _, content, _ in kernel.sent)
    publisher_for(shell).publish([LiveDisplay(TEXT, update=False)])
    assert first == second != kernel.sent[-1][1]["transient"]["display_id"]


def test_what_comes_late_goes_to_the_cell_it_is_of(kernel: FakeKernel, shell: Any) -> None:
    publisher = publisher_for(shell)
    kernel.parent = "cell 2"
    publisher.publish([StreamText("stdout", "late\n")])
    assert kernel.texts == [("cell 1", "late\n")]


def test_what_is_captured_goes_where_ipython_keeps_it(shell: Any) -> None:
    shell.display_pub = CapturingDisplayPublisher()
    with redirect_stdout(StringIO()) as kept:
        publisher = publisher_for(shell)
    area = [LiveDisplay({"text/plain": text}, update=False, is_final=text == "end\n") for text in ("begun\n", "end\n")]
    publisher.publish([StreamText("stdout", "out\n"), Display(TEXT, {"width": 3}), *area])  # from any thread, later
    assert kept.getvalue() == "out\nend\n"
    assert [(each["data"], each["metadata"]) for each in shell.display_pub.outputs] == [(TEXT, {"width": 3})]


def test_streams_that_the_code_around_a_cell_has_redirected_get_its_text(
    kernel: FakeKernel, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Displays and the other stream go to the front end; a cell at the top does not know the redirected stream."""
    kernel.iopub_thread = object()  # type: ignore[attr-defined]
    monkeypatch.setattr(sys.stderr, "pub_thread", kernel.iopub_thread, raising=False)  # type: ignore[attr-defined]
    with redirect_stdout(StringIO()) as kept:
        within, top = publisher_for(shell, is_within=True), publisher_for(shell)
    area = LiveDisplay({"text/plain": "end\n"}, update=False, is_final=True)
    within.publish([StreamText("stdout", "out\n"), StreamText("stderr", "err\n"), Display(TEXT, {}), area])
    top.publish([StreamText("stdout", "top\n")])
    assert kept.getvalue() == "out\nend\n"
    assert kernel.texts == [("cell 1", "err\n"), ("cell 1", "top\n")]
    assert [content["data"] for kind, content, _ in kernel.sent if kind == "display_data"] == [TEXT]


def test_text_that_utf_8_cannot_encode_is_sent_with_replacements() -> None:
    session = Session(key=b"")
    sent = session.pack(content := {"text": ["caf\xe9", 1.5]})
    send_any_text(session)
    assert session.pack(content) == sent
    broken = {"a\ud800": ("b\udcff", {"c": "\ud83d\ude00", "d": [None, True]})}
    assert session.unpack(session.pack(broken)) == {"a\ufffd": ["b\ufffd", {"c": "\U0001f600", "d": [None, True]}]}


def test_a_terminal_gets_text(capsys: pytest.CaptureFixture[str]) -> None:
    publisher = publisher_for(SimpleNamespace())
    publisher.publish(
        [StreamText("stdout", "out\n"), StreamText("stderr", "err\n"), Display(TEXT, {}), Display({}, {})]
    )
    assert capsys.readouterr() == ("out\nfigure\n\n", "err\n")


def test_a_terminal_gets_the_live_area_once_as_it_stays(capsys: pytest.CaptureFixture[str]) -> None:
    output, publisher = CellOutput([0], started=0.0), TerminalPublisher()
    for second in range(2, 5):
        output.add(0, "stdout", f"line {second}\n")
        publisher.publish(output.due(float(second)))
    assert capsys.readouterr().out == ""
    output.finish(0)
    publisher.publish(output.close(5.0))
    assert capsys.readouterr().out == "1 rank · 1 done · 00:05\n[0] line 2\n[0] line 3\n[0] line 4\n\n"
