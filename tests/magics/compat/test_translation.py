"""Option lines of other tools' magics, as tables: how they are translated to those of `%%mesh`."""

from __future__ import annotations

import pytest

from meshbook.magics.compat.translation import (
    PxDefaults,
    Rewriting,
    read_init,
    read_switch,
    translate_px,
    translate_pxconfig,
    translate_rank,
)
from meshbook.magics.errors import UsageError


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("", "all"),
        ("--block", "all"),
        ("--noblock", "all -a"),
        ("-a -o ar", "all -a -o ar"),
        ("--targets 0", "0"),
        ("-t -1", "-1"),
        ("--targets 0:2", "0:2"),
        ("--targets ::2 --noblock", "::2 -a"),
        ("-t [0,2]", "0,2"),
        ("-t '[0, 2]'", "0,2"),
        ("--targets=1,3 -e", "1,3 -g rank"),
        ("-r", "all -g order"),
        ("--group-outputs=type", "all -g auto"),
        ("--group-outputs engine", "all -g rank"),
        ("--local", "all --local"),
        ("--stream --progress-after 2 --signal-on-interrupt SIGINT --verbose", "all"),
    ],
)
def test_px(line: str, ours: str) -> None:
    assert translate_px(line) == ours


def test_pxconfig_sets_defaults_of_px() -> None:
    defaults = translate_pxconfig("--noblock --targets 0:2", PxDefaults())
    assert translate_px("", defaults) == "0:2 -a"
    assert translate_px("--block -t all", defaults) == "all"
    assert translate_pxconfig("--block", defaults) == PxDefaults("0:2", True)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("-t rc.ids", "'rc.ids' is not a valid target"),
        ("-t []", "'[]' is not a valid target"),
        ("--group-outputs=colour", "invalid choice"),
        ("--nobloc", "unknown option '--nobloc'. Did you mean '--noblock'?"),
        ("-a -b", "not allowed with argument"),
    ],
)
def test_px_with_invalid_options(line: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        translate_px(line)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("line", "ours"),
    [("[0]", "0"), ("[0,1]", "0,1"), ("[0, 2]", "0,2"), ("[1:3]", "1:3"), ("[0-2]", "0:3"), (" [-1] ", "-1")],
)
def test_rank(line: str, ours: str) -> None:
    assert translate_rank(line) == ours


@pytest.mark.parametrize("line", ["", "0", "[]", "[x]", "[0] 1"])
def test_rank_without_ranks(line: str) -> None:
    with pytest.raises(UsageError, match=r"expected ranks in brackets"):
        translate_rank(line)


@pytest.mark.parametrize(
    ("source", "rewritten"),
    [
        ("%%px --noblock\nx\n", "await __mesh_run__('all -a', '#%%px --noblock\\nx\\n')\n"),
        ("\n%%rank[0]\nx", "await __mesh_run__('0', '#\\n#%%rank[0]\\nx')\n"),
        ("%%distributed\nx", "await __mesh_run__('all', '#%%distributed\\nx')\n"),
        ("%%px --bogus\nx", "__mesh_refuse__(\"%%px: unknown option '--bogus'. Did you mean '--out'? "),
        ("%%pxx\nx", "%%pxx\nx"),
        ("x\n%%px", "x\n%%px"),
    ],
)
def test_cells_become_calls_with_the_line_that_the_user_wrote(source: str, rewritten: str) -> None:
    assert "".join(Rewriting()(source.splitlines(keepends=True))).startswith(rewritten)


def test_within_another_cell_the_call_is_a_plain_one() -> None:
    assert Rewriting(lambda: True)(["%%px\n", "x\n"]) == ["__mesh_run_within__('all', '#%%px\\nx\\n')\n"]


def test_dist_lines() -> None:
    assert read_init("").processes == 2
    assert read_init('--num-processes 4 --gpu-ids "0,1,2,3" -a localhost').processes == 4
    assert [read_switch(line) for line in ("", "--enable", "-e", "-d")] == [None, True, True, False]
    with pytest.raises(UsageError):
        read_init("-n 0")
