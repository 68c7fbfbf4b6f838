"""`HostMesh.sync_workspace`: copies folders to hosts, and imports changed modules again in the workers there.

    folders here -> digests of both sides -> changed files, through the agent of each host -> reload in its workers

It goes through the agents, whatever launcher has started them, and sends only files that differ. A host removes a file
only if an earlier sync has written it, so other files in the same folder stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint

WORKSPACE = "workspace"  # the actor of every host agent
RECORD = ".meshbook-workspace.json"  # in a target folder: the files that syncs have written there
SKIPPED = frozenset({".git", ".hg", ".ipynb_checkpoints", ".venv", "__pycache__", "node_modules", RECORD})
BATCH_BYTES = 32 << 20  # of files in one message; a larger file has a message of its own

Folders = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str | os.PathLike[str], str]


class WorkspaceFile(msgspec.Struct, frozen=True):
    """One file: its path in the folder, and its content."""

    name: str
    mode: int
    modified: int  # ns
    content: bytes


class WorkspaceActor(Actor):
    """Reads and writes the folders of one host."""

    @endpoint
    def digests(self, folder: str) -> dict[str, str]:
        """Return the digest of each file in a folder, by its path in there; empty if the folder does not exist."""
        return read_digests(Path(folder).expanduser())

    @endpoint
    def write(self, folder: str, files: list[WorkspaceFile]) -> list[str]:
        """Write these files into a folder; return their absolute paths."""
        root = Path(folder).expanduser()
        for file in files:
            path = root / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}.part")
            partial.write_bytes(file.content)
            partial.chmod(file.mode)
            os.utime(partial, ns=(file.modified, file.modified))
            partial.replace(path)  # a process that reads it sees one version or the other
        _record(root, _recorded(root) | {file.name for file in files})
        return [str((root / file.name).absolute()) for file in files]

    @endpoint
    def remove_others(self, folder: str, names: list[str]) -> list[str]:
        """Remove the files that earlier syncs have written into a folder, but for these; return the removed paths."""
        root = Path(folder).expanduser()
        known = _recorded(root)
        gone = sorted(known - set(names))
        for name in gone:
            (root / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a folder with other files stays
                for parent in list(Path(name).parents)[:-1]:
                    (root / parent).rmdir()
        if gone:
            _record(root, known - set(gone))
        return [str((root / name).absolute()) for name in gone]


class ReloadActor(Actor):
    """Imports modules again in the worker that it runs in."""

    @endpoint
    def reload_modules(self, folders: list[str], changed: list[str]) -> list[str]:
        """Import again the modules in these folders whose files have changed; return their names.

        These are the `changed` ones, and those that were modified after this process began or last did this. The first
        error is raised after all others have been imported.
        """
        last = getattr(sys, _RELOADED, psutil.Process().create_time())
        setattr(sys, _RELOADED, time.time())
        roots = [Path(folder).expanduser().absolute() for folder in folders]
        importlib.invalidate_caches()
        names, errors = [], []
        for name, module in sys.modules.copy().items():  # in the order of their first import
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or name == "__main__" or not any(Path(file).is_relative_to(r) for r in roots):
                continue
            if file not in changed and not _is_newer(file, last):
                continue
            try:
                importlib.reload(module)
                names.append(name)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return names


_RELOADED = "_meshbook_reloaded"  # of `sys`: the time of the last reload, which all such actors of a process share


def _is_newer(file: str, last: float) -> bool:
    try:
        return Path(file).stat().st_mtime > last
    except OSError:  # removed
        return False


def folders_of(workspace: Any) -> dict[Path, str]:
    """Return the folder on the hosts for each folder here.

    `workspace` is a folder, a list of folders, a dict (folder here -> folder there), or an object with such `dirs`.
    Raises ValueError for a folder that does not exist, or a relative folder there.
    """
    given = getattr(workspace, "dirs", workspace)
    if isinstance(given, str | os.PathLike):
        given = [given]
    pairs = given.items() if isinstance(given, Mapping) else ((folder, Path(folder).absolute()) for folder in given)
    found = {Path(here).absolute(): os.fspath(there) for here, there in pairs}
    for here, there in found.items():
        if not here.is_dir():
            raise ValueError(f"sync_workspace: {here} is not a folder")
        if not (Path(there).is_absolute() or there.startswith("~")):
            raise ValueError(f"sync_workspace: the folder on the hosts must be absolute or begin with ~, not {there!r}")
    return found


def read_digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file in a folder, by its path in there."""
    found = {}
    for path in _files_in(folder):
        with open(path, "rb") as source:
            found[path.relative_to(folder).as_posix()] = hashlib.file_digest(source, "sha256").hexdigest()
    return found


def _files_in(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED]
        for name in files:
            path = Path(parent, name)
            if name not in SKIPPED and not name.endswith(".part") and path.is_file():
                yield path


def batches_of(folder: Path, names: Sequence[str]) -> Iterator[list[WorkspaceFile]]:
    """Yield these files of a folder in groups of limited size."""
    batch: list[WorkspaceFile] = []
    size = 0
    for name in names:
        status = (folder / name).stat()
        content = (folder / name).read_bytes()
        if batch and size + len(content) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(WorkspaceFile(name, status.st_mode & 0o777, status.st_mtime_ns, content))
        size += len(content)
    if batch:
        yield batch


def _recorded(root: Path) -> set[str]:
    try:
        return set(json.loads((root / RECORD).read_text()))
    except (OSError, ValueError):
        return set()


def _record(root: Path, names: set[str]) -> None:
    (root / RECORD).write_text(json.dumps(sorted(names)))
