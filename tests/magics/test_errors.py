"""`magics.errors`: IPython shows a user error in one line."""

from __future__ import annotations

import re

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from meshbook.magics.errors import MeshError, SelectionError, UsageError, UserError


@pytest.mark.parametrize("kind", [MeshError, SelectionError, UsageError])
def test_ipython_prints_one_line(kind: type[Exception], capsys: pytest.CaptureFixture[str]) -> None:
    assert issubclass(kind, UserError)
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.user_ns["mistake"] = kind("no rank 9")
    result = shell.run_cell("raise mistake")
    assert type(result.error_in_exec) is kind
    said = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert said == f"{kind.__name__}: no rank 9\n"
