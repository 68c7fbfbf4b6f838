"""docs/errors.md has a section for each public error, and the names that errors show are those of sections."""

from __future__ import annotations

import ast
import pickle
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from meshbook.magics.errors import MeshError
from meshbook.runtime.error_page import PAGE, sections
from meshbook.runtime.errors import (
    BootstrapFailed,
    ExitReport,
    GroupError,
    LaunchError,
    MeshbookError,
    SupervisionError,
    TransferTimeout,
    format_help,
)

ROOT = Path(__file__).parents[1]
PACKAGES = ("meshbook", "runtime", "magics", "kernel", "widgets")
ROOTS = {"MeshbookError", "UserError", "Warning"}


def classes() -> Iterator[tuple[str, set[str], str]]:
    """Yield the name, the names of the bases and the page of each class of the packages."""
    for path in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                pages = [
                    each.value.value
                    for each in node.body
                    if isinstance(each, ast.Assign)
                    and ast.unparse(each.targets[0]) == "page"
                    and isinstance(each.value, ast.Constant)
                ]
                yield node.name, {ast.unparse(base).rpartition(".")[2] for base in node.bases}, str(*pages)


@cache
def errors() -> dict[str, str]:
    """Return the public error classes, with their pages."""
    known = {name: (bases, page) for name, bases, page in classes() if not name.startswith("_")}
    found = set(ROOTS)
    while more := {name for name, (bases, _) in known.items() if bases & found} - found:
        found |= more
    return {name: known[name][1] for name in found if name in known}


def test_every_public_error_has_a_section() -> None:
    assert {"ProcessDied", "CheckpointError", "SelectionError", "RDMATcpFallbackWarning"} <= errors().keys()
    assert errors().keys() <= {section.heading for section in sections().values()}


def test_every_error_names_its_own_section() -> None:
    pages = {name: page for name, page in errors().items() if page}
    assert "GroupError" in pages
    assert {name: sections()[page].heading for name, page in pages.items()} == {name: name for name in pages}
    assert "meshfailure" in sections()


def test_the_page_is_that_of_the_documentation() -> None:
    assert PAGE.samefile(ROOT / "docs" / "errors.md")


def test_a_traceback_ends_with_the_command_and_the_message_does_not_contain_it() -> None:
    error = GroupError("rank 3 did not join")
    assert str(error) == "rank 3 did not join"
    assert traceback.format_exception_only(error)[-1] == "help: meshbook explain grouperror\n"


@pytest.mark.parametrize("kind", [MeshbookError, MeshError])
def test_an_error_whose_message_says_all_has_no_help(kind: type[MeshbookError]) -> None:
    assert len(traceback.format_exception_only(kind("no mesh is up"))) == 1


def test_errors_that_are_other_errors_as_well_have_their_help() -> None:
    error = TransferTimeout("not done after 3 s")
    assert isinstance(error, TimeoutError | RuntimeError)
    assert (str(error), error.__notes__) == ("not done after 3 s", [format_help("transfertimeout")])
    assert pickle.loads(pickle.dumps(error)).__notes__ == error.__notes__
    assert BootstrapFailed("it raised", ExitReport("procs.0", 7, 1)).__notes__ == [format_help("bootstrapfailed")]


def test_an_error_of_a_subclass_keeps_the_page() -> None:
    class Lost(SupervisionError):
        """An error of a user's program."""

    assert Lost("gone").__notes__ == [format_help("supervisionerror")]


def test_a_user_error_shows_the_page_of_its_cause() -> None:
    error = MeshError("--hosts lab: no answer")
    assert len(error._render_traceback_()) == 1
    error.__cause__ = LaunchError("no answer")
    assert error._render_traceback_()[1:] == [format_help("launcherror")]
