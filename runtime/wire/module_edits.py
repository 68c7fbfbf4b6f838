"""Modules that the user edits while processes run: ranks use the version that the program uses.

    program: a module was edited and reloaded -> its messages name the module and the digest of its file
    rank: has another version -> reloads the module in place, as IPython's autoreload does

A program that has not reloaded a module uses its old version, and so do its ranks. Modules of installed packages are
not watched.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from meshbook.runtime.threads import may_block
from meshbook.runtime.traces import is_ours
from meshbook.runtime.wire.functions import has_program

# Names of modules, each with the digest of its file, and when the program has reloaded it (in seconds since 1970; 0:
# it has imported it once).
Edits = tuple[tuple[str, str, float], ...]
_INSTALLED = tuple(
    {f"{os.path.realpath(sysconfig.get_path(name))}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_PACKAGES = ("/site-packages/", "/dist-packages/")


@dataclass
class _Version:
    """The version of a module that this process uses, since the time `at`."""

    file: str
    digest: str
    stamp: tuple[int, int]  # of the file: when it was modified (ns), and its size
    spec: Any  # a reload sets another one
    codes: tuple[CodeType, ...]  # of its functions: autoreload may replace these alone
    at: float


class _State:
    """The versions of the user's modules in this process, and the edits that it has found."""

    def __init__(self) -> None:
        self.versions: dict[str, _Version] = {}
        self.seen: set[str] = set()  # names of modules, the others included
        self.count = 0  # of modules, at the last look at new ones
        self.edits: Edits = ()
        self.may_have_edits = True
        self.reloading: set[str] = set()  # modules whose reload has begun since the last look at them
        self.began = time.time()
        self.warned: set[tuple[str, str]] = set()
        self.lock = threading.RLock()  # one thread reloads; the module's own code may receive messages


_state = _State()


def expect_edits() -> None:
    """Look at the files of modules before the next message: a cell begins, and autoreload may have reloaded some."""
    _state.may_have_edits = True


def note_modules() -> None:
    """Note the versions of modules that were imported since the last call."""
    if len(sys.modules) == _state.count:
        return
    _state.count = len(sys.modules)
    edited: list[tuple[str, str, float]] = []
    for name, module in sys.modules.copy().items():  # in one step: other threads import
        if name in _state.seen:
            continue
        _state.seen.add(name)
        if (version := _version_of(module)) is not None:
            _state.versions[name] = version
            if version.stamp[0] / 1e9 > _state.began:  # a rank may have imported it before that
                edited.append((name, version.digest, 0.0))
    if has_program():
        _state.edits = (*_state.edits, *edited)
        if _state.versions and _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)


def find_edits() -> Edits:
    """Return the modules that were edited while the program ran, and that it has reloaded."""
    if _state.may_have_edits or _state.reloading:
        _look()
    return _state.edits


def _look() -> None:
    names: Collection[str] = _state.reloading
    if _state.may_have_edits:
        _state.may_have_edits = False
        note_modules()
        names = _state.versions if has_program() else ()
    for name in list(names):
        _look_at(name)


def _look_at(name: str) -> None:
    old, module = _state.versions[name], sys.modules.get(name)
    if module is None or (_stamp_of(old.file) == old.stamp and module.__spec__ is old.spec):
        return
    if (new := _version_of(module)) is None:
        return
    if new.spec is old.spec and new.codes == old.codes:
        return  # the program keeps the old version
    _state.versions[name] = new
    _state.reloading.discard(name)
    # At the end: ranks reload modules in the order in which the program did.
    others = (each for each in _state.edits if each[0] != name)
    _state.edits = (*others, (name, new.digest, new.at))


def follow(edits: Edits) -> None:
    """Reload those of these modules of which this rank has another version; not on the I/O thread."""
    if has_program() or not may_block():
        return
    for name, digest, at in edits:
        if name in sys.modules and not _is_followed(name, digest, at):
            with _state.lock:
                if not _is_followed(name, digest, at):  # by another thread meanwhile
                    _follow(name, sys.modules[name], digest)
                    if (version := _state.versions.get(name)) is not None:
                        version.at = max(version.at, at)  # clocks of hosts differ


def _is_followed(name: str, digest: str, at: float) -> bool:
    version = _state.versions.get(name)
    return version is not None and version.digest == digest and version.at >= at


def _follow(name: str, module: ModuleType, digest: str) -> None:
    here = _version_of(module)
    if here is None or here.digest != digest:
        if (name, digest) not in _state.warned:
            _state.warned.add((name, digest))
            warnings.warn(
                f"{name} was edited, and its file on this host is not that of the program: this rank keeps the version "
                "that it has imported; copy the file with sync_workspace",
                stacklevel=2,
            )
        return
    try:
        from IPython.extensions.autoreload import superreload  # weight: only after an edit

        superreload(module, old_objects={})
    except Exception as error:
        warnings.warn(
            f"{name} was edited, and this rank keeps its old version, since the new one raises "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )
    _state.versions[name] = _version_of(module) or here


def _version_of(module: ModuleType) -> _Version | None:
    """Return the version of a module of the user, read from its file; None for other modules."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py") or module.__name__ == "__main__":
        return None
    if is_ours(file) or file.startswith(_INSTALLED) or any(part in file for part in _PACKAGES):
        return None
    try:
        stamp = _stamp_of(file)
        with open(file, "rb") as source:
            digest = hashlib.file_digest(source, "blake2b").hexdigest()[:16]
    except OSError:
        return None
    return None if stamp is None else _Version(file, digest, stamp, module.__spec__, _codes_of(module), time.time())


def _stamp_of(file: str) -> tuple[int, int] | None:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _codes_of(module: ModuleType) -> tuple[CodeType, ...]:
    found = []
    for value in list(vars(module).values()):
        members = vars(value).values() if isinstance(value, type) and value.__module__ == module.__name__ else [value]
        found += [each.__code__ for each in members if isinstance(each, FunctionType)]
    return tuple(found)


class _ReloadFinder(MetaPathFinder):
    """Finds no module, and notes which ones are reloaded: only a reload passes the present module as `target`."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if target is not None and fullname in _state.versions:
            # Only begun: a message of another thread in between must not end the look at this module.
            _state.reloading.add(fullname)


_finder = _ReloadFinder()


class Followed:
    """A value with the edits that its receiver follows before it unpickles the value."""

    def __init__(self, edits: Edits, value: Any) -> None:
        self._edits = edits
        self._value = value

    def __reduce__(self) -> Any:
        return _second, (_Follow(self._edits), self._value)


class _Follow:
    def __init__(self, edits: Edits) -> None:
        self._edits = edits

    def __reduce__(self) -> Any:
        return follow, (self._edits,)


def _second(_: None, value: Any) -> Any:
    return value
