"""Sections of docs/errors.md as text, and the names by which they are found."""

from __future__ import annotations

import argparse

import pytest

from meshbook.runtime.error_page import format_list, section_name, sections


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("grouperror", "grouperror"),
        ("GroupError", "grouperror"),
        ("Group", "grouperror"),
        ("meshbook.runtime.errors.GroupError", "grouperror"),
        ("RemoteExc", "remoteexception"),
        ("lost model", "lost-model-in-a-restart"),
        ("TimeoutError", "timeouterror-timed-out-after-60-s"),
        ("torch.OutOfMemoryError", "torchoutofmemoryerror-memoryerror-sigkill"),
    ],
)
def test_a_section_is_found_by_what_users_type(text: str, name: str) -> None:
    assert section_name(text) == name


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("groperror", "did you mean grouperror"),
        ("rdma", "rdmareadtransferwarning or rdmawritetransferwarning"),
        ("%%%zzz", "without a name"),
    ],
)
def test_an_unknown_name_gives_close_ones(text: str, hint: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=hint):
        section_name(text)


def test_a_section_as_text() -> None:
    text = sections()["processdied"].format(70)
    assert text.startswith("ProcessDied\n\nA worker process ended")
    assert "\n- SIGKILL, with a line about memory: Out of memory\n  (docs/howto/memory.md);\n- SIGKILL" in text
    assert max(map(len, text.splitlines())) <= 70


@pytest.mark.parametrize("name", sections())
def test_no_section_has_what_only_a_page_shows(name: str) -> None:
    section = sections()[name]
    assert "](" not in section.markdown
    assert not any(line.startswith(("|", "```", "<")) for line in section.markdown.splitlines())
    assert section.summary


def test_the_list_has_two_columns() -> None:
    lines = format_list(80).splitlines()
    assert "grouperror                 `init_process_group` or a heal could not create the" in lines
    after = lines[lines.index("timeouterror-timed-out-after-60-s") + 1]
    assert after == f"{'':27}A cell reached its `--timeout` (or `%mesh config"
