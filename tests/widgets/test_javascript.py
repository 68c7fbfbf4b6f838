"""The dashboard's JavaScript without a page: runs the tests in `tests/widgets/static` in node."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from meshbook.widgets import assets

TESTS = Path(__file__).parent / "static"
STATIC = Path(assets.__file__).parent / "static"


@pytest.mark.process
def test_the_tests_in_node_pass(node: str) -> None:
    tests = sorted(map(str, TESTS.glob("*.test.mjs")))
    finished = subprocess.run([node, "--test", *tests], capture_output=True, text=True, timeout=100)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_an_editor_checks_the_types_of_each_file() -> None:
    files = [*STATIC.glob("*.js"), *TESTS.glob("*.mjs")]
    assert [path.name for path in files if not path.read_text("utf-8").startswith("// @ts-check\n")] == []
