"""Workspaces without hosts: which folders and files a sync concerns, and how they are sent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.runtime.mesh import workspaces
from meshbook.runtime.mesh.workspaces import batches_of, folders_of, read_digests


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"a.py": "A = 1", "deep/b.py": "B = 1", "deep/empty": "", ".git/config": "x", "__pycache__/a.pyc": "x"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "there"),
    [
        (lambda folder: folder, None),
        (lambda folder: str(folder), None),
        (lambda folder: [folder], None),
        (lambda folder: {folder: "~/code"}, "~/code"),
        (lambda folder: SimpleNamespace(dirs={str(folder): "/code"}), "/code"),
    ],
    ids=["path", "text", "list", "dict", "dirs"],
)
def test_the_folders_of_a_workspace(folder: Path, given: Any, there: str | None) -> None:
    assert folders_of(given(folder)) == {folder: there or str(folder)}


def test_folders_that_cannot_be_copied(folder: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        folders_of(folder / "nowhere")
    with pytest.raises(ValueError, match="must be absolute or begin with ~, not 'code'"):
        folders_of({folder: "code"})


def test_the_files_of_a_folder_are_known_by_their_content(folder: Path) -> None:
    found = read_digests(folder)
    assert sorted(found) == ["a.py", "deep/b.py", "deep/empty"]
    (folder / "a.py").write_text("A = 2")
    (folder / "deep" / "b.py").touch()
    changed = read_digests(folder)
    assert [name for name in found if found[name] != changed[name]] == ["a.py"]
    assert read_digests(folder / "nowhere") == {}


def test_files_are_sent_in_batches_of_limited_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "BATCH_BYTES", 5)
    (folder / "a.py").chmod(0o750)
    batches = list(batches_of(folder, ["a.py", "deep/empty", "deep/b.py"]))
    assert [[file.name for file in batch] for batch in batches] == [["a.py", "deep/empty"], ["deep/b.py"]]
    assert (batches[0][0].mode, batches[0][0].content) == (0o750, b"A = 1")
